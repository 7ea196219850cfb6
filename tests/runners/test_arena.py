"""Records go through shared memory as they are, in any size, one behind the other."""

import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made_rows import made
from zephon_async.records import ORIGIN, Origins, Records
from zephon_async.runners.arena import Arena, lay_down, pick_up


def through(arenas: tuple[Arena, Arena], records: Records | None, extra: bytes = b"") -> tuple[Records | None, bytes]:
    there, here = arenas
    return pick_up(here, lay_down(there, records, extra), copied=True)


def both_sides() -> tuple[Arena, Arena]:
    """As of two processes: two maps of one memory."""
    one = Arena.new()
    return one, Arena(os.dup(one.descriptor))


def packed(rows: int) -> Records:
    """Rows with three origins each."""
    columns = pa.record_batch({"n": pa.array(range(rows))})
    segments = np.zeros(3 * rows, ORIGIN)
    segments["row"] = range(3 * rows)
    return Records(columns, Origins(segments, np.arange(rows + 1) * 3))


def same_origins(one: Origins, other: Origins) -> bool:
    return bool(np.array_equal(one.segments, other.segments) and np.array_equal(one.bounds(), other.bounds()))


@given(st.lists(st.integers(0, 3000), max_size=6), st.binary(max_size=200))
def test_records_come_back(sizes: list[int], extra: bytes) -> None:
    arenas = both_sides()
    for size in sizes:
        for records in (made({"text": pa.array(["é" * (n % 7) for n in range(size)])}), packed(size).slice(size // 3, size)):
            back, besides = through(arenas, records, extra)
            assert back is not None
            assert back.columns.equals(records.columns)
            assert same_origins(back.origins, records.origins)
            assert besides == extra
    assert through(arenas, None, extra) == (None, extra)
    for arena in arenas:
        arena.close()


def test_what_is_copied_out_outlives_what_comes_next() -> None:
    arenas = both_sides()
    first, _ = through(arenas, made({"n": pa.array(range(1000))}))
    through(arenas, made({"n": pa.array([7] * 1000)}))
    assert first is not None
    assert first.columns.column(0).to_pylist() == list(range(1000))
    for arena in arenas:
        arena.close()


@pytest.mark.parametrize("column", [pa.array(["a", "b"] * 50).dictionary_encode(), pa.nulls(100), pa.array([[1], None] * 50)])
def test_columns_of_any_kind(column: pa.Array) -> None:
    arenas = both_sides()
    back, _ = through(arenas, made({"c": column}))
    assert back is not None
    assert back.columns.column(0).equals(column)
    for arena in arenas:
        arena.close()


def test_an_arena_gives_back_what_it_needs_no_more() -> None:
    arenas = both_sides()
    through(arenas, made({"n": pa.array(np.zeros(8 << 20, np.int64))}))
    assert all(arena.nbytes > 64 << 20 for arena in arenas)
    through(arenas, made({"n": pa.array([1])}))
    assert all(arena.nbytes < 1 << 20 for arena in arenas)
    for arena in arenas:
        arena.close()
