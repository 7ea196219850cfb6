"""Law 6: what does not come back, does not start or gives nothing ends in bounded time, and work is done where it belongs."""

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.fuses import ROWS, Boom, Fuse, blown, until_it_fails
from tests.numbered import NUMBERS, engine_of, numbers, packed, seen, settle, source
from zephon_async import Dataset, Pipeline
from zephon_async.engine import engine
from zephon_async.errors import ClosedError, RecipeError, WorkerError


@pytest.mark.parametrize("where", ["worker", "coroutine", "agree", "engine"])
def test_code_that_does_not_return_is_named_and_left(where: str, caplog: pytest.LogCaptureFixture) -> None:
    may, entered = threading.Event(), threading.Event()

    def block(record: dict[str, Any]) -> bool:
        entered.set()
        return may.wait(60)

    async def block_loop(record: dict[str, Any]) -> bool:
        return block(record)

    def agree(steps: int) -> int:
        block({})
        return steps

    options: dict[str, Any] = {"agree": agree} if where == "agree" else {"runner": "inline" if where == "engine" else "threads"}
    pipeline = Pipeline(source(numbers(ROWS))).options(**{"validate": "off", **options})  # or a start would run into it
    if where != "agree":
        pipeline.filter(block_loop if where == "coroutine" else block)
    pipeline.batch(1)
    taken = iter(pipeline)

    def ask() -> None:
        with pytest.raises(ClosedError):
            next(taken)

    asking = threading.Thread(target=ask)
    asking.start()
    entered.wait(60)
    names = {"worker": "zephon-worker", "coroutine": "zephon-users", "agree": "zephon-agree", "engine": "zephon-engine"}
    with caplog.at_level(logging.WARNING):
        pipeline._close(0.1)
    assert names[where] in caplog.text
    may.set()
    asking.join(60)
    for thread in threading.enumerate():
        if thread.name.startswith("zephon-"):
            thread.join(60)


@pytest.mark.parametrize("runner", ["threads", "inline"])
@pytest.mark.parametrize("inside", ["run", "engine"])
def test_a_close_that_a_signal_puts_inside_a_lock_waits_for_nothing_that_needs_it(
    inside: str, runner: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler runs on the thread that it interrupts, which may hold a lock that the engine needs to end."""
    pipeline = packed(epochs=None, runner=runner)
    taken = iter(pipeline)
    next(taken)
    engine = engine_of(pipeline)
    assert pipeline._run is not None
    thread = engine._thread
    assert thread is not None
    with caplog.at_level(logging.WARNING), {"run": pipeline._run, "engine": engine}[inside]._lock:  # type: ignore[attr-defined]
        pipeline.close()
    assert caplog.text == ""
    pipeline.close()
    assert not thread.is_alive()
    with pytest.raises(ClosedError):
        next(taken)


@pytest.mark.parametrize("name", ["zephon-engine", "zephon-worker-1", "zephon-users", "zephon-agree-0"])
def test_threads_that_cannot_be_started(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        begin(thread)

    async def keep(record: dict[str, Any]) -> bool:
        return True

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Pipeline(source(numbers(ROWS))).options(validate="off", workers=3, agree=int).filter(keep).batch(1) as pipeline:
        for _ in range(2):
            with pytest.raises((WorkerError, ClosedError), match=r"cannot be started \(can't start new thread\)|closed"):
                next(iter(pipeline))


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_data_that_gives_nothing(runner: str) -> None:
    empty = Dataset.from_dict("empty", {"n": []}, schema=NUMBERS)
    with Pipeline(source(empty)).options(runner=runner).batch(1) as pipeline:
        assert seen(pipeline) == []
    with (
        Pipeline(source(empty, epochs=None)).options(runner=runner).batch(1) as pipeline,
        pytest.raises(RecipeError, match="no dataset"),
    ):
        seen(pipeline)
    with Pipeline(source(numbers(5))).options(runner=runner).filter(lambda record: False).batch(1) as pipeline:
        assert seen(pipeline) == []


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_a_consumer_that_stops_for_good(runner: str) -> None:
    with packed(epochs=None, runner=runner, prefetch=3) as pipeline:
        next(iter(pipeline))
        settle(pipeline)
        held = pipeline.statistics().held_bytes
        settle(pipeline)
        assert pipeline.statistics().held_bytes == held
        assert all(lane.parked for lane in engine_of(pipeline)._lanes)


def test_debug_mode_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """No exception that nobody has seen, no task that was destroyed, no future from another loop."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    with caplog.at_level(logging.WARNING):
        for kind in ("map", "async map", "accumulate"):
            fuse = Fuse()
            with blown(kind, fuse, chunk_rows=2) as pipeline:
                until_it_fails(pipeline, Boom)
                fuse.mended = True
                for _ in range(5):
                    next(iter(pipeline))

                async def some(pipeline: Pipeline = pipeline) -> None:
                    async for batch in pipeline:
                        if batch.number == 3:
                            break
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(asyncio.Event().wait(), 0)

                asyncio.run(some(), debug=True)
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if not text.startswith("Executing")] == []  # how long a callback took is the machine's


