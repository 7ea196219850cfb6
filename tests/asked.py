"""Asking storage in memory through an `Access`, for the tests of it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.fake_storage import Call, Storage
from zephon_async.io.access import NOW, Access
from zephon_async.io.ranges import Place, Range
from zephon_async.io.storage_options import CacheOptions, StorageOptions

T_S = 20.0  # it does not take as long
BODY = bytes(n * n % 251 for n in range(5_000))


def place(root: str = "fake://b/", **options: Any) -> Place:
    return Place(root, options)


def wanted(storage: Storage, offset: int = 0, length: int | None = None, key: str = "a", at: Place | None = None) -> Range:
    found = storage.object(key)
    return Range(f"shard {key!r}", at or place(), found, offset, found.size - offset if length is None else length)


def cached(root: Path, limit: int = 1 << 20) -> Access:
    access = Access(StorageOptions(CacheOptions(enabled=True, root=root, limit_bytes=limit)))
    access.bound(0, 0)  # all that is known is of the cache
    return access


def fetched(access: Access, *ranges: Range, on_grid: bool = False) -> list[bytes]:
    """Ranges that are fetched at once."""
    futures = [access.submit(access.fetch(each, NOW, on_grid)) for each in ranges]
    return [bytes(future.result(T_S)) for future in futures]


def reads(storage: Storage) -> list[tuple[int, int]]:
    return sorted((call.offset, call.length) for call in storage.calls if call.what == "read")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "zephon" in thread.name]


def held(storage: Storage, n: int) -> tuple[Callable[[], None], Callable[[], Coroutine[Any, Any, None]]]:
    """Stop all calls. Gives what waits until so many are stopped, and what lets all go."""
    stopped, futures = threading.Semaphore(0), list[asyncio.Future[None]]()

    def hold(call: Call) -> "asyncio.Future[None]":
        futures.append(asyncio.get_running_loop().create_future())
        stopped.release()
        return futures[-1]

    def wait_for() -> None:
        for _ in range(n):
            assert stopped.acquire(timeout=T_S)

    async def leave() -> None:
        for future in futures:
            future.set_result(None)
        for _ in range(20):
            await asyncio.sleep(0)

    storage.hold = hold
    return wait_for, leave
