"""`wrap` for rows of one length: the stream of tokens is cut wherever a row is full.

No token is lost, and nothing is padded but the last row of a flush. Less than a row is held, and every row that begins is a mark,
so it is restarted anywhere. A parcel is packed with a handful of array operations: a row ends at every multiple of `max_length`, a
piece at every end of a row or a document.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_async.errors import BadRecord
from zephon_async.kinds import NO_TOKEN
from zephon_async.operators.base import RecordFailed, Tally
from zephon_async.operators.packing import Pack, Pieces
from zephon_async.records import Marks, Records

Made: TypeAlias = Callable[[Pieces, npt.NDArray[np.int64], npt.NDArray[np.integer], Tally], Records]
"""Rows of pieces, whose values have the padding of each row (`Pack.padding`): row i begins with piece `offsets[i]`, and the token
`next_token[i]` of its last document follows, or NO_TOKEN."""


class Wrapped:
    """Cut the stream of tokens into rows; less than a row is held."""

    def __init__(self, pack: Pack, made: Made, first: int) -> None:
        """made: rows of whole pieces."""
        self._pack, self._made, self.given = pack, made, first
        self._hold([], 0)

    def _hold(self, held: list[Pieces], taken: int) -> None:
        self._held, self._taken = held, taken
        self._tokens = sum(len(pieces.values[0]) for pieces in held)
        self.held_rows = sum(len(pieces.rows) for pieces in held)
        self.held_bytes = sum(pieces.nbytes for pieces in held)

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        """See `Accumulator`. A bad document counts as taken, and nothing of it is held."""
        pieces, bad = self._pack.read(records, skip, tally)
        pieces = pieces._replace(rows=pieces.rows + self._taken)
        self._taken += len(records) if bad is None else bad[0] + 1
        if len(pieces.rows):
            self._held.append(pieces)
            self._tokens += len(pieces.values[0])
            self.held_rows += len(pieces.rows)
            self.held_bytes += pieces.nbytes
        out, marks = self._close(tally)
        if bad is not None:
            raise RecordFailed(bad[0], out, marks) from BadRecord(bad[1])
        return out, marks

    def flush(self, tally: Tally) -> Records | None:
        if not self._held:
            self._hold([], 0)
            return None
        held = Pieces.concat(self._held)
        pads = self._pack.padding(held.aligned)
        values = tuple(np.concatenate((each, pad[len(each) :])) for each, pad in zip(held.values, pads, strict=True))
        held = held._replace(values=values)
        self._hold([], 0)
        self.given += 1
        return self._made(held, np.array([0, len(held.rows)]), np.array([NO_TOKEN]), tally)

    def _close(self, tally: Tally) -> tuple[Records | None, Marks]:
        """Give out the rows that are full. Places are tokens of all that is held; `of` says in which piece a place lies."""
        n = self._pack.max_length
        if self._tokens < n:
            row, skip = (self._held[0].rows[0], self._held[0].starts[0]) if self._held else (self._taken, 0)
            return None, Marks([self.given], [int(row)], [int(skip)])
        held = Pieces.concat(self._held)
        ends = np.cumsum(held.lengths)
        begins = np.append(ends - held.lengths, ends[-1])
        edges = np.arange(self._tokens // n + 1) * n  # where rows begin, and behind the last
        cuts = np.sort(np.concatenate((begins[begins < edges[-1]], edges[:-1])))  # where pieces begin, some twice
        cuts = cuts[np.diff(cuts, prepend=-1) > 0]
        of = np.searchsorted(ends, cuts, side="right")
        cut = held.take(of, 0)._replace(lengths=np.diff(cuts, append=edges[-1]), starts=held.starts[of] + cuts - begins[of])

        of = np.searchsorted(ends, edges, side="right")  # one too far where all is used up: the next row that comes
        skips = edges - begins[of]
        inside = skips[1:] > 0
        next_token = np.where(inside, self._pack.follows(held.values, edges[1:]), NO_TOKEN)
        cut = cut._replace(values=tuple(each[: edges[-1]] for each in held.values))
        out = self._made(cut, np.searchsorted(cuts, edges), next_token, tally)
        rows, skips = np.append(held.rows, self._taken)[of], skips + np.append(held.starts, 0)[of]
        marks = Marks(*(array.tolist() for array in (self.given + np.arange(len(edges)), rows, skips)))
        rest = held.behind(of[-1], edges[-1] - begins[of[-1]], edges[-1])
        self._hold([rest] if len(rest.rows) else [], self._taken)
        self.given += len(edges) - 1
        return out, marks
