"""The work of a link of a lane, between the task that submits it and the one that takes what comes of it.

Takes tasks and gives finished ones in the order in which they were put in. Each says when it could have begun and when it was
done, so that what a lane waits for can be told from what is done meanwhile.
"""

import asyncio
from collections import deque
from time import perf_counter
from typing import Any, NamedTuple

from zephon_async.records import End, Parcel

_MOST_AT_ONCE = 8  # parcels that one call of a serial half takes


class Made(NamedTuple):
    """A parcel, and when it was there."""

    parcel: Parcel
    at: float


class Submitted(NamedTuple):
    """Work under way, the position (see `Edge`) behind it, and when it could have begun."""

    result: "asyncio.Task[Made]"
    behind: Any
    at: float


class Line:
    """Work in the order in which it was submitted; one writer, one reader."""

    def __init__(self) -> None:
        self._entries: deque[Submitted] = deque()
        self._there = asyncio.Event()
        self._empty_since: float | None = None  # while its reader waits

    def starved(self, since: float) -> float:
        """Seconds of those since then in which its reader has waited for the next entry, if it still does."""
        return 0.0 if self._entries or self._empty_since is None else perf_counter() - max(since, self._empty_since)

    def put(self, entry: Submitted) -> None:
        self._entries.append(entry)
        self._there.set()

    async def get(self) -> list[Submitted]:
        """The next entry, finished, and those behind it that have finished too, up to the end of a segment."""
        while not self._entries:
            self._there.clear()
            self._empty_since = perf_counter()
            await self._there.wait()
        self._empty_since = None
        await asyncio.wait([self._entries[0].result])
        got = [self._entries.popleft()]
        while len(got) < _MOST_AT_ONCE and self._entries and self._entries[0].result.done():
            if got[-1].result.result().parcel.end is not End.NOTHING:
                break
            got.append(self._entries.popleft())
        return got
