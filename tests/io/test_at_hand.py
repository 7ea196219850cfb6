"""Some rows of a shard, and all of it checked."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from tests.writers import WRITERS, Writer
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.io import Checked, Dataset, Problem, check
from zephon_async.io.formats import line_format

ROWS = [{"id": n, "text": f"row {n}" * (n % 5), "score": n / 4, "input_ids": [n, n + 1], "flag": n % 2 == 0} for n in range(100)]


@pytest.fixture(params=WRITERS, ids=str, scope="module")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Writer, Path]:
    """The same rows by each writer; some libraries start threads of their own here, that stay."""
    folder, writer = tmp_path_factory.mktemp("data"), request.param
    writer.write(folder, {"a": ROWS[:60], "b": ROWS[60:]})
    return writer, folder / writer.at


def test_rows_are_read_by_their_numbers(written: tuple[Writer, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    writer, folder = written
    monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)
    dataset = Dataset.from_path("d", folder, unit_bytes=900, block_bytes=300)
    column = writer.schema.names[0]
    wanted = [writer.given(row)[column] for row in ROWS]

    def read(shard: int, rows: Any) -> list[Any]:
        return [row[column] for row in dataset.read(shard, rows).to_pylist()]

    assert read(0, None) == wanted[:60]
    assert read(1, range(5, 9)) == wanted[65:69]
    assert read(-1, [39, 0, 0, 20]) == [wanted[99], wanted[60], wanted[60], wanted[80]]
    assert read(0, []) == []
    assert dataset.read(0, [3], columns=[column]).to_pylist() == [{column: wanted[3]}]
    assert (dataset.max_count(), dataset.total()) == (60, 100)
    for shard, rows, said in ((2, None, "has 2 shards, and no shard 2"), (0, [60], "has 60 rows, not all of rows 60 to 60")):
        with pytest.raises(RecipeError, match=said):
            dataset.read(shard, rows)
    dataset.store.close()


def test_types_of_which_arrow_makes_no_empty_columns(tmp_path: Path) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["x", "y", "z"])])
    batch = pa.record_batch({"a": union})
    with pa.ipc.new_file(tmp_path / "a.arrow", batch.schema) as file:
        file.write(batch)
    dataset = Dataset.from_path("d", tmp_path)
    assert dataset.read(0).to_pylist() == [{"a": 1}, {"a": "y"}, {"a": 3}]
    assert dataset.read(0, [2, 2]).to_pylist() == [{"a": 3}, {"a": 3}]
    assert dataset.read(0, []).to_pylist() == []


def test_what_is_asked_for_wrongly(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"number": 1}\n')
    dataset = Dataset.from_path("d", tmp_path)
    wrong: list[tuple[Any, Any, str]] = [
        ([0], ["numbers"], "there is no column 'numbers'; did you mean 'number'"),
        (0, None, r"rows are numbers, such as \[5\] or range\(10\), not 0"),
        (["0"], None, r"rows are numbers, such as \[5\] or range\(10\), not \['0'\]"),
    ]
    for rows, columns, said in wrong:
        with pytest.raises(RecipeError, match=said):
            dataset.read(0, rows, columns)


def test_a_bad_row_is_an_error_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\nno\n{"n": 3}\n')
    dataset = Dataset.from_path("d", tmp_path)
    assert dataset.read(0, [2, 0]).to_pylist() == [{"n": 3}, {"n": 1}]
    with pytest.raises(BadRecord, match=r"^dataset 'd', shard 'a.jsonl', line 2 \(byte 9\): "):
        dataset.read(0)


def test_everything_that_is_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\nno\n{"n": "x"}\n')
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 9)[:-5])
    (tmp_path / "c.jsonl").write_text('{"n": 5}')
    reason = "Input data was truncated; a line must be one whole JSON object"
    assert list(check(Dataset.from_path("d", tmp_path))) == [
        Checked(
            "a.jsonl",
            3,
            [
                Problem("a.jsonl", "line 2 (byte 9)", reason),
                Problem("a.jsonl", "line 3 (byte 12)", "Expected `int | null`, got `str` - at `$.n`"),
            ],
        ),
        Checked("b.jsonl.gz", 0, [Problem("b.jsonl.gz", "", "ends inside a gzip member, at byte 27: it was cut short")]),
        Checked("c.jsonl", 1, []),
    ]


def test_a_row_group_that_is_broken_is_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": list(range(100))}), tmp_path / "a.parquet", row_group_size=50, compression="none")
    body = bytearray((tmp_path / "a.parquet").read_bytes())
    page = pq.read_metadata(tmp_path / "a.parquet").row_group(1).column(0).data_page_offset
    body[page : page + 4] = b"\xff\xff\xff\xff"
    (tmp_path / "a.parquet").write_bytes(body)
    (found,) = check(Dataset.from_path("d", tmp_path))
    assert (found.rows, len(found.problems), found.problems[0].row) == (50, 1, "")
    assert "cannot be read as parquet" in found.problems[0].reason
