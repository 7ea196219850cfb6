"""Lines of text, of a shard as it is or of what comes out of a compressed one.

A line ends at LF and at nothing else; a byte order mark at the start is not there. A row block owns the lines whose first byte is
in it, wherever they end. A line of nothing but white space is no row, unless blank ones are asked for as well: then every line is.

Threads: functions of their arguments; a `LineScan` has one owner.
"""

from collections import deque
from copy import copy
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from zephon_async.errors import ShardError
from zephon_async.io.formats.inflate import Stream
from zephon_async.io.stores import Source

MOST_LINE_BYTES = 1 << 28
BOM = b"\xef\xbb\xbf"
_LF, _CR = b"\n\r"
_TOO_LONG = "line of more than {:,} bytes: it is no text in lines, or wants a split"
_RARE, _LOOKED_AT = 1024, 16384  # bytes: between two of a kind that is rare, and of a text that are looked at for that
MORE = 1 << 16  # bytes read behind a block, where its last line runs on


class Lines(NamedTuple):
    """The lines of a byte block that are rows: bytes of the shard from `base` on, and where in the shard each line is.

    header: the names of the columns, in a format whose shards begin with them. plain: whether no line has what only a strict reader
    reads right.
    """

    base: int
    text: bytes
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    header: tuple[str, ...] = ()
    plain: bool = False


NO_LINES = Lines(0, b"", np.empty(0, np.int64), np.empty(0, np.int64))


def lines_of(source: Source, start: int, stop: int, blank: bool = False) -> Lines:
    """The lines whose first byte is in `start:stop`; blank ones where these are asked for."""
    head = _head(source) if start <= len(BOM) else 0
    base, stop = max(start - 1, 0), min(stop, source.size)
    text = source.read(base, min(stop + MORE, source.size) - base)
    ends = places_of(_LF, text, stop - base) + base
    starts = ends[: np.searchsorted(ends, stop - 1)] + 1
    if start <= head < stop:
        starts = np.concatenate(([head], starts))
    stops = ends[np.searchsorted(ends, starts[0]) :] if len(starts) else starts
    if len(stops) < len(starts):  # the last line runs on behind the block
        end = text.find(b"\n", stop - base)
        if end < 0:
            text += _rest_of_line(source, base + len(text))
            end = len(text) - text.endswith(b"\n")
        stops = np.append(stops, base + end)
    if blank:
        return Lines(base, text, starts, stops)
    keep = _not_blank(text, starts - base, stops - base)
    return Lines(base, text, starts[keep], stops[keep])


def places_of(byte: int, text: bytes, size: int) -> npt.NDArray[np.int64]:
    """Where a byte is in the first `size` bytes: all at once, or where it is rare, by one search each, which is quicker then."""
    sought = bytes((byte,))
    if text.count(sought, 0, _LOOKED_AT) > _LOOKED_AT // _RARE:
        return np.flatnonzero(np.frombuffer(text, np.uint8, size) == byte)
    places, at = [], text.find(sought, 0, size)
    while at >= 0:
        places.append(at)
        at = text.find(sought, at + 1, size)
    return np.array(places, np.int64)


def _head(source: Source) -> int:
    """Where the first line begins."""
    return len(BOM) if source.size >= len(BOM) and source.read(0, len(BOM)) == BOM else 0


def _rest_of_line(source: Source, at: int) -> bytes:
    """What is from `at` to the next line end, with it, or to the end of the shard."""
    start, pieces, more = at, [b""], MORE
    while at < source.size:
        piece = source.read(at, min(more, source.size - at))
        end = piece.find(b"\n") + 1
        pieces.append(piece[: end or len(piece)])
        if end:
            break
        _check_length(source.where, at + len(piece) - start, _TOO_LONG)
        at, more = at + len(piece), more * 2
    return b"".join(pieces)


