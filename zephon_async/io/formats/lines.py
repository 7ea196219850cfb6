"""Lines of text, of a shard as it is or of what comes out of a compressed one.

A line ends at LF and at nothing else; a line of nothing but white space is no row; a byte order mark at the start is not there. A
row block owns the lines whose first byte is in it, wherever they end.

Threads: functions of their arguments; a `LineScan` has one owner.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_async.errors import ShardError
from zephon_async.io.formats.inflate import Inflated
from zephon_async.io.stores import Source

MOST_LINE_BYTES = 1 << 28
_BOM = b"\xef\xbb\xbf"
_LF = 10
_LONG_LINE, _LOOKED_AT = 256, 4096  # bytes: of a line that is long, and of a text that are looked at for the length of its lines
MORE = 1 << 16  # bytes read behind a block, where its last line runs on


class Lines(NamedTuple):
    """The lines of a byte block that are rows: bytes of the shard from `base` on, and where in the shard each line is."""

    base: int
    text: bytes
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]


NO_LINES = Lines(0, b"", np.empty(0, np.int64), np.empty(0, np.int64))


def lines_of(source: Source, start: int, stop: int) -> Lines:
    """The lines whose first byte is in `start:stop`, but for blank ones."""
    head = _head(source) if start <= len(_BOM) else 0
    base, stop = max(start - 1, 0), min(stop, source.size)
    text = source.read(base, min(stop + MORE, source.size) - base)
    ends = _line_ends(text, stop - base) + base
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
    keep = _not_blank(text, starts - base, stops - base)
    return Lines(base, text, starts[keep], stops[keep])


def _line_ends(text: bytes, size: int) -> npt.NDArray[np.int64]:
    """Where lines end in the first `size` bytes: all at once, or where lines are long, by one search each, twice as quick."""
    if text.count(b"\n", 0, _LOOKED_AT) > _LOOKED_AT // _LONG_LINE:
        return np.flatnonzero(np.frombuffer(text, np.uint8, size) == _LF)
    ends, at = [], text.find(b"\n", 0, size)
    while at >= 0:
        ends.append(at)
        at = text.find(b"\n", at + 1, size)
    return np.array(ends, np.int64)


def _head(source: Source) -> int:
    """Where the first line begins."""
    return len(_BOM) if source.size >= len(_BOM) and source.read(0, len(_BOM)) == _BOM else 0


def _rest_of_line(source: Source, at: int) -> bytes:
    """What is from `at` to the next line end, with it, or to the end of the shard."""
    start, pieces, more = at, [b""], MORE
    while at < source.size:
        piece = source.read(at, min(more, source.size - at))
        end = piece.find(b"\n") + 1
        pieces.append(piece[: end or len(piece)])
        if end:
            break
        _check_length(source.where, at + len(piece) - start)
        at, more = at + len(piece), more * 2
    return b"".join(pieces)


def _not_blank(text: bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    keep: npt.NDArray[np.bool_] = starts < stops
    suspects = np.flatnonzero(keep)
    suspects = suspects[np.frombuffer(text, np.uint8)[starts[suspects]] <= ord(" ")]
    for line in suspects.tolist():
        keep[line] = bool(text[starts[line] : stops[line]].strip(b" \t\r"))
    return keep


def _check_length(where: str, nbytes: int) -> None:
    if nbytes > MOST_LINE_BYTES:
        raise ShardError(f"{where}: has a line of more than {MOST_LINE_BYTES:,} bytes: it is no text in lines, or wants a split")


class LineScan:
    """The lines of a compressed shard, from its start on, a row block at a time: the next is `at`."""

    def __init__(self, stream: Inflated) -> None:
        self.at = 0
        self._stream = stream
        self._text, self._base = b"", 0  # what has come out and was not given, from where on
        self._ends = np.empty(0, np.int64)  # of the lines in it
        self._over = False  # nothing more comes
        self.turn_to = stream.turn_to

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self._stream.nbytes + len(self._text)

    def up_to(self, stop: int) -> tuple[Lines, bool]:
        """The next row block: the lines that begin before a byte of what comes out; and whether there is none behind them."""
        while not self._over and not (len(self._ends) and self._ends[-1] >= stop - 1):
            self._more()
        starts, stops = self._whole_lines()
        return self._give(starts, stops, int(np.searchsorted(starts, stop)))

    def rows(self, rows: int) -> tuple[Lines, bool]:
        """The next row block: so many lines that are not blank, fewer where there are no more; and whether there is none behind."""
        while True:
            starts, stops = self._whole_lines()
            sound = np.cumsum(_not_blank(self._text, starts - self._base, stops - self._base))
            if self._over or (len(sound) and sound[-1] >= rows):
                return self._give(starts, stops, int(np.searchsorted(sound, rows)) + 1)
            self._more()

    def _more(self) -> None:
        piece = self._stream.read()
        self._over = not piece
        at = self._base + len(self._text)
        new = np.flatnonzero(np.frombuffer(piece, np.uint8) == _LF) + at
        if not len(new):
            _check_length(self._stream.where, at - (int(self._ends[-1]) if len(self._ends) else self._base))
        self._text, self._ends = self._text + piece, np.concatenate((self._ends, new))

    def _whole_lines(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the lines begin and end that have come out whole."""
        end, stops = self._base + len(self._text), self._ends
        starts = np.concatenate((np.array([self._base]), stops + 1))
        if self._over and starts[-1] < end:  # the last one ends with the text
            stops = np.append(stops, end)
        starts = starts[: len(stops)]
        if not self._base and len(starts) and self._text.startswith(_BOM):
            starts[0] = min(len(_BOM), stops[0])
        return starts, stops

    def _give(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], lines: int) -> tuple[Lines, bool]:
        starts, stops = starts[:lines], stops[:lines]
        cut = min(int(stops[-1]) + 1 - self._base, len(self._text)) if len(stops) else 0
        keep = _not_blank(self._text, starts - self._base, stops - self._base)
        given = Lines(self._base, self._text[:cut], starts[keep], stops[keep])
        self._text, self._base = self._text[cut:], self._base + cut
        self._ends = self._ends[np.searchsorted(self._ends, self._base) :]
        self.at += 1
        if not self._text and not self._over:
            self._more()
        return given, self._over and not self._text
