"""Windowed shuffling against a slow oracle."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.errors import RecipeError
from zephon_async.operators.shuffle import Shuffle
from zephon_async.randomness import mix
from zephon_async.records import ORIGIN, Origins, Records


def numbered(n: int) -> Records:
    """n rows of several kinds of columns, all of which tell the row."""
    origins = np.zeros(n, ORIGIN)
    origins["row"] = np.arange(n)
    columns = {
        "number": pa.array(range(n), pa.int64()),
        "text": pa.array([None if i % 5 == 0 else f"row {i}" for i in range(n)], pa.large_string()),
        "packed": pa.array([[i, i + 1] for i in range(n)], pa.list_(pa.int32(), 2)),
        "ragged": pa.array([[i] * (i % 4) for i in range(n)], pa.list_(pa.int32())),
    }
    return Records(pa.RecordBatch.from_pydict(columns), Origins(origins))


def oracle(rows: list[Any], size: int, seed: int, lane: int) -> list[Any]:
    out: list[Any] = []
    for start in range(0, len(rows), size):
        window = rows[start : start + size]
        out += [row for _, row in sorted(enumerate(window), key=lambda pair: mix(seed, lane, start, pair[0]))]
    return out


def shuffled(operator: Shuffle, records: Records, lane: int, parcel: int) -> Records:
    accumulator = operator.accumulator(lane, 0)
    parcels = [records.slice(start, start + parcel) for start in range(0, len(records), parcel)]
    out = [*(accumulator.push(piece, 0, Counter())[0] for piece in parcels), accumulator.flush(Counter())]
    return Records.concat([records for records in out if records is not None])


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 5), st.integers(0, 3), st.integers(1, 70))
def test_each_window_is_permuted_by_its_first_output(n: int, size: int, seed: int, lane: int, parcel: int) -> None:
    records = numbered(n)
    out = shuffled(Shuffle(size, seed=seed), records, lane, parcel)
    assert out.columns.to_pylist() == oracle(records.columns.to_pylist(), size, seed, lane)
    assert out.origins.segments["row"].tolist() == out.columns.column("number").to_pylist()
    assert out.columns.schema.equals(records.columns.schema, check_metadata=True)


def test_a_window_of_one_passes_rows_through() -> None:
    out, marks = Shuffle(1, seed=0).accumulator(0, 4).push(numbered(3), 0, Counter())
    assert out is not None
    assert out.columns == numbered(3).columns
    assert (marks.outputs, marks.rows, marks.skips) == ([4, 5, 6, 7], [0, 1, 2, 3], [0, 0, 0, 0])


def test_marks_at_every_window() -> None:
    accumulator = Shuffle(4, seed=0).accumulator(0, 0)
    marks = [accumulator.push(numbered(n), 0, Counter())[1] for n in (3, 1, 9)]
    assert [(m.outputs, m.rows, m.skips) for m in marks] == [
        ([0], [0], [0]),
        ([0, 4], [0, 4], [0, 0]),
        ([4, 8, 12], [4, 8, 12], [0, 0, 0]),
    ]


def test_lanes_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(shuffled(Shuffle(50, seed=seed), numbered(50), lane, 50).columns.column("number").to_pylist())
        for seed in range(3)
        for lane in range(3)
    }
    assert len(orders) == 9


def test_the_last_short_window_is_permuted_too() -> None:
    out = shuffled(Shuffle(100, seed=1), numbered(30), 0, 7).columns.column("number").to_pylist()
    assert sorted(out) == list(range(30))
    assert out != list(range(30))


def test_what_it_holds_and_is_made_of() -> None:
    operator = Shuffle(8, seed=5)
    assert (operator.holds_rows(), operator.holds_bytes(10)) == (8, 80)
    assert operator.settings() == {"buffer_size": 8, "seed": 5}
    assert (operator.stateless, operator.serial, operator.needs_flush) == (False, True, False)


@pytest.mark.parametrize(("size", "seed"), [(0, 1), (-1, 1), (True, 1), (2.0, 1), (2, None), (2, "x")])
def test_refusals(size: Any, seed: Any) -> None:
    with pytest.raises(RecipeError, match="whole number"):
        Shuffle(size, seed=seed)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    settings = Shuffle(np.int64(8), seed=np.uint8(5)).settings()  # type: ignore[arg-type]
    assert (settings, set(map(type, settings.values()))) == ({"buffer_size": 8, "seed": 5}, {int})
