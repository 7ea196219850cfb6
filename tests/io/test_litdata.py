"""LitData: what the library wrote is read as the library reads it; what is not whole, or not there, is an error; of broken chunks
nothing comes but rows and errors."""

import base64
import json
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.system.fake_s3 import FakeS3
from tests.whole import LEAVE_OUT, block_numbers, ones, schema_of, whole
from tests.writers.base import Row
from tests.writers.litdata import batches, chunk_of, each_compressed, folder_of, index_of, leaf, plain, with_arrow
from zephon_async.errors import DatasetError, ShardError
from zephon_async.io import Dataset, Reader
from zephon_async.io.formats import find_format

WRITTEN = Path(__file__).parent.parent / "written" / "litdata"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())
ROWS: list[Row] = [{"id": n, "text": "é" * n, "score": n / 2, "input_ids": list(range(n)), "flag": n > 2} for n in range(5)]
WAYS: dict[str, Callable[[Path, Any], None]] = {
    ".bin": folder_of(plain),
    "batches.bin": folder_of(lambda rows: batches(rows, 2)),
    "samples.bin": folder_of(each_compressed, compression="zstd", compression_level="sample"),
    "arrow.bin": folder_of(with_arrow),
    ".zstd.bin": folder_of(plain, ".zstd.bin", compression="zstd"),
}


def of(folder: Path, **settings: Any) -> Dataset:
    return Dataset.from_path("d", folder, **settings)


def rows_of(folder: Path) -> list[Row]:
    found = whole(of(folder))
    assert found.bad == []
    return found.rows


def as_read(row: dict[str, Any]) -> Row:
    """A row of the library, dicts in it as columns."""
    parts = [
        {f"{key}.{name}": each for name, each in as_read(value).items()} if isinstance(value, dict) else {key: value}
        for key, value in row.items()
    ]
    return {key: value for part in parts for key, value in part.items()}


