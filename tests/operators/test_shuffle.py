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


def oracle(rows: list[Any], size: int, seed: int, lane: int, block: int) -> list[Any]:
    out: list[Any] = []
    for start in range(0, len(rows), size):
        stop = min(start + size, len(rows))
        runs = [rows[at : min(at + block, stop)] for at in range(start, stop, block)]
        order = sorted(range(len(runs)), key=lambda number: mix(seed, lane, start, number))
        out += [row for number in order for row in runs[number]]
    return out


def shuffled(operator: Shuffle, records: Records, lane: int, parcel: int) -> Records:
    accumulator = operator.accumulator(lane, 0)
    parcels = [records.slice(start, start + parcel) for start in range(0, len(records), parcel)]
    out = [*(accumulator.push(piece, 0, Counter())[0] for piece in parcels), accumulator.flush(Counter())]
    return Records.concat([records for records in out if records is not None])


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 4), st.integers(0, 5), st.integers(0, 3), st.integers(1, 70))
def test_each_window_is_permuted_by_its_first_output(n: int, blocks: int, block: int, seed: int, lane: int, parcel: int) -> None:
    records, size = numbered(n), blocks * block
    out = shuffled(Shuffle(size, seed=seed, block_size=block), records, lane, parcel)
    assert out.columns.to_pylist() == oracle(records.columns.to_pylist(), size, seed, lane, block)
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
    assert operator.settings() == {"buffer_size": 8, "seed": 5, "block_size": 1}
    assert (operator.stateless, operator.serial, operator.needs_flush) == (False, True, False)


@pytest.mark.parametrize(("size", "seed"), [(0, 1), (-1, 1), (True, 1), (2.0, 1), (2, None), (2, "x")])
def test_refusals(size: Any, seed: Any) -> None:
    with pytest.raises(RecipeError, match="whole number"):
        Shuffle(size, seed=seed)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    settings = Shuffle(np.int64(8), seed=np.uint8(5)).settings()  # type: ignore[arg-type]
    assert (settings, set(map(type, settings.values()))) == ({"buffer_size": 8, "seed": 5, "block_size": 1}, {int})


def test_rows_of_a_block_stay_together() -> None:
    out = shuffled(Shuffle(12, seed=1, block_size=3), numbered(24), 0, 5).columns.column("number").to_pylist()
    blocks = [out[at : at + 3] for at in range(0, 24, 3)]
    assert sorted(blocks) == [[n, n + 1, n + 2] for n in range(0, 24, 3)]
    assert blocks != sorted(blocks)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 3}, "block_size=3 does not divide buffer_size=8"),
        ({"block_size": 16}, "block_size=16 does not divide buffer_size=8"),
        ({"block_size": 0}, "block_size is 0: it must be a whole number of at least 1"),
        ({"algorithm": "reservoir"}, "algorithm is 'reservoir': it must be one of 'window', 'streaming'"),
    ],
)
def test_refusals_of_what_is_moved(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Shuffle(8, seed=1, **settings)


@pytest.mark.parametrize("algorithm", ["window", "streaming", "block", "block_warmup"])
def test_the_reference_librarys_names_are_windows(algorithm: str) -> None:
    assert Shuffle(8, seed=1, algorithm=algorithm).settings() == Shuffle(8, seed=1).settings()
