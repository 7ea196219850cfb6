"""In-memory tables. A unit is a run of rows of about `unit_bytes`; row blocks are slices, without a copy."""

from collections.abc import Collection, Sequence
from typing import Any, cast

import pyarrow as pa

from zephon_async.io.conform import conform
from zephon_async.io.formats.base import Decoded, Format, Measure, UnitSpan, check_columns, looked, rows_of, runs_of_rows, span_of
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source, TableSource


class MemoryFormat(Format):
    """The format. Stateless."""

    name = "memory"
    suffixes = ()
    typed = True

    def measure(self, total_bytes: int) -> Measure:
        return "rows"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        return runs_of_rows(cast(TableSource, source).table.num_rows, source.size, unit_bytes, block_bytes)

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        return looked(cast(TableSource, source).table.schema, columns)

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "MemoryDecoder":
        return MemoryDecoder(schema, required)


class MemoryDecoder:
    """Slices tables."""

    def __init__(self, schema: pa.Schema, required: Collection[str]) -> None:
        self._schema, self._required = schema, required

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        return [self._block(cast(TableSource, source).table, source, unit, block) for block in blocks]

    def _block(self, table: pa.Table, source: Source, unit: Any, block: int) -> Decoded:
        names = check_columns(source, table.schema, self._schema.names, self._required)
        begin, rows = span_of(unit, block)
        piece = table.select(names).slice(int(unit["start"]) + begin, rows).combine_chunks()
        columns = {name: chunked.chunk(0) for name, chunked in zip(names, piece.columns, strict=True)}
        made, bad = conform(columns, rows, self._schema)
        return Decoded(block, made, rows_of(unit, block), bad)

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        return ()

    def row_name(self, source: Source, row: int) -> str:
        return f"row {row:,}"


FORMAT = MemoryFormat()
