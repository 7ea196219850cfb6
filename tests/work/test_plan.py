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
