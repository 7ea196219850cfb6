"""Units that stand open in the middle, so that the next row block of them need not be read from their start.

Entering a Parquet row group at block 100 means decoding the 99 before it; an iterator that has just given block 99 gives the
next for nothing. A decoder takes such an *opened* unit out of the pool, is its only owner while it reads, and puts it back.

Of what is read from its start, as a compressed shard is, there are also *points* where it can be entered again: copies of what read
it, made every so often. Whoever takes one gets a copy of that.

The pool is bounded in bytes, of which a part may be for points, and forgets the least recently used; losing one costs time, never
data. For a unit that was forgotten and is wanted again, something may be *shared* by all that read it (see `formats/shared.py`).

Threads: a lock guards the lists; an opened unit outside of them has one owner, and a point in them is only copied.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from zephon_async.io.spill import Spill

APART = 32 << 20
"""Bytes of what comes out of a shard between two points, at least."""
_POINTS = _SHARED = 4  # one part in so many of the limit is for points, and one for what is shared
Key: TypeAlias = tuple[str, int]
"""Which unit: where its shard is, and its start in it."""


class Opened(Protocol):
    """A unit that stands at row block `at` and holds `nbytes`."""

    at: int

    @property
    def nbytes(self) -> int: ...


class Scan(Opened, Protocol):
    """One that is read from its start. restart: from which byte of what comes out on a copy reads."""

    @property
    def restart(self) -> int: ...

    def copy(self) -> Self: ...


class Held(Protocol):
    """What is shared; it holds `nbytes` of memory."""

    @property
    def nbytes(self) -> int: ...


U = TypeVar("U", bound=Opened)
T = TypeVar("T", bound=Held)


class Pool:
    """Opened units that nobody is using, and points. spill_bytes: disk for what is shared; None: a tenth of what is free."""

    def __init__(self, limit_bytes: int, spill_bytes: int | None = None) -> None:
        self._lock = threading.Lock()
        self._limit, self._spill = limit_bytes, Spill(spill_bytes)
        self._thrown: set[Key] = set()  # what was forgotten while it stood open
        self._shared: OrderedDict[Key, Any] = OrderedDict()  # the least recently used first
        self._idle: list[tuple[Key, Opened]] = []  # the least recently used first
        self._points: OrderedDict[Key, list[Scan]] = OrderedDict()  # likewise; those of a unit by their places
        self._idle_bytes = self._points_bytes = 0
        self.largest = 0
        """Bytes of the largest that was put here."""

    def __repr__(self) -> str:
        points = sum(map(len, self._points.values()))
        return f"<Pool {len(self._idle)} units, {points} points, {self._bytes:,} of {self._limit:,} bytes>"

    @property
    def _bytes(self) -> int:
        return self._idle_bytes + self._points_bytes + self._shared_bytes

    @property
    def _shared_bytes(self) -> int:
        return sum(shared.nbytes for shared in self._shared.values())

    def take(self, key: Key, block: int) -> Any:
        """The opened unit that stands nearest before `block`, or at it; None where there is none."""
        with self._lock:
            standing = [n for n, (owner, opened) in enumerate(self._idle) if owner == key and opened.at <= block]
            nearest = max(standing, key=lambda n: self._idle[n][1].at, default=None)
            point = max((each for each in self._points.get(key, ()) if each.at <= block), key=lambda each: each.at, default=None)
            if point is not None and (nearest is None or self._idle[nearest][1].at < point.at):
                self._points.move_to_end(key)
                return point.copy()
            if nearest is None:
                return None
            _, opened = self._idle.pop(nearest)
            self._idle_bytes -= opened.nbytes
            return opened

    def put(self, key: Key, opened: Opened) -> None:
        """Give one back. The last one is kept even where it alone is larger than the limit."""
        with self._lock:
            self._idle.append((key, opened))
            self._idle_bytes += opened.nbytes
            self.largest = max(self.largest, opened.nbytes)
            self._make_room()

    @contextmanager
    def opened(self, where: str, unit: Any, blocks: range, make: Callable[[], U]) -> Iterator[U]:
        """One for row blocks of a unit measured in rows, which are read in the context; put here where more follow behind them.

        where: of the source. unit: a record of catalog.UNIT. make: one that stands at the start.
        """
        key = (where, int(unit["start"]))
        found: U = self.take(key, blocks.start) or make()
        yield found
        if blocks.stop * int(unit["block"]) < int(unit["length"]):
            self.put(key, found)

    def mark(self, key: Key, scan: Scan) -> None:
        """Make a point of where a scan stands, between two row blocks, if there is none near before it."""
        with self._lock:
            points = self._points.get(key, [])
            before = max((point.restart for point in points if point.restart <= scan.restart), default=0)
            if points:
                self._points.move_to_end(key)
            if scan.restart - before < APART:
                return
            self._points[key] = sorted([*points, point := scan.copy()], key=lambda point: point.at)
            self._points_bytes += point.nbytes
            while self._points_bytes > self._limit // _POINTS:
                self._thin()
            self._make_room()

    def shared(self, key: Key, make: Callable[[Spill], T]) -> T | None:
        """What the readers of a unit share, made for the first that comes after it was thrown out; before that, None."""
        with self._lock:
            if key not in self._thrown:
                return None
            if key not in self._shared:
                self._shared[key] = make(self._spill)
            self._shared.move_to_end(key)
            while len(self._shared) > 1 and self._shared_bytes > self._limit // _SHARED:
                self._shared.popitem(last=False)
            found: T = self._shared[key]
            return found

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._idle.clear()
            self._thrown.clear()
            self._shared.clear()
            self._points.clear()
            self._idle_bytes = self._points_bytes = 0

    def _make_room(self) -> None:
        while self._bytes > self._limit and len(self._idle) > 1:
            key, opened = self._idle.pop(0)
            self._idle_bytes -= opened.nbytes
            self._thrown.add(key)

    def _thin(self) -> None:
        """Forget every other point of the unit that was used the longest ago."""
        key, points = next(iter(self._points.items()))
        self._points_bytes -= sum(point.nbytes for point in points[::2])
        self._points[key] = points[1::2]
        if not self._points[key]:
            del self._points[key]
