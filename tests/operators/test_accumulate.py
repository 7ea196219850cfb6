"""A user's own state: typing, origins, failures."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.accumulate import Accumulate
from zephon_async.operators.base import RecordFailed
from zephon_async.records import ORIGIN, Origins, Records

SUMS = {"total": pa.int64()}


def numbers(values: list[Any], kind: pa.DataType | None = None) -> Records:
    origins = np.zeros(len(values), ORIGIN)
    origins["row"] = np.arange(len(values))
    return Records(pa.RecordBatch.from_pydict({"n": pa.array(values, kind or pa.int64())}), Origins(origins))


def add_up(state: list[int], record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give the sum of what came since the last multiple of 10, and, for a multiple of 20, 0 too."""
    if record["n"] == 13:
        raise ValueError("thirteen")
    state.append(record["n"])
    if record["n"] % 10 == 0:
        yield {"total": sum(state)}
        if record["n"] % 20 == 0:
            yield {"total": 0}
        state.clear()


def left(state: list[int]) -> list[dict[str, Any]]:
    return [{"total": sum(state)}, {"total": -1}]


def totals(records: Records | None) -> list[int]:
    return [] if records is None else list(records.columns.column("total").to_pylist())


def sources(records: Records | None) -> list[list[int]]:
    """The rows that each output comes from."""
    assert records is not None
    bounds, rows = records.origins.bounds().tolist(), records.origins.segments["row"].tolist()
    return [rows[start:stop] for start, stop in pairwise(bounds)]


@given(st.lists(st.integers(0, 40).filter(lambda n: n != 13), min_size=1, max_size=40), st.integers(1, 40))
def test_outputs_and_origins_against_an_oracle(values: list[int], parcel: int) -> None:
    wanted: list[tuple[int, list[int]]] = []
    state: list[int] = []
    rows: list[int] = []
    for row, n in enumerate(values):
        rows.append(row)
        if given_ := list(add_up(state, {"n": n})):
            wanted += [(record["total"], rows) for record in given_]
            rows = []
    wanted += [(record["total"], rows or [len(values) - 1]) for record in left(state)]

    records, accumulator = numbers(values), Accumulate(list, add_up, left, schema=SUMS).accumulator(0, 5)
    found: list[tuple[int, list[int]]] = []
    parcels = [records.slice(start, start + parcel) for start in range(0, len(records), parcel)]
    for out in [*(accumulator.push(piece, 0, Counter())[0] for piece in parcels), accumulator.flush(Counter())]:
        if out is not None:
            found += zip(totals(out), sources(out), strict=True)
    assert found == wanted
    assert accumulator.given == 5 + len(wanted)


def test_the_schema_is_learned_from_a_trial() -> None:
    operator = Accumulate(list, add_up, left)
    learned = operator.learn(numbers([1, 10]))
    again = Accumulate(list, add_up, left)
    again.recall(learned)
    out, marks = again.accumulator(0, 0).push(numbers([1, 10, 2]), 0, Counter())
    assert out is not None
    assert out.columns.schema == pa.schema(SUMS)
    assert totals(out) == [11]
    assert list(marks.outputs) == []
    assert again.needs_flush
    assert operator.settings() == again.settings()


@pytest.mark.parametrize("values", [[10, 13], [13, 10], [1, 13]])
def test_records_that_fail_are_left_out_of_the_trial(values: list[int]) -> None:
    operator = Accumulate(list, add_up, left)
    operator.recall(operator.learn(numbers(values)))
    assert operator.typed == pa.schema(SUMS)


def test_a_trial_that_gives_nothing() -> None:
    with pytest.raises(RecipeError, match=r"gave no record for any of 2 in the trial; pass schema="):
        Accumulate(list, add_up).learn(numbers([1, 2]))
    failing = Accumulate(list, add_up)
    failing.recall(failing.learn(numbers([13])))
    with pytest.raises(RecipeError, match="failed on every record of the trial at the start; pass schema="):
        failing.accumulator(0, 0).push(numbers([10]), 0, Counter())


