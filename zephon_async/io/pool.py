"""Units that stand open in the middle, so that the next row block of them need not be read from their start.

Entering a Parquet row group at block 100 means decoding the 99 before it; an iterator that has just given block 99 gives the
next for nothing. A decoder takes such an *opened* unit out of the pool, is its only owner while it reads, and puts it back.
The pool is bounded in bytes and forgets the least recently used; losing one costs time, never data.

Threads: a lock guards the list; an opened unit outside of the list has one owner.
"""

import threading
from typing import Any, Protocol, TypeAlias

Key: TypeAlias = tuple[str, int]
"""Which unit: where its shard is, and its start in it."""


class Opened(Protocol):
    """A unit that stands at row block `at` and holds `nbytes`."""

    at: int

    @property
    def nbytes(self) -> int: ...


class Pool:
    """Opened units that nobody is using."""

    def __init__(self, limit_bytes: int) -> None:
        self._lock = threading.Lock()
        self._limit = limit_bytes
        self._idle: list[tuple[Key, Opened]] = []  # the least recently used first
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Pool {len(self._idle)} units, {self._bytes:,} of {self._limit:,} bytes>"

    def take(self, key: Key, block: int) -> Any:
        """The opened unit that stands nearest before `block`, or at it; None where there is none."""
        with self._lock:
            standing = [n for n, (owner, opened) in enumerate(self._idle) if owner == key and opened.at <= block]
            if not standing:
                return None
            _, opened = self._idle.pop(max(standing, key=lambda n: self._idle[n][1].at))
            self._bytes -= opened.nbytes
            return opened

    def put(self, key: Key, opened: Opened) -> None:
        """Give one back. The last one is kept even where it alone is larger than the limit."""
        with self._lock:
            self._idle.append((key, opened))
            self._bytes += opened.nbytes
            while self._bytes > self._limit and len(self._idle) > 1:
                self._bytes -= self._idle.pop(0)[1].nbytes

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._idle.clear()
            self._bytes = 0
