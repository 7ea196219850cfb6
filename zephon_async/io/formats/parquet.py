"""Parquet. A unit is a row group; a row block is a fixed number of its rows, by the sizes in the footer alone.

pyarrow cannot enter a row group in the middle, so a row group is read by an iterator that is kept in the pool between blocks, and
goes on where it stands. Measured on 800-row blocks of text: opening one costs 1 to 2 ms and it holds 2 to 3 MB beside its block,
provided that `pre_buffer` is off and pages are read through a small buffer; with pyarrow's defaults it holds the column chunk.

Pages are checked by their checksums, where they have some. A footer has none, and pyarrow believes it: one in which a byte is wrong
can end the process inside of it (26.0.1), of which no message tells. Which file it is, the hashes of an index tell (`build_index`).
"""

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zephon_async.errors import ShardError
from zephon_async.io.catalog import IN_ORDER
from zephon_async.io.conform import conform
from zephon_async.io.formats.base import (
    Decoded,
    Format,
    Measure,
    UnitSpan,
    check_columns,
    held,
    looked,
    rows_of,
    rows_per_block,
    span_of,
)
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source, SourceFile

_BUFFER = 1 << 18
_MAGIC = b"PAR1"
_TAIL = 1 << 16  # bytes that are read of the end of a shard, in the hope that its footer is no longer
_PAGE = 1 << 20  # bytes that an iterator holds twice for a column, read and decompressed: writers make pages of no more
_PASSED = 4  # blocks decoded on the way that are given out


def _open(source: Source, file: SourceFile | None = None) -> pq.ParquetFile:
    return pq.ParquetFile(
        file or SourceFile(source), metadata=_footer(source), buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
    )


def _footer(source: Any) -> pq.FileMetaData | None:
    """The footer of a shard that is fetched, of which no more is remembered than that; None: pyarrow reads it."""
    if not source.remote:
        return None
    tail = source.tail(_TAIL)
    if tail[-4:] != _MAGIC:
        return None  # it says what is wrong
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if length > source.size:
        return None  # nor is more read than there can be of a footer
    if length > len(tail):
        tail = source.read(source.size - length, length)
    source.keep(tail[-length:])
    return pq.read_metadata(pa.BufferReader(_MAGIC + tail[-length:]))


class ParquetFormat(Format):
    """The format. Stateless."""

    name = "parquet"
    suffixes = (".parquet", ".pq")
    typed = True

    def measure(self, total_bytes: int) -> Measure:
        return "rows"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        footer = _open(source).metadata
        units, first = [], 0
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            block = rows_per_block(group.num_rows, group.total_byte_size, block_bytes)
            units.append(UnitSpan(number, number + 1, first, group.num_rows, block, IN_ORDER))
            first += group.num_rows
            if group.num_columns and group.num_rows > (values := group.column(0).num_values):
                raise ShardError(
                    f"{source.where}: row group {number} says that it has {group.num_rows:,} rows, and of its first column "
                    f"{values:,} values: it is broken"
                )
        held(source, first)
        return units

    def described(self, source: Source) -> tuple[int, dict[str, Any]]:
        footer = _open(source).metadata
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        said = [{"num_rows": group.num_rows, "total_byte_size": group.total_byte_size} for group in groups]
        return sum(group.num_rows for group in groups), {"num_row_groups": len(groups), "row_groups": said}

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        return looked(_open(source).schema_arrow, columns)

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "ParquetDecoder":
        return ParquetDecoder(schema, required, pool)


class _Scan:
    """A row group that is being read from its start: the next block is `at`."""

    def __init__(self, source: Source, unit: Any, schema: pa.Schema, required: Collection[str]) -> None:
        self.bytes = SourceFile(source)
        file = _open(source, self.bytes)
        self.columns = check_columns(source, file.schema_arrow, schema.names, required)
        self._group, self._rows = int(unit["start"]), int(unit["block"])
        self._batches = file.iter_batches(self._rows, row_groups=[self._group], columns=self.columns, use_threads=False)
        self._where = source.where
        self.at = 0
        chunks = _chunks(file.metadata.row_group(self._group), self.columns)
        pages = sum(min(chunk.total_compressed_size, _BUFFER) + 2 * min(chunk.total_uncompressed_size, _PAGE) for chunk in chunks)
        decoded = sum(chunk.total_uncompressed_size for chunk in chunks) * self._rows // max(int(unit["length"]), 1)
        self.nbytes = pages + decoded

    def next(self, rows: int) -> pa.RecordBatch:
        batch = next(self._batches, None)
        found = batch.num_rows if batch is not None else 0
        if found != rows:
            raise ShardError(
                f"{self._where}: row group {self._group} gives {found} rows for block {self.at}, not {rows} as its footer says"
            )
        self.at += 1
        return batch


class ParquetDecoder:
    """Reads row blocks of row groups."""

    def __init__(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> None:
        self._schema, self._required, self._pool = schema, required, pool

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        """Row blocks, before them the last few that were passed on the way."""
        decoded = []
        with self._pool.opened(source.where, unit, blocks, lambda: _Scan(source, unit, self._schema, self._required)) as scan:
            scan.bytes.turn_to(source)
            while scan.at < blocks.stop:
                number = scan.at
                batch = scan.next(span_of(unit, number)[1])
                if number >= blocks.start - _PASSED:
                    columns = {name: batch.column(batch.schema.get_field_index(name)) for name in scan.columns}
                    made, bad = conform(columns, batch.num_rows, self._schema)
                    decoded.append(Decoded(number, made, rows_of(unit, number), bad))
        return decoded

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        """The chunks of the columns, from the footer."""
        chunks = _chunks(_open(source).metadata.row_group(int(unit["start"])), self._schema.names)
        return [(begin, begin + chunk.total_compressed_size) for chunk in chunks for begin in [_begin(chunk)]]

    def row_name(self, source: Source, row: int) -> str:
        return f"row {row:,}"


def _chunks(group: pq.RowGroupMetaData, columns: Collection[str]) -> list[pq.ColumnChunkMetaData]:
    """The chunks of columns, by their names."""
    chunks = (group.column(n) for n in range(group.num_columns))
    return [chunk for chunk in chunks if any(_is_of(chunk.path_in_schema, name) for name in columns)]


def _is_of(path: str, name: str) -> bool:
    """Whether a leaf, by its path, may be of a column; both may have dots in them."""
    return path == name or path.startswith(f"{name}.")


def _begin(chunk: pq.ColumnChunkMetaData) -> int:
    """Where the pages of a column chunk begin: with its dictionary, where it has one."""
    data, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    return int(dictionary if chunk.has_dictionary_page and dictionary is not None and 0 < dictionary < data else data)


FORMAT = ParquetFormat()