def pixels(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and pixels of a PNG whose lines are not filtered."""
    width, height, bits, colour = struct.unpack_from(">IIBB", png, 16)
    line = 1 + width * {0: 1, 2: 3}[colour]
    length = struct.unpack_from(">I", png, 33)[0]
    assert (bits, png[37:41], png[-8:-4]) == (8, b"IDAT", b"IEND")
    body = zlib.decompress(png[41 : 41 + length])
    return width, height, b"".join(body[at + 1 : at + line] for at in range(0, len(body), line))


@pytest.mark.parametrize("name", ["text", "typed", "nested", "zstd_chunk", "zstd_batch", "zstd_sample"])
def test_what_the_library_wrote(name: str) -> None:
    assert rows_of(WRITTEN / name) == [dict(sorted(row.items())) for row in EXPECTED[name]]


def test_an_older_version() -> None:
    assert rows_of(WRITTEN / "old") == rows_of(WRITTEN / "typed")


def test_samples_that_are_no_dicts() -> None:
    assert rows_of(WRITTEN / "pair") == [{"0": text, "1": n} for text, n in EXPECTED["pair"]]
    assert rows_of(WRITTEN / "single") == [{"0": text} for text in EXPECTED["single"]]


def test_values_of_all_kinds() -> None:
    found = rows_of(WRITTEN / "kinds")
    for row, right in zip(found, map(as_read, EXPECTED["kinds"]), strict=True):
        for name in ("image", "grey"):
            mode, size, raw = right.pop(name)
            assert pixels(row.pop(name)) == (*size, base64.b64decode(raw)), mode
        assert json.loads(row.pop("meta.more")) == right.pop("meta.more")
        assert row.pop("raw") == base64.b64decode(right.pop("raw"))
        assert row == dict(sorted(right.items()))
    kinds = {field.name: str(field.type) for field in schema_of(of(WRITTEN / "kinds"))}
    assert (kinds["array"], kinds["flat"], kinds["scalar"]) == ("list<item: list<item: float>>", "list<item: uint16>", "float")
    assert kinds["matrix"] == "list<item: list<item: list<item: int16>>>"
    assert kinds["mask"] == "list<item: list<item: bool>>"


def test_files_are_the_bytes_that_were_kept() -> None:
    names, lists = ("photo", "paper"), ("photos",)
    right = [
        row
        | {name: base64.b64decode(row[name]) for name in names}
        | {name: list(map(base64.b64decode, row[name])) for name in lists}
        for row in EXPECTED["stored"]
    ]
    assert rows_of(WRITTEN / "stored") == [dict(sorted(row.items())) for row in right]


def test_tokens_are_documents_of_which_the_library_makes_its_blocks() -> None:
    """It lays the documents of a chunk end to end, cuts them, and drops what is left of each chunk."""
    found = whole(of(WRITTEN / "tokens"))
    assert found.rows == [{"input_ids": list(range(100 * n, 100 * n + 3 + n % 4))} for n in range(9)]
    blocks = []
    for _, documents in groupby(zip(found.places, found.rows, strict=True), key=lambda each: each[0][0]):
        laid = [token for _, row in documents for token in row["input_ids"]]
        blocks += [laid[at : at + 4] for at in range(0, len(laid) - 3, 4)]
    assert blocks == EXPECTED["tokens"]


def test_pickles_are_refused_where_they_are_asked_for() -> None:
    dataset = of(WRITTEN / "pickled")
    assert whole(dataset, ["n"]).rows == [{"n": n} for n in range(7)]
    said = f"column 'odd' is a pickle (pickle), which can run any code and is not read; {LEAVE_OUT}"
    with pytest.raises(ShardError, match=re.escape(f"'d', shard 'chunk-0-1.bin': {said}")):
        whole(dataset)
    with pytest.raises(ShardError, match=re.escape(said)):
        Reader([dataset], pa.schema({"odd": pa.large_binary()}), ones).read(0, 0, 0)


def test_encrypted_chunks_are_refused() -> None:
    with pytest.raises(
        DatasetError, match=r"^dataset 'd': 'index.json' says that its chunks are encrypted, which is not read: write"
    ):
        of(WRITTEN / "encrypted")


FORMS = {"text": "str", "n": "int"}
SPEC = {"type": "builtins.dict", "context": '["text", "n"]', "children_spec": [leaf(), leaf()]}
NESTED = {
    "type": "builtins.dict",
    "context": '["a.b", "a"]',
    "children_spec": [leaf(), {**SPEC, "context": '["b"]', "children_spec": [leaf()]}],
}
WRONG_INDEXES: dict[str, tuple[str, str]] = {
    "empty": ("", "is no index of LitData: Input data was truncated"),
    "no JSON": ("[" * 100000, "is no index of LitData: "),
    "another file": ('{"shards": []}', "is no index of LitData: Object missing required field `chunks`"),
    "no chunks": (index_of({}, FORMS), "names no chunk"),
    "a negative size": (index_of({"a.bin": (-1, 4)}, FORMS), "is no index of LitData: Expected `int` >= 0"),
    "Parquet": (
        index_of({"a.bin": (1, 4)}, FORMS, item_loader="ParquetLoader"),
        "says that its chunks are of the item loader 'ParquetLoader'",
    ),
    "another format": (index_of({"a.bin": (1, 4)}, FORMS, format="mds"), "says that its chunks are of the format 'mds'"),
    "another codec": (index_of({"a.bin": (1, 4)}, FORMS, compression="lz4"), "says that its chunks are compressed as 'lz4'"),
    "too few leaves": (
        index_of({"a.bin": (1, 4)}, FORMS, data_spec=json.dumps([1, leaf()])),
        "has 1 values in data_spec, and 2 in data_format",
    ),
    "no tree": (index_of({"a.bin": (1, 4)}, FORMS, data_spec="[1, {}]"), "has a data_spec that is no tree: 'type'"),
    "the same name twice": (
        index_of({"a.bin": (1, 4)}, FORMS, data_spec=json.dumps([1, NESTED])),
        "has two values that would be the column 'a.b'",
    ),
    "tokens of text": (
        index_of({"a.bin": (1, 4)}, {"x": "str"}, item_loader="TokensLoader"),
        "says that its chunks are tokens, and of ['str']",
    ),
    "a missing chunk": (
        index_of({"a.bin": (1, 4), "b.bin": (1, 4), "c.bin": (1, 4)}, FORMS),
        "names 'b.bin' and 1 more, which is not there; a whole folder is a dataset",
    ),
}


@pytest.mark.parametrize("name", WRONG_INDEXES)
def test_an_index_that_cannot_be_right(name: str, tmp_path: Path) -> None:
    text, said = WRONG_INDEXES[name]
    (tmp_path / "index.json").write_text(text)
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(DatasetError, match=f"^dataset 'd': 'index.json' {re.escape(said)}"):
        of(tmp_path)


def test_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(DatasetError) as caught:
        of(tmp_path)
    assert str(caught.value).endswith(
        "ignored: 'a.bin'; a .bin file is a shard where '<name>.idx' (megatron) or 'index.json' (litdata) lies beside it: "
        "name the folder, or the file with format="
    )
    with pytest.raises(DatasetError, match=r"index.json', which must lie beside it, cannot be read: No such file or directory$"):
        of(tmp_path, format="litdata")
    with FakeS3() as store:
        store.put("x/a.bin", b"")
        with pytest.raises(
            DatasetError, match=r"^dataset 'd': shard 'a.bin': there is no 'x/index.json', which must lie beside it$"
        ):
            Dataset.from_path("d", f"{store.root}x", storage_options=store.options, format="litdata")


def test_one_folder_of_each_format(tmp_path: Path) -> None:
    """What lies beside a file tells them apart; two formats below one root must be told by the user."""
    shutil.copytree(WRITTEN / "pair", tmp_path / "lit")
    shutil.copytree(WRITTEN.parent / "megatron", tmp_path / "tokens")
    with pytest.raises(
        DatasetError, match=r"holds more than one format .*litdata: 'lit/chunk-0-0.bin'; megatron: 'tokens/float32.bin'"
    ):
        of(tmp_path)
    shutil.copy(WRITTEN / "pair" / "index.json", tmp_path / "tokens")  # what names one file alone says more
    assert {name for name in of(tmp_path / "tokens").ignored if not name.endswith(".idx")} == {
        "expected.json",
        "index.json",
        "make.py",
    }
    assert of(tmp_path / "lit").format == "litdata"
    assert of(tmp_path / "tokens").format == "megatron"


def test_chunks_that_the_index_does_not_name_are_no_shards(tmp_path: Path) -> None:
    WAYS[".bin"](tmp_path, {"a": ROWS})
    (tmp_path / "b.bin").write_bytes(b"no chunk")
    dataset = of(tmp_path)
    assert ([shard.name for shard in dataset.shards], dataset.ignored) == (["a.bin"], ("b.bin",))
    assert whole(dataset).rows == [dict(sorted(row.items())) for row in ROWS]


@pytest.mark.parametrize("way", WAYS)
def test_another_number_of_samples_than_the_index_says(way: str, tmp_path: Path) -> None:
    WAYS[way](tmp_path, {"a": ROWS})
    index = json.loads((tmp_path / "index.json").read_text())
    index["chunks"][0]["chunk_size"] = 4
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ShardError) as caught:
        whole(of(tmp_path))
    name = f"a{'.zstd' if way == '.zstd.bin' else ''}.bin"
    assert str(caught.value) == f"dataset 'd', shard {name!r}: has 5 samples, and 4 by its index.json"


def test_an_index_that_was_written_anew_counts(tmp_path: Path) -> None:
    WAYS[".bin"](tmp_path, {"a": ROWS})
    assert len(whole(of(tmp_path)).rows) == 5
    path = tmp_path / "index.json"
    path.write_text(path.read_text().replace('"chunk_size": 5', '"chunk_size": 6'))
    with pytest.raises(ShardError, match="has 5 samples, and 6 by its"):
        whole(of(tmp_path))


@pytest.mark.parametrize("way", WAYS)
def test_another_size_than_the_index_says(way: str, tmp_path: Path) -> None:
    WAYS[way](tmp_path, {"a": ROWS})
    index = json.loads((tmp_path / "index.json").read_text())
    size = index["chunks"][0]["chunk_bytes"]
    index["chunks"][0]["chunk_bytes"] += 1
    (tmp_path / "index.json").write_text(json.dumps(index))
    said = {
        False: f"has {size:,} bytes, and {size + 1:,} by its index.json: one of the two was cut short, or is of another version",
        True: f"{size:,} bytes come out of it, and {size + 1:,} would by its index.json",
    }[way == ".zstd.bin"]
    with pytest.raises(ShardError, match=said):
        whole(of(tmp_path))


def chunk(folder: Path, samples: Iterable[bytes], formats: dict[str, str]) -> Dataset:
    body = chunk_of(list(samples))
    (folder / "a.bin").write_bytes(body)
    count = int.from_bytes(body[:4], "little")
    (folder / "index.json").write_text(index_of({"a.bin": (count, len(body))}, formats))
    return of(folder)


def sample(*values: bytes) -> bytes:
    return struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


def array(code: int, *shape: int, body: bytes = b"") -> bytes:
    return struct.pack(f"<{2 + len(shape)}I", code, len(shape), *shape) + body


NINE = np.arange(9, dtype="<i4").tobytes()
BAD_VALUES: dict[str, tuple[bytes, Any, bytes, str]] = {
    "str": (b"a", "a", b"\xff", "the text is not UTF-8"),
    "int": (bytes(8), 0, bytes(4), "a number has 8 bytes, not 4"),
    "bool": (b"\2", True, b"", "a number has 1 bytes, not 0"),
    "no_header_numpy:2": (bytes(8), [0, 0], bytes(6), "6 bytes are no whole number of int32"),
    "numpy": (array(2, 1, body=bytes(4)), [0], array(2, 2, body=bytes(4)), "is no array of 1 dimensions as its header has it"),
    "jpeg_array": (sample(b"x"), [b"x"], b"\2\0\0\0\1", "5 bytes are no 2 images as their header has it"),
    "json": (b'{"a": 1}', '{"a": 1}', b"\5\xff\xff\xff\xff", "is no nested value: there are no 4,294,967,295 values in 0 bytes"),
    "pil": (
        struct.pack("<III", 1, 1, 1) + b"Lx",
        None,
        struct.pack("<III", 1, 2, 1) + b"Lx",
        "1 bytes are no image of 1 x 2 pixels of the mode L",
    ),
}  # fmt: skip
BAD_VALUES["jpeg_array"] = (struct.pack("<II", 1, 1) + b"x", *BAD_VALUES["jpeg_array"][1:])


@pytest.mark.parametrize("form", BAD_VALUES)
def test_a_value_that_cannot_be_is_a_bad_row(form: str, tmp_path: Path) -> None:
    good, right, bad, said = BAD_VALUES[form]
    found = whole(chunk(tmp_path, [sample(good), sample(bad), sample(good)], {"x": form}))
    assert found.bad == [f"dataset 'd', shard 'a.bin', sample 1: column 'x': {said}"]
    assert found.rows[1] == {"x": None}
    assert found.rows[0] == found.rows[2]
    if right is not None:
        assert found.rows[0] == {"x": right}


@pytest.mark.parametrize(
    "bad",
    [
        array(2, 1, 3, body=bytes(8)),
        array(99, 1, 2, body=bytes(8)),
        array(2, 1 << 31, 0),
        array(2, *[1 << 31] * 2),
        array(2),
        b"",
        array(2, 1, 2, body=bytes(8))[:-1],
    ],
)
def test_arrays_that_cannot_be(bad: bytes, tmp_path: Path) -> None:
    good = array(2, 3, 3, body=NINE)
    found = whole(chunk(tmp_path, [sample(good), sample(bad), sample(good)], {"x": "numpy"}))
    assert found.column("x") == [[[0, 1, 2], [3, 4, 5], [6, 7, 8]], None, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]]
    assert len(found.bad) == 1


def test_arrays_of_several_types_are_those_of_the_first(tmp_path: Path) -> None:
    arrays = [
        array(3, 1, body=struct.pack("<q", 5)),
        array(0, 2, body=b"\1\2"),
        array(9, 1, body=struct.pack("<f", 0.5)),
        array(3, 0),
    ]
    found = whole(chunk(tmp_path, map(sample, arrays), {"x": "numpy"}))
    assert found.column("x") == [[5], [1, 2], None, []]
    assert found.bad[0].startswith("dataset 'd', shard 'a.bin', sample 2: column 'x': list<item: int64> is wanted: Float value 0.5")


def test_sizes_that_do_not_add_up_are_a_bad_row(tmp_path: Path) -> None:
    good = sample(b"abc", bytes(8))
    found = whole(chunk(tmp_path, [good, b"\1", good[:-1], good + b"x", good], {"text": "str", "n": "int"}))
    assert found.rows == [{"n": 0, "text": "abc"}, *[{"n": None, "text": None}] * 3, {"n": 0, "text": "abc"}]
    assert found.bad == [
        f"dataset 'd', shard 'a.bin', sample {n}: the sample has {has} bytes, and {wanted} by the sizes of its 2 values"
        for n, has, wanted in [(1, 1, 8), (2, 18, 19), (3, 20, 19)]
    ]


def test_values_that_are_not_read_are_refused_by_name(tmp_path: Path) -> None:
    for form in ("own", "no_header_tensor:10", "no_header_numpy:11", "graph"):
        with pytest.raises(ShardError, match=f"shard 'a.bin': column 'x' is .*{form}.*; {re.escape(LEAVE_OUT)}"):
            whole(chunk(tmp_path, [sample(b"")], {"x": form}))


@pytest.mark.parametrize("way", [".bin", "batches.bin", "samples.bin"])
def test_no_more_is_read_than_is_needed(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**ROWS[4], "id": n, "text": f"{n:03}" * 30} for n in range(300)]
    WAYS[way](tmp_path, {"a": rows})
    dataset = of(tmp_path, unit_bytes=4000, block_bytes=1000)
    schema, catalog = schema_of(dataset), dataset.catalog()
    assert len(catalog.units) > 3
    read: list[tuple[int, int]] = []
    kind = type(dataset.open(0))
    original = kind.read

    def noted(source: Any, offset: int, length: int) -> bytes:
        read.append((offset, offset + length))
        return original(source, offset, length)

    monkeypatch.setattr(kind, "read", noted)
    reader = Reader([dataset], schema, ones)
    for unit, number in block_numbers(catalog):
        read.clear()
        reader.read(0, unit, number)
        ranges = (
            find_format("litdata")
            .decoder(schema, (), reader._pool)
            .ranges(dataset.open(0), catalog.units[unit], range(number, number + 1))
        )
        assert all(any(a <= begin and end <= b for a, b in ranges) for begin, end in read)
        assert sum(end - begin for begin, end in read) < 3000


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60)
@given(
    cut=st.integers(0, 900),
    edits=st.lists(st.tuples(st.integers(0, 900), st.binary(min_size=1, max_size=5)), min_size=1, max_size=3),
)
def test_broken_chunks_give_rows_or_errors_of_ours(
    way: str, tmp_path_factory: pytest.TempPathFactory, cut: int, edits: list[tuple[int, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("broken")
    WAYS[way](folder, {"a": ROWS})
    path = next(folder.glob("*.bin"))
    body = bytearray(path.read_bytes())
    for at, new in edits:
        at %= len(body)
        body[at : at + len(new)] = new[: len(body) - at]
    if cut % 3 == 0:
        body = body[: cut % len(body)]
    path.write_bytes(body)
    if way != ".zstd.bin":
        index = json.loads((folder / "index.json").read_text())
        index["chunks"][0]["chunk_bytes"] = len(body)
        (folder / "index.json").write_text(json.dumps(index))
    try:
        found = whole(of(folder))
    except ShardError as error:
        assert str(error).startswith(f"dataset 'd', shard {path.name!r}: ")  # noqa: PT017
    else:
        assert len(found.rows) == len(ROWS)


@settings(max_examples=100)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 2000), st.sampled_from([b"0", b"-1", b"9999999999", b"null", b'"', b"[", b"{", b""])), max_size=3
    )
)
def test_broken_indexes_give_rows_or_errors_of_ours(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("broken")
    WAYS[".bin"](folder, {"a": ROWS})
    text = bytearray((folder / "index.json").read_bytes())
    for at, new in edits:
        text[at % len(text) : at % len(text) + 1] = new
    (folder / "index.json").write_bytes(text)
    try:
        found = whole(of(folder))
    except (ShardError, DatasetError) as error:
        assert str(error).startswith("dataset 'd'")  # noqa: PT017
    else:
        assert len(found.rows) == len(ROWS)
