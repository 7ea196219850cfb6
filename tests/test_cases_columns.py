"""Cases A07 and A08: shards whose columns differ, shards without rows, and every spelling of a column."""

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.taken import (
    CASES,
    WAYS,
    column,
    counted,
    expected,
    ids_of,
    in_order,
    letters,
    of,
    records,
    said,
    token_rows,
    values,
    written,
)
from zephon_async import BadRecord, Dataset, DatasetError, Pipeline, ShardError

Write = Callable[[Path, pa.Table], None]


def ipc_file(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=2)


def ipc_stream(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_stream(path, table.schema) as file:
        file.write_table(table, max_chunksize=2)


def parquet(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, row_group_size=2)


WRITES: tuple[tuple[str, Write], ...] = (("d.arrow", ipc_file), ("d.ipc", ipc_stream), ("d.parquet", parquet))
each_format = pytest.mark.parametrize(("name", "write"), WRITES, ids=["file", "stream", "parquet"])


# A07


@pytest.mark.parametrize("way", WAYS)
def test_shards_whose_columns_differ(way: dict[str, Any]) -> None:
    right = expected("A07")
    assert values(of(CASES / "A07/good"), **way) == right["good"]
    assert values(of(CASES / "A07/good-jsonl"), **way) == right["good-jsonl"]
    assert token_rows(of(CASES / "A07/good"), **way) == [ids_of(text) for text in right["good"]]
    rows = records(of(CASES / "A07/good"), **way)
    assert {name: [row[name] for row in rows] for name in ("id", "lang")} == {
        "id": [0, 1, 2, 3, None, None],
        "lang": [None, None, "en", None, None, None],
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_shard_without_the_column_is_named(way: dict[str, Any]) -> None:
    pipeline = Pipeline(in_order(of(CASES / "A07/bad"))).options(**way).tokenize(letters(), field="text").batch(1)
    assert (
        said(pipeline, ShardError)
        == "dataset 'd', shard 'part-1.parquet': there is no column 'text'; its columns are 'id', 'content'"
    )


@each_format
@pytest.mark.parametrize("odd", ["a", "b", "c"])
def test_whichever_shard_lacks_it(name: str, write: Write, odd: str, tmp_path: Path) -> None:
    for shard in "abc":
        write(tmp_path / name.replace("d", shard, 1), pa.table({"id": [1, 2], "body" if shard == odd else "text": ["x", "y"]}))
    message = said(Pipeline(in_order(of(tmp_path))).tokenize(letters(), field="text").batch(1), DatasetError)
    assert name.replace("d", odd, 1) in message
    assert all(f"'{word}'" in message for word in ("text", "id", "body"))


def test_lines_without_the_column_are_named(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", {"text": "a"})
    written(tmp_path / "b.jsonl", {"body": "b", "text": "c"}, {"body": "d"})
    message = said(Pipeline(in_order(of(tmp_path))).tokenize(letters(), field="text").batch(1), BadRecord)
    assert "shard 'b.jsonl', line 2" in message
    assert "'text'" in message
    written(tmp_path / "a.jsonl", {"body": "b"})
    written(tmp_path / "b.jsonl", {"body": "b"})
    message = said(Pipeline(in_order(of(tmp_path))).tokenize(letters(), field="text").batch(1), DatasetError)
    assert all(f"'{word}'" in message for word in ("d", "a.jsonl", "text", "body"))


TEXTS = ["a", "", "b\u2028c", "d"]
SPELLINGS = {
    "string": pa.array(TEXTS),
    "large_string": pa.array(TEXTS, pa.large_string()),
    "string_view": pa.array(TEXTS, pa.string_view()),
    "dictionary": pa.array(TEXTS).dictionary_encode(),
    "dictionary of large_string": pa.array(TEXTS, pa.large_string()).dictionary_encode(),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3, 4], pa.int32()), pa.array(TEXTS)),
}


