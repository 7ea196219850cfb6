"""MDS: what the real writer wrote is read as its own library reads it; an index that disagrees with what is there is an error."""

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.system.fake_s3 import FakeS3
from tests.whole import LEAVE_OUT, ones, schema_of, whole
from tests.writers.mds import config, index, raw, sample, shard
from zephon_async import Pipeline, StaticMixtureWorkSource
from zephon_async.errors import ColumnError, DatasetError, ShardError
from zephon_async.io import Access, Dataset, Reader
from zephon_async.io import check as at_hand_check
from zephon_async.io.catalog import ANYWHERE, WHOLE
from zephon_async.io.formats.mds_samples import check

WRITTEN = Path(__file__).parent.parent / "written/mds"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())
MODES = {(1, 0): "1", (8, 0): "L", (8, 4): "LA", (8, 2): "RGB", (8, 6): "RGBA", (16, 0): "I;16"}
MENDED = "write the index anew (streaming's merge_index does), or copy the dataset again"
TEXTS = {"text": "str"}


def texts(*values: Any) -> list[bytes]:
    return [sample(TEXTS, {"text": value}) for value in values]


def written(folder: Path, columns: dict[str, str], samples: list[bytes], changes: Any = None) -> Dataset:
    """A dataset of one shard; changes: of what its index says."""
    index(folder, [{**shard(folder, "a", columns, samples), **(changes or {})}])
    return Dataset.from_path("d", folder)


def one(folder: Path, encoding: str, *values: bytes, schema: Any = None) -> Any:
    """What is read of a column `x` of an encoding: its values, and what is bad."""
    samples = [struct.pack("<I", len(value)) + value for value in values]
    written(folder, {"x": encoding}, samples)
    found = whole(Dataset.from_path("d", folder, schema=schema))
    return found.column("x"), [said.removeprefix("dataset 'd', shard 'a.mds', ") for said in found.bad]


