"""Users' functions and operators are looked at when a pipeline starts: what is told, what is refused, and what it costs."""

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.taken import in_order
from zephon_async import Dataset, Pipeline, RecipeError, check_operator, inspect_checkpoint
from zephon_async.operators import Map

ROWS = Dataset.from_dict("d", {"n": list(range(200))})


def begun(**options: Any) -> Any:
    return Pipeline(in_order(ROWS, epochs=1)).options(**({"runner": "inline"} | options))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if ": " in message and "tried on" not in message]


def numbered() -> Callable[[dict[str, Any]], dict[str, Any]]:
    numbers = itertools.count()
    return lambda row: {"n": next(numbers)}


def hashed(row: dict[str, Any]) -> bool:
    return hash(row["n"]) >= 0


def test_a_start_warns_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with begun().map(numbered()).filter(hashed).batch(50) as pipeline:
        assert len(list(pipeline)) == 4
        assert [message.partition(":")[0] for message in told(caplog)] == ["filter", "map"]
        assert f"filter: hash: {__name__}:hashed calls hash" in told(caplog)[0]
        assert "map: runs_differ: the same records gave {'n': " in told(caplog)[1]
        list(pipeline)
    assert len(told(caplog)) == 2  # once a start


def test_strict_refuses_to_start() -> None:
    refused = begun(validate="strict").map(numbered()).filter(hashed).batch(1)
    with pytest.raises(RecipeError, match=r"do not keep what they promise; (.|\n)*  filter: hash: (.|\n)*  map: runs_differ: "):
        next(iter(refused))
    with begun(validate="strict").map(lambda row: {"n": row["n"] + 1}).filter(lambda row: True).batch(50) as pipeline:
        assert len(list(pipeline)) == 4


@pytest.mark.parametrize("make", [lambda p, fn: p.filter(fn), lambda p, fn: p.map_transform(fn, schema={"n": "int64"})])
def test_off_does_not_look(make: Callable[[Any, Any], Any], caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def fn(row: dict[str, Any]) -> Any:
        calls.append(hash(row["n"]))
        return row["n"] >= 0 if make(begun(), fn)._operators[0].name == "filter" else row

    with make(begun(validate="off"), fn).batch(1) as pipeline:
        pipeline.explain()
        assert (calls, told(caplog)) == ([], [])
    with make(begun(), fn).batch(1) as pipeline:
        pipeline.explain()
        assert 0 < len(calls) <= 16
        assert set(calls) <= set(range(64))


def test_the_data_are_the_same_and_so_is_the_recipe() -> None:
    def run(**options: Any) -> list[Any]:
        built = begun(lanes=2, **options).filter(lambda row: row["n"] % 3 > 0).map(lambda row: {"n": row["n"] * 2})
        with built.batch(5) as pipeline:
            digests = [batch.digest() for batch in pipeline]
            summary = inspect_checkpoint(pipeline.checkpoint())
            return [digests, summary.recipe, summary.facts]

    assert run() == run(validate="off") == run(validate="strict")


def test_a_resumed_run_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    fn = numbered()
    with begun().map(fn).batch(50) as pipeline:
        next(iter(pipeline))
        state = pipeline.checkpoint()
    before = len(told(caplog))
    with begun().map(fn).batch(50) as pipeline:
        next(iter(pipeline.restore(state)))
    assert len(told(caplog)) == before == 1


def kills(row: dict[str, Any]) -> bool:
    os._exit(3)


def test_what_runs_in_worker_processes_is_not_tried_here(caplog: pytest.LogCaptureFixture) -> None:
    with begun(runner="processes", workers=1).filter(kills).filter(hashed).batch(1) as pipeline:
        pipeline.explain()
    assert [message.partition(" (")[0] for message in told(caplog)] == [f"filter: hash: {__name__}:hashed calls hash"]


def test_validate_reports_and_starts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = begun(runner="processes", validate="strict").filter(hashed).map(numbered())
    report = pipeline.validate()
    assert [(finding.operator, finding.name) for finding in report.findings] == [("filter", "hash"), ("map", "runs_differ")]
    assert not report.ok
    assert pipeline.validate().errors[0].name == "runs_differ"
    assert pipeline.options(validate="off").map(lambda row: row).batch(1).validate().findings[0] == report.findings[0]
    assert told(caplog) == []
    pipeline.close()


def test_validate_of_an_empty_dataset_looks_at_the_source() -> None:
    nothing = Dataset.from_dict("d", {"n": []})
    pipeline: Any = Pipeline(in_order(nothing, epochs=1)).filter(hashed).batch(1)
    assert [finding.name for finding in pipeline.validate().findings] == ["hash"]
    pipeline.close()


def test_a_function_that_fails_fails_in_its_place(caplog: pytest.LogCaptureFixture) -> None:
    with begun().filter(lambda row: row["n"] // (row["n"] - 3) >= 0, columns=["n"]).batch(1) as pipeline:
        batches = iter(pipeline)
        assert [next(batches).to_pylist("n") for _ in range(1)] == [[0]]
        with pytest.raises(ZeroDivisionError):
            list(batches)
    assert told(caplog) == []


def test_the_operators_of_the_package_are_not_looked_at() -> None:
    assert begun().shuffle(8).dedup("n", window=4).map_batches(lambda columns: columns).validate().findings == ()


def test_check_operator_takes_what_map_takes() -> None:
    assert (
        check_operator(Map(numbered()), [{"n": 1}, {"n": 2}]).findings == check_operator(numbered(), [{"n": 1}, {"n": 2}]).findings
    )
