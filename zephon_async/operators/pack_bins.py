"""Packing by a rule that keeps rows open: documents are held until their row is closed.

What shares a row is said by `pack_rules`, one rule for each group; rows are made here of copies of the documents, so that no parcel
is held for the sake of one of them. It gives no marks: the engine flushes it at the end of every segment.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.errors import BadRecord, InternalError
from zephon_async.kinds import NO_TOKEN
from zephon_async.operators.base import NO_MARKS, RecordFailed, Tally
from zephon_async.operators.pack_rules import Piece, Row, Rule
from zephon_async.operators.packing import Pack, Pieces, Values
from zephon_async.records import ORIGIN, Marks, Origins, Records, concat, nbytes, take

MadeOf: TypeAlias = Callable[
    [Pieces, npt.NDArray[np.int64], npt.NDArray[np.integer], Tally, pa.RecordBatch | None],
    Records,
]
"""`pack_wrap.Made`, with the other columns of the document of each piece, where they are wanted."""
_GONE = 256  # documents that may have gone out before what is kept of them is forgotten, where that is little


class Binned:
    """Holds documents until a rule closes their row."""

    def __init__(self, pack: Pack, made: MadeOf, first: int) -> None:
        """made: rows of pieces."""
        self._pack, self._made, self.given = pack, made, first
        self._begin()

    def _begin(self) -> None:
        self._rules: dict[int, Rule] = {}
        self._next = 0  # the number of the next document
        self._values: dict[int, Values] = {}  # of the documents that are held, by their numbers
        self._out: dict[int, int] = {}  # tokens that have gone out of those that were cut, and are held no more
        self._numbers = np.empty(0, np.int64)  # of these, in ascending order, and of some that have gone out
        self._origins = Origins(np.empty(0, ORIGIN))  # of all of them
        self._others: list[pa.RecordBatch] = []  # likewise
        self._aligned: Sequence[pa.Field] = ()
        self._tokens = self.held_bytes = self.held_rows = 0

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        """See `Accumulator`."""
        if skip:
            raise InternalError(f"{self._pack.name} is told to skip {skip} tokens, but it gives no marks")
        pieces, bad = self._pack.read(records, 0, tally)
        out = self._rows(self._placed(pieces, records.columns), tally)
        self._count()
        if bad is not None:
            raise RecordFailed(bad[0], out) from BadRecord(bad[1])
        return out, NO_MARKS

    def flush(self, tally: Tally) -> Records | None:
        """See `Accumulator`."""
        out = self._rows([row for _, rule in sorted(self._rules.items()) for row in rule.rest()], tally)
        self._begin()
        return out

    def _placed(self, pieces: Pieces, columns: pa.RecordBatch) -> list[Row]:
        """Hold documents; gives the rows that they close."""
        rows: list[Row] = []
        self._numbers = np.append(self._numbers, np.arange(len(pieces.lengths)) + self._next)
        self._origins, self._aligned = Origins.concat([self._origins, pieces.origins]), pieces.aligned
        if wanted := self._pack.others(columns.schema):
            self._others.append(take(columns.select(wanted), pieces.rows))
        ends = np.cumsum(pieces.lengths).tolist()
        parts = [[each[begin:end].copy() for begin, end in pairwise((0, *ends))] for each in pieces.values]
        first, self._next = self._next, self._next + len(ends)
        self._values.update(zip(range(first, self._next), zip(*parts, strict=True), strict=True))
        self._tokens += len(pieces.values[0])
        groups = self._pack.group_of(pieces.origins).tolist()
        for number, length, group in zip(range(first, self._next), pieces.lengths.tolist(), groups, strict=True):
            if (rule := self._rules.get(group)) is None:
                rule = self._rules[group] = self._pack.rule()
            if closed := rule.add(number, length):
                rows += closed
        return rows

    def _rows(self, rows: Sequence[Row], tally: Tally) -> Records | None:
        if not rows:
            return None
        flat = [piece for row in rows for piece in row]
        held, gone = self._values, self._out
        at = [(number, start - gone.get(number, 0), stop - gone.get(number, 0)) for number, start, stop in flat] if gone else flat
        values = tuple(
            np.concatenate([held[number][n][start:stop] for number, start, stop in at]) for n in range(len(held[flat[0][0]]))
        )
        numbers, starts, stops = np.array(flat).T
        places = np.searchsorted(self._numbers, numbers)
        pieces = Pieces(values, stops - starts, self._origins.take(places), places, starts, self._aligned)
        next_token = np.full(len(rows), NO_TOKEN)
        for place, row in enumerate(rows):
            number, _, stop = row[-1]
            if (behind := stop - gone.get(number, 0)) < len(held[number][0]):
                next_token[place] = self._pack.follows(held[number], np.array([behind]))[0]
        self._others = [concat(self._others)] if self._others else []
        others = take(self._others[0], places) if self._others else None
        made = self._made(pieces, np.cumsum([0, *map(len, rows)]), next_token, tally, others)
        self._let_go(flat)
        self.given += len(rows)
        return made

    def _count(self) -> None:
        self.held_rows = len(self._values)
        token_bytes = sum(each.itemsize for each in next(iter(self._values.values()), ()))
        self.held_bytes = self._tokens * token_bytes + self._origins.nbytes + sum(map(nbytes, self._others))

    def _let_go(self, pieces: Sequence[Piece]) -> None:
        """Forget what has gone out: of a document that was cut, its first tokens."""
        cut = set[int]()
        for number, start, stop in pieces:
            values = self._values[number]
            self._tokens -= stop - start
            if stop - start < len(values[0]):
                self._values[number], self._out[number] = tuple([each[stop - start :] for each in values]), stop
                cut.add(number)
            else:
                del self._values[number]
                self._out.pop(number, None)
        for number in cut.intersection(self._values):
            self._values[number] = tuple([each.copy() for each in self._values[number]])
        if len(self._numbers) > 2 * len(self._values) + _GONE or not self._values or self._others:
            kept = np.flatnonzero(np.isin(self._numbers, list(self._values)))
            self._numbers, self._origins = self._numbers[kept], self._origins.take(kept)
            if self._others:
                self._others = [take(concat(self._others), kept)]
