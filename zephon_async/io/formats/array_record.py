"""ArrayRecord, read with its own library. Records are bytes: one column, `record`. What is in them is for a function of yours.

A unit is a run of records, any row block of which is read by itself, by the index that the shard has at its end. The library reads
files of this machine alone. A reader is kept in the pool between row blocks; it counts there as the buffer and the part of the
index that it holds.
"""

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from zephon_async.errors import DatasetError, ShardError
from zephon_async.io.foreign import calling, library
from zephon_async.io.formats.base import (
    Decoded,
    Format,
    Measure,
    UnitSpan,
    check_columns,
    decoded_block,
    held,
    looked,
    runs_of_rows,
    span_of,
)
from zephon_async.io.pool import Pool
from zephon_async.io.stores import LocalSource, Source

_WANTED = "pip install array_record, which has wheels for standard CPython on Linux"
_AT_RANDOM = "readahead_buffer_size:0,max_parallelism:0"  # nor threads of its own
_BUFFER = 1 << 20  # of a reader
_INDEXED = 16  # bytes of the index for a record, at most
_SCHEMA = pa.schema({"record": pa.large_binary()})


class _Opened:
    """A shard that stands open. It can be entered anywhere."""

    at = 0

    def __init__(self, source: Source) -> None:
        if not isinstance(source, LocalSource):
            raise DatasetError(f"{source.where}: ArrayRecord is read from files of this machine alone: copy it to a local disk")
        module = library("array_record.python.array_record_module", "ArrayRecord", _WANTED)
        source.read(0, 0)  # it is there, and as it was listed
        self._where = source.where
        with calling(source.where, "ArrayRecord"):
            self._reader = module.ArrayRecordReader(source.path, _AT_RANDOM)
            self.rows = held(source, int(self._reader.num_records()))
            self._check()
        self.nbytes = _BUFFER + _INDEXED * self.rows

    def read(self, first: int, rows: int) -> pa.Array:
        with calling(self._where, "ArrayRecord"):
            records = self._reader.read(first, first + rows) if rows else []
            self._check()
        if len(records) != rows:
            raise ShardError(f"{self._where}: gives {len(records)} records from {first} on, not {rows} as its index says")
        return pa.array(records, pa.large_binary())

    def _check(self) -> None:
        if not self._reader.ok():
            raise ShardError(f"{self._where}: is no ArrayRecord file, or was cut short")


class ArrayRecordFormat(Format):
    """The format. Stateless."""

    name = "array_record"
    suffixes = (".array_record", ".arrayrecord")
    typed = True

    def measure(self, total_bytes: int) -> Measure:
        return "rows"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        return runs_of_rows(_Opened(source).rows, source.size, unit_bytes, block_bytes)

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        return looked(_SCHEMA, columns)

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "ArrayRecordDecoder":
        return ArrayRecordDecoder(schema, required, pool)


class ArrayRecordDecoder:
    """Reads runs of records."""

    def __init__(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> None:
        self._schema, self._required, self._pool = schema, required, pool

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        names = check_columns(source, _SCHEMA, self._schema.names, self._required)
        source.read(0, 0)  # as it was listed, also where a reader stands open
        key = (source.where, 0)
        opened = self._pool.take(key, blocks.start) or _Opened(source)
        decoded = []
        for block in blocks:
            begin, rows = span_of(unit, block)
            columns = {name: opened.read(int(unit["start"]) + begin, rows) for name in names}
            decoded.append(decoded_block(columns, self._schema, unit, block))
        self._pool.put(key, opened)
        return decoded

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        """None: the library reads."""
        return ()

    def row_name(self, source: Source, row: int) -> str:
        return f"record {row:,}"


FORMAT = ArrayRecordFormat()
