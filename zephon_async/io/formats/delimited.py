"""CSV, and TSV where the suffix is .tsv: RFC 4180, with a first line that names the columns.

Records and values are those of `csv_records`, types those of `csv_types`. A shard is one unit and is read from its start, as line
ends may be inside quotes; data under 64 MB is counted first. The number of a row is the byte offset of its record (in what comes
out of a compressed shard).

A record with too many or too few values is a bad record, as is a value that does not fit its column. A column that a shard does not
have is null in its rows. A shard that ends inside quotes is an error.
"""

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from zephon_async.io.conform import batch_of
from zephon_async.io.formats.base import Decoded, check_columns
from zephon_async.io.formats.csv_records import RecordScan, columns_of
from zephon_async.io.formats.csv_types import looked_type, typed
from zephon_async.io.formats.inflate import Stream, with_compressed
from zephon_async.io.formats.line_format import LineDecoder, LineFormat
from zephon_async.io.formats.lines import Lines
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source

_TABBED = with_compressed(".tsv")


def _delimiter(source: Source) -> bytes:
    return b"\t" if source.name.lower().endswith(_TABBED) else b","


def _present(source: Source, lines: Lines, wanted: Collection[str], required: Collection[str]) -> list[str]:
    """The wanted columns that a shard names."""
    return check_columns(source, pa.schema([(name, pa.null()) for name in lines.header]), wanted, required)


class CsvFormat(LineFormat):
    """The format. Stateless."""

    name = "csv"
    suffixes = with_compressed(".csv", ".tsv")
    spelled = True

    def is_scanned(self, source: Source) -> bool:
        return True

    def scan(self, source: Source, stream: Stream) -> RecordScan:
        return RecordScan(stream, _delimiter(source))

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        lines = self.first(source, unit)
        names = _present(source, lines, lines.header if columns is None else columns, ())
        found, _ = columns_of(lines, [pa.field(name, pa.large_binary()) for name in names], _delimiter(source))
        return pa.schema([(name, looked_type(column)) for name, column in zip(names, found, strict=True)])

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "CsvDecoder":
        return CsvDecoder(self, schema, required, pool)


class CsvDecoder(LineDecoder):
    """Decodes records to the columns of a schema."""

    def __init__(self, form: LineFormat, schema: pa.Schema, required: Collection[str], pool: Pool) -> None:
        super().__init__(form, pool)
        self._schema, self._required = schema, required

    def decode(self, source: Source, block: int, lines: Lines, last: bool) -> Decoded:
        rows = len(lines.starts)
        names = _present(source, lines, self._schema.names, self._required) if rows else []
        found, bad = columns_of(lines, [self._schema.field(name) for name in names], _delimiter(source))
        columns = dict(zip(names, found, strict=True))
        arrays = []
        for field in self._schema:
            array, misfits = typed(columns[field.name], field) if field.name in columns else (pa.nulls(rows, field.type), {})
            arrays.append(array)
            for row, reason in misfits.items():
                bad.setdefault(row, f"column {field.name!r}: {reason}")
        return Decoded(block, batch_of(arrays, rows, self._schema), lines.starts, bad, last)


FORMAT = CsvFormat()