def told(name: str, value: Any) -> Any:
    """A value as make.py tells it."""
    if isinstance(value, list):
        return [told(name, each) for each in value]
    if not isinstance(value, bytes):
        return json.loads(value) if name == "nested" else value
    if name == "raw":
        return value.decode("latin-1")
    if not name.startswith("pil"):
        return sha256(value).hexdigest()
    width, height, depth, colour = struct.unpack_from(">IIBB", value, 16)
    lines = np.frombuffer(zlib.decompress(value[41:-16]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    pixels = lines[:, 1:].tobytes() if depth < 16 else np.ascontiguousarray(lines[:, 1:]).view(">u2").astype("<u2").tobytes()
    return sha256(f"{MODES[depth, colour]} {(width, height)} ".encode() + pixels).hexdigest()


@pytest.mark.parametrize("name", EXPECTED)
def test_files_of_the_real_writer(name: str) -> None:
    dataset = Dataset.from_path("d", WRITTEN / name).with_sizes(block_bytes=1000)
    found = whole(dataset)
    assert found.bad == []
    assert [{key: told(key, value) for key, value in row.items()} for row in found.rows] == EXPECTED[name]
    assert dataset.ignored == ()
    for n in range(dataset.shard_count()):
        check(dataset.open(n))


@pytest.mark.parametrize("way", ["br", "bz2", "gz", "snappy", "zstd"])
def test_compressed_shards_of_the_real_writer(way: str, tmp_path: Path) -> None:
    dataset = Dataset.from_path("d", WRITTEN / "compressed" / way, block_bytes=200)
    assert [shard.name for shard in dataset.shards] == [f"shard.0000{n}.mds.{way}" for n in range(2)]
    assert dataset.catalog().units["entry"].tolist() == [WHOLE, WHOLE]
    assert whole(dataset).rows == [{"id": n, "text": "ab" * n} for n in range(40)]
    shutil.copytree(WRITTEN / "compressed" / way, tmp_path / "d")
    path = tmp_path / "d/index.json"
    good = path.read_text()
    entry = json.loads(good)["shards"][0]
    for stated in (entry["zip_data"]["hashes"]["sha256"], entry["raw_data"]["hashes"]["md5"]):
        path.write_text(good.replace(stated, stated[::-1]))
        with pytest.raises(ShardError) as caught:
            whole(Dataset.from_path("d", tmp_path / "d"))
        assert str(caught.value).startswith(f"dataset 'd', shard 'shard.00000.mds.{way}': 'shard.00000.mds")
        assert str(caught.value).endswith(f"{stated}, but its index.json says {stated[::-1]}; it is damaged: copy it again")
    for wrong in (1, -1):
        path.write_text(good.replace(f'"bytes": {entry["raw_data"]["bytes"]}', f'"bytes": {entry["raw_data"]["bytes"] + wrong}'))
        with pytest.raises(ShardError, match=rf"^dataset 'd', shard 'shard.00000.mds.{way}': "):
            whole(Dataset.from_path("d", tmp_path / "d"))


def test_pickles_are_refused_but_not_what_lies_beside_them() -> None:
    dataset = Dataset.from_path("d", WRITTEN / "pickled")
    assert whole(dataset, ["text"]).rows == [{"text": "a"}]
    for columns in (None, ["any"]):
        with pytest.raises(ShardError) as caught:
            schema_of(dataset, needed=columns)
        assert str(caught.value) == (
            "dataset 'd', shard 'shard.00000.mds': column 'any' is pickled, which is not read, as a pickle can run any code; "
            f"write it anew in another encoding, or {LEAVE_OUT}"
        )


def test_a_column_that_is_not_read_is_no_bad_record() -> None:
    """It is refused with quarantine too, and never left out."""
    dataset = Dataset.from_path("d", WRITTEN / "pickled")
    source = StaticMixtureWorkSource([dataset], {"d": 1}, unit="samples")
    with Pipeline(source).options(on_bad_record="quarantine").batch(1) as run, pytest.raises(ColumnError, match="'any' is pickled"):
        list(run)


def test_a_column_is_left_out_by_what_the_message_says() -> None:
    source = StaticMixtureWorkSource([Dataset.from_path("d", WRITTEN / "pickled")], {"d": 1}, unit="samples")
    for step in (Pipeline.map, Pipeline.map_batches):
        with step(Pipeline(source), lambda given: given, columns=["text"]).batch(1) as run:
            assert [batch.to_pylist("text") for batch in run] == [["a"]]


def test_one_bad_place_leaves_out_the_same_near_and_far(tmp_path: Path) -> None:
    rows = texts(*(f"{n:05}" * 50 for n in range(400)))
    dataset = written(tmp_path, TEXTS, rows)
    path = tmp_path / "a.mds"
    body = bytearray(path.read_bytes())
    struct.pack_into("<I", body, 4 + 4 * 37, 1 << 31)
    path.write_bytes(body)

    def left(dataset: Dataset) -> list[str]:
        source = StaticMixtureWorkSource([dataset.with_sizes(block_bytes=4_000)], {"d": 1}, unit="samples", shuffle=False)
        with Pipeline(source).options(on_bad_record="quarantine").batch(1) as run:
            return [text for batch in run for text in batch.to_pylist("text")]

    near = left(Dataset.from_path("d", tmp_path))
    assert 350 < len(near) < 400
    with FakeS3() as store:
        for name in ("a.mds", "index.json"):
            store.put(f"x/{name}", (tmp_path / name).read_bytes())
        assert left(Dataset.from_path("d", f"{store.root}x", storage_options=store.options)) == near
    assert dataset.format == "mds"


def test_lint_compares_stated_hashes(tmp_path: Path) -> None:
    written(tmp_path, TEXTS, texts("one", "two"))
    stated = json.loads((tmp_path / "index.json").read_text())
    stated["shards"][0]["raw_data"]["hashes"] = {"sha1": "0" * 40}
    (tmp_path / "index.json").write_text(json.dumps(stated))
    (found,) = at_hand_check(Dataset.from_path("d", tmp_path))
    assert (found.rows, [problem.row for problem in found.problems]) == (2, [""])
    assert "sha1" in found.problems[0].reason


def test_an_encoding_that_is_not_known(tmp_path: Path) -> None:
    for encoding in ("text", "ndarray:text", "ndarray:int8:0", "ndarray::2", "int:3"):
        with pytest.raises(ShardError) as caught:
            whole(written(tmp_path, {"x": encoding}, [bytes(4)]))
        assert str(caught.value) == f"dataset 'd', shard 'a.mds': column 'x' has the encoding {encoding!r}, which is not known"


# The index


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ('{"version": 2', "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ('{"version": 2}', "Object missing required field `shards`"),
        ('{"version": 1, "shards": []}', None),
        ('{"version": 3, "shards": [ENTRY]}', "it is of version 3, not 2"),
        ('{"version": 2, "shards": [ENTRY, ENTRY]}', "it names 'a.mds' twice"),
        ('{"version": 2, "shards": [{"raw_data": 1}]}', "Expected `object`, got `int` - at `$.shards[0].raw_data`"),
    ],
)
def test_a_broken_index(text: str, said: str | None, tmp_path: Path) -> None:
    entry = shard(tmp_path, "a", TEXTS, texts("x"))
    (tmp_path / "index.json").write_text(text.replace("ENTRY", json.dumps(entry)))
    with pytest.raises(DatasetError) as caught:
        Dataset.from_path("d", tmp_path)
    if said is None:
        assert str(caught.value) == f"dataset 'd': no index.json names 'a.mds', which is there; {MENDED}"
    else:
        assert str(caught.value) == f"dataset 'd': index.json: the index is broken: {said}; {MENDED}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": 3}, "its index.json says 3 samples, but it has 2; the shard or the index is of another version"),
        ({"samples": 1}, "its index.json says 1 samples, but it has 2; the shard or the index is of another version"),
        ({"samples": 0}, "its index.json says 0 samples, but it has 2; the shard or the index is of another version"),
        (
            {"raw_data": {"basename": "a.mds", "bytes": 9, "hashes": {}}},
            "has 195 bytes, but its index.json says 9; it was cut short, or the index is of another version of it",
        ),
        (
            {"column_names": ["body"]},
            "its index.json says other columns than its header; the shard or the index is of another version",
        ),
        (
            {"column_encodings": ["int"]},
            "its index.json says other columns than its header; the shard or the index is of another version",
        ),
    ],
)
def test_a_shard_that_is_not_what_its_index_says(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    dataset = written(tmp_path, TEXTS, texts("x", "y"), changes)
    with pytest.raises(ShardError) as caught:
        whole(dataset)
    assert str(caught.value) == f"dataset 'd', shard 'a.mds': {said}"


def test_shards_and_indexes_that_miss_one_another(tmp_path: Path) -> None:
    for part in "ab":
        index(tmp_path / part, [shard(tmp_path / part, name, TEXTS, texts(part + name)) for name in "xy"])
    assert whole(Dataset.from_path("d", tmp_path)).column("text") == ["ax", "ay", "bx", "by"]
    (tmp_path / "b/y.mds").rename(tmp_path / "b/z.mds")
    with pytest.raises(DatasetError) as caught:
        Dataset.from_path("d", tmp_path)
    assert str(caught.value) == f"dataset 'd': 'b/index.json' names the shard 'b/y.mds', which is not there; {MENDED}"
    (tmp_path / "b/z.mds").rename(tmp_path / "b/y.mds")
    shard(tmp_path / "b", "more", TEXTS, texts("more"))
    with pytest.raises(DatasetError) as caught:
        Dataset.from_path("d", tmp_path)
    assert str(caught.value) == f"dataset 'd': no index.json names 'b/more.mds', which is there; {MENDED}"
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "b/more.mds").unlink()
    (tmp_path / "b/x.mds").unlink()
    (tmp_path / "b/y.mds").unlink()
    with pytest.raises(
        DatasetError, match=r"index.json is there, but no shard that it should name: it is broken, or they are gone"
    ):
        Dataset.from_path("d", tmp_path)


