"""What lies beside a shard, such as its index: it is looked for once, and must stay as it was then, as the shard itself must."""

import os
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_storage import Call, FakeScheme, Storage
from tests.whole import block_numbers, ones, schema_of, whole
from tests.writers import litdata, mds, megatron
from zephon_async.errors import StorageError
from zephon_async.io import Dataset, Reader
from zephon_async.io import access as access_module
from zephon_async.io import remote as remote_module
from zephon_async.io.formats import litdata_chunk, mds_index, mds_samples
from zephon_async.io.formats import megatron as megatron_module

ROWS = 40
REMEMBERED = (
    litdata_chunk._PARSED,
    litdata_chunk._LAYOUT,
    mds_index._INDEXES,
    mds_samples.FOUND,
    mds_samples._HEADS,
    megatron_module._HEADS,
)


def two_numbers(folder: Path, names: str) -> None:
    """LitData of two columns of one type; of two other names the same."""
    body = litdata.chunk_of([struct.pack("<2I2q", 8, 8, n, -n) for n in range(ROWS)])
    (folder / "a.bin").write_bytes(body)
    (folder / "index.json").write_text(litdata.index_of({"a.bin": (ROWS, len(body))}, dict.fromkeys(names, "int")))


def samples(folder: Path, names: str) -> None:
    """The same as MDS."""
    columns = dict.fromkeys("xy", "int")
    entry = mds.shard(folder, "a", columns, [mds.sample(columns, {"x": n, "y": -n}) for n in range(ROWS)])
    mds.index(folder, [{**entry, "column_names": list(names)}])


def documents(folder: Path, names: str) -> None:
    """Megatron's; other documents of the same tokens."""
    lengths = [3, 1] if names == "xy" else [1, 3]
    tokens = [[4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3] for n in range(ROWS)]
    megatron.write(folder / "a.bin", [[part] for four in tokens for part in (four[: lengths[0]], four[lengths[0] :])])


Write = Callable[[Path, str], None]
FORMATS: dict[str, tuple[Write, str, str]] = {
    "litdata": (two_numbers, "a.bin", "index.json"),
    "mds": (samples, "a.mds", "index.json"),
    "megatron": (documents, "a.bin", "a.idx"),
}


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    scheme = FakeScheme()
    for module in (remote_module, access_module):
        monkeypatch.setattr(module, "scheme_of", lambda url: scheme)
    return scheme.buckets.setdefault("b", Storage())


@pytest.mark.parametrize("form", FORMATS)
def test_where_nothing_is_listed_it_is_asked_for_once(form: str, storage: Storage, tmp_path: Path) -> None:
    write, shard, index = FORMATS[form]
    write(tmp_path, "xy")
    storage.objects |= {f"x/{name}": (tmp_path / name).read_bytes() for name in (shard, index)}
    dataset = Dataset.from_path("d", f"fake://b/x/{shard}", format=form).with_sizes(unit_bytes=100, block_bytes=50)
    assert len(dataset.catalog().units) > 5
    assert whole(dataset).rows == whole(Dataset.from_path("d", tmp_path)).rows
    looks = Counter(call for call in storage.calls if call.what == "look")
    assert looks == {Call("look", f"x/{shard}"): 1, Call("look", f"x/{index}"): 1}


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_one_that_is_written_anew_under_a_run_is_never_taken(
    form: str, far: bool, forgotten: bool, storage: Storage, tmp_path: Path
) -> None:
    """Rows are those that were there when the run began, or an error."""
    write, shard, index = FORMATS[form]

    def written(names: str) -> None:
        write(tmp_path, names)
        os.utime(tmp_path / shard, ns=(7, 7))
        os.utime(tmp_path / index, ns=(7, ord(names[0])))
        storage.objects |= {f"x/{name}": (tmp_path / name).read_bytes() for name in (shard, index)}

    written("xy")
    dataset = Dataset.from_path("d", f"fake://b/x/{shard}" if far else tmp_path / shard, format=form)
    dataset = dataset.with_sizes(unit_bytes=100, block_bytes=50)
    expected = whole(dataset).rows
    reader = Reader([dataset], schema_of(dataset), ones)
    blocks = block_numbers(dataset.catalog())
    before, bytes_before = [reader.read(0, *block) for block in blocks[:3]], storage.objects[f"x/{shard}"]
    written("yx")
    assert storage.objects[f"x/{shard}"] == bytes_before, "only the index is another"
    if forgotten:
        for remembered in REMEMBERED:
            remembered._made.clear()
        reader.close()
    found = [row for block in before for row in block.columns.to_pylist()]
    try:
        for block in blocks[3:]:
            found += reader.read(0, *block).columns.to_pylist()
    except StorageError as error:
        assert f"shard '{index}'" in str(error)  # noqa: PT017
        assert "has changed since" in str(error)  # noqa: PT017
    else:
        assert len(found) == len(expected)
    assert found == expected[: len(found)]
    if form != "mds":  # which compares it with the head of the shard
        assert whole(Dataset.from_path("d", tmp_path / shard, format=form)).rows != expected, "a new run sees the new one"
