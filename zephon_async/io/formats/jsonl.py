"""JSON lines. A line ends at LF and at nothing else; a line of nothing but white space is no row; a byte order mark at the start
of the file is not there.

Units, row blocks and numbers of rows are those of `line_format`. Every line is decoded strictly and by itself, or where that gives
the same by pyarrow's reader (`json_arrow`), and only the columns of the schema are kept.

A record is nested at most 200 levels deep (`nesting`), on every Python.

Types: text, booleans, int64, double, and lists of int64, as the look finds them; other nested values travel as JSON text exactly
as written. Of a key that a line has twice the last value counts, as with every JSON reader in use.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from zephon_async.io.conform import batch_of, fit
from zephon_async.io.formats.base import Decoded
from zephon_async.io.formats.inflate import with_compressed
from zephon_async.io.formats.json_arrow import read_plain, trusts
from zephon_async.io.formats.json_types import array_of, looked_type, python_type
from zephon_async.io.formats.line_format import LineDecoder, LineFormat
from zephon_async.io.formats.lines import Lines
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source
from zephon_async.kinds import is_json
from zephon_async.nesting import MOST_LEVELS, TOO_DEEP, levels

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


class JsonlFormat(LineFormat):
    """The format. Stateless."""

    name = "jsonl"
    suffixes = with_compressed(".jsonl", ".ndjson")
    loose_suffixes = with_compressed(".json")

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        lines = self.first(source, unit)
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
        return JsonlDecoder(self, schema, pool)


class JsonlDecoder(LineDecoder):
    """Decodes lines to the columns of a schema."""

    def __init__(self, form: LineFormat, schema: pa.Schema, pool: Pool) -> None:
        super().__init__(form, pool)
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

    def decode(self, source: Source, block: int, lines: Lines, last: bool) -> Decoded:
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
        return Decoded(block, batch_of(arrays, len(records), self._schema), lines.starts, bad, last)


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
