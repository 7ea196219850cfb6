"""Arrow IPC: the file format and the stream format, told apart by their first bytes. A unit is a record batch.

Both are a run of messages: a schema, dictionaries, record batches. Only their headers are read to list the units. A unit is then
read as a stream of its own: the schema, the dictionaries before it, its batch. It is decoded as a whole, for the columns wanted,
and kept in the pool while its row blocks are asked for.

Layout of a message: https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
"""

import io
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.ipc

from zephon_async.errors import ShardError
from zephon_async.io.catalog import WHOLE
from zephon_async.io.conform import conform
from zephon_async.io.formats.arrow_folders import STATE, pick
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
from zephon_async.kinds import is_bytes, is_text

T = pa.types
_MAGIC = b"ARROW1"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_CONTINUED = 0xFFFFFFFF
_HEADER = 1 << 12  # bytes read at first of a message


class _Message(NamedTuple):
    kind: int
    start: int
    stop: int
    rows: int


def _messages(source: Source) -> Iterator[_Message]:
    """The messages of a shard, from their headers."""
    start, end = _bounds(source)
    at = start
    while at < end:
        header = source.read(at, min(_HEADER, end - at))
        lead, length = _prefix(header)
        if length == 0:
            if not start and at + lead < end:
                raise ShardError(
                    f"{source.where}: has {end - at - lead:,} bytes behind the end of its Arrow stream; one shard, one stream"
                )
            return
        if at + lead + length > end:
            raise _cut(source, at)
        if lead + length > len(header):
            header = source.read(at, lead + length)
        kind, body, rows = _parsed(header[lead : lead + length])
        stop = at + lead + length + body
        if stop > end or body < 0:
            raise _cut(source, at)
        yield _Message(kind, at, stop, rows)
        at = stop


def _bounds(source: Source) -> tuple[int, int]:
    """Where the messages begin and end: in a file they lie between two magics, the second with a footer before it."""
    if source.size < 8 or source.read(0, 6) != _MAGIC:
        return 0, source.size
    tail = source.read(source.size - 10, 10) if source.size >= 18 else b""
    if tail[4:] != _MAGIC:
        raise ShardError(f"{source.where}: is an Arrow file without an end; it was cut short or is still being written")
    return 8, source.size - 10 - int.from_bytes(tail[:4], "little")


def _cut(source: Source, at: int) -> ShardError:
    return ShardError(
        f"{source.where}: the Arrow message at byte {at:,} runs past the end; the shard is cut short, or is no Arrow IPC"
    )


def _prefix(header: bytes) -> tuple[int, int]:
    """Bytes before the metadata of a message, and bytes of it. Before Arrow 0.15 the length stood alone."""
    first, second = struct.unpack("<II", header[:8].ljust(8, b"\0"))
    return (8, second) if first == _CONTINUED else (4, first)


def _parsed(metadata: bytes) -> tuple[int, int, int]:
    """(kind, bytes of the body, rows of a record batch) of a message's metadata, a flatbuffer. Raises `pa.ArrowInvalid`."""
    try:
        message = struct.unpack_from("<I", metadata)[0]
        kind = _scalar(metadata, message, 1, "<B")
        body = _scalar(metadata, message, 3, "<q")
        if kind != _BATCH:
            return kind, body, 0
        batch = _target(metadata, _place(metadata, message, 2))
        rows = _scalar(metadata, batch, 0, "<q")
        nodes = _target(metadata, _place(metadata, batch, 1))  # how many, and of each column, and of what it is made of, the length
        if struct.unpack_from("<I", metadata, nodes)[0] and (of_first := struct.unpack_from("<q", metadata, nodes + 4)[0]) != rows:
            raise pa.ArrowInvalid(f"a batch of {rows:,} rows has a column of {of_first:,}")
        return kind, body, rows
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(f"a message has broken metadata: {error}") from error


