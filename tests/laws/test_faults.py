"""Law 6: what fails is raised in its place, as it is, again and again; nothing before it is lost, and nothing hangs (G04; G05)."""

import asyncio
import gc
import threading
import weakref
from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.fuses import AT, KINDS, ROWS, WAYS, Boom, Fuse, blown, until_it_fails
from tests.numbered import NUMBERS, engine_of, numbers, seen, source
from zephon_async import BadRecord, Pipeline
from zephon_async.operators import Operator, Tally
from zephon_async.operators.base import NO_MARKS
from zephon_async.records import Marks, Records


@WAYS
@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_raises(kind: str, way: dict[str, Any]) -> None:
    fuse = Fuse()
    with blown(kind, fuse, **way) as pipeline:
        found, error, state = until_it_fails(pipeline, Boom, full=kind in KINDS[::2])
        assert found == list(range(AT))
        assert error in fuse.raised
        assert any(entry.name == "blow" for entry in pytest.ExceptionInfo.from_exception(error).traceback)
        assert f"row {AT}, epoch 0" in "".join(error.__notes__)
        with blown(kind, fuse, **way).restore(state) as other:
            assert until_it_fails(other, Boom)[0] == []
        fuse.mended = True
        assert seen(pipeline.restore(state)) == list(range(AT, ROWS))
        with blown(kind, fuse, runner="inline").restore(state) as fresh:
            assert seen(fresh) == list(range(AT, ROWS))


@WAYS
@pytest.mark.parametrize("kind", ["map", "async map", "accumulate", "map_batches", "stateless"])
@pytest.mark.parametrize("raises", [KeyboardInterrupt, SystemExit])
def test_what_is_meant_to_end_the_program_does(kind: str, raises: type[BaseException], way: dict[str, Any]) -> None:
    fuse = Fuse(raises)
    with blown(kind, fuse, **way) as pipeline:
        found, error, _ = until_it_fails(pipeline, raises)
    assert (found, error in fuse.raised) == (list(range(AT)), True)


@pytest.mark.parametrize("kind", ["map, learned", "accumulate, learned"])
@pytest.mark.parametrize("raises", [KeyboardInterrupt, SystemExit])
def test_the_trial_at_the_start_swallows_no_ctrl_c(kind: str, raises: type[BaseException]) -> None:
    with blown(kind, Fuse(raises)) as pipeline, pytest.raises(raises):
        iter(pipeline)


