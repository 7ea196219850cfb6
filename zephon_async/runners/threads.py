"""The thread runner: own worker threads, one shared queue ordered by need, results handed back in batches.

A worker waits in `SimpleQueue.get`, not in a condition or for a lock: free-threaded Python yields the processor 40 times before it
sleeps for a lock, and Linux (seen on 6.18) counts each of these as a turn that was had: where all cores are busy, the thread is
not run for 60 ms after it has been woken.

Threads: `_queue`, `_number` and `_closed` are guarded by `_lock`; `_turns` has one entry for each call in the queue, and one for
each worker when it closes; `_done` is a deque that workers append to and the loop thread pops from, until the loop has closed and
workers clear it; `_woken` is guarded by `_wake`.
Futures are touched on the loop's thread only. Workers are daemons, start with an empty context, and hold no reference to the
runner's owner.
"""

import asyncio
import contextvars
import heapq
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from zephon_async.errors import ClosedError
from zephon_async.loops import begin
from zephon_async.runners.base import Need, T, deliverable


class ThreadRunner:
    """Runs calls on `workers` threads (None: one for each core this process may use, at least 2)."""

    def __init__(self, workers: int | None = None, name: str = "zephon-worker") -> None:
        self._name = name
        self.workers = workers or max(2, usable_cores())
        self._queue: list[tuple[Need, int, Callable[[], Any], asyncio.Future[Any]]] = []
        self._lock = threading.Lock()
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._number = 0
        self._closed = False
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._wake = threading.Lock()
        self._woken = False
        self._threads: list[threading.Thread] = []

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for n in range(self.workers):
            run = contextvars.Context().run
            thread = threading.Thread(target=run, args=(self._work,), name=f"{self._name}-{n}", daemon=True)
            begin(thread)
            self._threads.append(thread)

    def submit(self, call: Callable[[], T], need: Need) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        with self._lock:
            if self._closed:
                raise ClosedError("the thread runner is closed")
            self._number += 1
            heapq.heappush(self._queue, (need, self._number, call, future))
        self._turns.put(None)
        return future

    def close(self, timeout_s: float) -> list[str]:
        with self._lock:
            self._closed = True
            left, self._queue = self._queue, []
        for _ in self._threads:
            self._turns.put(None)
        for _, _, _, future in left:
            future.cancel()
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _work(self) -> None:
        while True:
            self._turns.get()
            with self._lock:
                if self._closed:
                    return
                _, _, call, future = heapq.heappop(self._queue)
            result, error = None, None
            if not future.cancelled():
                try:
                    result = call()
                except BaseException as raised:
                    error = deliverable(raised)
            self._done.append((future, result, error))
            del call, future, result, error
            self._call_loop()

    def _call_loop(self) -> None:
        with self._wake:
            if self._woken:
                return
            self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._hand_back)
        except RuntimeError:  # the loop has closed: nobody waits for the result
            self._done.clear()

    def _hand_back(self) -> None:
        with self._wake:
            self._woken = False
        while self._done:
            future, result, error = self._done.popleft()
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def usable_cores() -> int:
    """Cores that this process may run on."""
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