def test_a_pattern_and_a_file_take_some_of_the_shards(tmp_path: Path) -> None:
    entries = [shard(tmp_path, f"{part}/{name}", TEXTS, texts(part + name)) for part in "ab" for name in "xy"]
    index(tmp_path, entries)
    for path, right in (("", ["ax", "ay", "bx", "by"]), ("*/x.mds", ["ax", "bx"]), ("b", None), ("b/y.mds", None)):
        if right is None:  # the index lies above what was named
            with pytest.raises(DatasetError, match=r"^dataset 'd': no index.json is beside '.\.mds' or above it"):
                Dataset.from_path("d", tmp_path / path)
        else:
            assert whole(Dataset.from_path("d", tmp_path / path)).column("text") == right
    index(tmp_path / "b", [{**entries[3], "raw_data": {**entries[3]["raw_data"], "basename": "y.mds"}}])
    assert whole(Dataset.from_path("d", tmp_path / "b/y.mds")).column("text") == ["by"]


def test_an_index_above_the_shards_far_away(tmp_path: Path) -> None:
    """Also where a pattern or the name of a shard leaves the index out of what is listed."""
    index(tmp_path, [shard(tmp_path, f"{part}/x", TEXTS, texts(part)) for part in "ab"])
    with FakeS3() as store:
        for path in tmp_path.rglob("*.*"):
            store.put(f"x/{path.relative_to(tmp_path).as_posix()}", path.read_bytes())
        index(tmp_path, [shard(tmp_path, "y", TEXTS, texts("y"))])
        for name in ("index.json", "y.mds"):
            store.put(f"y/{name}", (tmp_path / name).read_bytes())
        for url, right in (("x", ["a", "b"]), ("x/*/x.mds", ["a", "b"]), ("y/y.mds", ["y"])):
            dataset = Dataset.from_path("d", f"{store.root}{url}", storage_options=store.options)
            with Access() as access:
                assert whole(dataset, access=access).column("text") == right


