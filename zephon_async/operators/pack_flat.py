"""Pack token documents into rows of exactly `max_length` tokens.

Takes records with a column of token lists, one document a row. Gives rows of

    input_ids        fixed_size_list<int32>[max_length]
    segment_lengths  list<int32>   tokens of each document in the row, never 0; what is behind their sum is padding
    next_token       int32         the token of the same document behind the row where the cut is inside one, else -100
    (aligned)        fixed_size_list[max_length]   such as loss_mask, cut in step with the tokens; 0 in the padding

with an origin for every piece of a document: its first token in the document and the one behind its last. Positions, document ids
and cu_seqlens are derived at the end (`Batch.to_training`), and no other column survives. next_token is -100 too where the loss
mask leaves that token out.

Which documents share a row is said by `pack_rules`. `wrap` alone can be restarted anywhere; the others, and rows of one dataset or
group or of a number of documents, are flushed at the end of every segment, where open rows come out padded.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import whole
from zephon_async.kinds import FILL, NO_TOKEN
from zephon_async.operators.base import Accumulator, Columns, Tally
from zephon_async.operators.pack_bins import Binned
from zephon_async.operators.pack_rules import POOL
from zephon_async.operators.pack_wrap import Wrapped
from zephon_async.operators.packing import LOSS_MASK, Pack, Pieces, int32
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
        num_bins: int = 64,
        max_sequences_per_row: int | None = None,
        homogeneity: str = "none",
        groups: Mapping[str, str] | None = None,
    ) -> None:
        """pad_id: fills rows to the end. The others: see `Pack`."""
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
        return {**super().settings(), "pad_id": self.pad_id}

    def reads(self, wanted: Columns) -> Columns:
        return frozenset({self.field, *((LOSS_MASK,) if self.aligned is None else self.aligned)})

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        if schema is None:
            return self.schema if self.aligned == () else None
        return self._schema_for(self.check_columns(schema)[1:])

    def accumulator(self, lane: int, first: int) -> Accumulator:
        if self.needs_flush:
            return Binned(self, lambda *given: self._rows(*given[:4]), first, lambda schema: ())
        return Wrapped(self, self._rows, first)

    def takes_rows(self, rows: int, row_tokens: float | None) -> int | None:
        return ceil(rows * self.max_length / row_tokens) if row_tokens and not self.needs_flush else None

    def holds_bytes(self, row_bytes: int) -> int:
        if self.algorithm == "best_fit_wrap":
            return POOL * row_bytes
        return self.open_rows() * self.max_length * np.dtype(np.int32).itemsize

    def row_bytes(self, row_bytes: int) -> int:
        return self.max_length * np.dtype(np.int32).itemsize + ORIGIN.itemsize

    def _schema_for(self, aligned: Sequence[pa.Field]) -> pa.Schema:
        fields = [pa.field(field.name, pa.list_(field.type.value_type, self.max_length), metadata={FILL: "0"}) for field in aligned]
        return pa.schema([*self.schema, *fields])

    def _rows(self, pieces: Pieces, offsets: npt.NDArray[np.int64], next_token: npt.NDArray[np.integer], tally: Tally) -> Records:
        ends = np.append(0, np.cumsum(pieces.lengths))[offsets]
        schema = self._schema_for(pieces.aligned)
        fills = [self.pad_id, *(0 for _ in pieces.aligned)]
        tokens, *aligned = (self._filled(each, ends, fill) for each, fill in zip(pieces.values, fills, strict=True))
        tally["padding_tokens"] += len(tokens) - len(pieces.values[0])
        columns = [
            pa.array(tokens),
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(pieces.lengths, pa.int32())),
            pa.array(next_token, pa.int32()),
            *map(pa.array, aligned),
        ]
        arrays = [
            pa.FixedSizeListArray.from_arrays(column.cast(field.type.value_type), type=field.type)
            if pa.types.is_fixed_size_list(field.type)
            else column
            for field, column in zip(schema, columns, strict=True)
        ]
        cut = pieces.cut_origins()
        return Records(pa.RecordBatch.from_arrays(arrays, schema=schema), Origins(cut.segments, cut.bounds()[offsets]))

    def _filled(self, values: npt.NDArray[Any], ends: npt.NDArray[np.int64], fill: int) -> npt.NDArray[Any]:
        """Rows that end at some values, each filled to its whole length."""
        rows = len(ends) - 1
        if len(values) == rows * self.max_length:
            return values
        filled = np.full((rows, self.max_length), fill, values.dtype)
        for row, (begin, end) in enumerate(pairwise(ends.tolist())):
            filled[row, : end - begin] = values[begin:end]
        return filled.reshape(-1)
