"""Pack token documents together without laying their tokens end to end.

Takes records with a column of token lists, one document a row. Gives rows of

    packed_samples   list<struct<...>>   the documents of a row, each with all columns that it came with

of at most `max_length` tokens together, with an origin for every piece of a document. Of a document that is cut, the tokens and the
aligned columns of a piece are its own, the other columns those of the document. Rows are not padded; what that leaves empty is
counted as `padding_tokens`. Which documents share a row is said by `pack_rules`; open rows come out at the end of every segment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import column_names
from zephon_async.operators.base import Accumulator, Columns, Tally
from zephon_async.operators.pack_bins import Binned
from zephon_async.operators.pack_rules import POOL
from zephon_async.operators.packing import LOSS_MASK, Pack, Pieces
from zephon_async.records import ORIGIN, Origins, Records

PACKED = "packed_samples"


class PackSequences(Pack):
    """Pack documents into rows of up to `max_length` tokens, as lists of documents."""

    name = "pack_sequences"

    def __init__(
        self,
        max_length: int,
        *,
        algorithm: str = "wrap",
        field: str = "input_ids",
        columns: Sequence[str] | None = None,
        on_long: str = "split",
        aligned: Sequence[str] | None = None,
        num_bins: int = 64,
        max_sequences_per_row: int | None = None,
        homogeneity: str = "none",
        groups: Mapping[str, str] | None = None,
    ) -> None:
        """columns: of documents that are wanted beside the tokens and the aligned ones; None: all there are. Others: see `Pack`."""
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
        self.columns = None if columns is None else tuple(column_names("pack_sequences: columns", columns))

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "columns": None if self.columns is None else list(self.columns)}

    def reads(self, wanted: Columns) -> Columns:
        if self.columns is None:
            return None
        return frozenset({self.field, *self.columns, *((LOSS_MASK,) if self.aligned is None else self.aligned)})

    def requires(self) -> Mapping[str, str]:
        return {**dict.fromkeys(self.columns or (), "any"), **super().requires()}

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        if schema is None:
            return None
        return self._schema_for(*self.columns_of_rows(schema))

    def accumulator(self, lane: int, first: int) -> Accumulator:
        return Binned(self, self._rows, first)

    def holds_bytes(self, row_bytes: int) -> int:
        return 2 * (POOL * row_bytes if self.algorithm == "best_fit_wrap" else self.open_rows() * self.row_bytes(row_bytes))

    def row_bytes(self, row_bytes: int) -> int:
        return max(self.max_length * self.token_bytes + ORIGIN.itemsize, row_bytes)

    def others(self, schema: pa.Schema) -> list[str]:
        """The columns that are wanted as they are."""
        cut = {self.field, *(field.name for field in self.check_columns(schema)[1:])}
        self.check_there("columns", self.columns or (), schema)
        return [name for name in schema.names if name not in cut and (self.columns is None or name in self.columns)]

    def _schema_for(self, aligned: Sequence[pa.Field], others: Sequence[pa.Field]) -> pa.Schema:
        cut = [pa.field(self.field, pa.list_(pa.int32())), *(pa.field(f.name, pa.list_(f.type.value_type)) for f in aligned)]
        return pa.schema([(PACKED, pa.list_(pa.struct([*cut, *others])))])

    def _rows(
        self,
        pieces: Pieces,
        offsets: npt.NDArray[np.int64],
        next_token: npt.NDArray[np.integer],
        tally: Tally,
        others: pa.RecordBatch | None,
    ) -> Records:
        schema = self._schema_for(pieces.aligned, [] if others is None else list(others.schema))
        samples = schema.field(0).type.value_type
        ends = pa.array(np.append(0, np.cumsum(pieces.lengths)), pa.int32())
        cut = [
            pa.ListArray.from_arrays(ends, pa.array(each, field.type.value_type))
            for each, field in zip(pieces.values, samples, strict=False)
        ]
        made = pa.StructArray.from_arrays([*cut, *([] if others is None else others.columns)], fields=list(samples))
        rows = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), made)
        tally["padding_tokens"] += (len(offsets) - 1) * self.max_length - len(pieces.values[0])
        origins = pieces.cut_origins()
        batch = pa.RecordBatch.from_arrays([rows.cast(schema.field(0).type)], schema=schema)
        return Records(batch, Origins(origins.segments, origins.bounds()[offsets]))
