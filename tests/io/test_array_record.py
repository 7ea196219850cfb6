"""ArrayRecord: records as bytes, by their numbers. Collected where there is a library for it."""

from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from tests.system.fake_s3 import FakeS3
from tests.whole import ones, schema_of, whole
from zephon_async.errors import DatasetError, ShardError
from zephon_async.io import Dataset, Reader

library = import_module("array_record.python.array_record_module")
RECORDS = [f"record {n} ".encode() * (n % 90) for n in range(500)]


def write(path: Path, records: list[bytes], group: int = 7) -> None:
    writer = library.ArrayRecordWriter(str(path), f"group_size:{group}")
    for record in records:
        writer.write(record)
    writer.close()


@pytest.fixture(scope="module", autouse=True)
def threads(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Those of the library have begun."""
    write(tmp_path_factory.mktemp("begun") / "a.array_record", RECORDS[:1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a.array_record", RECORDS[:300])
    write(tmp_path / "b.arrayrecord", RECORDS[300:], 1)
    return tmp_path


def test_records_are_rows(folder: Path) -> None:
    dataset = Dataset.from_path("d", folder, block_bytes=4_000, unit_bytes=20_000)
    assert dataset.counts().tolist() == [300, 200]
    assert (dataset.catalog().units["length"] > dataset.catalog().units["block"]).any()
    assert schema_of(dataset) == pa.schema({"record": pa.large_binary()})
    found = whole(dataset)
    assert found.column("record") == RECORDS
    assert found.places == [(name, n) for name, rows in (("a.array_record", 300), ("b.arrayrecord", 200)) for n in range(rows)]


def test_row_blocks_in_any_order(folder: Path) -> None:
    dataset = Dataset.from_path("d", folder, block_bytes=4_000)
    reader, units = Reader([dataset], schema_of(dataset), ones), dataset.catalog().units
    edges = [*range(0, 300, int(units["block"][0])), 300]
    for number, (begin, stop) in reversed(list(enumerate(pairwise(edges)))):
        assert reader.read(0, 0, number).columns.column(0).to_pylist() == RECORDS[begin:stop]
    reader.close()


def test_a_shard_without_records(tmp_path: Path) -> None:
    write(tmp_path / "a.array_record", [])
    dataset = Dataset.from_path("d", tmp_path)
    assert (dataset.total(), whole(dataset).rows) == (0, [])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_shard_that_is_cut_short(share: float, folder: Path) -> None:
    path = folder / "a.array_record"
    good = path.read_bytes()
    path.write_bytes(good[: int(len(good) * share)])
    with pytest.raises(ShardError) as caught:
        whole(Dataset.from_path("d", folder))
    assert str(caught.value) == "dataset 'd', shard 'a.array_record': is no ArrayRecord file, or was cut short"


def test_flipped_bytes_give_an_error_or_records(folder: Path) -> None:
    path = folder / "a.array_record"
    good = path.read_bytes()
    for at in range(0, len(good), len(good) // 60):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        try:
            found = whole(Dataset.from_path("d", folder)).column("record")
        except ShardError as error:
            found, said = RECORDS, str(error)
        else:
            said = "dataset 'd', shard 'a.array_record': "
        assert found == RECORDS, at
        assert said.startswith("dataset 'd', shard 'a.array_record': ")


def test_a_shard_that_changes(folder: Path) -> None:
    dataset = Dataset.from_path("d", folder)
    reader = Reader([dataset], schema_of(dataset), ones)
    reader.read(0, 0, 0)
    write(folder / "a.array_record", RECORDS[:10])
    with pytest.raises(ShardError, match=r"^dataset 'd', shard 'a\.array_record': has changed since the catalog was made"):
        reader.read(0, 0, 0)
    reader.close()


def test_what_is_far_away(folder: Path) -> None:
    with FakeS3() as store:
        store.put("x/a.array_record", (folder / "a.array_record").read_bytes())
        dataset = Dataset.from_path("d", f"{store.root}x", storage_options=store.options)
        with pytest.raises(DatasetError) as caught:
            dataset.catalog()
    said = "ArrayRecord is read from files of this machine alone: copy it to a local disk"
    assert str(caught.value) == f"dataset 'd', shard 'a.array_record': {said}"
