"""Calls that wait, many at once, for those who can do nothing meanwhile: footers and lines of many shards before a run.

Threads: calls are handed out and come back through queues; all else belongs to the thread that asks.
"""

import contextvars
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, TypeVar

from zephon_async.loops import begin, next_of

N = TypeVar("N")
T = TypeVar("T")
_MOST = 32  # threads


def at_once(
    call: Callable[[N], T], numbers: Iterable[N], most: int = _MOST, told: Callable[[int], object] = lambda done: None
) -> list[T]:
    """What a call that waits gives for each of several, many at once, in their order. The first that fails is raised.

    most: of them at once. told: how many are done, each time.

    Those that still wait for a storage then are not waited for: they end when it is closed, and do not keep a program from ending.
    """
    several = list(numbers)
    turns, done = SimpleQueue[int | None](), SimpleQueue[tuple[int, Any, BaseException | None]]()
    over = threading.Event()

    def work() -> None:
        while (n := turns.get()) is not None and not over.is_set():
            try:
                done.put((n, call(several[n]), None))
            except BaseException as error:
                over.set()  # at once: whoever waits for it may come to it late
                done.put((n, None, error))

    found: dict[int, T] = {}
    threads = 0
    try:
        while threads < min(most, len(several)):
            begin(threading.Thread(target=contextvars.Context().run, args=(work,), name="zephon-waits", daemon=True))
            threads += 1
        for n in range(len(several)):
            turns.put(n)
        while len(found) < len(several):
            n, result, error = next_of(done)
            if error is not None:
                raise error
            found[n] = result
            told(len(found))
    finally:
        over.set()
        for _ in range(threads):
            turns.put(None)
    return [found[n] for n in range(len(several))]