def _place(buffer: bytes, table: int, number: int) -> int:
    """Where field `number` of a flatbuffer's table lies; 0 where it is left out."""
    layout = table - struct.unpack_from("<i", buffer, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", buffer, layout)[0]:
        return 0
    offset: int = struct.unpack_from("<H", buffer, layout + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _target(buffer: bytes, place: int) -> int:
    """What a field of a flatbuffer points at."""
    offset: int = struct.unpack_from("<I", buffer, place)[0]
    return place + offset


def _scalar(buffer: bytes, table: int, number: int, kind: str) -> int:
    place = _place(buffer, table, number)
    return int(struct.unpack_from(kind, buffer, place)[0]) if place else 0


def _schema_of(source: Source) -> tuple[_Message, bytes]:
    """The schema message and its bytes."""
    first = next(_messages(source), None)
    if first is None or first.kind != _SCHEMA:
        raise ShardError(f"{source.where}: does not begin with an Arrow schema; it is no Arrow IPC file or stream")
    return first, source.read(first.start, first.stop - first.start)


class ArrowFormat(Format):
    """The format. Stateless."""

    name = "arrow"
    suffixes = (".arrow", ".ipc", ".feather")
    typed = True
    index = STATE

    def shards(self, names: Sequence[str], read: Callable[[str], bytes]) -> Sequence[str]:
        return pick(names, read)

    def measure(self, total_bytes: int) -> Measure:
        return "rows"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        schema, _ = _schema_of(source)
        units, first = [], 0
        for message in _messages(source):
            if message.kind not in (_BATCH, _DICTIONARY) and message != schema:
                raise ShardError(
                    f"{source.where}: the Arrow message at byte {message.start:,} is of kind {message.kind}: it is broken"
                )
            if message.kind == _BATCH:
                block = rows_per_block(message.rows, message.stop - message.start, block_bytes)
                units.append(UnitSpan(message.start, message.stop, first, message.rows, block, WHOLE))
                first += message.rows
        if _bounds(source)[0] and (listed := pyarrow.ipc.open_file(SourceFile(source)).num_record_batches) != len(units):
            raise ShardError(f"{source.where}: has {len(units)} record batches, but its footer lists {listed}")
        held(source, first)
        return units

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        return looked(pyarrow.ipc.read_schema(pa.py_buffer(_schema_of(source)[1])), columns)

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "ArrowDecoder":
        return ArrowDecoder(schema, required, pool)


class _Parts(io.RawIOBase):
    """Messages of a shard as a stream of their own, which is not joined: Arrow reads what each consists of by itself."""

    def __init__(self, source: Source, parts: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self._file, self._parts = SourceFile(source), deque(parts)
        self._file.seek(parts[0][0])

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        while self._parts and self._file.tell() >= self._parts[0][1]:
            self._parts.popleft()
            if self._parts:
                self._file.seek(self._parts[0][0])
        if not self._parts:
            return b""
        left = self._parts[0][1] - self._file.tell()
        return self._file.read(left if size is None or size < 0 else min(size, left))


class _OpenBatch:
    """A decoded record batch. It can be entered anywhere."""

    at = 0

    def __init__(self, source: Source, unit: Any, wanted: pa.Schema, required: Collection[str]) -> None:
        start, stop = int(unit["start"]), int(unit["stop"])
        place, head = _schema_of(source)
        schema = pyarrow.ipc.read_schema(pa.py_buffer(head))
        self.names = check_columns(source, schema, wanted.names, required)
        parts = [(place.start, place.stop), (start, stop)]
        if any("dictionary<" in str(field.type) for field in schema):
            before = (m for m in _messages(source) if m.kind == _DICTIONARY and place.stop <= m.start < start)
            parts[1:1] = [(m.start, m.stop) for m in before]
        options = pyarrow.ipc.IpcReadOptions(
            included_fields=[schema.get_field_index(name) for name in self.names], use_threads=False
        )
        self.batch = pyarrow.ipc.open_stream(_Parts(source, parts), options=options).read_next_batch()
        self.batch.validate()  # it costs nothing; of one whose buffers are too short Arrow would read what lies behind them
        self.nbytes = sum(end - begin for begin, end in parts) + self.batch.nbytes


def _apart(array: pa.Array) -> pa.Array:
    """A copy, so that a row block does not hold the whole batch. What is looked at next is in the cache of the processor then.

    What lies inside of others is checked before: of what is broken more would be copied than there is.
    """
    array.validate(full=not (T.is_primitive(array.type) or is_text(array.type) or is_bytes(array.type)))
    return pa.concat_arrays([array])


class ArrowDecoder:
    """Reads row blocks of record batches."""

    def __init__(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> None:
        self._schema, self._required, self._pool = schema, required, pool

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        with self._pool.opened(source.where, unit, blocks, lambda: _OpenBatch(source, unit, self._schema, self._required)) as found:
            return [self._block(found, unit, block) for block in blocks]

    def _block(self, found: _OpenBatch, unit: Any, block: int) -> Decoded:
        begin, rows = span_of(unit, block)
        columns = {name: _apart(found.batch.column(name).slice(begin, rows)) for name in found.names}
        made, bad = conform(columns, rows, self._schema)
        return Decoded(block, made, rows_of(unit, block), bad)

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        return [(int(unit["start"]), int(unit["stop"]))]

    def row_name(self, source: Source, row: int) -> str:
        return f"row {row:,}"


FORMAT = ArrowFormat()
