"""One run, however it is iterated: plain code, asyncio, trio; interrupted, cancelled, left and begun again (G01, G02)."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.numbered import digests, engine_of, gated, packed
from zephon_async import Batch, Pipeline
from zephon_async.errors import ClosedError

RUNNERS = pytest.mark.parametrize("runner", ["threads", "inline"])


async def every(pipeline: Pipeline) -> list[str]:
    return [batch.digest() async for batch in pipeline]


def on(backend: str, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return anyio.run(function, *args, backend=backend)


BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@RUNNERS
def test_every_face_gives_the_same(runner: str, wanted: list[str]) -> None:
    for backend in ("asyncio", "trio"):
        with packed(runner=runner) as pipeline:
            assert on(backend, every, pipeline) == wanted
    with packed(runner=runner) as pipeline:
        assert digests(pipeline) == wanted


@BACKENDS
def test_async_with(backend: str, wanted: list[str]) -> None:
    async def use() -> list[str]:
        async with packed() as pipeline:
            return await every(pipeline)

    assert on(backend, use) == wanted


def test_one_pipeline_in_one_loop_after_the_other_and_without(wanted: list[str]) -> None:
    with packed() as pipeline:
        assert asyncio.run(every(pipeline)) == wanted
        assert asyncio.run(every(pipeline)) == wanted
        assert trio.run(every, pipeline) == wanted
        assert digests(pipeline) == wanted
        assert asyncio.run(every(pipeline)) == wanted


def test_a_plain_for_inside_a_running_loop(wanted: list[str]) -> None:
    async def use() -> list[str]:
        with packed() as pipeline:
            return digests(pipeline)

    assert asyncio.run(use()) == wanted


def test_iterating_in_a_thread_of_a_loop(wanted: list[str]) -> None:
    async def use() -> list[str]:
        async with packed() as pipeline:
            return await asyncio.to_thread(digests, pipeline)

    assert asyncio.run(use()) == wanted


def test_two_pipelines_at_once_in_one_loop_and_in_two_threads(wanted: list[str]) -> None:
    async def both() -> list[list[str]]:
        async with packed() as one, packed() as other:
            return list(await asyncio.gather(every(one), every(other)))

    assert asyncio.run(both()) == [wanted, wanted]
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.extend(asyncio.run(both()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 4


NEWER = (
    "a newer iteration over this pipeline has begun; to share one among tasks or threads, let them all take from one iterator: "
    "it = aiter(pipeline), or iter(pipeline)"
)


def test_tasks_share_an_iterator_as_the_error_of_two_says(wanted: list[str]) -> None:
    async def take(batches: AsyncIterator[Batch]) -> list[str]:
        return [batch.digest() async for batch in batches]

    async def both() -> None:
        async with packed() as pipeline:
            it = aiter(pipeline)
            found = await asyncio.gather(take(it), take(it))
            assert sorted(found[0] + found[1]) == sorted(wanted)

    asyncio.run(both())


def test_one_pipeline_in_two_threads_gives_the_data_or_a_clear_error(wanted: list[str]) -> None:
    outcomes: list[Any] = []

    def iterate(pipeline: Pipeline) -> None:
        try:
            outcomes.append(digests(pipeline))
        except ClosedError as error:
            outcomes.append(str(error))

    with packed() as pipeline:
        threads = [threading.Thread(target=iterate, args=(pipeline,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.count(wanted) >= 1
        assert {str(o) for o in outcomes if o != wanted} <= {NEWER}
        assert digests(pipeline) == wanted


def test_a_pipeline_that_only_its_iterator_holds(wanted: list[str]) -> None:
    iterator = iter(packed())
    gc.collect()
    assert digests(iterator) == wanted
    assert asyncio.run(every(packed())) == wanted


def test_a_dropped_pipeline_is_closed() -> None:
    pipeline = packed()
    next(iter(pipeline))
    thread, gone = engine_of(pipeline)._thread, weakref.ref(pipeline)
    assert thread is not None
    del pipeline
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


# -- next, cancelled and timed out ---------------------------------------------------------------------------------------------


@BACKENDS
@given(moments=st.lists(st.integers(0, 12), max_size=60), runner=st.sampled_from(("threads", "inline")))
def test_a_cancelled_next_loses_nothing(backend: str, moments: list[int], runner: str, wanted: list[str]) -> None:
    """Cancelled after a drawn number of turns of the consumer's loop, again and again."""

    async def use() -> list[str]:
        found: list[str] = []
        async with packed(runner=runner) as pipeline:
            iterator = aiter(pipeline)
            for turns in moments:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_after, turns, tasks.cancel_scope)
                    batch = await _next(iterator)
                    found += [] if batch is None else [batch.digest()]
            return found + [batch.digest() async for batch in iterator]

    assert on(backend, use) == wanted


async def _after(turns: int, scope: anyio.CancelScope) -> None:
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


def test_a_next_that_times_out_loses_nothing(wanted: list[str]) -> None:
    async def use() -> list[str]:
        found: list[str] = []
        async with packed() as pipeline:
            iterator, n = aiter(pipeline), 0
            while True:
                n += 1
                try:
                    batch = await asyncio.wait_for(anext(iterator), (0, 0.0001, 0.001, 1)[n % 4])
                except asyncio.TimeoutError:  # noqa: UP041 (they are two in 3.10 and older, and it says what is meant)
                    continue
                except StopAsyncIteration:
                    return found
                found.append(batch.digest())

    assert asyncio.run(use()) == wanted


def test_a_task_that_is_cancelled_natively_loses_nothing(wanted: list[str]) -> None:
    async def use() -> list[str]:
        found: list[str] = []
        async with packed() as pipeline:
            iterator, n = aiter(pipeline), 0
            while True:
                n += 1
                task = asyncio.ensure_future(_next(iterator))
                for _ in range(n % 5 if n < 200 else 10_000):
                    await asyncio.sleep(0)
                    if task.done():
                        break
                task.cancel()
                await asyncio.wait([task])
                if task.cancelled():
                    continue
                batch = task.result()
                if batch is None:
                    return found
                found.append(batch.digest())

    assert asyncio.run(use()) == wanted


async def _next(iterator: Any) -> Batch | None:
    return await anext(iterator, None)


@BACKENDS
def test_a_loop_that_ends_while_its_next_waits_is_a_consumer_that_has_gone(backend: str) -> None:
    may, entered = threading.Event(), threading.Event()
    documents = gated(may, entered)

    async def give_up() -> None:
        with anyio.move_on_after(60) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anext, aiter(documents))
                await anyio.to_thread.run_sync(entered.wait)
                scope.cancel()

    with documents:
        on(backend, give_up)
        may.set()
        assert len(digests(documents)) > 20
