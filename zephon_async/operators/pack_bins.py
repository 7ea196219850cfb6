"""Packing by a rule that keeps rows open: documents are held until their row is closed.

What shares a row is said by `pack_rules`, one rule for each group. Rows are copied here, with their padding, out of the parcels
that the documents came with; when more than half of these has gone out, the rest is copied and they are let go. It gives no marks:
the engine flushes it at the end of every segment.
"""

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.errors import BadRecord, InternalError
from zephon_async.kinds import NO_TOKEN
from zephon_async.operators.base import NO_MARKS, RecordFailed, Tally
from zephon_async.operators.pack_rules import Row, Rule
from zephon_async.operators.packing import Pack, Pieces, Values
from zephon_async.records import ORIGIN, Marks, Origins, Records, concat, nbytes, take

MadeOf: TypeAlias = Callable[
    [Pieces, npt.NDArray[np.int64], npt.NDArray[np.integer], Tally, pa.RecordBatch | None],
    Records,
]
"""`pack_wrap.Made`, with the other columns of the document of each piece, where they are wanted."""


Numbers: TypeAlias = npt.NDArray[np.int64]


class Binned:
    """Holds documents until a rule closes their row: where each lies in the values of the parcels that they came with."""

    def __init__(self, pack: Pack, made: MadeOf, first: int) -> None:
        """made: rows of pieces."""
        self._pack, self._made, self.given = pack, made, first
        self._begin()

    def _begin(self) -> None:
        self._rules: dict[int, Rule] = {}
        self._next = 0  # the number of the next document
        self._values: list[Values] = []  # of the documents that are held, and of no more others
        self._numbers = self._in = self._firsts = self._lengths = self._out = np.empty(0, np.int64)  # of each, see `_placed`
        self._origins = Origins(np.empty(0, ORIGIN))
        self._others: list[pa.RecordBatch] = []
        self._aligned: Sequence[pa.Field] = ()
        self.held_bytes = self.held_rows = 0

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
        count, first = len(pieces.lengths), self._next
        self._next += count
        self._numbers = np.append(self._numbers, np.arange(first, self._next))
        self._in = np.append(self._in, np.full(count, len(self._values)))  # which of the values
        self._firsts = np.append(self._firsts, np.cumsum(pieces.lengths) - pieces.lengths)  # where there its first token is, or was
        self._lengths = np.append(self._lengths, pieces.lengths)
        self._out = np.append(self._out, np.zeros(count, np.int64))  # tokens that have gone out
        self._values.append(pieces.values)
        self._origins, self._aligned = Origins.concat([self._origins, pieces.origins]), pieces.aligned
        if wanted := self._pack.others(columns.schema):
            self._others.append(take(columns.select(wanted), pieces.rows))
        groups, lengths = self._pack.group_of(pieces.origins), pieces.lengths.tolist()
        edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), count]  # where another group begins
        for begin, end in pairwise(edges if count else ()):
            rule = self._rules.setdefault(int(groups[begin]), self._pack.rule())
            rows += rule.add(first + begin, lengths[begin:end])
        return rows

    def _rows(self, rows: Sequence[Row], tally: Tally) -> Records | None:
        if not rows:
            return None
        flat = list(chain.from_iterable(rows))
        numbers, starts, stops = np.fromiter(chain.from_iterable(flat), np.int64, 3 * len(flat)).reshape(-1, 3).T
        places, offsets = np.searchsorted(self._numbers, numbers), np.cumsum([0, *map(len, rows)])
        values = self._joined(places, starts, stops, offsets[1:])
        pieces = Pieces(values, stops - starts, self._origins.take(places), places, starts, self._aligned)
        next_token = np.full(len(rows), NO_TOKEN)
        last = offsets[1:] - 1
        for row in np.flatnonzero(stops[last] < self._lengths[places[last]]).tolist():
            place = places[last[row]]
            next_token[row] = self._pack.follows(self._values[self._in[place]], self._firsts[[place]] + stops[last[row]])[0]
        self._others = [concat(self._others)] if self._others else []
        others = take(self._others[0], places) if self._others else None
        made = self._made(pieces, offsets, next_token, tally, others)
        np.maximum.at(self._out, places, stops)
        self._let_go()
        self.given += len(rows)
        return made

    def _joined(self, places: Numbers, starts: Numbers, stops: Numbers, rows: Numbers) -> Values:
        """Tokens of documents, end to end. rows: behind which of them rows end, and have their padding, if there is any."""
        firsts, values = self._firsts[places], self._values
        spans = np.array((self._in[places], firsts + starts, firsts + stops))
        if len(rows) and (padding := self._pack.padding(self._aligned)):
            lengths = np.diff(np.append(0, np.cumsum(stops - starts)[rows - 1]))
            rooms = self._pack.max_length - lengths
            spans = np.insert(spans, rows, (np.full_like(rooms, len(values)), np.zeros_like(rooms), rooms), axis=1)
            values = [*values, padding]
        cuts = list(zip(*spans.tolist(), strict=True))
        return tuple(
            np.concatenate([held[0][:0], *[held[at][begin:end] for at, begin, end in cuts]]) for held in zip(*values, strict=True)
        )

    def _let_go(self) -> None:
        """Forget what has gone out; of the values, when that is more than half of them."""
        kept = np.flatnonzero(self._out < self._lengths)
        self._numbers, self._in, self._firsts = self._numbers[kept], self._in[kept], self._firsts[kept]
        self._lengths, self._out = self._lengths[kept], self._out[kept]
        self._origins, self._others = self._origins.take(kept), [take(batch, kept) for batch in self._others]
        left = self._lengths - self._out
        if 2 * left.sum() < sum(len(each[0]) for each in self._values):
            self._values = [self._joined(np.arange(len(kept)), self._out, self._lengths, kept[:0])]
            self._in, self._firsts = np.zeros_like(kept), np.cumsum(left) - left - self._out

    def _count(self) -> None:
        self.held_rows = len(self._numbers)
        values = sum(each.nbytes for several in self._values for each in several)
        self.held_bytes = values + self._origins.nbytes + sum(map(nbytes, self._others))
