"""The inline runner: work runs at once on the engine's own thread. For tests and debuggers."""

import asyncio
from collections.abc import Callable

from zephon_async.runners.base import Need, T, deliverable


class InlineRunner:
    """Runs every call when it is submitted."""

    workers = 1

    def __init__(self, workers: int | None = None) -> None:
        """`workers` is accepted for the sake of the table of runners; there is always one."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def submit(self, call: Callable[[], T], need: Need) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        try:
            result = call()
        except BaseException as error:
            future.set_exception(deliverable(error))
        else:
            future.set_result(result)
        return future

    def close(self, timeout_s: float) -> list[str]:
        return []