def test_a_failure_keeps_what_came_before_it() -> None:
    accumulator = Accumulate(list, add_up, left, schema=SUMS).accumulator(0, 0)
    with pytest.raises(RecordFailed) as caught:
        accumulator.push(numbers([4, 10, 5, 13, 10]), 0, Counter())
    assert caught.value.at == 3
    assert totals(caught.value.done) == [14]
    assert isinstance(caught.value.__cause__, ValueError)
    assert accumulator.given == 1


def test_a_result_that_does_not_fit_is_a_bad_record_in_its_place() -> None:
    def push(state: list[Any], record: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"total": 1.5 if record["n"] == 2 else record["n"]}]

    with pytest.raises(RecordFailed) as caught:
        Accumulate(list, push, schema=SUMS).accumulator(0, 0).push(numbers([0, 1, 2, 3]), 0, Counter())
    assert (caught.value.at, totals(caught.value.done)) == (2, [0, 1])
    assert isinstance(caught.value.__cause__, BadRecord)


def test_json_that_is_none_fails_in_its_place() -> None:
    kind = pa.field("n", pa.large_string(), metadata={b"zephon": b"json"})
    records = numbers(["1", "{"], pa.large_string())
    records = records.with_columns(records.columns.cast(pa.schema([kind])))
    with pytest.raises(RecordFailed) as caught:
        Accumulate(list, lambda state, record: [{"total": record["n"]}], schema=SUMS).accumulator(0, 0).push(records, 0, Counter())
    assert (caught.value.at, totals(caught.value.done)) == (1, [1])


def test_flush_is_not_called_for_nothing_and_makes_a_new_state() -> None:
    calls: list[list[int]] = []

    def flush(state: list[int]) -> None:
        calls.append(list(state))

    accumulator = Accumulate(list, add_up, flush, schema=SUMS).accumulator(0, 0)
    accumulator.flush(Counter())
    accumulator.push(numbers([1]), 0, Counter())
    assert (accumulator.held_rows, accumulator.held_bytes > 0) == (1, True)
    accumulator.flush(Counter())
    accumulator.push(numbers([2]), 0, Counter())
    accumulator.flush(Counter())
    assert calls == [[1], [2]]


def test_only_the_columns_asked_for_are_read() -> None:
    operator = Accumulate(list, add_up, columns=["n"], schema=SUMS)
    assert (operator.reads(None), operator.requires()) == (frozenset({"n"}), {"n": "any"})
    assert Accumulate(list, add_up, schema=SUMS).reads(frozenset({"total"})) is None


@pytest.mark.parametrize("result", [{"total": 1}, 7, "text", [7]])
def test_what_is_no_list_of_dicts_is_refused(result: Any) -> None:
    accumulator = Accumulate(list, lambda state, record: result, schema=SUMS).accumulator(0, 0)
    with pytest.raises(RecordFailed) as caught:
        accumulator.push(numbers([1]), 0, Counter())
    assert "wanted a list of dicts" in str(caught.value.__cause__)


async def waits(state: Any, record: dict[str, Any]) -> None: ...


def test_refusals() -> None:
    shared: list[int] = []
    with pytest.raises(RecipeError, match="is async"):
        Accumulate(list, waits)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="wanted a function"):
        Accumulate([], add_up)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="cannot change in place"):
        Accumulate(int, add_up, schema=SUMS).accumulator(0, 0)
    with pytest.raises(RecipeError, match="same object twice"):
        Accumulate(lambda: shared, add_up, schema=SUMS)


def test_the_functions_are_in_the_fingerprint() -> None:
    settings = Accumulate(list, add_up, left, schema=SUMS, version=3).settings()
    assert settings["push function"].endswith("test_accumulate:add_up")
    assert (settings["push version"], settings["flush version"]) == (3, 3)
    assert (settings["init source"], settings["push source"] is None, settings["flush source"] is None) == (None, False, False)
    assert "flush function" not in Accumulate(list, add_up).settings()
