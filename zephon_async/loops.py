"""Event loops in threads of our own: uvloop's where there is a GIL, asyncio's own else.

uvloop saves a tenth to a third of what a loop costs. On free-threaded Python it must not be used (0.23): a thread that calls
`call_soon_threadsafe` while the loop closes ends in a segmentation fault, where asyncio raises `RuntimeError`, and workers,
consumers and closers do just that. Nor in a program that has closed its stdin, stdout or stderr: libuv ends the process over a
descriptor of its own that has got their number. See benchmarks/bench_loop.py. Nor for a loop that looks up the names of hosts:
libuv does so on threads that it waits for at the exit of a forked child, in which they are not: a segmentation fault.

Threads: `_lock` of a `LoopThread` guards its start; the loop is touched through `call_soon_threadsafe` only. `close_soon` takes no
lock: it writes `_closed` and reads `_loop` once.
"""

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from zephon_async.errors import ClosedError, WorkerError

T = TypeVar("T")
SIGNALS_S = 1.0  # in which a wait looks up: a Ctrl-C that comes just before it does not end it


async def _nothing() -> None:
    return


class LoopThread:
    """A loop in a thread of its own, for coroutines that must not be stalled by others, or must not stall them.

    The thread starts with the first coroutine. at_end: awaited on the loop when all coroutines have been cancelled. make: makes the
    loop (None: `new_loop`).
    """

    def __init__(
        self,
        name: str,
        at_end: Callable[[], Awaitable[None]] = _nothing,
        make: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._name, self._at_end, self._make = name, at_end, make
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._stopping = False  # of the loop's thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine; callable from any thread. Raises `ClosedError` behind `close`."""
        with self._lock:
            if self._closed:
                coroutine.close()
                raise ClosedError(f"the loop of {self._name} is closed")
            if self._loop is None:
                loop, run = (self._make or new_loop)(), contextvars.Context().run
                thread = threading.Thread(target=run, args=(self._run, loop), name=self._name, daemon=True)
                try:
                    begin(thread)
                except WorkerError:
                    coroutine.close()
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            if self._closed:  # by a finalizer, which may not have seen the loop
                self._stop(self._loop)
            return future

    def close(self, timeout_s: float) -> list[str]:
        """Cancel what runs and stop. Gives the thread's name if it did not come back."""
        with self._lock:
            self._closed = True
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return []
        self._stop(loop)
        thread.join(timeout_s)
        return [thread.name] if thread.is_alive() else []

    def close_soon(self) -> None:
        """The same without waiting, and without a lock: a finalizer runs inside any code."""
        self._closed = True
        if (loop := self._loop) is not None:
            self._stop(loop)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # it has stopped
            loop.call_soon_threadsafe(self._cancel_all, loop)

    def _cancel_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel everything and stop; once, for what is done at the end must not be cancelled."""
        if not self._stopping:
            self._stopping = True
            self._cancel_rest(loop)

    def _cancel_rest(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what there is, and what that begins when it is cancelled, and so on; then stop."""
        if not (tasks := asyncio.all_tasks(loop)):
            loop.stop()
            return
        for task in tasks:
            task.cancel()
        gathered = asyncio.gather(*tasks, return_exceptions=True)
        gathered.add_done_callback(lambda _: self._cancel_rest(loop))

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            self._run_until_stopped(loop)
            with self._lock:  # whoever was let in before a finalizer closed it has submitted by now
                self._closed = True
            loop.call_soon(self._cancel_rest, loop)
            self._run_until_stopped(loop)
            loop.run_until_complete(self._at_end())
        finally:
            try:
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
            finally:
                loop.close()

    def _run_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                loop.run_forever()
                return
            except (KeyboardInterrupt, SystemExit):  # asyncio raises a coroutine's here too; whoever waits for it has it
                continue


def new_loop() -> asyncio.AbstractEventLoop:
    """A new event loop, set nowhere."""
    if getattr(sys, "_is_gil_enabled", lambda: True)() and _has_stdio():
        try:
            import uvloop
        except ImportError:  # there is none on Windows
            return asyncio.new_event_loop()
        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _has_stdio() -> bool:
    """Whether stdin, stdout and stderr are open."""
    try:
        return all(os.fstat(descriptor) for descriptor in range(3))
    except OSError:
        return False


def seen(future: "asyncio.Future[Any]") -> None:
    """A done callback: its error is of no concern to asyncio where nobody waits for it any more."""
    if not future.cancelled():
        future.exception()


def next_of(queue: "SimpleQueue[T]") -> T:
    """What comes next, waited for by a thread that a Ctrl-C must reach."""
    while True:
        with contextlib.suppress(Empty):
            return queue.get(timeout=SIGNALS_S)


def begin(thread: threading.Thread) -> None:
    """Start a thread. Raises `WorkerError` where the system gives no more of them."""
    try:
        thread.start()
    except RuntimeError as error:
        raise WorkerError(
            f"the thread {thread.name} cannot be started ({error}): use fewer, options(workers=...), or raise the limit of threads"
        ) from error