@each_format
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_text_of_every_kind_is_text(name: str, write: Write, spelling: str, tmp_path: Path) -> None:
    if spelling == "run ends" and write is parquet:
        return  # Parquet has no such column
    write(tmp_path / name, pa.table({"text": SPELLINGS[spelling]}))
    assert token_rows(of(tmp_path)) == [ids_of(text) for text in TEXTS]
    assert values(of(tmp_path)) == TEXTS


@each_format
@pytest.mark.parametrize(
    "array",
    [pa.array([b"a", b"b"]), pa.array([1, 2]), pa.array([1.5, 2.5]), pa.array([["a"], ["b"]]), pa.array([True, False])],
    ids=lambda array: str(array.type),
)
def test_what_is_no_text_does_not_become_text(name: str, write: Write, array: pa.Array, tmp_path: Path) -> None:
    write(tmp_path / name, pa.table({"text": array}))
    message = said(Pipeline(in_order(of(tmp_path))).tokenize(letters(), field="text").batch(1))
    assert f"shard {name!r}" in message
    assert "'text'" in message


SIDES = {
    "decimal": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("-3.00"), None], pa.decimal128(10, 2)),
    "timestamp": pa.array([datetime.datetime(2020, 1, 1), None, None, datetime.datetime(1969, 1, 1)], pa.timestamp("ms")),
    "zoned": pa.array([datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), None, None, None], pa.timestamp("us", "UTC")),
    "date": pa.array([datetime.date(2020, 1, 1), None, None, None]),
    "binary": pa.array([b"\xff", None, b"", b"x"]),
    "list": pa.array([[1], None, [], [2, 3]], pa.list_(pa.int64())),
    "list of text": pa.array([["a", None], None, [], ["b"]]),
    "struct": pa.array([{"a": 1, "b": None}, None, {"a": None, "b": "x"}, {"a": 2, "b": ""}]),
    "map": pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int32())),
    "null": pa.nulls(4),
    "bool": pa.array([True, None, False, None]),
    "uint64": pa.array([(1 << 64) - 1, None, 0, 1], pa.uint64()),
    "half": pa.array([0.5, None, 0.25, 1.0], pa.float16()),
    "fixed": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
}


@each_format
@pytest.mark.parametrize("side", SIDES)
def test_side_columns_come_as_they_are(name: str, write: Write, side: str, tmp_path: Path) -> None:
    write(tmp_path / name, pa.table({"text": ["a", "b", "c", "d"], "side": SIDES[side]}))
    found, _ = counted(Pipeline(in_order(of(tmp_path))).batch(2))
    assert column(found, "text") == ["a", "b", "c", "d"]
    assert column(found, "side") == SIDES[side].to_pylist()


def spelled(number: int, kind: pa.DataType) -> Any:
    """A number as a value of a type."""
    if pa.types.is_null(kind):
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str(number)
    return str(number).encode() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else number


@pytest.mark.parametrize(
    ("first", "second", "right"),
    [
        (pa.int32(), pa.int64(), [1, 2]),
        (pa.int64(), pa.int8(), [1, 2]),
        (pa.uint8(), pa.int16(), [1, 2]),
        (pa.int32(), pa.float64(), [1.0, 2.0]),
        (pa.null(), pa.int64(), [None, 2]),
        (pa.string(), pa.large_string(), ["1", "2"]),
        (pa.binary(), pa.large_binary(), [b"1", b"2"]),
        (pa.string(), pa.int64(), None),
        (pa.int64(), pa.string(), None),
        (pa.timestamp("s"), pa.int64(), None),
    ],
)
def test_types_that_drift(first: pa.DataType, second: pa.DataType, right: list[Any] | None, tmp_path: Path) -> None:
    for shard, kind, number in (("a", first, 1), ("b", second, 2)):
        pq.write_table(pa.table({"side": pa.array([spelled(number, kind)], kind)}), tmp_path / f"{shard}.parquet")
    if right is None:
        message = said(Pipeline(in_order(of(tmp_path))).batch(1))
        assert "column 'side'" in message
        assert ".parquet'" in message
    else:
        assert values(of(tmp_path), "side") == right


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"]), tmp_path / "d.parquet")
    assert "shard 'd.parquet': has two columns named 'text'" in said(
        Pipeline(in_order(of(tmp_path))).tokenize(letters(), field="text").batch(1)
    )


