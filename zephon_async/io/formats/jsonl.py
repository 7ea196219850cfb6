"""JSON lines. A line ends at LF and at nothing else; a line of nothing but white space is no row; a byte order mark at the start
of the file is not there.

There is no index pass: a unit is a byte block `[a, b)` that owns the lines whose first byte is in it, and so is a row block of a
unit. Data under 64 MB is counted first; then a unit is one row block and is measured in rows. Every line is decoded strictly and by
itself, or where that gives the same by pyarrow's reader (`json_arrow`), and only the columns of the schema are kept. The row number
of a record is the byte offset of its line.

A record is nested at most 200 levels deep (`nesting`), on every Python.

Types: text, booleans, int64, double, and lists of int64, as the look finds them; other nested values travel as JSON text exactly
as written. Of a key that a line has twice the last value counts, as with every JSON reader in use.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.io.conform import batch_of, fit
from zephon_async.io.formats.base import Decoded, Measure, UnitSpan
from zephon_async.io.formats.json_arrow import read_plain, trusts
from zephon_async.io.formats.json_types import looked_type, python_type
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source
from zephon_async.kinds import is_json
from zephon_async.nesting import MOST_LEVELS, TOO_DEEP, levels

COUNTED_BYTES = 64 << 20
_LINES_BYTES = 64 << 20  # up to which lines are counted to name one
_BOM = b"\xef\xbb\xbf"
_LF = 10
_LONG_LINE, _LOOKED_AT = 256, 4096  # bytes: of a line that is long, and of a text that are looked at for the length of its lines
_MORE = 1 << 16  # bytes read behind a block, where its last line runs on
_NOT_UTF8 = "Invalid UTF-8 encoded string"  # as msgspec says it
_NULL = msgspec.Raw(b"null")
_Convert = Callable[[list[Any]], tuple[pa.Array, dict[int, str]]]


class Lines(NamedTuple):
    """The lines of a byte block that are rows: bytes of the shard from `base` on, and where in the shard each line is."""

    base: int
    text: bytes
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]


def lines_of(source: Source, start: int, stop: int) -> Lines:
    """The lines whose first byte is in `start:stop`, but for blank ones."""
    head = _head(source) if start <= len(_BOM) else 0
    base, stop = max(start - 1, 0), min(stop, source.size)
    text = source.read(base, min(stop + _MORE, source.size) - base)
    ends = _line_ends(text, stop - base) + base
    starts = ends[: np.searchsorted(ends, stop - 1)] + 1
    if start <= head < stop:
        starts = np.concatenate(([head], starts))
    stops = ends[np.searchsorted(ends, starts[0]) :] if len(starts) else starts
    if len(stops) < len(starts):  # the last line runs on behind the block
        end = text.find(b"\n", stop - base)
        if end < 0:
            text += _rest_of_line(source, base + len(text))
            end = len(text) - text.endswith(b"\n")
        stops = np.append(stops, base + end)
    keep = _not_blank(text, starts - base, stops - base)
    return Lines(base, text, starts[keep], stops[keep])


def _line_ends(text: bytes, size: int) -> npt.NDArray[np.int64]:
    """Where lines end in the first `size` bytes: all at once, or where lines are long, by one search each, twice as quick."""
    if text.count(b"\n", 0, _LOOKED_AT) > _LOOKED_AT // _LONG_LINE:
        return np.flatnonzero(np.frombuffer(text, np.uint8, size) == _LF)
    ends, at = [], text.find(b"\n", 0, size)
    while at >= 0:
        ends.append(at)
        at = text.find(b"\n", at + 1, size)
    return np.array(ends, np.int64)


def _head(source: Source) -> int:
    """Where the first line begins."""
    return len(_BOM) if source.size >= len(_BOM) and source.read(0, len(_BOM)) == _BOM else 0


def _rest_of_line(source: Source, at: int) -> bytes:
    """What is from `at` to the next line end, with it, or to the end of the shard."""
    pieces, more = [b""], _MORE
    while at < source.size:
        piece = source.read(at, min(more, source.size - at))
        end = piece.find(b"\n") + 1
        pieces.append(piece[: end or len(piece)])
        if end:
            break
        at, more = at + len(piece), more * 2
    return b"".join(pieces)


def _not_blank(text: bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    keep: npt.NDArray[np.bool_] = starts < stops
    suspects = np.flatnonzero(keep)
    suspects = suspects[np.frombuffer(text, np.uint8)[starts[suspects]] <= ord(" ")]
    for line in suspects.tolist():
        keep[line] = bool(text[starts[line] : stops[line]].strip(b" \t\r"))
    return keep


def _deep_lines(lines: Lines) -> frozenset[int]:
    """Which lines are nested too deep: of those that have so many brackets at all."""
    brackets = np.flatnonzero(np.frombuffer(lines.text, np.uint8) | 32 == ord("{"))  # "[" as well
    if len(brackets) <= MOST_LEVELS:
        return frozenset()
    starts, stops = lines.starts - lines.base, lines.stops - lines.base
    many = np.flatnonzero(brackets.searchsorted(stops) - brackets.searchsorted(starts) > MOST_LEVELS)
    return frozenset(n for n in many.tolist() if levels(lines.text[starts[n] : stops[n]]) > MOST_LEVELS)


class JsonlFormat:
    """The format. Stateless."""

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")
    typed = False

    def measure(self, total_bytes: int) -> Measure:
        return "rows" if total_bytes < COUNTED_BYTES else "bytes"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
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
        start, stop = _block_of(unit, 0)
        lines = lines_of(source, start, stop)
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
        return JsonlDecoder(schema)


def _block_of(unit: Any, block: int) -> tuple[int, int]:
    """The bytes of a row block. A unit measured in rows is one row block."""
    start, stop, size = int(unit["start"]), int(unit["stop"]), int(unit["block"])
    return (start, stop) if size >= int(unit["length"]) else (start + block * size, min(start + (block + 1) * size, stop))


class JsonlDecoder:
    """Decodes lines to the columns of a schema."""

    in_order = False

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
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
        return [self._block(source, unit, block) for block in blocks]

    def _block(self, source: Source, unit: Any, block: int) -> Decoded:
        lines = lines_of(source, *_block_of(unit, block))
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
                return Decoded(block, batch_of(plain, len(starts), self._schema), lines.starts, {})
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
        return Decoded(block, batch_of(arrays, len(records), self._schema), lines.starts, bad)

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        start, stop = _block_of(unit, blocks[0])[0], _block_of(unit, blocks[-1])[1]
        return [(max(start - 1, 0), min(stop + _MORE, source.size))]

    def row_name(self, source: Source, row: int) -> str:
        """The number of the line, from 1 on, and its byte offset; far behind only that, since lines must be counted."""
        if row > _LINES_BYTES:
            return f"byte {row:,}"
        step, line = 1 << 22, 1
        for at in range(0, row, step):
            line += source.read(at, min(step, row - at)).count(b"\n")
        return f"line {line:,} (byte {row:,})"


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
    kind = field.type

    def convert(values: list[Any]) -> tuple[pa.Array, dict[int, str]]:
        try:
            return pa.array(values, kind), {}
        except (pa.ArrowException, OverflowError, ValueError):
            return _one_by_one(values, kind)

    return convert


def _json_text(values: list[Any]) -> tuple[pa.Array, dict[int, str]]:
    texts = [None if text == b"null" else text for text in map(bytes, values)]
    return fit(pa.array(texts, pa.large_binary()).view(pa.large_string()), pa.large_string())  # Raw has not been checked for UTF-8


def _one_by_one(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    arrays, bad = [], {}
    for row, value in enumerate(values):
        try:
            arrays.append(pa.array([value], kind))
        except (pa.ArrowException, OverflowError, ValueError) as error:
            arrays.append(pa.nulls(1, kind))
            bad[row] = f"{kind} is wanted: {error}"
    return pa.concat_arrays(arrays), bad


FORMAT = JsonlFormat()
