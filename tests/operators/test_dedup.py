"""`dedup`: what is equal, and within what; the contract of accumulators is tested with the others."""

from collections import Counter
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from tests.made_rows import made
from zephon_async import Dataset, Pipeline, RecipeError, StaticMixtureWorkSource
from zephon_async.operators import Dedup


def stay(operator: Dedup, columns: dict[str, Any]) -> tuple[list[int], int]:
    """The rows that stay, and how many are counted as dropped."""
    records, tally = made(columns), Counter[str]()
    accumulator = operator.accumulator(0, 0)
    out, _ = accumulator.push(records, 0, tally)
    assert (accumulator.held_rows, accumulator.held_bytes, accumulator.flush(tally)) == (0, 0, None)
    assert out is None or out.columns.schema.equals(operator.output(records.columns.schema), check_metadata=True)
    return ([] if out is None else out.origins.segments["row"].tolist()), tally["duplicates_dropped"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", "a", "", "b"]),
        pa.array([b"a", b"b", b"a", b"", b"b"]),
        pa.array([1, 2, 1, 0, 2]),
        pa.array([[1], [1, 2], [1], [], [1, 2]]),
        pa.array([{"x": 1}, {"x": 2}, {"x": 1}, {"x": None}, {"x": 2}]),
        pa.array([float("nan"), 1.5, float("nan"), 0.0, 1.5]),
        pa.array([date(2020, 1, 1), date(2021, 1, 1), date(2020, 1, 1), date(2022, 1, 1), date(2021, 1, 1)]),
        pa.array(["a", "b", "a", "", "b"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_the_first_of_equal_rows_stays(column: pa.Array) -> None:
    assert stay(Dedup("c", window=100), {"c": column, "n": [1, 2, 3, 4, 5]}) == ([0, 1, 3], 2)
    assert stay(Dedup(["c", "n"], window=100), {"c": column, "n": [1, 2, 1, 4, 5]}) == ([0, 1, 3, 4], 1)


def test_columns_are_not_run_together() -> None:
    assert stay(Dedup(["a", "b"], window=9), {"a": ["x", "xy", "x', 'y"], "b": ["yz", "z", "z"]}) == ([0, 1, 2], 0)
    assert stay(Dedup(["a", "b"], window=9), {"a": ["None", None], "b": ["x", "x"]}) == ([0, 1], 0)


def test_rows_of_nulls_stay() -> None:
    columns = {"a": pa.array([None, "a", None, None], pa.string()), "b": pa.array([None, "a", "a", "a"], pa.string())}
    assert stay(Dedup("a", window=9), columns) == ([0, 1, 2, 3], 0)
    assert stay(Dedup(["a", "b"], window=9), columns) == ([0, 1, 2], 1)


def test_windows_are_counted_by_rows() -> None:
    columns = {"c": list("aabaabaa")}
    assert stay(Dedup("c", window=3), columns) == ([0, 2, 3, 5, 6], 3)
    assert stay(Dedup("c", window=8), columns) == ([0, 2], 6)


@pytest.mark.parametrize(("fields", "window"), [("a", 1), ("a", None), ("a", 2.5), ([], 5), (["a", "a"], 5), ([1], 5), (5, 5)])
def test_what_cannot_be_meant(fields: Any, window: Any) -> None:
    with pytest.raises(RecipeError, match="dedup: "):
        Dedup(fields, window=window)


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match="dedup: there is no column 'b' here"):
        Dedup("b", window=5).output(pa.schema({"a": pa.int64()}))


def test_in_a_pipeline_it_counts_and_goes_on_anywhere() -> None:
    data = Dataset.from_dict("d", {"c": [n * n % 17 for n in range(200)], "n": list(range(200))})

    def begun() -> Pipeline:
        source = StaticMixtureWorkSource(datasets=[data], mixture={"d": 1.0}, seed=3, epochs=2, unit="samples")
        return Pipeline(source).options(lanes=2, chunk_rows=7).dedup("c", window=20).batch(3)

    with begun() as whole:
        rows = [batch.to_pylist("n") for batch in whole]
        assert whole.statistics().counts["duplicates_dropped"] > 100
    for taken in range(1, len(rows), 5):
        with begun() as first:
            batches = iter(first)
            for _ in range(taken):
                next(batches)
            state = first.checkpoint()
        with begun().options(chunk_rows=64) as second:
            assert [batch.to_pylist("n") for batch in second.restore(state)] == rows[taken:]
