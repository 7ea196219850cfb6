"""Remote shards that are read from their start: what comes next is on its way while what has come is decoded.

Takes ranges of objects as they are read and waited for. One that begins where another ended, or a little before that, is a *run*:
from then on what follows is asked for before it is wanted, in pieces of a grid, as many as have room. Whoever skips through an
object, as through a tar of which little is wanted, asks for nothing that is skipped.

The bytes of all pieces are bounded, those on their way with them, and runs share the room evenly. What of a run nobody has read on
for long is dropped, and given up where it is still on its way.

Pieces are asked for behind what is waited for now, and before all that is fetched because it will be: one that had to wait for
that could not be made to come sooner when it is wanted itself.

Threads: any; a lock guards the runs. Pieces come on the loop of storage.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from zephon_async.io.gate import Need
from zephon_async.io.ranges import Range

PIECE = 4 << 20
"""Bytes that are asked for at once."""
_AHEAD = 4  # pieces behind those that are wanted, at most
_LONG = 1 << 20  # bytes of a read that may be the first of a run
_NEAR = 1 << 16  # bytes by which a read may begin before the end of the last one
_MOST_RUNS = 1 << 10
_STALE = 64  # times as many reads as there are runs, in which one is not read on
Piece: TypeAlias = "Future[bytes | bytearray]"


@dataclass(eq=False, slots=True)
class _Run:
    """Reads of an object one behind the other.

    last: the last of them; at: its number; end: where what was read ends, at most; pieces: by their numbers on the grid.
    """

    last: Range
    at: int
    end: int = 0
    pieces: dict[int, Piece] = field(default_factory=dict)

    def goes_on_at(self, wanted: Range) -> bool:
        last, end = self.last, self.last.offset + self.last.length
        return end - _NEAR <= wanted.offset <= end and (wanted.place, wanted.found) == (last.place, last.found)

    def size_of(self, n: int) -> int:
        return min(PIECE, self.last.found.size - n * PIECE)


class ReadAhead:
    """Runs, and the pieces of them that are at hand or on their way. fetch: begins to fetch a range."""

    def __init__(self, fetch: Callable[[Range, Need], Piece], limit_bytes: int) -> None:
        self._lock = threading.Lock()
        self._fetch, self._limit = fetch, limit_bytes
        self._runs: list[_Run] = []  # the least recently used first
        self._reads = 0
        self.nbytes = 0

    def pieces(self, wanted: Range) -> list[tuple[int, Piece]] | None:
        """The pieces that hold what is wanted, in their order, with where they begin; None where there is no room, or no run."""
        with self._lock:
            run = next((run for run in self._runs if run.goes_on_at(wanted)), None)
            if run is None and not _LONG <= wanted.length < wanted.found.size - wanted.offset:
                return None
            self._reads += 1
            if run is None:
                self._runs.append(_Run(wanted, self._reads))
                self._forget_old()
                return None
            self._runs.remove(run)
            self._runs.append(run)
            run.last, run.at, run.end = wanted, self._reads, max(run.end, wanted.offset + wanted.length)
            self._forget_old()
            return self._read_on(run, wanted)

    def forget(self, wanted: Range) -> None:
        """What was wanted did not come: whoever wants it again asks anew."""
        with self._lock:
            for run in [run for run in self._runs if run.last == wanted]:
                self._forget(run)

    def bound(self, limit_bytes: int) -> None:
        """Ask for no more than so many bytes from now on."""
        with self._lock:
            self._limit = limit_bytes

    def clear(self) -> None:
        """Give up all."""
        with self._lock:
            for run in list(self._runs):
                self._forget(run)

    def _read_on(self, run: _Run, wanted: Range) -> list[tuple[int, Piece]] | None:
        size, end = wanted.found.size, wanted.offset + wanted.length
        first, last = wanted.offset // PIECE, -(-end // PIECE)
        self._drop(run, [n for n in run.pieces if n < first])
        share = self._limit // (PIECE * sum(bool(each.pieces) or each is run for each in self._runs))
        if self._ask(run, range(first, last)):
            for n in range(last, min(first + share, last + _AHEAD, -(-size // PIECE))):
                if not self._ask(run, range(n, n + 1), n - first):
                    break
        found = [(n * PIECE, run.pieces[n]) for n in range(first, last) if n in run.pieces]
        if end == size:
            self._forget(run)
        return found if len(found) == last - first else None

    def _ask(self, run: _Run, numbers: range, distance: int = 0) -> bool:
        """Ask for pieces that are not there, if all of them have room; `distance` from what is wanted now."""
        missing = [n for n in numbers if n not in run.pieces]
        if self.nbytes + sum(run.size_of(n) for n in missing) > self._limit:
            return False
        for n in missing:
            run.pieces[n] = self._fetch(run.last._replace(offset=n * PIECE, length=run.size_of(n)), (-1, distance))
            self.nbytes += run.size_of(n)
        return True

    def _drop(self, run: _Run, numbers: Iterable[int]) -> None:
        """Let go of pieces. Whoever waits for one of them gets it; what nobody has wanted yet is given up."""
        for n in numbers:
            piece = run.pieces.pop(n)
            self.nbytes -= run.size_of(n)
            if n * PIECE >= run.end:
                piece.cancel()

    def _forget(self, run: _Run) -> None:
        self._drop(run, list(run.pieces))
        self._runs.remove(run)

    def _forget_old(self) -> None:
        """Runs that are not read on, and of too many those that were not for the longest time."""
        while len(self._runs) > _MOST_RUNS or self._reads - self._runs[0].at > _STALE * len(self._runs):
            self._forget(self._runs[0])
