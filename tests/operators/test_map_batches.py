"""`map_batches`: row-wise on whatever is at hand, or recut to n rows."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made_rows import made, placed
from zephon_async.errors import InternalError, RecipeError
from zephon_async.operators.base import RecordFailed
from zephon_async.operators.map_batches import MapBatches
from zephon_async.records import Records


def numbered(n: int) -> Records:
    return made({"number": pa.array(range(n), pa.int64())})


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, "number", pc.multiply(batch.column("number"), 2))


def learned(fn: Any, **settings: Any) -> MapBatches:
    operator = MapBatches(fn, **settings)
    operator.recall(operator.learn(numbered(4)))
    return operator


def test_halves() -> None:
    assert (MapBatches(doubled).stateless, MapBatches(doubled).serial) == (True, False)
    operator = MapBatches(doubled, rows=3)
    assert (operator.stateless, operator.serial, operator.needs_flush, operator.holds_rows()) == (False, True, False, 3)
    with pytest.raises(TypeError, match="no serial half without rows="):
        MapBatches(doubled).accumulator(0, 0)


@pytest.mark.parametrize(
    "fn",
    [
        doubled,
        lambda batch: pa.Table.from_batches([doubled(batch)]),
        lambda batch: {"number": [2 * number for number in batch.column("number").to_pylist()]},
        lambda batch: {"number": batch.column("number").to_numpy() * 2},
        lambda batch: {
            "number": pa.chunked_array([[0]] + ([[2]] if len(batch) > 1 else []) + ([[4, 6]] if len(batch) > 2 else []))
        },
    ],
    ids=["batch", "table", "lists", "numpy", "chunked"],
)
def test_every_kind_of_result(fn: Any) -> None:
    operator = learned(fn)
    out = operator.apply(numbered(4), Counter())
    assert placed(out) == [({"number": 2 * i}, i, 0) for i in range(4)]
    assert out.columns.schema == pa.schema({"number": pa.int64()})
    assert operator.apply(numbered(0), Counter()).columns.schema == out.columns.schema


def test_numpy_arrays_of_several_dimensions_and_text_become_what_travels() -> None:
    def shapes(batch: pa.RecordBatch) -> dict[str, Any]:
        n = batch.num_rows
        return {
            "image": np.ones((n, 2, 1), np.uint8),
            "name": pa.array(["a"] * n),
            "raw": pa.array([b"a"] * n),
            "odd": [None, {"a": 1}] * (n // 2),
        }

    out = learned(shapes).apply(numbered(2), Counter())
    assert out.columns.schema == pa.schema(
        {
            "image": pa.list_(pa.list_(pa.uint8(), 1), 2),
            "name": pa.large_string(),
            "raw": pa.large_binary(),
            "odd": pa.struct({"a": pa.int64()}),
        }
    )
    assert out.columns.to_pylist() == [
        {"image": [[1], [1]], "name": "a", "raw": b"a", "odd": None},
        {"image": [[1], [1]], "name": "a", "raw": b"a", "odd": {"a": 1}},
    ]


def test_metadata_and_projection() -> None:
    field = pa.field("number", pa.int64(), metadata={"k": "v"})
    records = made({"number": [1], "other": ["x"]})
    records = records.with_columns(records.columns.cast(pa.schema([field, ("other", pa.string())])))
    operator = MapBatches(lambda batch: batch, columns=["number"])
    assert operator.reads(frozenset({"number"})) == frozenset({"number"})
    assert operator.requires() == {"number": "any"}
    operator.recall(operator.learn(records))
    assert operator.apply(records, Counter()).columns.schema.equals(pa.schema([field]), check_metadata=True)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda batch: batch.slice(1), "gave 3 rows for 4; it must keep their number: use filter .* flat_map"),
        (lambda batch: None, "gave NoneType, wanted a pa.RecordBatch, a pa.Table or a mapping"),
        (lambda batch: [1, 2], "gave list"),
        (lambda batch: {"number": [1], "b": [1, 2]}, r"gave the columns \['b', 'number'\], wanted \['number'\]"),
        (lambda batch: {}, r"gave the columns \[\]"),
        (lambda batch: {"number": 5}, "column 'number' of the result is int, wanted an Arrow or numpy array or a list"),
        (lambda batch: {"number": pa.array([1.0] * 4)}, "wanted int64, found double; cast it, or change schema="),
        (lambda batch: {"number": pa.array([1] * 4, pa.int8())}, "wanted int64, found int8"),
        (lambda batch: {"number": [1, 2, 3, "x"]}, "wanted int64, found str 'x'"),
    ],
)
def test_results_that_are_refused(result: Any, words: str) -> None:
    operator = MapBatches(result, schema={"number": pa.int64()})
    with pytest.raises(Exception, match=words):
        operator.apply(numbered(4), Counter())


def test_nulls_without_a_type_take_the_known_one() -> None:
    out = MapBatches(lambda batch: {"x": pa.nulls(batch.num_rows)}, schema={"x": pa.int8()}).apply(numbered(2), Counter())
    assert out.columns.column("x").equals(pa.array([None, None], pa.int8()))


def test_the_trial_passes_over_rows_that_fail() -> None:
    def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 0 in batch.column("number").to_pylist():
            raise ValueError("zero")
        return doubled(batch)

    assert placed(learned(picky).apply(numbered(4).slice(1, 3), Counter())) == [({"number": 2}, 1, 0), ({"number": 4}, 2, 0)]
    operator = MapBatches(picky)
    operator.recall(operator.learn(numbered(1)))
    with pytest.raises(ValueError, match="zero"):
        operator.apply(numbered(1), Counter())
    with pytest.raises(RecipeError, match="failed on every record of the trial at the start; pass schema="):
        operator.apply(numbered(2).slice(1, 2), Counter())


def test_a_trial_knows_nothing_of_the_one_before() -> None:
    operator = MapBatches(lambda batch: batch)
    operator.recall(operator.learn(made({"x": ["a"]})))
    operator.recall(operator.learn(numbered(1)))
    assert operator.typed == pa.schema({"number": pa.int64()})
    operator.recall(None)
    with pytest.raises(RecipeError, match="pass schema="):
        operator.apply(numbered(1), Counter())


@given(st.integers(1, 7), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 50))
def test_rows_are_recut_by_absolute_number(rows: int, parcels: list[int], first: int) -> None:
    sizes: list[int] = []

    def summed(batch: pa.RecordBatch) -> dict[str, Any]:
        sizes.append(batch.num_rows)
        return {"sum": [pc.sum(batch.column("number")).as_py()] * batch.num_rows}

    operator = MapBatches(summed, rows=rows, schema={"sum": pa.int64()})
    accumulator = operator.accumulator(0, first)
    records, start, out, marks = numbered(sum(parcels)), 0, [], []
    for size in parcels:
        given_out, given_marks = accumulator.push(records.slice(start, start + size), 0, Counter())
        start += size
        out += placed(given_out)
        marks += list(zip(*given_marks, strict=True))
        assert (accumulator.given, accumulator.held_rows) == (first + start // rows * rows, start % rows)
        assert marks[-1] == (accumulator.given, start // rows * rows, 0)
        assert (accumulator.held_bytes > 0) is (accumulator.held_rows > 0)
    out += placed(accumulator.flush(Counter()))
    n = sum(parcels)
    wanted = [sum(range(i // rows * rows, min(n, i // rows * rows + rows))) for i in range(n)]
    assert out == [({"sum": total}, i, 0) for i, total in enumerate(wanted)]
    assert sizes == [rows] * (n // rows) + [n % rows] * (n % rows > 0)
    assert sorted(set(marks)) == [(first + i, i, 0) for i in range(0, n + 1, rows)]
    assert (accumulator.given, accumulator.held_rows, accumulator.held_bytes) == (first + n, 0, 0)
    assert accumulator.flush(Counter()) is None
    assert accumulator.push(numbered(1), 0, Counter())[1].rows[0] == 0


def test_a_batch_that_fails_comes_behind_those_before_it() -> None:
    def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 5 in batch.column("number").to_pylist():
            raise ValueError("five")
        return batch

    accumulator = MapBatches(picky, rows=2, schema={"number": pa.int64()}).accumulator(0, 0)
    records = numbered(8)
    assert placed(accumulator.push(records.slice(0, 3), 0, Counter())[0]) == [({"number": i}, i, 0) for i in (0, 1)]
    with pytest.raises(RecordFailed) as caught:
        accumulator.push(records.slice(3, 8), 0, Counter())
    assert caught.value.at == 2  # row 5 of all, with which the batch that failed ends
    assert placed(caught.value.failed) == [({"number": i}, i, 0) for i in (4, 5)]
    assert caught.value.marks == ([2, 4, 4], [2, 4, 6], [0, 0, 0])
    assert placed(caught.value.done) == [({"number": i}, i, 0) for i in (2, 3)]
    assert str(caught.value.__cause__) == "five"
    with pytest.raises(InternalError, match="its marks name whole rows"):
        accumulator.push(records, 1, Counter())


async def awaited(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: MapBatches(awaited), "map, flat_map and filter take async functions"),
        (lambda: MapBatches(doubled, rows=0), "rows is 0: it must be a whole number of at least 1, or None"),
        (lambda: MapBatches(doubled, rows=2, parallelism=2), "leave parallelism= out"),
        (lambda: MapBatches(5), "wanted a function"),  # type: ignore[arg-type]
        (lambda: MapBatches(doubled, schema={}), "schema= must name at least one column"),
    ],
)
def test_wrong_settings_are_refused_at_once(wrong: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        wrong()


def test_settings() -> None:
    settings = MapBatches(doubled, rows=2, version=1).settings()
    assert (settings["rows"], settings["version"], settings["schema"], settings["columns"]) == (2, 1, None, None)
    assert settings["function"].endswith(":doubled")
