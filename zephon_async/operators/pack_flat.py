"""Pack token documents into rows of exactly `max_length` tokens.

Takes records with a column of token lists, one document a row. Gives rows of

    input_ids        fixed_size_list<int32>[max_length]
    segment_lengths  list<int32>   tokens of each document in the row, never 0; what is behind their sum is padding
    next_token       int32         the token of the same document behind the row where the cut is inside one, else -100
    (aligned)        fixed_size_list[max_length]   such as loss_mask, cut in step with the tokens; 0 in the padding
    (carried)        list   what the documents in the row have in this column, such as images, in the order of the documents: a
                     value each, or where that is a list (of no fixed size), all that is in it

with an origin for every piece of a document: its first token in the document and the one behind its last. Positions, document ids
and cu_seqlens are derived at the end (`Batch.to_training`), and no other column survives. next_token is -100 too where the loss
mask leaves that token out. Bytes that are carried should be referred to (`refer`), else every document is copied as it waits.

Which documents share a row is said by `pack_rules`. `wrap` alone can be restarted anywhere; the others, and rows of one dataset or
group or of a number of documents, are flushed at the end of every segment, where open rows come out padded.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import column_names, whole
from zephon_async.errors import RecipeError
from zephon_async.kinds import FILL, NO_TOKEN, is_list, list_lengths
from zephon_async.operators.base import Accumulator, Columns, Tally
from zephon_async.operators.pack_bins import Binned
from zephon_async.operators.pack_rules import POOL
from zephon_async.operators.pack_wrap import Wrapped
from zephon_async.operators.packing import LOSS_MASK, MADE, Pack, Pieces, Values, int32
from zephon_async.records import ORIGIN, Origins, Records


class PackFlat(Pack):
    """Pack documents into rows of `max_length` tokens."""

    name = "pack_flat"

    def __init__(
        self,
        max_length: int,
        *,
        algorithm: str = "wrap",
        field: str = "input_ids",
        pad_id: int = 0,
        on_long: str = "split",
        aligned: Sequence[str] | None = None,
        carry: Sequence[str] = (),
        num_bins: int = 64,
        max_sequences_per_row: int | None = None,
        homogeneity: str = "none",
        groups: Mapping[str, str] | None = None,
    ) -> None:
        """pad_id: fills rows to the end. carry: columns of documents that rows have too, where documents stay whole: with
        first_fit or best_fit, and on_long="drop" or "error". The others: see `Pack`.
        """
        super().__init__(
            max_length,
            algorithm=algorithm,
            field=field,
            on_long=on_long,
            aligned=aligned,
            num_bins=num_bins,
            max_sequences_per_row=max_sequences_per_row,
            homogeneity=homogeneity,
            groups=groups,
        )
        self.carry = tuple(column_names("pack_flat: carry", carry))
        if self.carry and not (algorithm in ("first_fit", "best_fit") and on_long in ("drop", "error")):
            raise RecipeError(
                f"pack_flat(carry={list(self.carry)}, algorithm={algorithm!r}, on_long={on_long!r}): documents would be cut, and "
                "which part has what they carry is not known; set algorithm='best_fit' or 'first_fit', on_long='drop' or 'error'"
            )
        in_step = (LOSS_MASK,) if self.aligned is None else self.aligned
        if taken := {field, *MADE, *in_step}.intersection(self.carry):
            raise RecipeError(f"pack_flat: carry names {min(taken)!r}, which is in the rows anyway; leave it out")
        self.pad_id = int32("pack_flat: pad_id", whole("pack_flat: pad_id", pad_id))
        self.needs_flush = self.algorithm != "wrap" or self.homogeneity != "none" or self.max_sequences_per_row is not None
        self.schema = pa.schema(
            [
                pa.field("input_ids", pa.list_(pa.int32(), self.max_length), metadata={FILL: str(pad_id)}),
                pa.field("segment_lengths", pa.list_(pa.int32())),
                pa.field("next_token", pa.int32(), metadata={FILL: str(NO_TOKEN)}),
            ]
        )

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "pad_id": self.pad_id, "carry": list(self.carry)}

    def reads(self, wanted: Columns) -> Columns:
        return frozenset({self.field, *self.carry, *((LOSS_MASK,) if self.aligned is None else self.aligned)})

    def requires(self) -> Mapping[str, str]:
        return {**dict.fromkeys(self.carry, "any"), **super().requires()}

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        if schema is None:
            return self.schema if self.aligned == self.carry == () else None
        return self._schema_for(*self.columns_of_rows(schema))

    def accumulator(self, lane: int, first: int) -> Accumulator:
        if self.needs_flush:
            return Binned(self, self._rows, first)
        return Wrapped(self, self._rows, first)

    def takes_rows(self, rows: int, row_tokens: float | None) -> int | None:
        return ceil(rows * self.max_length / row_tokens) if row_tokens and not self.needs_flush else None

    def holds_bytes(self, row_bytes: int) -> int:
        if self.algorithm == "best_fit_wrap":
            return 2 * POOL * row_bytes
        return (2 if self.needs_flush else 1) * self.open_rows() * self.row_bytes(row_bytes)

    def row_bytes(self, row_bytes: int) -> int:
        carried = row_bytes if self.carry else 0  # of a document; how many are in a row is not known
        return self.max_length * self.token_bytes + ORIGIN.itemsize + carried

    def others(self, schema: pa.Schema) -> Sequence[str]:
        """What is carried."""
        self.check_there("carry", self.carry, schema)
        return self.carry

    def padding(self, aligned: Sequence[pa.Field]) -> Values:
        kinds = [np.dtype(np.int32), *(np.dtype(field.type.value_type.to_pandas_dtype()) for field in aligned)]
        return tuple(
            np.full(self.max_length, fill, kind) for fill, kind in zip((self.pad_id, *(0 for _ in aligned)), kinds, strict=True)
        )

    def _schema_for(self, aligned: Sequence[pa.Field], carried: Sequence[pa.Field]) -> pa.Schema:
        fields = [pa.field(field.name, pa.list_(field.type.value_type, self.max_length), metadata={FILL: "0"}) for field in aligned]
        lists = [pa.field(f.name, pa.list_(f.type.value_type if _are_joined(f.type) else f.type)) for f in carried]
        return pa.schema([*self.schema, *fields, *lists])

    def _rows(
        self,
        pieces: Pieces,
        offsets: npt.NDArray[np.int64],
        next_token: npt.NDArray[np.integer],
        tally: Tally,
        others: pa.RecordBatch | None = None,
    ) -> Records:
        carried = [] if others is None else others.columns
        schema = self._schema_for(pieces.aligned, [] if others is None else list(others.schema))
        tokens, *aligned = pieces.values
        tally["padding_tokens"] += len(tokens) - int(pieces.lengths.sum())
        columns = [
            pa.array(tokens),
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(pieces.lengths, pa.int32())),
            pa.array(next_token, pa.int32()),
            *map(pa.array, aligned),
            *(_listed(column, offsets) for column in carried),
        ]
        arrays = [
            pa.FixedSizeListArray.from_arrays(column.cast(field.type.value_type), type=field.type)
            if pa.types.is_fixed_size_list(field.type)
            else column
            for field, column in zip(schema, columns, strict=True)
        ]
        cut = pieces.cut_origins()
        return Records(pa.RecordBatch.from_arrays(arrays, schema=schema), Origins(cut.segments, cut.bounds()[offsets]))


def _are_joined(kind: pa.DataType) -> bool:
    """Whether what documents carry are lists of any length."""
    return is_list(kind) and not pa.types.is_fixed_size_list(kind)


def _listed(column: pa.Array, offsets: npt.NDArray[np.int64]) -> pa.Array:
    """What documents carry, as a list for each row, which begins with document `offsets[i]`."""
    if _are_joined(column.type):
        offsets, column = np.append(0, np.cumsum(list_lengths(column)))[offsets], column.flatten()
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), column)
