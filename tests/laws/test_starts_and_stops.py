"""Law 6 over and over: two thousand iterations that are begun and left in all ways leave nothing behind."""

import asyncio
import random
import threading
from collections.abc import Callable

import pytest

from tests.numbered import digests, engine_of, packed
from tests.soak import Level, crept
from zephon_async import Pipeline

STARTS, OF_A_LEVEL = 2000, 100


def broken(pipeline: Pipeline, turns: int) -> None:
    for number, _ in enumerate(pipeline):
        if number == turns:
            break


def closed_while_full(pipeline: Pipeline, turns: int) -> None:
    broken(pipeline, turns)
    pipeline.close()


def begun_again(pipeline: Pipeline, turns: int) -> None:
    for _ in range(3):
        iter(pipeline)
    broken(pipeline, turns)


def cancelled(pipeline: Pipeline, turns: int) -> None:
    async def take() -> None:
        task = asyncio.ensure_future(anext(aiter(pipeline)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(take())


def dropped(pipeline: Pipeline, turns: int) -> None:
    next(iter(pipeline))


def to_the_end(pipeline: Pipeline, turns: int) -> None:
    digests(pipeline)


WAYS: tuple[Callable[[Pipeline, int], None], ...] = (broken, closed_while_full, begun_again, cancelled, dropped, to_the_end)


def wait_for(thread: threading.Thread | None) -> None:
    """Wait for the end of a thread, a moment at a time: what another thread drops of ours is collected when we run Python code."""
    turns = 6000
    while thread is not None and thread.is_alive() and turns:
        thread.join(0.01)
        turns -= 1


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_many_starts_and_stops_leave_nothing_behind(runner: str, wanted: list[str]) -> None:
    dice, levels = random.Random(0), list[Level]()
    for number in range(1, STARTS + 1):
        pipeline = packed(runner=runner)
        dice.choice(WAYS)(pipeline, dice.randrange(6))
        if dice.randrange(2):
            pipeline.close()
        thread = None if pipeline._started is None else engine_of(pipeline)._thread
        del pipeline
        wait_for(thread)
        if number % OF_A_LEVEL == 0:
            levels.append(Level.now())
    assert crept(levels) == ""
    with packed(runner=runner) as pipeline:
        assert digests(pipeline) == wanted