def test_a_ctrl_c_in_the_trial_ends_it_at_once() -> None:
    calls: list[int] = []

    def slow(record: dict[str, Any]) -> dict[str, Any]:
        calls.append(record["n"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return record

    for pipeline in (
        Pipeline(source(numbers(ROWS))).map(slow),
        Pipeline(source(numbers(ROWS), unit="tokens"))
        .map(slow, schema=pa.schema([("input_ids", pa.list_(pa.int32()))]))
        .pack_flat(4),
    ):
        calls.clear()
        with pipeline.batch(1), pytest.raises(KeyboardInterrupt):
            iter(pipeline)
        assert calls == [0, 1, 2]


@pytest.mark.parametrize("begin", [iter, Pipeline.explain])
def test_a_trial_and_its_run_share_the_loop_of_coroutines(begin: Callable[[Pipeline], Any]) -> None:
    loops: set[Any] = set()

    async def note(record: dict[str, Any]) -> dict[str, Any]:
        loops.add(asyncio.get_running_loop())
        return record

    with Pipeline(source(numbers(ROWS))).map(note).batch(1) as pipeline:
        begin(pipeline)
        assert len(loops) == 1
        assert not next(iter(loops)).is_closed()
        assert seen(pipeline) == list(range(ROWS))
    assert len(loops) == 1
    with Pipeline(source(numbers(ROWS))).map(note).batch(1) as pipeline:
        begin(pipeline)
    assert len(loops) == 2
    assert all(loop.is_closed() for loop in loops)


@pytest.mark.parametrize("way", [{"runner": "threads"}, {"runner": "inline"}])
@pytest.mark.parametrize("kind", ["map", "async map", "accumulate", "stateless", "behind two", "filter"])
@pytest.mark.parametrize("raises", [StopIteration, StopAsyncIteration, GeneratorExit, CancelledError])
def test_what_python_takes_for_an_end_ends_nothing_silently(kind: str, raises: type[BaseException], way: dict[str, Any]) -> None:
    fuse = Fuse(raises)
    with blown(kind, fuse, **way) as pipeline:
        assert until_it_fails(pipeline, RuntimeError)[0] == list(range(AT))

        async def use() -> list[int]:
            return seen([batch async for batch in pipeline])

        with pytest.raises(RuntimeError):
            asyncio.run(use())


@WAYS
def test_the_place_is_that_of_its_lane(way: dict[str, Any]) -> None:
    fuse = Fuse()
    fuse.mended = True
    way = {**way, "lanes": 3, "microbatches_per_step": 6}
    with blown("map", fuse, **way) as pipeline:
        order = seen(pipeline)
    for at in order:
        fuse.at, fuse.mended = at, False
        with blown("map", fuse, **way) as pipeline:
            found, _, state = until_it_fails(pipeline, Boom)
            assert found == order[: order.index(at)]
            fuse.mended = True
            assert seen(pipeline.restore(state)) == order[order.index(at) :]


@WAYS
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("kind", ["filter", "async map", "accumulate", "behind two"])
def test_a_pipeline_that_has_failed_is_let_go(kind: str, closed: bool, way: dict[str, Any]) -> None:
    """The traceback of its error holds the frames that it was raised in, and they hold the pipeline: nothing else may hold it."""

    class Forgetful(Fuse):
        def blow(self, n: int) -> None:
            if n == self.at:
                raise Boom

    def fail() -> tuple["weakref.ref[Pipeline]", threading.Thread]:
        pipeline = blown(kind, Forgetful(), **way)
        until_it_fails(pipeline, Boom)
        thread = engine_of(pipeline)._thread
        assert thread is not None
        if closed:
            pipeline.close()
        return weakref.ref(pipeline), thread

    gone, thread = fail()
    for _ in range(100):  # a thread may not be through with what it had
        gc.collect()
        if gone() is None:
            break
    assert gone() is None
    thread.join(60)
    assert not thread.is_alive()


class _Wrong(Operator):
    """An operator that gives what it must not."""

    name = "wrong"

    def __init__(self, what: str) -> None:
        self.what = what

    def apply(self, records: Records, tally: Tally) -> Records:
        wrong: Any = {"none": None, "columns": records.columns}
        return wrong[self.what] if self.what in wrong else records.with_columns(records.columns.slice(0, 1))


INSTEAD = r"records.with_columns\(...\) for other columns of the same rows, records.take\(...\) for some of the rows"
WRONG = {
    "none": "wrong: apply gave NoneType, not Records",
    "short": "wrong: apply gave 1 rows and . origins",
    "columns": f"wrong: apply gave RecordBatch, not Records: give {INSTEAD}",
}


@pytest.mark.parametrize("what", WRONG)
def test_an_operator_of_ones_own_that_gives_something_else_is_told(what: str) -> None:
    with Pipeline(source(numbers(5))).apply(_Wrong(what)).batch(1) as pipeline:
        with pytest.raises(TypeError, match=WRONG[what]) as caught:
            next(iter(pipeline))
        (note,) = caught.value.__notes__
        assert note.startswith("zephon_async: in wrong, among rows that begin with dataset 'numbers', shard '0', row 0, epoch 0")


class NoNotes(Exception):
    def add_note(self, note: str) -> None:
        raise ValueError("no note")


class NoTraceback(Exception):
    def with_traceback(self, traceback: Any) -> Any:
        raise ValueError("no traceback")


class Frozen(BadRecord):
    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("frozen")


class NoText(BadRecord):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("runner", ["threads", "inline"])
@pytest.mark.parametrize("raises", [NoNotes, NoTraceback, Frozen, NoText])
@pytest.mark.parametrize("kind", ["map", "coroutine", "accumulate", "agree"])
def test_an_exception_that_takes_nothing_is_raised_in_its_place(kind: str, raises: type[Exception], runner: str) -> None:
    def fails(record: dict[str, Any]) -> dict[str, Any]:
        if record["n"] == AT:
            raise raises
        return record

    async def fails_too(record: dict[str, Any]) -> dict[str, Any]:
        return fails(record)

    pipeline = Pipeline(source(numbers(ROWS))).options(runner=runner)
    if kind == "agree":
        pipeline.options(agree=lambda steps: fails({"n": steps - 1})["n"] + 1)
    elif kind == "accumulate":
        pipeline.accumulate(list, lambda state, record: [fails(record)], schema=NUMBERS)
    else:
        pipeline.map(fails if kind == "map" else fails_too, schema=NUMBERS)
    with pipeline.batch(1):
        assert until_it_fails(pipeline, raises)[0] == list(range(AT))


class Unsound(Operator):
    """An accumulator whose outputs have lost an origin."""

    name = "unsound"
    needs_flush = True

    def __init__(self, method: str) -> None:
        self.method = method

    def accumulator(self, lane: int, first: int) -> "UnsoundHalf":
        return UnsoundHalf(self.method, first)


class UnsoundHalf:
    def __init__(self, method: str, first: int) -> None:
        self.method, self.given = method, first
        self.held_rows = self.held_bytes = 0
        self.held: list[Records] = []

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        self.held.append(records)
        return (self.give() if self.method == "push" else None), NO_MARKS

    def flush(self, tally: Tally) -> Records | None:
        return self.give() if self.held else None

    def give(self) -> Records:
        records, self.held = Records.concat(self.held), []
        self.given += len(records)
        return Records(records.columns, records.origins.slice(1, len(records)))


@pytest.mark.parametrize("method", ["push", "flush"])
def test_an_accumulator_that_loses_origins(method: str) -> None:
    with Pipeline(source(numbers(8))).apply(Unsound(method)).batch(4) as pipeline:
        for _ in range(2):
            with pytest.raises(TypeError, match=f"unsound: {method} gave 8 rows and 7 origins; take or slice Records as a whole"):
                next(iter(pipeline))
