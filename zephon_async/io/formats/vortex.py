"""Vortex, decoded by its own library from bytes that are read as those of every shard: near and far, fetched and checked.

A unit is a run of the file's own splits (chunks of all its columns, of 8,192 rows or so), of about `unit_bytes`. A row block is a
range of its rows, which the library can enter anywhere, but it reads whole chunks, and takes as long for a few rows as for many: so
several row blocks are unpacked at once, and an opened unit, with these and the chunks that were read of it, is kept in the pool
between reads, and counts there as the bytes of both.

The library moves fast: what is used of it is `open_readable` with `footer=`, `to_repeated_scan` and `row_range=`, which 0.93 has.
There is none for free-threaded Python. Its threads, which call back for bytes, are capped at two.

Threads: bytes are read by threads of the library, for an opened unit that has one owner. A lock guards what they note.
"""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from zephon_async.errors import RecipeError, ShardError, ZephonError
from zephon_async.io.catalog import WHOLE
from zephon_async.io.foreign import FREE_THREADED, calling, library
from zephon_async.io.formats.base import (
    Decoded,
    Format,
    Measure,
    UnitSpan,
    check_columns,
    decoded_block,
    held,
    looked,
    rows_per_block,
    span_of,
)
from zephon_async.io.formats.remembered import Remembered
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source

_WANTED = (
    "there is none for free-threaded Python: use standard CPython for it, or write the data as Parquet"
    if FREE_THREADED
    else "pip install 'zephon-async[vortex]'"
)
_THREADS = 2
_READS = 8  # of an opened unit at a time
_AT_ONCE = 8  # row blocks that are unpacked together


@lru_cache(maxsize=1)
def _capped() -> None:
    vortex = library("vortex", "Vortex", _WANTED)
    if missing := [name for name in ("open_readable", "RepeatedScan", "set_worker_threads") if not hasattr(vortex, name)]:
        raise RecipeError(f"this vortex-data has no vortex.{missing[0]}: Vortex is read with vortex-data 0.93 or newer")
    if vortex.worker_threads() > _THREADS:
        vortex.set_worker_threads(_THREADS)


def _vortex() -> Any:
    """The library. Raises `RecipeError` where it is not there, or too old."""
    _capped()
    return library("vortex", "Vortex", _WANTED)


class _Bytes:
    """A source as the library wants one. What it raises is kept, since the library makes a text of it."""

    def __init__(self, source: Source) -> None:
        self.source, self.taken = source, 0
        self.error: ZephonError | None = None
        self._lock = threading.Lock()

    def size(self) -> int:
        return self.source.size

    def read_at(self, offset: int, length: int) -> bytes:
        try:
            piece = self.source.read(offset, max(min(length, self.source.size - offset), 0))
        except ZephonError as error:
            with self._lock:
                self.error = error
            raise
        with self._lock:
            self.taken += len(piece)
        return piece


@contextmanager
def _decoding(raw: _Bytes) -> Iterator[None]:
    """Turn what the library raises into what the source raised, or else a `ShardError`."""
    raw.error = None  # of what was decoded before; the library reads nothing now
    with calling(raw.source.where, "Vortex"):
        try:
            yield
        except Exception as error:
            if raw.error is not None:
                raise raw.error from error
            raise


class _Known(NamedTuple):
    """What is remembered of a shard."""

    footer: Any
    schema: pa.Schema
    splits: tuple[tuple[int, int], ...]
    rows: int


def _know(source: Source) -> _Known:
    raw = _Bytes(source)
    with _decoding(raw):
        file = _vortex().open_readable(raw, concurrency=_READS)
        schema = file.dtype.to_arrow_schema()
        rows = held(source, int(file.footer.row_count))
        known = _Known(file.footer, schema, tuple(file.splits()), rows)
    edges = [0, *(stop for _, stop in known.splits)]
    if [start for start, _ in known.splits] != edges[:-1] or edges[-1] != known.rows:
        raise ShardError(f"{source.where}: its chunks are of {edges[-1]:,} rows, not of {known.rows:,} as its footer says")
    return known


_KNOWN = Remembered(_know)


class VortexFormat(Format):
    """The format. Stateless."""

    name = "vortex"
    suffixes = (".vortex",)
    typed = True

    def measure(self, total_bytes: int) -> Measure:
        return "rows"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        known = _KNOWN.of(source)
        if not known.rows:
            return ()
        block = rows_per_block(known.rows, source.size, block_bytes)
        most = max(unit_bytes * known.rows // source.size, 1)
        units: list[UnitSpan] = []
        for start, stop in known.splits:
            if units and stop - units[-1].start <= most:
                start = units.pop().start
            units.append(UnitSpan(start, stop, start, stop - start, block, WHOLE))
        return units

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        return looked(_KNOWN.of(source).schema, columns)

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "VortexDecoder":
        return VortexDecoder(schema, required, pool)


class _Opened:
    """A unit with the chunks that were read of it. It can be entered anywhere."""

    at = 0

    def __init__(self, source: Source, schema: pa.Schema, required: Collection[str]) -> None:
        known = _KNOWN.of(source)
        self.raw = _Bytes(source)
        self._first = 0  # where in the unit what is unpacked begins
        self._rows: pa.Table | None = None
        self.names = check_columns(source, known.schema, schema.names, required)
        with _decoding(self.raw):
            file = _vortex().open_readable(self.raw, footer=known.footer, concurrency=_READS)
            self._scan = file.to_repeated_scan(self.names)

    def block(self, unit: Any, block: int) -> dict[str, pa.Array]:
        """The columns of a row block."""
        if not self.names:
            return {}
        begin, rows = span_of(unit, block)
        first = begin - block % _AT_ONCE * int(unit["block"])
        if self._rows is None or first != self._first:
            self._first = first
            self._rows = self._unpacked(int(unit["start"]) + first, min(_AT_ONCE * int(unit["block"]), int(unit["length"]) - first))
        return {name: _one(self._rows.column(name).slice(begin - first, rows)) for name in self.names}

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self.raw.taken + (0 if self._rows is None else self._rows.nbytes)

    def _unpacked(self, first: int, rows: int) -> pa.Table:
        with _decoding(self.raw):
            table = self._scan.execute(row_range=(first, first + rows)).to_arrow().read_all()
        if table.num_rows != rows:
            raise ShardError(
                f"{self.raw.source.where}: gives {table.num_rows} rows from row {first} on, not {rows} as its footer says"
            )
        return table


def _one(column: pa.ChunkedArray) -> pa.Array:
    """Its chunks as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class VortexDecoder:
    """Reads ranges of rows."""

    def __init__(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> None:
        self._schema, self._required, self._pool = schema, required, pool

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        with self._pool.opened(source.where, unit, blocks, lambda: _Opened(source, self._schema, self._required)) as found:
            found.raw.source = source
            return [decoded_block(found.block(unit, block), self._schema, unit, block) for block in blocks]

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        """None that is known: the library does not tell where chunks lie, and asks for them when it needs them."""
        return ()

    def row_name(self, source: Source, row: int) -> str:
        return f"row {row:,}"


FORMAT = VortexFormat()
