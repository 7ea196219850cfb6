"""Transfers over storage in memory, for the tests of what is tried again and made twice. Time is a number that pauses move."""

import asyncio
import gc
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tests.fake_storage import Call, Cut, FakeConnection, Storage
from zephon_async.errors import ShardError
from zephon_async.io import transfer as module
from zephon_async.io.stores import Fault, Kind
from zephon_async.io.transfer import Counted, Patience, Transfer

T = TypeVar("T")
WHERE = "dataset 'd', shard 'a'"
BODY = bytes(range(251)) * 4
_sleep = asyncio.sleep


class Time:
    """Seconds that pauses move. paused: the pauses. even: pauses are not made different."""

    def __init__(self) -> None:
        self.now, self.paused, self.even = 0.0, list[float](), True

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.paused.append(seconds)
        self.now += seconds
        await _sleep(0)


def patched(patch: pytest.MonkeyPatch) -> Time:
    """Time that stands still but for the pauses of transfers."""
    time, uniform = Time(), random.uniform
    patch.setattr(module, "monotonic", time)
    patch.setattr(asyncio, "sleep", time.sleep)
    patch.setattr(random, "uniform", lambda low, high: 1.0 if time.even else uniform(low, high))
    return time


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it on a loop of its own; nothing may be left there, and nothing be complained of."""
    complaints: list[dict[str, Any]] = []

    async def guarded() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        found = await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()
        return found

    found = asyncio.run(guarded())
    assert complaints == []
    return found


async def turns(n: int = 20) -> None:
    """Let everything run that can."""
    for _ in range(n):
        await _sleep(0)


def storage_of(*faults: Fault | Cut | None, body: bytes = BODY, **settings: Any) -> Storage:
    return Storage({"a": body}, deque(faults), **settings)


def transfer_of(storage: Storage, **patience: Any) -> Transfer:
    return Transfer("fake://b/", FakeConnection(storage), Patience(**patience), Counted())


async def read(transfer: Transfer, storage: Storage, offset: int = 0, length: int | None = None, need: int = 0) -> bytes:
    found = storage.object("a")
    return bytes(await transfer.read(WHERE, found, offset, found.size - offset if length is None else length, (need,)))


def said(storage: Storage, **patience: Any) -> str:
    """The message of the error in which a read ends."""

    async def main() -> str:
        transfer = transfer_of(storage, **patience)
        with pytest.raises(ShardError) as caught:
            await read(transfer, storage)
        assert isinstance(caught.value.__cause__, Fault)
        assert repr(transfer.gate).endswith(" 0 waiting>")
        assert repr(transfer.gate).startswith("<Gate 0 of ")
        return str(caught.value)

    return run(main)


def passing(text: str = "slow", **settings: Any) -> Fault:
    return Fault(Kind.TRANSIENT, text, **settings)


class Held:
    """Futures in which reads are stopped, by the number of the request; `let` lets others pass."""

    def __init__(self, storage: Storage, let: Callable[[int], bool] = lambda number: False) -> None:
        self.futures: dict[int, asyncio.Future[None]] = {}
        self._number, self._let = -1, let
        storage.hold = self._hold

    def _hold(self, call: Call) -> "asyncio.Future[None] | None":
        self._number += 1
        if self._let(self._number):
            return None
        self.futures[self._number] = asyncio.get_running_loop().create_future()
        return self.futures[self._number]


async def warm(transfer: Transfer, storage: Storage, n: int = 16) -> None:
    """So many reads of the size of BODY, which are done at once: whatever is not is slow."""
    for _ in range(n):
        assert await read(transfer, storage) == BODY
    storage.calls.clear()
    transfer.counted.requests = transfer.counted.bytes = 0
