"""Where a lane stands, and what it remembers to say so: cursors and trails. Pure bookkeeping, no rows.

A lane is: draw -> S[0] -> A[0] -> S[1] -> A[1] -> ... -> S[k] -> out, S row-wise, A serial. No row is ever saved. A `Cursor`
names the place in the draw and, per accumulator, a mark: from there the same rows are made again and what had gone out is
dropped. All numbers are absolute.

A `Trail` collects *edges* (rows that have come to A[i], or out of the end, against what S[i] was fed with) and marks, and
composes them from the end backwards. Every list starts with the entry of the cursor that the lane was started from, and is cut
off behind the oldest row that can still be asked for.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from zephon_async.errors import InternalError
from zephon_async.lanes.draw import Coordinates

Position = TypeVar("Position")
BadCounts: TypeAlias = tuple[tuple[int, int, int], ...]
"""(dataset, 1 for those that were drawn or 0, bad records) where there are any, ascending."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where output row `out` of a lane, and all after it, can be had again.

    draw: coordinates of the draw (None: its beginning).
    first, taken, skips, outputs: per accumulator the number of its first output, the number of its input row there, the tokens
    of that row to leave out, and the outputs to drop before the next stateless stage.
    rows: per stateless stage (one more than accumulators) the rows to drop after it.
    bad: per stateless stage, with the accumulator behind it, bad records left out before its place.
    carried: per accumulator, a few whole numbers that outlive its flushes (see `Mark`).
    """

    draw: Coordinates | None
    first: tuple[int, ...]
    taken: tuple[int, ...]
    skips: tuple[int, ...]
    outputs: tuple[int, ...]
    rows: tuple[int, ...]
    out: int = 0
    bad: tuple[BadCounts, ...] = ()
    carried: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def start(cls, accumulators: int) -> "Cursor":
        """The beginning of a lane."""
        none = (0,) * accumulators
        return cls(None, none, none, none, none, (*none, 0), bad=((),) * (accumulators + 1), carried=((),) * accumulators)


class Edge(NamedTuple, Generic[Position]):
    """Row number `row` behind stage S[i] is had from `position` (draw coordinates, or an output number of A[i - 1]) by dropping
    `left` rows of what S[i] makes of it. bad: records left out before that, by S[i] and A[i]."""

    row: int
    position: Position
    left: int
    bad: BadCounts = ()


class Mark(NamedTuple):
    """From output `number` on, A[i] can be restarted at its input row `row`, `skip` tokens left out, told what it `carried`."""

    number: int
    row: int
    skip: int
    carried: tuple[int, ...] = ()


class Trail:
    """The edges and marks of a lane since its oldest row that can still be asked for.

    passing: the stages S[i] in which nothing is done, so that rows behind them have the numbers of the outputs before them, and
    what is made again begins with the right one of these, not with the first of a parcel.
    """

    def __init__(self, cursor: Cursor, passing: Collection[int] = ()) -> None:
        k = len(cursor.first)
        self._passing = passing
        counts = (*cursor.taken, cursor.out)
        positions = (cursor.draw, *(cursor.first[i] + cursor.outputs[i] for i in range(k)))
        edges = zip(counts, positions, cursor.rows, cursor.bad, strict=True)
        self._edges: list[list[Edge[Any]]] = [[Edge(*edge)] for edge in edges]
        self._marks = [[Mark(cursor.first[i], cursor.taken[i], cursor.skips[i], cursor.carried[i])] for i in range(k)]

    def edge(self, i: int, edge: Edge[Any]) -> None:
        """Behind what has come out of S[i] so far. To be told in the order of rows."""
        self._edges[i].append(edge)

    def marks(self, i: int, marks: Iterable[Mark]) -> None:
        """Marks of A[i], in the order of output numbers."""
        self._marks[i] += marks

    def cursor(self, out: int) -> Cursor:
        """From where output row `out` of the lane can be had again. What lies before it is forgotten."""
        k = len(self._marks)
        first, taken, skips, outputs, rows = [0] * k, [0] * k, [0] * k, [0] * k, [0] * (k + 1)
        bad: list[BadCounts] = [()] * (k + 1)
        carried: list[tuple[int, ...]] = [()] * k
        wanted = out
        for i in reversed(range(k)):
            edge = _last(self._edges[i + 1], wanted)
            rows[i + 1], position, bad[i + 1] = edge.left + wanted - edge.row, edge.position, edge.bad
            if i + 1 in self._passing:
                rows[i + 1], position = 0, position + rows[i + 1]
            mark = _last(self._marks[i], position)
            first[i], taken[i], skips[i], carried[i] = mark
            outputs[i] = position - mark.number
            wanted = mark.row
        edge = _last(self._edges[0], wanted)
        rows[0], bad[0] = edge.left + wanted - edge.row, edge.bad
        numbers = (tuple(first), tuple(taken), tuple(skips), tuple(outputs), tuple(rows))
        return Cursor(edge.position, *numbers, out, tuple(bad), tuple(carried))


def _last(entries: list[Any], number: int) -> Any:
    """The last entry whose first field is at most `number`; those before it are cut off."""
    at = bisect_right(entries, number, key=_first) - 1
    if at < 0:
        raise InternalError(f"a cursor is asked for row {number}, and what lies before {entries[0][0]} is forgotten")
    entry = entries[at]
    del entries[:at]
    return entry


def _first(entry: tuple[int, ...]) -> int:
    return entry[0]