def test_a_shard_that_is_there_raw_and_compressed_comes_once(tmp_path: Path) -> None:
    """As streaming leaves it with keep_zip=True."""
    entry = shard(tmp_path, "a", TEXTS, texts("x", "y"), ".gz", lambda body: zlib.compress(body, wbits=31))
    index(tmp_path, [entry, shard(tmp_path, "b", TEXTS, texts("z"), ".gz", lambda body: zlib.compress(body, wbits=31))])
    shard(tmp_path, "a", TEXTS, texts("x", "y"))
    dataset = Dataset.from_path("d", tmp_path)
    assert [shard.name for shard in dataset.shards] == ["a.mds", "b.mds.gz"]
    assert dataset.catalog().units["entry"].tolist() == [ANYWHERE, WHOLE]
    assert whole(dataset).column("text") == ["x", "y", "z"]
    assert dataset.ignored == ("a.mds.gz",)


def test_units_are_known_from_the_index_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = texts(*("x" * 100 for _ in range(50)))
    index(tmp_path, [shard(tmp_path, name, TEXTS, samples) for name in "ab"])
    dataset = Dataset.from_path("d", tmp_path).with_sizes(unit_bytes=2000, block_bytes=600)
    (tmp_path / "b.mds").write_bytes(bytes((tmp_path / "b.mds").stat().st_size))
    units = dataset.catalog().units[["shard", "start", "stop", "first", "length", "block", "entry"]].tolist()
    assert units[:3] == [(0, 0, 16, 0, 16, 5, 0), (0, 16, 33, 16, 17, 5, 0), (0, 33, 50, 33, 17, 5, 0)]
    assert len(units) == 6


def test_a_shard_without_samples(tmp_path: Path) -> None:
    index(tmp_path, [shard(tmp_path, "a", TEXTS, []), shard(tmp_path, "b", TEXTS, texts("x"))])
    assert whole(Dataset.from_path("d", tmp_path)).column("text") == ["x"]


def test_only_what_row_blocks_have_is_read_of_a_raw_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = written(tmp_path, TEXTS, texts(*("x" * 1000 for _ in range(100)))).with_sizes(block_bytes=10_000)
    reader = Reader([dataset], schema_of(dataset), ones)
    source, taken = dataset.open(0), list[int]()
    kind = type(source)
    real = kind.read

    def read(self: Any, offset: int, length: int) -> bytes:
        taken.append(length)
        return real(self, offset, length)

    reader.read_several(0, 0, range(1), source)  # it looks at the head
    monkeypatch.setattr(kind, "read", read)
    assert len(reader.read_several(0, 0, range(3, 5), source)) == 2
    assert taken == [4 * 21, 20 * 1004]


# Values