def test_no_work_is_done_on_the_loop() -> None:
    where: set[str] = set()

    def note(record: dict[str, Any]) -> dict[str, Any]:
        where.add(threading.current_thread().name)
        return record

    async def note_later(record: dict[str, Any]) -> dict[str, Any]:
        return note(record)

    def push(state: list[int], record: dict[str, Any]) -> list[dict[str, Any]]:
        return [note(record)]

    mixture = source(numbers(ROWS))
    pipeline = Pipeline(mixture).map(note, schema=NUMBERS).map(note_later, schema=NUMBERS).accumulate(list, push, schema=NUMBERS)
    with pipeline.options(workers=2, validate="off").map_batches(lambda batch: note(batch), rows=2, schema=NUMBERS).batch(1):
        assert seen(pipeline) == list(range(ROWS))
    assert {name.rpartition("-")[0] if name[-1].isdigit() else name for name in where} == {"zephon-worker", "zephon-users"}


class Interrupted(threading._PyRLock):  # type: ignore[name-defined,misc]
    """A lock that a signal comes upon, as soon as it is taken."""

    armed = True

    def __enter__(self) -> bool:
        self.acquire()
        if self.armed and threading.current_thread() is threading.main_thread():
            self.armed = False
            raise KeyboardInterrupt
        return True


@pytest.mark.parametrize("where", ["next", "iter", "close"])
def test_a_ctrl_c_behind_the_taking_of_a_lock(where: str) -> None:
    with packed(epochs=None, prefetch=1) as pipeline:
        batches = iter(pipeline)
        next(batches)
        assert pipeline._run is not None
        owner: Any = pipeline._run if where == "next" else engine_of(pipeline)
        owner._lock = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            {"next": lambda: next(batches), "iter": lambda: iter(pipeline), "close": pipeline.close}[where]()
        for _ in range(20 if where == "next" else 0):
            next(batches)
    for thread in threading.enumerate():
        assert not thread.name.startswith("zephon-")


@pytest.mark.parametrize("where", ["iter", "checkpoint", "restore"])
def test_a_ctrl_c_behind_the_taking_of_the_lock_of_a_pipeline_leaves_it_to_other_threads(where: str) -> None:
    with packed(epochs=None, prefetch=1) as pipeline:
        next(iter(pipeline))
        state = pipeline.checkpoint()
        pipeline._lock = Interrupted()
        calls: dict[str, Callable[[], object]] = {
            "iter": lambda: iter(pipeline),
            "checkpoint": pipeline.checkpoint,
            "restore": lambda: pipeline.restore(state),
        }
        with pytest.raises(KeyboardInterrupt):
            calls[where]()
        given: list[bytes] = []
        other = threading.Thread(target=lambda: given.append(pipeline.checkpoint()), daemon=True)
        other.start()
        other.join(30)
        assert given == [state]


@pytest.mark.parametrize("runner", ["threads", "inline"])
@pytest.mark.parametrize("epochs", [1, None])
def test_a_ctrl_c_before_a_lane_is_told_what_was_taken(epochs: int | None, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tell, dice = engine._wake, random.Random(0)

    def interrupted(*args: Any) -> None:
        if dice.randrange(2):
            raise KeyboardInterrupt
        tell(*args)

    monkeypatch.setattr(engine, "_wake", interrupted)
    with packed(epochs=epochs, runner=runner, prefetch=1) as pipeline:
        batches, stopped, given = iter(pipeline), 0, 0
        while stopped < 100:
            try:
                if next(batches, None) is None:
                    break
                given += 1
            except KeyboardInterrupt:
                stopped += 1
        assert given > 5
