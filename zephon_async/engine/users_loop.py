"""The loop that users' coroutines run on, in a thread of its own, so that one that blocks stalls nobody's storage.

Threads: `_lock` guards the start; the loop is touched through `call_soon_threadsafe` only. `close_soon` takes no lock: it reads
`_loop` once.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from zephon_async.engine.loops import new_loop
from zephon_async.errors import WorkerError
from zephon_async.runners import begin

T = TypeVar("T")


class UsersLoop:
    """An asyncio loop that starts with the first coroutine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine; callable from any thread."""
        with self._lock:
            if self._loop is None:
                loop, run = new_loop(), contextvars.Context().run
                thread = threading.Thread(target=run, args=(self._run, loop), name="zephon-users", daemon=True)
                try:
                    begin(thread)
                except WorkerError:
                    coroutine.close()
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self, timeout_s: float) -> list[str]:
        """Cancel what runs and stop. Gives the thread's name if it did not come back."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return []
        _stop(loop)
        thread.join(timeout_s)
        return [thread.name] if thread.is_alive() else []

    def close_soon(self) -> None:
        """The same without waiting, and without a lock: a finalizer runs inside any code."""
        if (loop := self._loop) is not None:
            _stop(loop)

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while True:
                try:
                    loop.run_forever()
                    break
                except (KeyboardInterrupt, SystemExit):  # asyncio raises a coroutine's here too; whoever waits for it has it
                    continue
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # it has stopped
        loop.call_soon_threadsafe(_cancel_all, loop)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    gathered = asyncio.gather(*tasks, return_exceptions=True)
    gathered.add_done_callback(lambda _: loop.stop())
