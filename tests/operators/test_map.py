"""`map`: types by schema or by trial, and refusals."""

import asyncio
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tests.made_rows import made, placed, run, texts
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import JSON
from zephon_async.operators.map import Map


def halves(row: dict[str, Any]) -> dict[str, Any]:
    return {"half": row["number"] / 2, "name": f"n{row['number']}", "twice": [row["number"]] * 2}


def learned(operator: Map, columns: dict[str, Any]) -> Map:
    operator.recall(operator.learn(made(columns)))
    return operator


def test_types_are_learned_and_recalled() -> None:
    types = Map(halves).learn(made({"number": [1, 2]}))
    assert isinstance(types, bytes)
    operator = Map(halves)
    operator.recall(types)
    out = operator.apply(made({"number": [3]}), Counter())
    assert out.columns.schema == pa.schema({"half": pa.float64(), "name": pa.large_string(), "twice": pa.list_(pa.int64())})
    assert placed(out) == [({"half": 1.5, "name": "n3", "twice": [3, 3]}, 0, 0)]
    assert operator.apply(made({"number": []}), Counter()).columns.schema == out.columns.schema


def test_what_does_not_fit_later_is_a_bad_record() -> None:
    operator = learned(Map(lambda row: {"x": "odd" if row["number"] == 5 else row["number"]}), {"number": [1, 2]})
    out, at, cause = run(operator, made({"number": [3, 4, 5, 6]}))
    assert placed(out) == [({"x": 3}, 0, 0), ({"x": 4}, 1, 0)]
    assert (at, type(cause)) == (2, BadRecord)
    assert str(cause) == "column 'x' of the result: wanted int64, found str 'odd' (pass schema= if that is right)"


def test_a_bad_result_before_an_exception_comes_first() -> None:
    def wrong(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1.5 if row["number"] == 1 else 5 // (2 - row["number"])}

    out, at, cause = run(Map(wrong, schema={"x": pa.int64()}), made({"number": [0, 1, 2]}))
    assert (placed(out), at, type(cause)) == ([({"x": 2}, 0, 0)], 1, BadRecord)
    out, at, cause = run(Map(wrong, schema={"x": pa.int64()}), made({"number": [0, 2, 1]}))
    assert (placed(out), at, type(cause)) == ([({"x": 2}, 0, 0)], 1, ZeroDivisionError)


def test_a_schema_needs_no_trial() -> None:
    calls: list[Any] = []

    def called(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row)
        return {"x": 1, "z": 2}

    operator = Map(called, schema={"x": pa.int8(), "y": pa.int8()})
    assert operator.learns is False
    assert calls == []
    operator.recall(None)
    _, at, cause = run(operator, texts(["a"]))
    assert (at, type(cause)) == (0, BadRecord)
    assert str(cause) == "the result has ['z'] too many; wanted are ['x', 'y']: change schema="


def test_records_that_fail_are_left_out_of_the_trial() -> None:
    operator = learned(Map(lambda row: {"x": 6 // row["number"]}), {"number": [0, 2, 3]})
    assert placed(run(operator, made({"number": [3]}))[0]) == [({"x": 2}, 0, 0)]
    _, at, cause = run(operator, made({"number": [0]}))
    assert (at, type(cause)) == (0, ZeroDivisionError)


def test_where_every_record_of_the_trial_fails_the_failure_comes_in_its_place() -> None:
    operator = learned(Map(lambda row: {"x": 6 // row["number"]}), {"number": [0, 0]})
    out, at, cause = run(operator, made({"number": [0, 1]}))
    assert (placed(out), at, type(cause)) == ([], 0, ZeroDivisionError)
    with pytest.raises(RecipeError, match=r"failed on every record of the trial at the start; pass schema="):
        operator.apply(made({"number": [1]}), Counter())


@pytest.mark.parametrize("result", [None, 5, "text", [("a", 1)]])
def test_a_function_that_gives_no_dict(result: Any) -> None:
    _, at, cause = run(Map(lambda row: result, schema={"x": pa.int8()}), texts(["a"]))
    assert (at, type(cause)) == (0, TypeError)
    assert "<lambda> gave " in str(cause)
    assert "wanted a dict of column names to values" in str(cause)


def test_json_columns_reach_the_function_decoded_and_go_on_as_json() -> None:
    field = pa.field("meta", pa.large_string(), metadata=JSON)
    column = pa.array(['{"tags": ["a"]}', '{"other": 1}', None], pa.large_string())
    records = made({"meta": column})
    records = records.with_columns(pa.RecordBatch.from_arrays([column], schema=pa.schema([field])))
    operator = Map(lambda row: {**row, "keys": sorted(row["meta"] or {})})
    operator.recall(operator.learn(records))
    out = operator.apply(records, Counter())
    assert out.columns.schema.field("meta").equals(field, check_metadata=True)
    assert out.columns.to_pylist() == [
        {"meta": '{"tags":["a"]}', "keys": ["tags"]},
        {"meta": '{"other":1}', "keys": ["other"]},
        {"meta": None, "keys": []},
    ]


def test_async_functions_are_tried_on_the_loop_that_is_there() -> None:
    async def count(row: dict[str, Any]) -> dict[str, Any]:
        return {"n": len(row["text"])}

    async def run_on_one_loop() -> None:
        operator.recall(await operator.learn_async(texts(["a", "bb"])))
        assert placed(await operator.apply_async(texts(["ccc"]), Counter())) == [({"n": 3}, 0, 0)]

    operator = Map(count)
    assert (operator.concurrency, operator.parallelism) == (16, None)
    asyncio.run(run_on_one_loop())


def test_async_functions_are_tried_too() -> None:
    async def count(row: dict[str, Any]) -> dict[str, Any]:
        return {"n": 1 // len(row["text"])}

    operator = Map(count)
    operator.recall(asyncio.run(operator.learn_async(texts(["", "a"]))))
    out, at, cause = run(operator, texts(["b", ""]))
    assert (placed(out), at, type(cause)) == ([({"n": 1}, 0, 0)], 1, ZeroDivisionError)


def test_settings_tell_what_decides_the_data() -> None:
    operator = Map(halves, schema={"x": pa.int8()}, columns=["a"], version="3", parallelism=2)
    settings = operator.settings()
    assert {name: value for name, value in settings.items() if name not in ("source", "function")} == {
        "version": "3",
        "columns": ["a"],
        "schema": [["x", "int8", True, False]],
    }
    assert settings == Map(halves, schema={"x": pa.int8()}, columns=["a"], version="3", parallelism=5).settings()
