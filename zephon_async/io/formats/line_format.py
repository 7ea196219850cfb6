"""What formats of lines have together: units, row blocks, numbers of rows. A format adds what is in a line.

There is no index pass: a unit is a byte block `[a, b)` that owns the lines whose first byte is in it, and so is a row block of a
unit. Data under 64 MB is counted first; then a unit is one row block and is measured in rows. The number of a row is the byte
offset of its line.

A shard that can only be read from its start, as one whose name says that it is compressed (.gz, .zst, .bz2, .xz), is one unit; the
numbers of its rows are byte offsets in what comes out of it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from zephon_async.errors import RecipeError
from zephon_async.io.catalog import FROM_START
from zephon_async.io.formats.base import Decoded, Format, Measure, UnitSpan, between, from_start, span_of
from zephon_async.io.formats.edges import APART, Edges, outer
from zephon_async.io.formats.inflate import Stream, codec_of, stream_of
from zephon_async.io.formats.lines import MORE, NO_LINES, Lines, LineScan, lines_of
from zephon_async.io.formats.shared import stream_in
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source

COUNTED_BYTES = 64 << 20
_MOST_UNITS = 1 << 22  # of one shard
_LINES_BYTES = 64 << 20  # up to which lines are counted to name one
_START = 200  # bytes of a bad line that are told
_PASSED = 4  # row blocks on the way to others that are decoded


class LineFormat(Format):
    """A format of lines. blank: whether lines of nothing but white space are rows."""

    typed = False
    blank = False

    def is_scanned(self, source: Source) -> bool:
        """Whether a shard can only be read from its start."""
        return codec_of(source.name) is not None

    def scan(self, source: Source, stream: Stream) -> LineScan:
        """The lines of a shard from its start on. stream: what comes out of it."""
        return LineScan(stream, self.blank)

    def lines(self, source: Source, start: int, stop: int) -> Lines:
        """The lines of a byte block of a shard that may be entered at any line."""
        return lines_of(source, start, stop, self.blank)

    def first(self, source: Source, unit: Any) -> Lines:
        """The lines of the first row block of a unit."""
        return (
            _next(self.scan(source, stream_of(source)), unit)[0]
            if self.is_scanned(source)
            else self.lines(source, *_block_of(unit, 0))
        )

    def measure(self, total_bytes: int) -> Measure:
        return "rows" if total_bytes < COUNTED_BYTES else "bytes"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        if self.is_scanned(source):
            if measure == "bytes" and source.size:
                return [UnitSpan(0, source.size, 0, source.size, min(block_bytes, unit_bytes), FROM_START)]
            return from_start(outer(*_counted(self.scan(source, stream_of(source)))), source.size, block_bytes)
        if measure == "bytes":
            if (count := -(-source.size // unit_bytes)) > _MOST_UNITS:
                raise RecipeError(
                    f"{source.where}: is said to have {source.size:,} bytes, so {count:,} units of unit_bytes={unit_bytes:,}, "
                    f"and more than {_MOST_UNITS:,} have no room: say a larger unit_bytes=, or look for what is wrong with its size"
                )
            edges = [*range(0, source.size, unit_bytes), source.size]
            return [UnitSpan(a, b, 0, b - a, min(block_bytes, unit_bytes)) for a, b in pairwise(edges)]
        units, first = [], 0
        for start in range(0, source.size, block_bytes):
            stop = min(start + block_bytes, source.size)
            rows = len(self.lines(source, start, stop).starts)
            units.append(UnitSpan(start, stop, first, rows, max(rows, 1)))
            first += rows
        return units

    def described(self, source: Source) -> tuple[int, dict[str, Any]]:
        if self.is_scanned(source):
            rows, nbytes = _counted(self.scan(source, stream_of(source)))
            return rows, {"raw_bytes": nbytes}
        rows, firsts, starts = 0, list[int](), list[int]()
        for start in range(0, source.size, APART):
            lines = self.lines(source, start, min(start + APART, source.size))
            if len(lines.starts):
                firsts.append(rows)
                starts.append(int(lines.starts[0]))
            rows += len(lines.starts)
        return rows, Edges(np.array([*firsts, rows]), np.array([*starts, source.size])).described()

    def units_by(self, source: Source, edges: Edges, block_bytes: int) -> Sequence[UnitSpan]:
        return from_start(edges, source.size, block_bytes) if self.is_scanned(source) else between(edges, block_bytes)


def _counted(scan: LineScan) -> tuple[int, int]:
    """Rows and bytes that come out of a shard."""
    rows, nbytes, last = 0, 0, False
    while not last:
        lines, last = scan.up_to((scan.at + 1) << 20)
        rows, nbytes = rows + len(lines.starts), nbytes + len(lines.text)
    return rows, nbytes


def _next(scan: LineScan, unit: Any) -> tuple[Lines, bool]:
    """The next row block of a shard that is read from its start, and whether it is the last."""
    if unit["entry"] == FROM_START:
        return scan.up_to((scan.at + 1) * int(unit["block"]))
    return scan.rows(span_of(unit, scan.at)[1])


def _block_of(unit: Any, block: int) -> tuple[int, int]:
    """The bytes of a row block. A unit measured in rows is one row block."""
    start, stop, size = int(unit["start"]), int(unit["stop"]), int(unit["block"])
    return (start, stop) if size >= int(unit["length"]) else (start + block * size, min(start + (block + 1) * size, stop))


class LineDecoder:
    """Reads row blocks of lines, which a format decodes."""

    def __init__(self, form: LineFormat, pool: Pool) -> None:
        self._form, self._pool = form, pool

    def decode(self, source: Source, block: int, lines: Lines, last: bool) -> Decoded:
        """A row block from its lines."""
        raise NotImplementedError

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        if not self._form.is_scanned(source):
            return [self._decoded(source, block, self._form.lines(source, *_block_of(unit, block)), False) for block in blocks]
        key = (source.where, int(unit["start"]))
        if (scan := self._pool.take(key, blocks.start)) is None:
            codec = codec_of(source.name)
            stream = stream_of(source) if codec is None else stream_in(self._pool, key, source, codec)
            scan = self._form.scan(source, stream)
        scan.turn_to(source)
        decoded, last = list[Decoded](), False
        while scan.at < blocks.stop and not last:
            number = scan.at
            lines, last = _next(scan, unit)
            if not last:
                self._pool.mark(key, scan)
            if number >= blocks.start - _PASSED:
                decoded.append(self._decoded(source, number, lines, last))
        if not last:
            self._pool.put(key, scan)
        behind = range(max(scan.at, blocks.start), blocks.stop)
        return [*decoded, *(self._decoded(source, number, NO_LINES, True) for number in behind)]

    def _decoded(self, source: Source, block: int, lines: Lines, last: bool) -> Decoded:
        decoded = self.decode(source, block, lines, last)
        if not decoded.bad:
            return decoded
        places = {row: int(lines.starts[row]) - lines.base for row in decoded.bad}
        ends = {row: min(int(lines.stops[row]) - lines.base, at + _START) for row, at in places.items()}
        return decoded._replace(starts={row: bytes(lines.text[at : ends[row]]) for row, at in places.items()})

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        if self._form.is_scanned(source):
            return [(0, source.size)]
        start, stop = _block_of(unit, blocks[0])[0], _block_of(unit, blocks[-1])[1]
        return [(max(start - 1, 0), min(stop + MORE, source.size))]

    def row_name(self, source: Source, row: int) -> str:
        """The number of the line, from 1 on, and its byte offset; far behind only that, since lines must be counted."""
        if row > _LINES_BYTES:
            return f"byte {row:,}"
        line = _lines_before(row, stream_of(source).read) + 1
        return f"line {line:,} (byte {row:,}{'' if codec_of(source.name) is None else ' of what comes out of it'})"


def _lines_before(row: int, read: Callable[[], bytes]) -> int:
    """Lines that end before a byte."""
    lines = 0
    while row > 0 and (piece := read()):
        lines, row = lines + piece.count(b"\n", 0, row), row - len(piece)
    return lines
