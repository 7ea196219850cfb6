"""Which documents share a row: the rules of packing, in whole numbers alone.

A rule is told the documents of one lane (and group) in their order, by numbers and lengths; it gives rows that are closed, as
lists of pieces (document, first token, the one behind the last), and `rest` closes what is open. What fills a row by itself never
waits: of a document of more than `size` tokens every whole row of it goes straight out, and what is left is placed like a document.

    wrap             a row takes documents as they come, and is cut wherever it is full
    first_fit        the oldest open row with room
    best_fit         the open row with the least sufficient room; of several the oldest
    best_fit_wrap    a row takes the longest of up to `POOL` waiting documents that fits, again and again, then as much as it has
                     room for of the shortest of the others; what is cut off waits on. A document that has seen `AGE` others come
                     goes first.

first_fit and best_fit keep `bins` rows open. Where none has room and there are so many, the fullest (of several the oldest) is
closed. A row is closed when it is full or has `most` pieces; rows come out in the order in which they are closed, those of `rest`
by age.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeAlias

Piece: TypeAlias = tuple[int, int, int]
Row: TypeAlias = list[Piece]
POOL = 1024
AGE = 8 * POOL
_LOW = 48  # bits of a key below the length
_MASK = (1 << _LOW) - 1


class Rule(Protocol):
    """Says which documents share a row."""

    def __init__(self, size: int, most: int, bins: int) -> None:
        """size: tokens of a row. most: pieces in it. bins: open rows."""

    def add(self, first: int, lengths: Sequence[int]) -> list[Row]:
        """Take documents of at least one token, numbered from `first` on; gives the rows that they close."""

    def rest(self) -> list[Row]:
        """Close all; afterwards this is as new."""


def _whole_rows(rows: list[Row], number: int, length: int, size: int) -> int:
    """Add the rows that a document fills by itself; gives where what is left of it begins."""
    rest = length - length % size
    rows += [[(number, start, start + size)] for start in range(0, rest, size)]
    return rest


class Wrap:
    """The next row takes all that comes."""

    def __init__(self, size: int, most: int, bins: int) -> None:
        self._size, self._most = size, most
        self._row: Row = []
        self._room = size

    def add(self, first: int, lengths: Sequence[int]) -> list[Row]:
        rows = list[Row]()
        for number, length in enumerate(lengths, first):
            start = 0
            while start < length:
                taken = min(self._room, length - start)
                self._row.append((number, start, start + taken))
                self._room, start = self._room - taken, start + taken
                if not self._room or len(self._row) == self._most:
                    rows += self.rest()
        return rows

    def rest(self) -> list[Row]:
        row, self._row, self._room = self._row, [], self._size
        return [row] if row else []


class FirstFit:
    """The oldest row with room."""

    def __init__(self, size: int, most: int, bins: int) -> None:
        self._size, self._most, self._bins = size, most, bins
        self._begin()

    def _begin(self) -> None:
        self._open: dict[int, Row] = {}  # by their age, the oldest first
        self._rooms: dict[int, int] = {}  # likewise
        self._born = 0

    def add(self, first: int, lengths: Sequence[int]) -> list[Row]:
        rows = list[Row]()
        for number, length in enumerate(lengths, first):
            start = _whole_rows(rows, number, length, self._size) if length >= self._size else 0
            if not (need := length - start):
                continue
            row = next((row for row, room in self._rooms.items() if room >= need), -1)
            if row < 0:
                if len(self._open) == self._bins:
                    rows.append(self._close(min(self._rooms, key=self._rooms.__getitem__)))
                row, self._born = self._born, self._born + 1
                self._open[row], self._rooms[row] = [], self._size
            self._open[row].append((number, start, length))
            self._rooms[row] -= need
            if not self._rooms[row] or len(self._open[row]) == self._most:
                rows.append(self._close(row))
        return rows

    def _close(self, row: int) -> Row:
        del self._rooms[row]
        return self._open.pop(row)

    def rest(self) -> list[Row]:
        rows = list(self._open.values())
        self._begin()
        return rows


class BestFit:
    """The row with the least sufficient room. A key is its room and, below, its age: the least is the fullest and oldest."""

    def __init__(self, size: int, most: int, bins: int) -> None:
        self._size, self._most, self._bins = size, most, bins
        self._begin()

    def _begin(self) -> None:
        self._open: dict[int, Row] = {}
        self._keys: list[int] = []  # in ascending order
        self._born = 0

    def add(self, first: int, lengths: Sequence[int]) -> list[Row]:
        rows, keys, open_, size, most = list[Row](), self._keys, self._open, self._size, self._most
        for number, length in enumerate(lengths, first):
            start = _whole_rows(rows, number, length, size) if length >= size else 0
            if start == length:
                continue
            need = (length - start) << _LOW
            at = bisect_left(keys, need)
            if at < len(keys):
                key = keys.pop(at) - need
            else:
                if len(keys) == self._bins:
                    rows.append(open_.pop(keys.pop(0) & _MASK))
                key = (size << _LOW) + self._born - need
                open_[self._born] = []
                self._born += 1
            row = open_[key & _MASK]
            row.append((number, start, length))
            if key <= _MASK or len(row) == most:
                rows.append(open_.pop(key & _MASK))
            else:
                insort(keys, key)
        return rows

    def rest(self) -> list[Row]:
        rows = list(self._open.values())
        self._begin()
        return rows


class BestFitWrap:
    """The longest that fits. A key is a length and, below, how late the document came: the last of a length is the oldest."""

    def __init__(self, size: int, most: int, bins: int) -> None:
        self._size, self._most = size, most
        self._waiting: dict[int, Piece] = {}  # by when they came
        self._keys: list[int] = []  # of these, in ascending order
        self._order = deque[int]()  # when they came, the oldest first; some are gone
        self._came = self._tokens = 0

    def add(self, first: int, lengths: Sequence[int]) -> list[Row]:
        rows = list[Row]()
        for number, length in enumerate(lengths, first):
            start = _whole_rows(rows, number, length, self._size) if length >= self._size else 0
            if start == length:
                continue
            self._wait(self._came, (number, start, length))
            self._order.append(self._came)
            self._came += 1
            while len(self._keys) > POOL and self._tokens >= self._size:
                rows.append(self._row())
        return rows

    def rest(self) -> list[Row]:
        rows = []
        while self._keys:
            rows.append(self._row())
        self._order.clear()
        self._came = 0
        return rows

    def _wait(self, came: int, piece: Piece) -> None:
        length = piece[2] - piece[1]
        self._waiting[came] = piece
        self._tokens += length
        insort(self._keys, (length << _LOW) | (_MASK - came))

    def _row(self) -> Row:
        """The next row: full, unless there is too little, or `most` pieces are in it before."""
        row, room = Row(), self._size
        while room and self._keys and len(row) < self._most:
            key = self._next(room)
            number, start, stop = self._waiting.pop(came := _MASK - (key & _MASK))
            self._tokens -= stop - start
            end = min(stop, start + room)
            if end < stop:
                self._wait(came, (number, end, stop))
            row.append((number, start, end))
            room -= end - start
        return row

    def _next(self, room: int) -> int:
        """The key of what a row takes next, which waits no more."""
        while self._order[0] not in self._waiting:
            self._order.popleft()
        oldest = self._order[0]
        if self._came - oldest > AGE:
            _, start, stop = self._waiting[oldest]
            return self._keys.pop(bisect_left(self._keys, ((stop - start) << _LOW) | (_MASK - oldest)))
        length = max(room, self._keys[0] >> _LOW)  # of the longest that may be taken
        return self._keys.pop(bisect_right(self._keys, (length << _LOW) | _MASK) - 1)


RULES: Mapping[str, type[Rule]] = MappingProxyType(
    {"wrap": Wrap, "first_fit": FirstFit, "best_fit": BestFit, "best_fit_wrap": BestFitWrap}
)
