"""The files of a tar, from its start on: of a shard as it is, or of what comes out of a compressed one.

A shard is read in long runs, the headers of each are walked at once. A file whose content is not wanted and reaches beyond its run
is skipped. An archive ends with two blocks of zeros and with nothing but zeros behind them; a shard that ends elsewhere was cut.

Threads: a `TarScan` has one owner.
"""

from collections.abc import Callable
from copy import copy
from typing import Protocol, Self

from zephon_async.errors import ShardError
from zephon_async.io.formats.inflate import Stream
from zephon_async.io.formats.tar import padded, walk
from zephon_async.io.formats.tar_usual import BLOCK, Member
from zephon_async.io.stores import Source

_RUN = 4 << 20  # bytes that are read at once
_SHORT = 1 << 16  # ... where what lies between is longer than a run; and that are rather read twice than copied
MOST_UNPACKED = 2 << 30  # bytes of a file of a compressed shard
_MEMBER = 300  # bytes of what is known of a file, about


class _Bytes(Protocol):
    @property
    def nbytes(self) -> int: ...

    @property
    def end(self) -> int:
        """Where they end, of those that were asked for and are not there."""

    def restart(self, at: int) -> int:
        """From which of them on a copy reads that is to give those from `at` on."""

    def copy(self) -> Self:
        """Another one at the same place."""

    def turn_to(self, source: Source) -> None:
        """Read on from another source of the same bytes."""

    def take(self, at: int, kept: bytes, need: int, gap: int) -> bytes:
        """Bytes from `at` on, of which `kept` are known: `need` of them at least, fewer at the end.

        gap: how many bytes were passed over before them.
        """


class _Plain:
    """Of a shard as it is."""

    nbytes = 0

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def end(self) -> int:
        return self._source.size

    def restart(self, at: int) -> int:
        return at

    def copy(self) -> Self:
        return copy(self)

    def turn_to(self, source: Source) -> None:
        self._source = source

    def take(self, at: int, kept: bytes, need: int, gap: int) -> bytes:
        run = _SHORT if gap > _RUN else _RUN
        length = min(max(run, need + _SHORT), max(self._source.size - at, 0))
        if length <= len(kept):  # at the end
            return kept
        if len(kept) <= _SHORT:
            return self._source.read(at, length)
        return kept + self._source.read(at + len(kept), length - len(kept))


class _Unpacked:
    """Of what comes out of a compressed shard."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._at = stream, 0

    @property
    def nbytes(self) -> int:
        return self._stream.nbytes

    @property
    def end(self) -> int:
        return self._at

    def restart(self, at: int) -> int:
        return self._stream.restart

    def copy(self) -> Self:
        twin = copy(self)
        twin._stream = self._stream.copy()
        return twin

    def turn_to(self, source: Source) -> None:
        self._stream.turn_to(source)

    def take(self, at: int, kept: bytes, need: int, gap: int) -> bytes:
        if need > MOST_UNPACKED:
            raise ShardError(
                f"{self._stream.where}: the file at byte {at:,} of what comes out of it has more than {MOST_UNPACKED:,} bytes; "
                "do not compress shards of such files"
            )
        pieces, have = [kept], len(kept)
        while have < max(need, _RUN) and (piece := self._stream.read()):
            begin, self._at = self._at, self._at + len(piece)
            if self._at > at:
                pieces.append(piece[max(at - begin, 0) :])
                have += len(pieces[-1])
        return b"".join(pieces)


class Run:
    """Files in a run of bytes that were not taken yet. text: the bytes, from `base` on, where the places of the files begin."""

    def __init__(self, text: bytes | memoryview, base: int, members: list[Member]) -> None:
        self.text, self.base, self.members = text, base, members


class TarScan:
    """The files of a tar in runs of its bytes, and the number `at` of the row block that is made of them next.

    stream: what comes out of a compressed one. wanted: whether the content of a file is, by its name. start: the byte of the header
    that it begins with.
    """

    def __init__(self, source: Source, stream: Stream | None, wanted: Callable[[bytes], bool], start: int = 0) -> None:
        self.at = 0
        self.run = Run(b"", 0, [])
        self.over = False  # whether it is the last run
        self._text, self._base = b"", start
        self._bytes: _Bytes = _Plain(source) if stream is None else _Unpacked(stream)
        self._where, self._wanted = source.where, wanted
        self._place, self._need = start, BLOCK  # where the next header is, and how much of it must be there
        self._error: ShardError | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self._bytes.nbytes + len(self._text) + _MEMBER * len(self.run.members)

    @property
    def restart(self) -> int:
        """From which byte of the archive on a copy reads."""
        return self._bytes.restart(self._place)

    def copy(self) -> Self:
        """Another one at the same place, between two row blocks."""
        twin = copy(self)
        twin.run, twin._bytes = Run(self.run.text, self.run.base, self.run.members), self._bytes.copy()
        return twin

    @property
    def end(self) -> int:
        """Where the archive ends, when it is over."""
        return self._place

    def turn_to(self, source: Source) -> None:
        """Read on from another source of the same bytes."""
        self._bytes.turn_to(source)

    def more(self) -> None:
        """Go to the next run. Raises `ShardError` where there should be one, or where it is broken."""
        if self._error is not None:
            raise self._error
        place, done = self._place, self._place - self._base
        kept, gap = self._text[done:], max(done - len(self._text), 0)
        self._text, self._base = self._bytes.take(place, kept, self._need, gap), place
        if len(self._text) < self._need:
            raise self._cut(place)
        members, at, self._need, pending, self._error = walk(self._where, self._text, place)
        self._place = place + at
        self.run = Run(self._text, place, members)
        if pending is not None and not self._wanted(pending[1]):
            members.append(pending)
            self._place, self._need = place + pending[2] + padded(pending[3] - pending[2]), BLOCK
        if not self._need and self._error is None:
            self._check_rest()
            self.over = True

    def _check_rest(self) -> None:
        """Read to the end: a compressed shard says there whether it is whole."""
        at, rest = self._place, self._text[self._place - self._base :]
        while rest:
            if rest.count(0) < len(rest):
                raise ShardError(
                    f"{self._where}: the tar ends at byte {self._place:,}, and what lies behind it is not zeros; "
                    "if tars were put one behind the other, make them one with tar --concatenate"
                )
            at += len(rest)
            rest = self._bytes.take(at, b"", 0, 0)

    def _cut(self, place: int) -> ShardError:
        end = self._bytes.end
        how = f"inside what begins at byte {place:,}" if place < end else "without the two blocks of zeros that end a tar"
        how = f"inside the file before byte {place:,}" if place > end else how
        return ShardError(f"{self._where}: ends at byte {end:,}, {how}; it was cut short, or is still being written")
