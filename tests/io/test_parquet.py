"""Parquet: drift, emptiness, and iterators that go on where they stand. Cases A07 and A08 (with Arrow IPC)."""

import gc
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.whole import BytesSource, ones, schema_of, whole
from zephon_async.errors import ShardError
from zephon_async.io import Dataset, Reader
from zephon_async.io.formats.parquet import _Scan

CASES = Path(__file__).parent.parent / "cases"


@pytest.mark.parametrize("folder", ["good", "good-jsonl"])
def test_columns_that_drift(folder: str) -> None:  # A07
    right = json.loads((CASES / "A07/expected.json").read_text())
    for required in ({}, {"text": "string"}):
        found = whole(Dataset.from_path("d", CASES / "A07" / folder), required=required)
        assert found.column("text") == right[folder]
        assert found.bad == []


def test_a_shard_without_the_column() -> None:  # A07
    dataset = Dataset.from_path("d", CASES / "A07/bad")
    reader = Reader([dataset], pa.schema({"text": pa.large_string()}), ones, required={"text"})
    assert reader.read(0, 0, 0).columns.to_pylist() == [{"text": "a0"}]
    with pytest.raises(ShardError) as caught:
        reader.read(0, 1, 0)
    columns = ", ".join(map(repr, pq.read_schema(CASES / "A07/bad/part-1.parquet").names))
    assert str(caught.value) == f"dataset 'd', shard 'part-1.parquet': there is no column 'text'; its columns are {columns}"


@pytest.mark.parametrize("folder", ["parquet", "arrow"])
def test_shards_without_rows(folder: str) -> None:  # A08
    right = json.loads((CASES / "A08/expected.json").read_text())
    dataset = Dataset.from_path("d", CASES / "A08" / folder)
    assert whole(dataset, required={"text": "string"}).column("text") == right[folder]
    assert dataset.total() == 3


def test_only_shards_without_rows() -> None:  # A08
    dataset = Dataset.from_path("d", CASES / "A08/only-empty")
    assert (dataset.total(), len(dataset.catalog().units), dataset.shard_count()) == (0, 0, 1)
    assert whole(dataset, required={"text": "string"}).rows == []


def large(tmp_path: Path, rows: int = 1000) -> Dataset:
    table = pa.table({"n": pa.array(range(rows)), "text": ["x" * 100] * rows})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rows // 2, use_dictionary=False)
    return Dataset.from_path("d", tmp_path, block_bytes=1100)


