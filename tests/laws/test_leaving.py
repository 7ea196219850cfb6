"""An iteration that is left, begun again, replaced or closed, at any moment and by any thread (G01, G02)."""

import asyncio
import threading
from typing import Any

import anyio
import pytest

from tests.numbered import digests, engine_of, gated, numbers, packed, source
from zephon_async import Pipeline
from zephon_async.errors import ClosedError, ZephonError

RUNNERS = pytest.mark.parametrize("runner", ["threads", "inline"])


def test_leaving_and_beginning_again(wanted: list[str]) -> None:
    with packed() as pipeline:
        for n in range(50):
            found = []
            for batch in pipeline:
                found.append(batch.digest())
                if len(found) > n % 4:
                    break
            assert found == wanted[: n % 4 + 1]
        state = pipeline.checkpoint()
        pipeline.restore(state)
        for _ in range(3):
            assert digests(pipeline) == wanted[len(found) :]


def test_an_iterator_that_a_newer_one_has_replaced(wanted: list[str]) -> None:
    with packed() as pipeline:
        old = iter(pipeline)
        assert next(old).digest() == wanted[0]
        new = iter(pipeline)
        for _ in range(2):
            with pytest.raises(ClosedError, match="newer iteration"):
                next(old)
        assert digests(new) == wanted
        state = pipeline.checkpoint()
        newest = iter(pipeline)
        pipeline.restore(state)
        with pytest.raises(ClosedError, match="restored"):
            next(newest)


def test_after_the_end_there_is_nothing_again_and_again() -> None:
    with packed() as pipeline:
        iterator = iter(pipeline)
        digests(iterator)
        for _ in range(3):
            assert next(iterator, None) is None
        digests(pipeline)
        assert next(iterator, None) is None
    assert next(iterator, None) is None

    async def use() -> None:
        async with packed() as pipeline:
            iterator = aiter(pipeline)
            while await anext(iterator, None) is not None:
                continue
            for _ in range(3):
                assert await anext(iterator, None) is None

    asyncio.run(use())


def test_closing_twice_and_at_once() -> None:
    async def use(pipeline: Pipeline) -> None:
        await anext(aiter(pipeline))
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(pipeline.aclose)
        await pipeline.aclose()

    for backend in ("asyncio", "trio"):
        anyio.run(use, packed(), backend=backend)
    pipeline = packed()
    iterator = iter(pipeline)
    next(iterator)
    threads = [threading.Thread(target=pipeline.close) for _ in range(3)]
    for thread in threads:
        thread.start()
    pipeline.close()
    for thread in threads:
        thread.join()
    for _ in range(2):
        with pytest.raises(ClosedError, match="closed"):
            next(iterator)
    with pytest.raises(ClosedError, match="closed"):
        iter(pipeline)


def test_closing_what_was_never_begun() -> None:
    with packed():
        pass
    with packed() as pipeline:
        pipeline.checkpoint()


def test_closing_wakes_a_consumer_that_waits() -> None:
    may, entered = threading.Event(), threading.Event()
    pipeline = gated(may, entered)
    outcome: list[Any] = []

    def wait() -> None:
        try:
            outcome.append(next(iter(pipeline)))
        except ZephonError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait(60)
    engine_of(pipeline).close_soon()
    may.set()
    thread.join(60)
    assert outcome == ["the pipeline is closed"]
    pipeline.close()


def test_closing_does_not_wait_for_a_start_that_does_not_return() -> None:
    may, entered = threading.Event(), threading.Event()

    def block(record: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        may.wait(60)
        return record

    pipeline = Pipeline(source(numbers(8))).map(block).batch(1)  # its types are learned at the start
    ended: list[BaseException] = []

    def start() -> None:
        try:
            iter(pipeline)
        except BaseException as error:
            ended.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    entered.wait(60)
    pipeline.close()
    may.set()
    starting.join(60)
    assert [type(error) for error in ended] == [ClosedError]