def test_a_sample_whose_lengths_do_not_add_up_is_bad_alone(tmp_path: Path) -> None:
    columns = {"id": "int", "text": "str"}
    samples = [sample(columns, {"id": n, "text": "x" * n}) for n in range(5)]
    samples[1] = struct.pack("<I", 100) + samples[1][4:]
    samples[3] = b"ab"
    found = whole(written(tmp_path, columns, samples))
    assert found.rows == [{"id": n, "text": "x" * n} if n % 2 == 0 else {"id": None, "text": None} for n in range(5)]
    assert found.bad == [
        f"dataset 'd', shard 'a.mds', sample {n}: the lengths of its columns do not add up to the {length} bytes of the sample"
        for n, length in ((1, 13), (3, 2))
    ]


@pytest.mark.parametrize(
    ("encoding", "good", "value", "broken", "said"),
    [
        ("str", b"x", "x", b"\xff", "the text is not UTF-8"),
        ("int32", b"\1\0\0\0", 1, b"\1\0", "a value of int32 has 2 bytes"),
        ("str_int", b"-5", -5, b"5.", "int64 is wanted: Failed to parse string: '5.' as a scalar of type int64"),
        ("str_float", b"nan", None, b"x", "double is wanted: Failed to parse string: 'x' as a scalar of type double"),
        ("json", b'{"a": 1}', '{"a": 1}', b'{"a": NaN}', "JSON is malformed: invalid character (byte 6)"),
        ("json", b"[1, 2]", [1, 2], b'"x"', "Expected `array | null`, got `str`"),
        ("json", b"{}", "{}", b"[" * 300 + b"]" * 300, "nested more than 200 levels deep"),
        (
            "ndarray",
            b"\x21\4\2" + struct.pack("<ii", 1, -1),
            [1, -1],
            b"\x21\4\3" + bytes(8),
            "no array can be read of its 11 bytes",
        ),
        ("ndarray", b"\x08\4\1\7", [7], b"\x21", "no array can be read of its 1 bytes"),
        ("ndarray", b"\x08\4\1\7", [7], b"\x07\4\1\7", "no array can be read of its 4 bytes"),
        ("ndarray", b"\x08\4\1\7", [7], b"\x08\x0b" + b"\xff" * 16, "no array can be read of its 18 bytes"),
        ("ndarray:uint8", b"\4\0", [], b"\x08\5\0", "no array can be read of its 3 bytes"),
        ("list[png]", struct.pack("<III", 0, 1, 2) + b"ab", [b"ab"], struct.pack("<III", 0, 9, 2), None),
        ("jpegarray", struct.pack("<II", 1, 2) + b"ab", [b"ab"], struct.pack("<II", 1, 3) + b"ab", None),
        ("jpegarray", struct.pack("<I", 0), [], b"", None),
        ("pil", struct.pack("<III", 1, 1, 1) + b"Lx", bytes, struct.pack("<III", 1, 1, 4) + b"CMYKxxxx", None),
        ("pil", struct.pack("<III", 1, 1, 1) + b"Lx", bytes, struct.pack("<III", 1 << 31, 1 << 31, 1) + b"Lx", None),
        ("pil", struct.pack("<III", 1, 1, 1) + b"Lx", bytes, struct.pack("<III", 1, 1, 1 << 31) + b"Lx", None),
    ],
)
def test_a_value_that_is_broken_is_bad_alone(
    encoding: str, good: bytes, value: Any, broken: bytes, said: str | None, tmp_path: Path
) -> None:
    found, bad = one(tmp_path, encoding, good, broken, good)
    assert found[1] is None
    assert len(bad) == 1
    assert bad[0].startswith("sample 1: column 'x': is broken: " if said is None else f"sample 1: column 'x': {said}")
    if value is bytes or encoding == "str_float":
        assert str(found[0]) == str(found[2])
        assert type(found[0]) is (float if encoding == "str_float" else bytes)
    else:
        assert found[0] == found[2] == value


def array(*values: int, dtype: str) -> bytes:
    codes = {"uint8": 8, "int32": 33, "int64": 65, "float32": 34}
    return bytes([codes[dtype], 4, len(values)]) + np.array(values, dtype).tobytes()


