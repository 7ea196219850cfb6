"""Rows that are held: how many, in which order, and what is let go of."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.made_rows import made, placed
from zephon_async.operators.holding import Holding


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_rows_come_back_in_their_order(parcels: list[int], data: st.DataObject) -> None:
    records, holding, start = made({"n": pa.array(range(sum(parcels)))}), Holding(), 0
    for size in parcels:
        holding.hold(records.slice(start, start + size))
        start += size
    assert (holding.held_rows, holding.held_bytes > 0) == (start, True)
    out = []
    while holding.held_rows:
        before, rows = holding.held_rows, data.draw(st.integers(1, holding.held_rows))
        out += placed(holding.release(rows))
        assert holding.held_rows == before - rows
        assert (holding.held_bytes > 0) is (holding.held_rows > 0)
    assert out == placed(records)
