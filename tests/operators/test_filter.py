"""`filter`: what stays is untouched, what goes is counted."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.made_rows import made, placed, run
from zephon_async.operators.filter import Filter


def test_columns_are_untouched_and_counted() -> None:
    records = made(
        {
            "number": pa.array([1, None, 3, 4], pa.int16()),
            "packed": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32(), 2)),
            "text": pa.array(["a", None, "None", ""], pa.large_string()),
        }
    )
    tally = Counter[str]()
    out = Filter(lambda row: np.bool_(row["number"] != 3)).apply(records, tally)
    assert placed(out) == [row for row in placed(records) if row[0]["number"] != 3]
    assert out.columns.schema.equals(records.columns.schema, check_metadata=True)
    assert tally == {"records_filtered": 1}
    assert Filter(lambda row: True).apply(records, tally) is records
    nothing = Filter(lambda row: False).apply(records, tally)
    assert (len(nothing), nothing.columns.schema, tally) == (0, records.columns.schema, {"records_filtered": 5})


@pytest.mark.parametrize("answer", [None, 1, 0, "yes", np.int64(1), []])
def test_only_true_and_false_are_answers(answer: Any) -> None:
    out, at, cause = run(Filter(lambda row: answer if row["number"] == 2 else True), made({"number": [1, 2, 3]}))
    assert (placed(out), at, type(cause)) == ([({"number": 1}, 0, 0)], 1, TypeError)
    assert f"gave {type(answer).__name__} {answer!r}, wanted True or False" in str(cause)


def test_what_was_left_out_before_a_failure_is_counted() -> None:
    tally = Counter[str]()
    out, at, _ = run(Filter(lambda row: 6 // row["number"] > 2), made({"number": [1, 6, 0, 6]}), tally)
    assert (placed(out), at, tally) == ([({"number": 1}, 0, 0)], 2, {"records_filtered": 1})
