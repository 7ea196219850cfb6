"""JSON lines. A line ends at LF and at nothing else; a line of nothing but white space is no row; a byte order mark at the start
of the file is not there.

There is no index pass: a unit is a byte block `[a, b)` that owns the lines whose first byte is in it, and so is a row block of a
unit. Data under 64 MB is counted first; then a unit is one row block and is measured in rows. Every line is decoded strictly and by
itself, or where that gives the same by pyarrow's reader (`json_arrow`), and only the columns of the schema are kept. The row number
of a record is the byte offset of its line.

A shard whose name says that it is compressed (.gz, .zst, .bz2, .xz behind .jsonl) is one unit, which is read from its start; the
numbers of its rows are byte offsets in what comes out of it.

A record is nested at most 200 levels deep (`nesting`), on every Python.

Types: text, booleans, int64, double, and lists of int64, as the look finds them; other nested values travel as JSON text exactly
as written. Of a key that a line has twice the last value counts, as with every JSON reader in use.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from zephon_async.io.catalog import FROM_START, IN_ORDER
from zephon_async.io.conform import batch_of, fit
from zephon_async.io.formats.base import Decoded, Format, Measure, UnitSpan, rows_per_block, span_of
from zephon_async.io.formats.inflate import Inflated, codec_of, with_compressed
from zephon_async.io.formats.json_arrow import read_plain, trusts
from zephon_async.io.formats.json_types import array_of, looked_type, python_type
from zephon_async.io.formats.lines import MORE, NO_LINES, Lines, LineScan, lines_of
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source
from zephon_async.kinds import is_json
from zephon_async.nesting import MOST_LEVELS, TOO_DEEP, levels

COUNTED_BYTES = 64 << 20
_LINES_BYTES = 64 << 20  # up to which lines are counted to name one
_STEP = 1 << 22  # bytes that are counted at once
_PASSED = 4  # row blocks on the way to others that are decoded
_START = 200  # bytes of a bad line that are told
_NOT_UTF8 = "Invalid UTF-8 encoded string"  # as msgspec says it
_NULL = msgspec.Raw(b"null")
_Convert = Callable[[list[Any]], tuple[pa.Array, dict[int, str]]]


def _deep_lines(lines: Lines) -> frozenset[int]:
    """Which lines are nested too deep: of those that have so many brackets at all."""
    brackets = np.flatnonzero(np.frombuffer(lines.text, np.uint8) | 32 == ord("{"))  # "[" as well
    if len(brackets) <= MOST_LEVELS:
        return frozenset()
    starts, stops = lines.starts - lines.base, lines.stops - lines.base
    many = np.flatnonzero(brackets.searchsorted(stops) - brackets.searchsorted(starts) > MOST_LEVELS)
    return frozenset(n for n in many.tolist() if levels(lines.text[starts[n] : stops[n]]) > MOST_LEVELS)


class JsonlFormat(Format):
    """The format. Stateless."""

    name = "jsonl"
    suffixes = with_compressed(".jsonl", ".ndjson")
    loose_suffixes = with_compressed(".json")
    typed = False

    def measure(self, total_bytes: int) -> Measure:
        return "rows" if total_bytes < COUNTED_BYTES else "bytes"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        if (codec := codec_of(source.name)) is not None:
            if measure == "bytes" and source.size:
                return [UnitSpan(0, source.size, 0, source.size, min(block_bytes, unit_bytes), FROM_START)]
            rows, nbytes = _counted(Inflated(source, codec))
            return [UnitSpan(0, source.size, 0, rows, rows_per_block(rows, nbytes, block_bytes), IN_ORDER)]
        if measure == "bytes":
            edges = [*range(0, source.size, unit_bytes), source.size]
            return [UnitSpan(a, b, 0, b - a, min(block_bytes, unit_bytes)) for a, b in pairwise(edges)]
        units, first = [], 0
        for start in range(0, source.size, block_bytes):
            stop = min(start + block_bytes, source.size)
            rows = len(lines_of(source, start, stop).starts)
            units.append(UnitSpan(start, stop, first, rows, max(rows, 1)))
            first += rows
        return units

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        if (codec := codec_of(source.name)) is not None:
            lines, _ = _next(LineScan(Inflated(source, codec)), unit)
        else:
            lines = lines_of(source, *_block_of(unit, 0))
        values: dict[str, list[Any]] = {}
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        view, base, deep = memoryview(lines.text), lines.base, _deep_lines(lines)
        for n, (a, b) in enumerate(zip(lines.starts.tolist(), lines.stops.tolist(), strict=True)):
            if n in deep:
                continue
            try:
                record = decode(view[a - base : b - base])
            except msgspec.MsgspecError:
                continue  # it will be a bad record when it is read
            for key, value in record.items():
                if columns is None or key in columns:
                    values.setdefault(key, []).append(value)
        return pa.schema([looked_type(found, key) for key, found in values.items()])

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "JsonlDecoder":
        return JsonlDecoder(schema, pool)


def _counted(stream: Inflated) -> tuple[int, int]:
    """Rows and bytes that come out of a compressed shard."""
    scan, rows, nbytes, last = LineScan(stream), 0, 0, False
    while not last:
        lines, last = scan.up_to((scan.at + 1) << 20)
        rows, nbytes = rows + len(lines.starts), nbytes + len(lines.text)
    return rows, nbytes


def _next(scan: LineScan, unit: Any) -> tuple[Lines, bool]:
    """The next row block of a compressed shard, and whether it is the last."""
    if unit["entry"] == FROM_START:
        return scan.up_to((scan.at + 1) * int(unit["block"]))
    return scan.rows(span_of(unit, scan.at)[1])


def _block_of(unit: Any, block: int) -> tuple[int, int]:
    """The bytes of a row block. A unit measured in rows is one row block."""
    start, stop, size = int(unit["start"]), int(unit["stop"]), int(unit["block"])
    return (start, stop) if size >= int(unit["length"]) else (start + block * size, min(start + (block + 1) * size, stop))


class JsonlDecoder:
    """Decodes lines to the columns of a schema."""

    def __init__(self, schema: pa.Schema, pool: Pool) -> None:
        self._schema, self._pool = schema, pool
        names = [f"f{n}" for n in range(len(schema))]  # a column may have a name that no attribute can have
        self._columns = list(zip(names, [_conversion(field) for field in schema], strict=True))
        fields = [
            (name, msgspec.Raw, _NULL) if is_json(field) else (name, python_type(field.type, field.name) | None, None)
            for name, field in zip(names, schema, strict=True)
        ]
        rename = {name: field.name for name, field in zip(names, schema, strict=True)}
        if all(map(_is_simple, schema.names)):
            self._line: Any = msgspec.defstruct("Line", fields, rename=rename, gc=False)
            self._decode: Any = msgspec.json.Decoder(self._line).decode
        else:
            self._line = msgspec.defstruct("Line", fields, gc=False)
            self._decode = _by_any_keys(self._line, {rename[name]: (name, kind) for name, kind, _ in fields})
        self._plain = trusts(schema)

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        if (codec := codec_of(source.name)) is None:
            return [self._block(block, lines_of(source, *_block_of(unit, block))) for block in blocks]
        key = (source.where, int(unit["start"]))
        scan = self._pool.take(key, blocks.start) or LineScan(Inflated(source, codec))
        scan.turn_to(source)
        decoded, last = list[Decoded](), False
        while scan.at < blocks.stop and not last:
            number = scan.at
            lines, last = _next(scan, unit)
            if number >= blocks.start - _PASSED:
                decoded.append(self._block(number, lines, last))
        if not last:
            self._pool.put(key, scan)
        behind = range(max(scan.at, blocks.start), blocks.stop)
        return [*decoded, *(self._block(number, NO_LINES, True) for number in behind)]

    def _block(self, block: int, lines: Lines, last: bool = False) -> Decoded:
        decode, view, nothing = self._decode, memoryview(lines.text), self._line()
        records: list[Any] = []
        bad: dict[int, str] = {}
        places, ends = lines.starts - lines.base, lines.stops - lines.base
        starts, stops = places.tolist(), ends.tolist()

        @cache
        def sound() -> bool:  # the decoder looks only into the values that are kept; keys and other values must be UTF-8 too
            return not starts or _is_utf8(view[starts[0] : stops[-1]])

        if self._plain:
            plain = read_plain(lines.text, places, ends, self._schema, lambda: sound() and not _deep_lines(lines))
            if plain is not None:
                return Decoded(block, batch_of(plain, len(starts), self._schema), lines.starts, {}, last)
        deep = _deep_lines(lines)
        for a, b in zip(starts, stops, strict=True):
            try:
                if not sound() and not _is_utf8(view[a:b]):
                    raise msgspec.DecodeError(_NOT_UTF8)
                if len(records) in deep:
                    raise msgspec.DecodeError(TOO_DEEP)
                records.append(decode(view[a:b]))
            except msgspec.MsgspecError as error:
                bad[len(records)] = _reason(error)
                records.append(nothing)
        arrays = []
        for n, (name, convert) in enumerate(self._columns):
            array, misfits = convert([getattr(record, name) for record in records])
            arrays.append(array)
            for row, reason in misfits.items():
                bad.setdefault(row, f"column {self._schema.field(n).name!r}: {reason}")
        first = {row: bytes(view[starts[row] : min(stops[row], starts[row] + _START)]) for row in bad}
        return Decoded(block, batch_of(arrays, len(records), self._schema), lines.starts, bad, last, first)

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        if codec_of(source.name) is not None:
            return [(0, source.size)]
        start, stop = _block_of(unit, blocks[0])[0], _block_of(unit, blocks[-1])[1]
        return [(max(start - 1, 0), min(stop + MORE, source.size))]

    def row_name(self, source: Source, row: int) -> str:
        """The number of the line, from 1 on, and its byte offset; far behind only that, since lines must be counted."""
        if row > _LINES_BYTES:
            return f"byte {row:,}"
        if (codec := codec_of(source.name)) is not None:
            return f"line {_lines_before(row, Inflated(source, codec).read) + 1:,} (byte {row:,} of what comes out of it)"
        pieces = (source.read(at, min(_STEP, row - at)) for at in range(0, row, _STEP))
        return f"line {_lines_before(row, lambda: next(pieces, b'')) + 1:,} (byte {row:,})"


def _lines_before(row: int, read: Callable[[], bytes]) -> int:
    """Lines that end before a byte."""
    lines = 0
    while row > 0 and (piece := read()):
        lines, row = lines + piece.count(b"\n", 0, row), row - len(piece)
    return lines


def _reason(error: msgspec.MsgspecError) -> str:
    """Why a line is bad; of one that is no JSON, or another value, also what a line must be."""
    said = str(error)
    is_value = isinstance(error, msgspec.ValidationError) and not said.startswith("Expected `object`, got")
    return said if is_value or said in (TOO_DEEP, _NOT_UTF8) else f"{said}; a line must be one whole JSON object"


def _is_simple(key: str) -> bool:
    """Whether a key is one that a struct of msgspec can have: one that JSON need not escape."""
    return not any(char in '"\\' or char < " " for char in key)


def _by_any_keys(line: Any, keys: Mapping[str, tuple[str, Any]]) -> Callable[[memoryview], Any]:
    """Decodes to a struct of which some keys, here with their attributes and types, are such that only a dict can have them."""
    split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    decoders = {key: (name, msgspec.json.Decoder(kind).decode) for key, (name, kind) in keys.items()}

    def decode(text: memoryview) -> Any:
        values = split(text)
        return line(**{name: of(values[key]) for key, (name, of) in decoders.items() if key in values})

    return decode


def _is_utf8(text: memoryview) -> bool:
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _conversion(field: pa.Field) -> _Convert:
    """How the decoded values of a column become an array, and what of them does not fit."""
    if is_json(field):
        return _json_text
    return partial(array_of, kind=field.type)


def _json_text(values: list[Any]) -> tuple[pa.Array, dict[int, str]]:
    texts = [None if text == b"null" else text for text in map(bytes, values)]
    return fit(pa.array(texts, pa.large_binary()).view(pa.large_string()), pa.large_string())  # Raw has not been checked for UTF-8


FORMAT = JsonlFormat()
