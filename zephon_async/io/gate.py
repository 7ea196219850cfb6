"""How many reads run at once, and which of those that wait is next.

More may run as long as that moves more bytes, fewer when the storage says that it is asked too often, and never so many that they
bring more bytes at once than there is memory for. Who is next goes by need: smaller is sooner.

Threads: everything belongs to one event loop.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from time import monotonic
from typing import TypeAlias

Need: TypeAlias = tuple[int, ...]

AT_ONCE, MOST_AT_ONCE = 16, 64
_GREW, _SHRANK = 1.05, 0.7  # how much the rate must change for the limit to change
_STEP = 1.5


class Gate:
    """Lets up to `limit` in at once, which is never above `most`, with `room_bytes` in all, or one that is larger.

    inside_bytes: of those that are inside.
    """

    def __init__(self, limit: int = AT_ONCE, most: int = MOST_AT_ONCE, room_bytes: int = 1 << 30) -> None:
        self.limit, self._most, self.room_bytes = limit, most, room_bytes
        self._inside = self.inside_bytes = 0
        self._waiting: list[tuple[Need, int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._rate = 0.0  # bytes a second, in the last window
        self._done = self._bytes = 0  # in this window
        self._full = False  # somebody has waited in it
        self._since = monotonic()

    def __repr__(self) -> str:
        return f"<Gate {self._inside} of {self.limit} inside, {len(self._waiting)} waiting>"

    @asynccontextmanager
    async def turn(self, need: Need, nbytes: int = 0) -> AsyncIterator[None]:
        """Be inside with so many bytes, as soon as there is room and whoever needs it sooner is."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (need, next(self._numbers), nbytes, turn))
        self._let_in()
        self._full = self._full or not turn.done()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(nbytes)
            raise
        try:
            yield
        finally:
            self._leave(nbytes)

    def moved(self, nbytes: int) -> None:
        """A read is whole. After as many as run at once the limit is looked at."""
        self._done += 1
        self._bytes += nbytes
        if self._done < self.limit:
            return
        now = monotonic()
        rate = self._bytes / max(now - self._since, 1e-9)
        if self._full and rate > _GREW * self._rate:
            self.limit = min(self._most, int(self.limit * _STEP) + 1)
        elif self._full and rate < _SHRANK * self._rate:
            self.limit = max(min(self.limit, AT_ONCE // 2), int(self.limit / _STEP))
        self._begin(rate, now)
        self._let_in()

    def slow_down(self) -> None:
        """The storage is asked too often: half as many, once in a window."""
        if self._rate >= 0:
            self.limit = max(1, self.limit // 2)
        self._begin(-1.0, monotonic())

    def _begin(self, rate: float, now: float) -> None:
        self._rate, self._since, self._done, self._bytes, self._full = rate, now, 0, 0, bool(self._waiting)

    def _leave(self, nbytes: int) -> None:
        self._inside -= 1
        self.inside_bytes -= nbytes
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._inside < self.limit:
            _, _, nbytes, turn = self._waiting[0]
            if not turn.done():
                if self._inside and self.inside_bytes + nbytes > self.room_bytes:
                    return
                self._inside += 1
                self.inside_bytes += nbytes
                turn.set_result(None)
            heapq.heappop(self._waiting)