def test_arrays_that_differ_become_the_type_that_holds_them(tmp_path: Path) -> None:
    deep = bytes([33, 8, 1, 2]) + np.array([[5, 6]], np.int32).tobytes()
    values = [array(1, 2, dtype="uint8"), array(-3, dtype="int32"), array(4, dtype="int64"), deep, array(dtype="int32")]
    found, bad = one(tmp_path, "ndarray", *values)
    assert found == [[1, 2], [-3], [4], None, []]
    assert bad == ["sample 3: column 'x': list<item: int64> is wanted, not list<item: list<item: int32>>"]
    pinned = {"x": pa.list_(pa.int32())}
    found, bad = one(tmp_path, "ndarray", array(1 << 40, dtype="int64"), array(7, dtype="uint8"), schema=pinned)
    assert found == [None, [7]]
    assert len(bad) == 1


@pytest.mark.parametrize(
    ("encoding", "kind", "texts", "values"),
    [
        ("str_int", pa.large_string(), [b"1" * 40, b"-2"], ["1" * 40, "-2"]),
        ("str_int", pa.int8(), [b"-2"], [-2]),
        ("str_float", pa.large_string(), [b"1e-05"], ["1e-05"]),
        ("str_decimal", pa.decimal128(10, 3), [b"1.50", b"1E+3"], [Decimal("1.500"), Decimal(1000)]),
        ("json", pa.list_(pa.int32()), [b"[1, 2]", b"[]", b"null"], [[1, 2], [], None]),
    ],
)
def test_pinned_columns(encoding: str, kind: pa.DataType, texts: list[bytes], values: list[Any], tmp_path: Path) -> None:
    assert one(tmp_path, encoding, *texts, schema={"x": kind}) == (values, [])


def test_a_stated_width_that_an_encoding_has_not(tmp_path: Path) -> None:
    columns = {"x": "int32"}
    body = raw(columns, [bytes(8)])
    sized = body.replace(b"[null]", b"[8]   ")  # the header, of the same length
    (tmp_path / "a.mds").write_bytes(sized)
    entry = {
        **config(columns),
        "column_sizes": [8],
        "samples": 1,
        "raw_data": {"basename": "a.mds", "bytes": len(sized)},
        "zip_data": None,
    }
    index(tmp_path, [entry])
    with pytest.raises(ShardError, match=r"column 'x' has values of 8 bytes, but 'int32' are 4$"):
        whole(Dataset.from_path("d", tmp_path))


# What nobody wrote

GOOD = [(WRITTEN / name, file) for name in ("scalars", "arrays", "images") for file in ("shard.00000.mds", "index.json")]
GOOD += [(WRITTEN / "compressed" / way, f"shard.00000.mds.{way}") for way in ("br", "bz2", "gz", "snappy", "zstd")]


def change(draw: Any, body: bytes) -> bytes:
    at, other = draw(st.integers(0, len(body))), draw(st.integers(0, len(body)))
    ways: list[Callable[[], bytes]] = [
        lambda: body[:at],
        lambda: body[:at] + draw(st.binary(min_size=1, max_size=8)) + body[at + draw(st.integers(0, 8)) :],
        lambda: body[:at] + body[other:],
        lambda: body[:at] + struct.pack("<I", draw(st.sampled_from([0, 1, 255, 1 << 31, (1 << 32) - 1]))) + body[at + 4 :],
    ]
    changed: bytes = draw(st.sampled_from(ways))()
    return changed


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(draw=st.data(), which=st.sampled_from(GOOD), stale=st.booleans())
def test_mutated_files_give_rows_or_our_errors(
    draw: Any, which: tuple[Path, str], stale: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, name = which
    copy = tmp_path_factory.mktemp("d") / "d"
    shutil.copytree(folder, copy)
    body = change(draw.draw, (copy / name).read_bytes())
    (copy / name).write_bytes(body)
    if name != "index.json" and not stale:  # an index that knows of the change
        made = json.loads((copy / "index.json").read_text())
        file = made["shards"][0]["zip_data"] or made["shards"][0]["raw_data"]
        file.update(bytes=len(body), hashes={})
        (copy / "index.json").write_text(json.dumps(made))
    try:
        whole(Dataset.from_path("d", copy).with_sizes(block_bytes=300))
    except DatasetError as error:
        assert str(error).startswith("dataset 'd'")  # noqa: PT017
        assert "index.json" in str(error) or "shard.00000.mds" in str(error)  # noqa: PT017
