"""What lanes own of an epoch."""

from unittest.mock import patch

import pytest

from zephon_async import Dataset
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