def test_row_blocks_are_sized_by_the_footer(tmp_path: Path) -> None:
    units = large(tmp_path).catalog().units
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    blocks = -(-group.total_byte_size // 1100)
    assert units["block"].tolist() == [-(-500 // blocks)] * 2
    assert 500 % int(units["block"][0]) == 0  # the last is no smaller than it must be
    assert units["first"].tolist() == [0, 500]
    assert large(tmp_path).with_sizes(block_bytes=1).catalog().units["block"].tolist() == [1, 1]
    assert large(tmp_path, 20_000).with_sizes(block_bytes=1 << 30).catalog().units["block"].tolist() == [
        3334,
        3334,
    ]  # of 4,096 or fewer


def test_an_iterator_goes_on_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = large(tmp_path)
    reader = Reader([dataset], schema_of(dataset), ones)
    opened: list[int] = []
    given: list[int] = []
    init, step = _Scan.__init__, _Scan.next

    def open_one(self: _Scan, *rest: Any) -> None:
        opened.append(1)
        init(self, *rest)

    def next_one(self: _Scan, rows: int) -> Any:
        given.append(self.at)
        return step(self, rows)

    monkeypatch.setattr(_Scan, "__init__", open_one)
    monkeypatch.setattr(_Scan, "next", next_one)
    for block in (0, 1, 2, 7):
        reader.read(0, 0, block)
    assert (len(opened), given) == (1, [0, 1, 2, 3, 4, 5, 6, 7])
    reader.read(0, 0, 5)  # it has gone by: another one
    reader.read(0, 0, 8)  # the nearest before it
    assert (len(opened), given[8:]) == (2, [0, 1, 2, 3, 4, 5, 8])
    assert "2 units" in repr(reader._pool)
    reader.close()
    assert "0 units" in repr(reader._pool)


def test_blocks_on_the_way_are_given_out(tmp_path: Path) -> None:
    dataset = large(tmp_path)
    reader = Reader([dataset], schema_of(dataset), ones)
    blocks = reader.read_several(0, 1, range(9, 11))
    assert list(blocks) == [5, 6, 7, 8, 9, 10]
    rows = int(dataset.catalog().units["block"][1])
    for number, block in blocks.items():
        first = number * rows
        assert block.rows.tolist() == list(range(500 + first, 500 + first + rows))
        assert block.places.tolist() == list(range(first, first + rows))
        assert block.columns.column("n").to_pylist() == block.rows.tolist()


def test_what_stays_open_is_bounded(tmp_path: Path) -> None:
    dataset = large(tmp_path)
    reader = Reader([dataset], schema_of(dataset, needed=["n"]), ones, open_bytes=25_000)
    for block in (9, 7, 5, 3, 1):
        reader.read(0, 0, block)
    assert repr(reader._pool).startswith("<Pool 2 units, ")


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("rows", [100, 4_000])
def test_what_stands_open_holds_what_it_says(tmp_path: Path, compression: str, rows: int) -> None:
    """By what Arrow has allocated, which the memory budget counts on; and not much less, so that not too few are kept open."""
    texts = [hashlib.sha512(b"%d" % n).hexdigest() * 8 for n in range(rows)]
    table = pa.table({"text": texts, "more": texts, "n": range(rows)})
    pq.write_table(table, tmp_path / "a.parquet", compression=compression, use_dictionary=["n"])
    dataset = Dataset.from_path("d", tmp_path).with_sizes(block_bytes=1 << 16)
    source = dataset.open(0)
    unit, schema = dataset.catalog().units[0], schema_of(dataset)
    gc.collect()
    before, opened = pa.total_allocated_bytes(), []
    for _ in range(4):
        opened.append(_Scan(source, unit, schema, ()))
        opened[-1].next(int(unit["block"]))
    held = pa.total_allocated_bytes() - before
    said = sum(scan.nbytes for scan in opened)
    assert held <= said <= 4 * held


def test_columns_of_odd_names(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1], "a": [{"b": 2}], "é #": ["x"], "": [3]})
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = Dataset.from_path("d", tmp_path)
    for name in table.column_names:
        assert whole(dataset, needed=[name]).rows == [{name: table[name][0].as_py()}]


def test_columns_of_one_name(tmp_path: Path) -> None:
    pq.write_table(pa.table([[1], [2], [3]], names=["x", "x", "y"]), tmp_path / "a.parquet")
    dataset = Dataset.from_path("d", tmp_path)
    assert whole(dataset, needed=["y"]).rows == [{"y": 3}]
    with pytest.raises(ShardError, match=r"^dataset 'd', shard 'a.parquet': has two columns named 'x'$"):
        Reader([dataset], pa.schema({"x": pa.int64()}), ones).read(0, 0, 0)


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    text = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    found = whole(Dataset.from_path("d", tmp_path))
    assert found.column("text") == ["a", None, "c"]
    assert found.bad == ["dataset 'd', shard 'a.parquet', row 1: column 'text': the text is not UTF-8"]


def test_a_page_that_fails_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["needle" * 50]})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"needleneedle", b"noodlenoodle"))
    dataset = Dataset.from_path("d", path)
    with pytest.raises(ShardError, match=r"^dataset 'd', shard 'a.parquet': cannot be read as parquet: .*(CRC|crc)"):
        whole(dataset)


def test_a_unit_that_stands_open_is_read_from_the_source_that_is_given(tmp_path: Path) -> None:
    """What a run has fetched of it may be dropped meanwhile, and fetched anew for another source."""
    texts = [hashlib.sha512(b"%d" % n).hexdigest() * 8 for n in range(4_000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", compression="none", use_dictionary=False)
    dataset = Dataset.from_path("d", tmp_path).with_sizes(block_bytes=1 << 16)
    reader, body = Reader([dataset], schema_of(dataset), ones), (tmp_path / "a.parquet").read_bytes()
    one, other = BytesSource("a.parquet", body), BytesSource("a.parquet", body)
    reader.read_several(0, 0, range(2), one)
    before = one.taken
    reader.read_several(0, 0, range(2, 40), other)
    assert one.taken == before
    assert other.taken > 1 << 20
