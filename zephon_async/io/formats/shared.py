"""What comes out of a compressed unit, on disk, for slices of it that push one another out of memory.

Of a unit of one frame, as xz and most zstd files are, a reader that was thrown out begins anew: it must decompress all that lies
before its place. So where a unit that was thrown out is entered again, it is decompressed once more for all, and what comes out is
kept in a spill; its readers take it from there, and the one that is ahead of the others drives it on. When the spill is full, who
needs more decompresses by itself, as before.

Threads: a `Shared` is read by any number at once; a lock guards what drives it. A `Replay` has one owner.
"""

import threading
import weakref
from bisect import bisect_right
from copy import copy
from typing import Self

from zephon_async.io.formats.inflate import Codec, Inflated, Stream
from zephon_async.io.pool import Key, Pool
from zephon_async.io.spill import Spill
from zephon_async.io.stores import Source

_PIECE = 1 << 8  # bytes of what is known of a piece that is kept, about


def stream_in(pool: Pool, key: Key, source: Source, codec: Codec) -> Stream:
    """What comes out of a compressed unit, from its start on: of one that was thrown out of the pool, what is shared."""
    shared = pool.shared(key, lambda spill: Shared(source, codec, spill))
    return Inflated(source, codec) if shared is None else Replay(shared, source)


class Shared:
    """What comes out of a unit, as far as it has come."""

    def __init__(self, source: Source, codec: Codec, spill: Spill) -> None:
        self.codec, self._spill = codec, spill
        self._lock = threading.Lock()
        self._stream: Inflated | None = Inflated(source, codec)  # None: nothing more comes
        self._over = False  # because that is all, and not for want of room
        self._ends: list[int] = []  # of the pieces that have come, in what comes out
        self._places: list[tuple[int, int]] = []  # of these in the spill, and their lengths
        weakref.finalize(self, _free, spill, self._places)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""
        stream = self._stream
        return _PIECE * len(self._ends) + (0 if stream is None else stream.nbytes)

    def piece(self, at: int, source: Source) -> bytes | None:
        """Some bytes from a place on; none at the end. None where nobody keeps them. Raises `ShardError`."""
        with self._lock:
            while not self._ends or at >= self._ends[-1]:
                if self._stream is None:
                    return b"" if self._over else None
                self._more(self._stream, source)
            number = bisect_right(self._ends, at)
            end, (place, length) = self._ends[number], self._places[number]
        return self._spill.get(place + length - (end - at), end - at)

    def _more(self, stream: Inflated, source: Source) -> None:
        """Keep the next piece. What breaks here breaks again for whoever decompresses by itself."""
        self._stream = None
        stream.turn_to(source)
        piece = stream.read()
        self._over = not piece
        if piece and (place := self._spill.put(piece)) is not None:
            self._places.append((place, len(piece)))
            self._ends.append(len(piece) + (self._ends[-1] if self._ends else 0))
            self._stream = stream


def _free(spill: Spill, places: list[tuple[int, int]]) -> None:
    for place, length in places:
        spill.free(place, length)


class Replay:
    """What comes out of a shared unit, from its start on."""

    def __init__(self, shared: Shared, source: Source) -> None:
        self.where, self._shared, self._source = source.where, shared, source
        self._at = 0
        self._own: Inflated | None = None  # where what is needed is not kept

    @property
    def nbytes(self) -> int:
        return 0 if self._own is None else self._own.nbytes

    @property
    def restart(self) -> int:
        return self._at if self._own is None else self._own.restart

    def copy(self) -> Self:
        twin = copy(self)
        twin._own = None if self._own is None else self._own.copy()
        return twin

    def turn_to(self, source: Source) -> None:
        self._source = source
        if self._own is not None:
            self._own.turn_to(source)

    def read(self) -> bytes:
        piece = self._shared.piece(self._at, self._source) if self._own is None else self._own.read()
        if piece is None:
            piece = self._decompressed()
        self._at += len(piece)
        return piece

    def _decompressed(self) -> bytes:
        """The next piece, by itself."""
        self._own = Inflated(self._source, self._shared.codec)
        passed, piece = 0, b""
        while passed <= self._at and (piece := self._own.read()):
            passed += len(piece)
        return piece[len(piece) - (passed - self._at) :] if passed > self._at else b""
