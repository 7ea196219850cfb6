"""What lanes own of an epoch."""

from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zephon_async import Dataset, RecipeError
from zephon_async.engine.ahead import Ahead, Standing
from zephon_async.io import ANYWHERE, FROM_START, UNIT, WHOLE, Catalog
from zephon_async.io.catalog import IN_ORDER
from zephon_async.records import Part
from zephon_async.work.plan import DatasetPlan


def test_of_an_epoch_in_which_a_lane_has_no_row_no_order_is_made() -> None:
    lanes, rows = 8, 3
    plan = DatasetPlan(Dataset.from_dict("few", {"a": list(range(rows))}).catalog(), 1, True, lanes)
    with patch.object(plan, "_order", wraps=plan._order) as orders:
        owned = [[len(plan.parts(lane, epoch)) for lane in range(lanes)] for epoch in range(lanes)]
    assert [sum(each) for each in owned] == [rows] * lanes
    assert [sum(each) for each in zip(*owned, strict=True)] == [rows] * lanes
    assert orders.call_count == rows * lanes


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9])
def test_the_next_epoch_is_the_first_in_which_the_lane_owns_something(rows: int) -> None:
    lanes = 8
    plan = DatasetPlan(Dataset.from_dict("few", {"a": list(range(rows))}).catalog(), 1, True, lanes)
    for lane in range(lanes):
        for epoch in range(2 * lanes):
            assert plan.next_epoch(lane, epoch) == next(e for e in range(epoch, epoch + lanes) if len(plan.parts(lane, e)))
    assert DatasetPlan(Dataset.from_dict("none", {"a": []}).catalog(), 1, True, lanes).next_epoch(0, 3) is None


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("rows", "lanes"), [(1, 1), (1, 4), (3, 8), (40, 3), (41, 8), (100, 7), (64, 64)])
def test_the_lanes_of_a_unit_are_those_that_own_some_of_it(rows: int, lanes: int, shuffle: bool) -> None:
    dataset = Dataset.from_dict("some", {"a": list(range(rows))}).with_sizes(unit_bytes=48, block_bytes=16)
    plan = DatasetPlan(dataset.catalog(), 1, shuffle, lanes)
    for epoch in range(3):
        owned: dict[int, set[int]] = {unit: set() for unit in range(len(plan.catalog.units))}
        for lane in range(lanes):
            for part in plan.parts(lane, epoch):
                owned[part.unit].add(lane)
        assert {unit: set(plan.lanes_of(epoch, unit)) for unit in owned} == owned


@pytest.mark.parametrize("shuffle", ["blocks", "rows"])
def test_of_a_unit_of_which_pieces_are_permuted_all_lanes_may_own_some(shuffle: Any) -> None:
    dataset = Dataset.from_dict("some", {"a": list(range(40))}).with_sizes(unit_bytes=48, block_bytes=16)
    assert DatasetPlan(dataset.catalog(), 1, shuffle, 5).lanes_of(0, 3) == list(range(5))


def catalog_of(lengths: list[int], block: int, entry: int = ANYWHERE, measure: Any = "rows") -> Catalog:
    units = np.zeros(len(lengths), UNIT)
    units["length"], units["block"], units["entry"] = lengths, block, entry
    return Catalog("some", "made", (), units, measure)


@given(
    st.lists(st.integers(1, 9), max_size=6),
    st.integers(1, 4),
    st.sampled_from((ANYWHERE, IN_ORDER, WHOLE)),
    st.sampled_from((False, True, "units", "blocks", "rows")),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_every_row_comes_once_an_epoch_and_lanes_are_even(
    lengths: list[int], block: int, entry: int, shuffle: Any, lanes: int, epoch: int
) -> None:
    assume(shuffle != "rows" or entry != IN_ORDER)
    plan = DatasetPlan(catalog_of(lengths, block, entry), 3, shuffle, lanes)
    owned = []
    for lane in range(lanes):
        parts = plan.parts(lane, epoch)
        assert [parts[n] for n in range(len(parts))] == list(parts[:]) == list(parts)
        assert all(part.start // block == part.block == (part.stop - 1) // block for part in parts)
        owned.append([(part.unit, part.block * block + row) for part in parts for row in plan.order(part, epoch).tolist()])
    assert sorted(row for rows in owned for row in rows) == [(u, row) for u, n in enumerate(lengths) for row in range(n)]
    assert {len(rows) for rows in owned} <= {sum(lengths) // lanes, -(-sum(lengths) // lanes)}


def test_row_blocks_of_all_units_are_mixed() -> None:
    parts = DatasetPlan(catalog_of([64] * 4, 4), 1, "blocks", 1).parts(0, 0)
    assert len(parts) == 64
    assert len({part.unit for part in parts[:16]}) == 4


def test_units_that_are_read_in_order_are_permuted_whole() -> None:
    catalog = catalog_of([64] * 4, 4, IN_ORDER)
    blocks, units = (list(DatasetPlan(catalog, 1, shuffle, 3).parts(1, 2)) for shuffle in ("blocks", True))
    assert blocks == units


def test_a_plan_of_single_rows_holds_nothing_for_a_row() -> None:
    plan = DatasetPlan(catalog_of([1 << 40, 5 << 40], 4096), 1, "rows", 7)
    parts = plan.parts(3, 11)
    assert len(parts) in ((6 << 40) // 7, (6 << 40) // 7 + 1)
    unit, block, start, stop = parts[len(parts) - 1]
    assert (unit in (0, 1), start // 4096, stop - start) == (True, block, 1)


@pytest.mark.parametrize(
    ("entry", "measure", "message"),
    [
        (IN_ORDER, "rows", "made as it is stored is read in order: store it as Arrow, MDS or plain lines, or use shuffle='units'"),
        (FROM_START, "bytes", "made as it is stored is read in order"),
        (ANYWHERE, "bytes", "of dataset 'some' where its rows begin is not known: write an index with `zephon-async index`"),
    ],
)
def test_single_rows_that_cannot_be_read_by_themselves_are_not_permuted(entry: int, measure: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        DatasetPlan(catalog_of([8], 4, entry, measure), 1, "rows", 1)


def test_row_blocks_to_which_a_lane_returns_are_not_left() -> None:
    for returns in (False, True):
        blocks = Mock(budget_bytes=1 << 20, fetches=lambda d: None)
        ahead = Ahead(0, blocks, 4, 1, [returns])
        for unit in (0, 1):
            ahead.stand(Mock(coming=lambda d, n: []), 0, Standing(unit, 0, 0, 8), (0, 0))
        assert blocks.leave.called is not returns


def test_a_row_block_that_is_wanted_twice_is_read_ahead_once() -> None:
    blocks = Mock(budget_bytes=1 << 20, fetches=lambda d: None)
    coming = [Part(0, 3, 12, 13), Part(1, 0, 2, 3), Part(0, 3, 14, 15)]
    Ahead(0, blocks, 4, 1, [True]).stand(Mock(coming=lambda d, n: coming), 0, Standing(0, 0, 0, 8), (0, 0))
    assert blocks.prefetch.call_args.args[1] == [(0, 3), (1, 0)]
