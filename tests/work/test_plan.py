"""What lanes own of an epoch."""

from unittest.mock import patch

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