def _not_blank(text: bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    keep: npt.NDArray[np.bool_] = starts < stops
    suspects = np.flatnonzero(keep)
    suspects = suspects[np.frombuffer(text, np.uint8)[starts[suspects]] <= ord(" ")]
    for line in suspects.tolist():
        keep[line] = bool(text[starts[line] : stops[line]].strip(b" \t\r"))
    return keep


def text_stops(text: bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where lines end without the CR that may be before their end."""
    at = np.frombuffer(text or b"\n", np.uint8)
    ends: npt.NDArray[np.int64] = stops - ((stops > starts) & (at[stops - 1] == _CR))
    return ends


def _check_length(where: str, nbytes: int, said: str) -> None:
    if nbytes > MOST_LINE_BYTES:
        raise ShardError(f"{where}: has a {said.format(MOST_LINE_BYTES)}")


class _Pieces:
    """Bytes in the order in which they come, joined when they are given, as a copy of all that waits is dear."""

    def __init__(self) -> None:
        self._pieces, self.nbytes = deque[memoryview](), 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(memoryview(piece))
        self.nbytes += len(piece)

    def whole(self) -> bytes:
        """All of them, which are kept."""
        whole = self.take(self.nbytes)
        self.add(whole)
        return whole

    def take(self, nbytes: int) -> bytes:
        """The first so many bytes."""
        taken = list[memoryview]()
        self.nbytes -= nbytes
        while nbytes:
            piece = self._pieces.popleft()
            if len(piece) > nbytes:
                self._pieces.appendleft(piece[nbytes:])
                piece = piece[:nbytes]
            taken.append(piece)
            nbytes -= len(piece)
        return b"".join(taken)


class LineScan:
    """The lines of a shard that is read from its start, a row block at a time: the next is `at`."""

    too_long = _TOO_LONG

    def __init__(self, stream: Stream, blank: bool = False) -> None:
        self.at = 0
        self._stream, self._blank = stream, blank
        self._text, self._base = _Pieces(), 0  # what has come out and was not given, from where on
        self._ends = np.empty(0, np.int64)  # of the lines in it
        self._over = False  # nothing more comes

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self._stream.nbytes + self._text.nbytes + self._ends.nbytes

    @property
    def restart(self) -> int:
        """From which byte of what comes out on a copy reads."""
        return self._stream.restart

    def copy(self) -> Self:
        """Another one at the same place."""
        twin = copy(self)
        twin._stream, twin._text = self._stream.copy(), _Pieces()
        twin._text.add(self._text.whole())
        return twin

    def turn_to(self, source: Source) -> None:
        """Read on from another source of the same bytes."""
        self._stream.turn_to(source)

    def up_to(self, stop: int) -> tuple[Lines, bool]:
        """The next row block: the lines that begin before a byte of what comes out; and whether there is none behind them."""
        while not self._over and not (len(self._ends) and self._ends[-1] >= stop - 1):
            self._more()
        starts, stops = self._whole_lines()
        return self._give(starts, stops, int(np.searchsorted(starts, stop)))

    def rows(self, rows: int) -> tuple[Lines, bool]:
        """The next row block: so many lines that are rows, fewer where there are no more; and whether there is none behind."""
        while True:
            starts, stops = self._whole_lines()
            sound = np.cumsum(self._kept(self._text.whole(), starts - self._base, stops - self._base))
            if self._over or (len(sound) and sound[-1] >= rows):
                return self._give(starts, stops, int(np.searchsorted(sound, rows)) + 1)
            self._more()

    def _ends_in(self, piece: bytes) -> npt.NDArray[np.int64]:
        """Where lines end in the next piece."""
        return places_of(_LF, piece, len(piece))

    def _kept(self, text: bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which lines are rows."""
        return np.ones(len(starts), np.bool_) if self._blank else _not_blank(text, starts, stops)

    def _more(self) -> None:
        piece = self._stream.read()
        self._over = not piece
        at = self._base + self._text.nbytes
        new = self._ends_in(piece) + at
        if not len(new):
            begin = int(self._ends[-1]) if len(self._ends) else self._base
            _check_length(self._stream.where, at - begin, self.too_long)
        self._text.add(piece)
        self._ends = np.concatenate((self._ends, new))

    def _whole_lines(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the lines begin and end that have come out whole."""
        end, stops = self._base + self._text.nbytes, self._ends
        head = len(BOM) if not self._base and self._text.whole().startswith(BOM) else 0
        starts = np.concatenate((np.array([self._base + head]), stops + 1))
        if self._over and starts[-1] < end:  # the last one ends with the text
            stops = np.append(stops, end)
        return starts[: len(stops)], stops

    def _give(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], lines: int) -> tuple[Lines, bool]:
        rest = lines < len(stops) or not self._over
        base, starts, stops = self._base, starts[:lines], stops[:lines]
        cut = self._text.nbytes if not rest else int(stops[-1]) + 1 - base if len(stops) else 0
        text = self._text.take(cut)
        keep = self._kept(text, starts - base, stops - base)
        self._base += cut
        self._ends = self._ends[np.searchsorted(self._ends, self._base) :]
        self.at += 1
        if not self._text.nbytes and not self._over:
            self._more()
        return Lines(base, text, starts[keep], stops[keep]), self._over and not self._text.nbytes