# A08


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("folder", ["parquet", "arrow"])
def test_shards_without_rows_beside_others(folder: str, way: dict[str, Any]) -> None:
    right = ["x", "y", "z"]
    assert values(of(CASES / "A08" / folder), **way) == right
    assert token_rows(of(CASES / "A08" / folder), **way) == [ids_of(text) for text in right]
    source = in_order(of(CASES / "A08" / folder), epochs=3)
    assert column(counted(Pipeline(source).options(**way).batch(1))[0], "text") == right * 3


EMPTY = pa.table({"text": pa.array([], pa.string()), "n": pa.array([], pa.int8())})


def zero_row_groups(path: Path) -> None:
    pq.ParquetWriter(path, EMPTY.schema).close()


def groups_of_zero_rows(path: Path) -> None:
    with pq.ParquetWriter(path, EMPTY.schema) as file:
        for _ in range(3):
            file.write_table(EMPTY)


def no_batches(path: Path) -> None:
    (pa.ipc.new_stream if path.suffix == ".ipc" else pa.ipc.new_file)(path, EMPTY.schema).close()


def batches_of_zero_rows(path: Path) -> None:
    empty = pa.RecordBatch.from_arrays([column.combine_chunks() for column in EMPTY.columns], schema=EMPTY.schema)
    with (pa.ipc.new_stream if path.suffix == ".ipc" else pa.ipc.new_file)(path, EMPTY.schema) as file:
        for _ in range(3):
            file.write_batch(empty)


HOLLOWS: list[tuple[str, Callable[[Path], None]]] = [
    ("d.parquet", zero_row_groups),
    ("d.parquet", groups_of_zero_rows),
    ("d.arrow", no_batches),
    ("d.ipc", no_batches),
    ("d.arrow", batches_of_zero_rows),
    ("d.ipc", batches_of_zero_rows),
]


@pytest.mark.parametrize(("name", "hollow"), HOLLOWS)
def test_only_shards_without_rows(name: str, hollow: Callable[[Path], None], tmp_path: Path) -> None:
    hollow(tmp_path / name)
    hollow(tmp_path / f"e{name}")
    made = of(tmp_path)
    assert (values(made), token_rows(made), token_rows(made, lanes=3, on_end="pad")) == ([], [], [])
    assert "'d'" in said(Pipeline(in_order(made, epochs=None)).tokenize(letters(), field="text").batch(1))


@pytest.mark.parametrize(("name", "hollow"), HOLLOWS)
def test_hollow_shards_among_full_ones(name: str, hollow: Callable[[Path], None], tmp_path: Path) -> None:
    write = dict(WRITES)[name]
    for shard in "abcd":
        path = tmp_path / f"{shard}{name[1:]}"
        hollow(path) if shard in "ac" else write(
            path, pa.table({"text": [shard, shard + "x", shard + "y"], "n": pa.array([1, 2, 3], pa.int8())})
        )
    right = ["b", "bx", "by", "d", "dx", "dy"]
    assert values(of(tmp_path)) == right
    found, _ = counted(Pipeline(in_order(of(tmp_path), shuffle=True, epochs=2)).options(lanes=3).batch(1))
    assert sorted(column(found, "text")) == sorted(right * 2)


def test_only_empty_in_an_endless_run() -> None:
    made = of(CASES / "A08/only-empty")
    assert values(made) == []
    assert "no dataset has a row ('d')" in said(Pipeline(in_order(made, epochs=None)).batch(1))
    full = Dataset.from_dict("e", {"text": ["a"]})
    assert "dataset 'd' has no rows" in said(Pipeline(in_order(made, full, epochs=None)).batch(1))
    assert "dataset 'd' has no rows" in said(Pipeline(in_order(made, full)).batch(1))
    assert column(counted(Pipeline(in_order(made, full, on_exhausted="drop_out")).batch(1))[0], "text") == ["a"]
