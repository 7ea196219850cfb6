"""Pack token documents into rows of exactly `max_length` tokens.

Takes records with a column of token lists, one document a row. Gives rows of

    input_ids        fixed_size_list<int32>[max_length]
    segment_lengths  list<int32>   tokens of each document in the row, never 0; what is behind their sum is padding
    next_token       int32         the token of the same document behind the row where the cut is inside one, else -100

with an origin for every piece of a document: its first token in the document and the one behind its last. A document that was
made of several records (by `accumulate`, say) has an origin for each, and every piece of it has all of these as they came: which
of its tokens are whose is not known. Positions, document ids and cu_seqlens are derived at the end (`Batch.to_training`), and no
other column survives. Documents without a token are left out and counted.

`wrap` cuts the stream of tokens wherever a row is full: no token is lost, and nothing is padded but the last row of a flush. It
holds less than a row and names a mark at every row it starts, so it is restarted anywhere. A parcel is packed with a handful
of array operations: a row ends at every multiple of `max_length`, a piece at every end of a row or a document.

Each algorithm is one class in `ALGORITHMS`.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import hint, one_of, whole
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import FILL, NO_TOKEN, is_integers, list_lengths
from zephon_async.operators.base import Accumulator, Columns, Operator, RecordFailed, Tally
from zephon_async.records import ORIGIN, Marks, Origins, Records

ON_LONG = ("split", "truncate", "drop", "error")
_INT32 = np.iinfo(np.int32)


class PackFlat(Operator):
    """Pack documents into rows of `max_length` tokens."""

    name = "pack_flat"
    survives = True

    def __init__(
        self, max_length: int, *, algorithm: str = "wrap", field: str = "input_ids", pad_id: int = 0, on_long: str = "split"
    ) -> None:
        """max_length: tokens in a row. algorithm: see `ALGORITHMS`. field: a column of lists of integers. pad_id: fills the rest.

        on_long: what becomes of documents of more than max_length tokens: "split" (they go on in the next row), "truncate"
        (the tokens behind max_length are dropped and counted), "drop" (the same with all of them), "error".
        """
        one_of("pack_flat: algorithm", algorithm, ALGORITHMS)
        one_of("pack_flat: on_long", on_long, ON_LONG)
        max_length = whole("pack_flat: max_length", max_length, 1)
        pad_id = whole("pack_flat: pad_id", pad_id)
        for name, number in (("max_length", max_length), ("pad_id", pad_id)):
            if not _INT32.min <= number <= _INT32.max:
                raise RecipeError(f"pack_flat: {name} is {number}: it must be a whole number of 32 bits")
        self.max_length, self.algorithm, self.pad_id, self.on_long = max_length, algorithm, pad_id, on_long
        self.field = self.token_field = field
        self.schema = pa.schema(
            [
                pa.field("input_ids", pa.list_(pa.int32(), max_length), metadata={FILL: str(pad_id)}),
                pa.field("segment_lengths", pa.list_(pa.int32())),
                pa.field("next_token", pa.int32(), metadata={FILL: str(NO_TOKEN)}),
            ]
        )

    def settings(self) -> Mapping[str, Any]:
        names = ("max_length", "algorithm", "field", "pad_id", "on_long")
        return {name: getattr(self, name) for name in names}

    def reads(self, wanted: Columns) -> Columns:
        return frozenset({self.field})

    def requires(self) -> Mapping[str, str]:
        return {self.field: "integers"}

    def output(self, schema: pa.Schema | None) -> pa.Schema:
        if schema is not None:
            _check_tokens(schema, self.field)
        return self.schema

    def accumulator(self, lane: int, first: int) -> Accumulator:
        return ALGORITHMS[self.algorithm](self, first)

    def takes_rows(self, rows: int, row_tokens: float | None) -> int | None:
        return ceil(rows * self.max_length / row_tokens) if row_tokens else None

    def holds_bytes(self, row_bytes: int) -> int:
        return self.max_length * np.dtype(np.int32).itemsize

    def row_bytes(self, row_bytes: int) -> int:
        return self.max_length * np.dtype(np.int32).itemsize + ORIGIN.itemsize

    def read(self, records: Records, skip: int, tally: Tally) -> tuple["Pieces", tuple[int, str] | None]:
        """The documents up to the first that is bad, with the number of that one and what is wrong with it."""
        column = _token_lists(records.columns, self.field)
        bad = self._first_bad(column)
        n = len(records) if bad is None else bad[0]
        tokens, lengths = _tokens(column.slice(0, n))
        stops = self._stops(lengths, tally)
        starts = np.zeros(n, np.int64)
        starts[:1] = np.minimum(stops[:1], skip)
        if not np.array_equal(stops, lengths):
            pairs = np.column_stack((stops, lengths - stops))
            tokens = tokens[np.repeat(np.tile((True, False), n), pairs.ravel())]
        tokens = tokens[starts[:1].sum() :]
        pieces = Pieces(tokens, stops - starts, records.origins.slice(0, n), np.arange(n), starts)
        tally["documents_empty"] += int(np.count_nonzero(lengths == 0))
        return pieces.without_empty(), bad

    def _stops(self, lengths: npt.NDArray[np.int64], tally: Tally) -> npt.NDArray[np.int64]:
        """How many tokens of each document are kept."""
        if self.on_long == "split" or not (long := lengths > self.max_length).any():
            return lengths
        stops = np.where(long, self.max_length if self.on_long == "truncate" else 0, lengths)
        tally["documents_truncated" if self.on_long == "truncate" else "documents_dropped"] += int(np.count_nonzero(long))
        tally["tokens_dropped"] += int((lengths - stops).sum())
        return stops

    def _first_bad(self, column: pa.Array) -> tuple[int, str] | None:
        """The number of the first document that cannot be packed, and why."""
        found: list[tuple[int, str]] = []
        if column.null_count:
            found.append((int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))), f"{self.field} is null"))
            column = column.slice(0, found[0][0])
        values, lengths = column.flatten(), list_lengths(column)
        ends = np.cumsum(lengths)
        wrong = _no_int32(values)
        if wrong is not None and wrong.any():
            at = int(np.argmax(wrong))
            found.append(
                (int(np.searchsorted(ends, at, side="right")), f"{self.field} has a token that is no 32-bit integer: {values[at]}")
            )
        if self.on_long == "error" and (long := lengths > self.max_length).any():
            at = int(np.argmax(long))
            why = f"{self.field} has {lengths[at]:,} tokens, more than max_length={self.max_length:,}"
            found.append((at, f"{why}; pack_flat(on_long='split'|'truncate'|'drop') takes such documents"))
        return min(found, default=None)


class Pieces(NamedTuple):
    """Parts of documents, in order. tokens: int32, all of them end to end; the rest has one entry a piece.

    origins: of the document. rows: the input row. starts: the first token of the piece in that row.
    """

    tokens: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    origins: Origins
    rows: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self)

    def without_empty(self) -> "Pieces":
        real = np.flatnonzero(self.lengths)
        return self if len(real) == len(self.lengths) else self.take(real, 0)

    def take(self, pieces: npt.NDArray[np.integer], at: int) -> "Pieces":
        """Some pieces, with the tokens from `at` on; but for these nothing is shared."""
        return Pieces(self.tokens[at:], self.lengths[pieces], self.origins.take(pieces), self.rows[pieces], self.starts[pieces])

    def behind(self, piece: int, tokens: int, at: int) -> "Pieces":
        """From `tokens` of a piece on, which is token `at` of all; nothing is shared."""
        rest = self.take(np.arange(piece, len(self.rows)), at)
        rest.lengths[:1] -= tokens
        rest.starts[:1] += tokens
        return rest._replace(tokens=rest.tokens.copy())


class Wrap:
    """Cut the stream of tokens into rows; less than a row is held."""

    def __init__(self, pack: PackFlat, first: int) -> None:
        self._pack, self.given = pack, first
        self._hold([], 0)

    def _hold(self, held: list[Pieces], taken: int) -> None:
        self._held, self._taken = held, taken
        self._tokens = sum(len(pieces.tokens) for pieces in held)
        self.held_rows = sum(len(pieces.rows) for pieces in held)
        self.held_bytes = sum(pieces.nbytes for pieces in held)

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        """See `Accumulator`. A bad document counts as taken, and nothing of it is held."""
        pieces, bad = self._pack.read(records, skip, tally)
        pieces = pieces._replace(rows=pieces.rows + self._taken)
        self._taken += len(records) if bad is None else bad[0] + 1
        if len(pieces.rows):
            self._held.append(pieces)
            self._tokens += len(pieces.tokens)
            self.held_rows += len(pieces.rows)
            self.held_bytes += pieces.nbytes
        out, marks = self._close()
        if bad is not None:
            raise RecordFailed(bad[0], out, marks) from BadRecord(bad[1])
        return out, marks

    def flush(self, tally: Tally) -> Records | None:
        if not self._held:
            self._hold([], 0)
            return None
        held = _joined(self._held)
        tokens = np.full(self._pack.max_length, self._pack.pad_id, np.int32)
        tokens[: self._tokens] = held.tokens
        tally["padding_tokens"] += self._pack.max_length - self._tokens
        self._hold([], 0)
        self.given += 1
        return self._records(tokens, held, np.array([0, len(held.rows)]), np.array([NO_TOKEN]))

    def _close(self) -> tuple[Records | None, Marks]:
        """Give out the rows that are full. Places are tokens of all that is held; `of` says in which piece a place lies."""
        n = self._pack.max_length
        if self._tokens < n:
            row, skip = (self._held[0].rows[0], self._held[0].starts[0]) if self._held else (self._taken, 0)
            return None, Marks([self.given], [int(row)], [int(skip)])
        held = _joined(self._held)
        ends = np.cumsum(held.lengths)
        begins = np.append(ends - held.lengths, ends[-1])
        edges = np.arange(self._tokens // n + 1) * n  # where rows begin, and behind the last
        cuts = np.union1d(begins[begins < edges[-1]], edges[:-1])  # where pieces begin
        of = np.searchsorted(ends, cuts, side="right")
        cut = held.take(of, 0)._replace(lengths=np.diff(cuts, append=edges[-1]), starts=held.starts[of] + cuts - begins[of])

        of = np.searchsorted(ends, edges, side="right")  # one too far where all is used up: the next row that comes
        skips = edges - begins[of]
        inside = skips[1:] > 0
        behind = held.tokens.take(edges[1:], mode="clip")
        next_token = np.where(inside, behind, NO_TOKEN)
        out = self._records(held.tokens[: edges[-1]], cut, np.searchsorted(cuts, edges), next_token)
        rows, skips = np.append(held.rows, self._taken)[of], skips + np.append(held.starts, 0)[of]
        marks = Marks(*(array.tolist() for array in (self.given + np.arange(len(edges)), rows, skips)))
        rest = held.behind(of[-1], edges[-1] - begins[of[-1]], edges[-1])
        self._hold([rest] if len(rest.rows) else [], self._taken)
        self.given += len(edges) - 1
        return out, marks

    def _records(
        self,
        tokens: npt.NDArray[np.int32],
        pieces: Pieces,
        offsets: npt.NDArray[np.int64],
        next_token: npt.NDArray[np.integer],
    ) -> Records:
        """Rows of whole `pieces`; row i begins with piece `offsets[i]`."""
        schema = self._pack.schema
        columns = [
            pa.FixedSizeListArray.from_arrays(pa.array(tokens), type=schema.field(0).type),
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(pieces.lengths, pa.int32())),
            pa.array(next_token, pa.int32()),
        ]
        segments, bounds = pieces.origins.segments.copy(), pieces.origins.bounds()
        alone: Any = slice(None)  # the pieces, and below the segments, of documents of one record
        at: Any = slice(None)
        if pieces.origins.offsets is not None:
            alone = np.diff(bounds) == 1
            at = bounds[:-1][alone]
        segments["start"][at] += pieces.starts[alone]
        segments["stop"][at] = segments["start"][at] + pieces.lengths[alone]
        return Records(pa.RecordBatch.from_arrays(columns, schema=schema), Origins(segments, bounds[offsets]))


ALGORITHMS = {"wrap": Wrap}


def _joined(several: list[Pieces]) -> Pieces:
    if len(several) == 1:
        return several[0]
    tokens, lengths, origins, rows, starts = zip(*several, strict=True)
    joined = [np.concatenate(arrays) for arrays in (tokens, lengths, rows, starts)]
    return Pieces(joined[0], joined[1], Origins.concat(origins), joined[2], joined[3])


def _token_lists(columns: pa.RecordBatch, field: str) -> pa.Array:
    _check_tokens(columns.schema, field)
    return columns.column(field)


def _check_tokens(schema: pa.Schema, field: str) -> None:
    if field not in schema.names:
        raise RecipeError(
            f"pack_flat(field={field!r}): there is no such column, there are {schema.names}{hint(field, schema.names)}"
        )
    kind = schema.field(field).type
    if {"segment_lengths", "next_token"} <= set(schema.names):
        raise RecipeError(
            f"pack_flat(field={field!r}): the rows are packed already, and their padding would become tokens; pack once"
        )
    if not is_integers(kind):
        raise RecipeError(f"pack_flat(field={field!r}): the column is {kind}, not a list of integers; put tokenize() before it")


def _tokens(column: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """All tokens end to end, without a copy where they are int32, and how many there are of each document."""
    return column.flatten().to_numpy().astype(np.int32, copy=False), list_lengths(column)


def _no_int32(values: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which values are null or do not fit 32 bits; None where none can be."""
    fits = values.type.bit_width < 32 or values.type == pa.int32()
    if fits and not values.null_count:
        return None
    tokens = values.fill_null(0).to_numpy()
    wrong: npt.NDArray[np.bool_] = (tokens < _INT32.min) | (tokens > _INT32.max)
    return wrong | values.is_null().to_numpy(zero_copy_only=False) if values.null_count else wrong
