"""How many run at once, and in which order; time is a number that the test moves."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from zephon_async.io import gate as module
from zephon_async.io.gate import AT_ONCE, Gate


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


def settled(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(make())


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_no_more_than_the_limit_are_inside_and_the_soonest_needed_is_next() -> None:
    async def main() -> None:
        gate, leave, entered = Gate(2), asyncio.Event(), list[int]()

        async def one(n: int) -> None:
            async with gate.turn((n,)):
                entered.append(n)
                if n < 2:
                    await leave.wait()

        first = [asyncio.create_task(one(n)) for n in (0, 1)]
        await turns()
        others = [asyncio.create_task(one(n)) for n in (9, 5, 7)]
        await turns()
        assert entered == [0, 1]
        assert repr(gate) == "<Gate 2 of 2 inside, 3 waiting>"
        leave.set()
        await asyncio.wait([*first, *others])
        assert entered == [0, 1, 5, 7, 9]
        assert repr(gate) == "<Gate 0 of 2 inside, 0 waiting>"

    settled(main)


@pytest.mark.parametrize("let_in", [False, True])
def test_whoever_gives_up_takes_no_place(let_in: bool) -> None:
    async def main() -> None:
        gate, leave = Gate(1), asyncio.Event()

        async def inside(event: asyncio.Event | None) -> None:
            async with gate.turn((0,)):
                if event is not None:
                    await event.wait()

        first = asyncio.create_task(inside(leave))
        await turns()
        second = asyncio.create_task(inside(asyncio.Event()))
        await turns()
        if let_in:  # cancelled in the same turn of the loop in which it was let in
            leave.set()
            await asyncio.sleep(0)
        second.cancel()
        leave.set()
        await asyncio.wait([first, second])
        assert second.cancelled()
        await asyncio.wait_for(inside(None), 5)
        assert repr(gate) == "<Gate 0 of 1 inside, 0 waiting>"

    settled(main)


async def window(gate: Gate, clock: Clock, seconds: float, full: bool = True) -> None:
    """As many reads as run at once, each of a MB, while others wait or not."""
    leave = asyncio.Event()

    async def one() -> None:
        async with gate.turn((0,)):
            await leave.wait()

    limit = gate.limit
    tasks = [asyncio.create_task(one()) for _ in range(limit + full)]
    await turns()
    clock.now += seconds
    leave.set()
    await asyncio.wait(tasks)
    for _ in range(limit):
        gate.moved(1_000_000)


def test_more_run_as_long_as_that_moves_more_and_fewer_when_it_moves_less(clock: Clock) -> None:
    async def main() -> None:
        gate = Gate()
        limits = [gate.limit]
        for seconds in (1.0, 1.0, 1.0, 100.0, 1.0):
            await window(gate, clock, seconds)
            limits.append(gate.limit)
        assert limits[0] == AT_ONCE
        assert limits[1] > limits[0]
        assert limits[2] > limits[1]  # as long, but more of them
        assert limits[4] < limits[3]
        assert limits[5] > limits[4]

    settled(main)


def test_it_stays_where_nobody_waits(clock: Clock) -> None:
    async def main() -> None:
        gate = Gate()
        for seconds in (1.0, 0.1, 10.0):
            await window(gate, clock, seconds, full=False)
            assert gate.limit == AT_ONCE

    settled(main)


def test_it_is_never_above_the_most(clock: Clock) -> None:
    async def main() -> None:
        gate = Gate(4, 10)
        for n in range(8):
            await window(gate, clock, 1.0 / (n + 1))
        assert gate.limit == 10

    settled(main)


def test_slow_down_halves_it_once_for_all_that_were_under_way(clock: Clock) -> None:
    async def main() -> None:
        gate = Gate(16)
        for _ in range(16):
            gate.slow_down()
        assert gate.limit == 8
        await window(gate, clock, 1.0)
        assert gate.limit > 8
        before = gate.limit
        gate.slow_down()
        assert gate.limit == before // 2

    settled(main)


def test_one_may_always_run(clock: Clock) -> None:
    async def main() -> None:
        gate = Gate(2)
        for _ in range(5):
            gate.slow_down()
            await window(gate, clock, 1.0, full=False)
        assert gate.limit == 1

    settled(main)


def test_a_rate_that_falls_lets_no_more_in(clock: Clock) -> None:
    """Not where the limit has become small by what the storage said."""

    async def main() -> None:
        gate = Gate(3, 64)
        for nbytes in (1_000, 10):
            for _ in range(3):
                await asyncio.wait([asyncio.create_task(_pass(gate)) for _ in range(5)])
                clock.now += 1
                gate.moved(nbytes)
        assert gate.limit <= 5
        gate.limit = 3
        for nbytes in (10, 10, 10, 1, 1, 1):
            await asyncio.wait([asyncio.create_task(_pass(gate)) for _ in range(5)])
            clock.now += 1
            gate.moved(nbytes)
        assert gate.limit <= 3

    settled(main)


async def _pass(gate: Gate) -> None:
    async with gate.turn((0,)):
        await asyncio.sleep(0)
