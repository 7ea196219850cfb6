"""Contents of files as values of a column: of which type by the name of a column, and how they become one.

The type of a field says how they are read: bytes as they are; text must be UTF-8; JSON text must be one JSON value; whole numbers
are written in decimal; lists and numbers of an `npy` column are those of an array; any other type is read as one JSON value.

Threads: functions of their arguments.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from zephon_async.io.formats.json_types import array_of, python_type
from zephon_async.io.formats.npy import npy_array, npy_type
from zephon_async.kinds import is_json, json_field
from zephon_async.nesting import MOST_LEVELS, TOO_DEEP, levels

Bad: TypeAlias = dict[int, str]
Values: TypeAlias = Sequence[bytes | memoryview]
_TEXT, _NUMBERS = ("txt", "text", "transcript"), ("cls", "cls2", "index", "inx", "id")
_JSON, _ARRAY = ("json", "jsn"), "npy"
_NULL = msgspec.Raw(b"null")
_raw = msgspec.json.Decoder(msgspec.Raw).decode


def _kind(column: str) -> str:
    return column.rpartition(".")[2]


def needs_values(column: str) -> bool:
    """Whether the type of a column can only be told by its values."""
    return _kind(column) == _ARRAY


def field_of(column: str, values: Values) -> pa.Field:
    """The field of a column: `values` are those of some rows, where its type can only be told by them."""
    kind = _kind(column)
    if kind in _JSON:
        return json_field(column)
    if kind in _TEXT:
        return pa.field(column, pa.large_string())
    if kind in _NUMBERS:
        return pa.field(column, pa.int64())
    return pa.field(column, npy_type(values) if kind == _ARRAY else pa.large_binary())


def keys_of(keys: Sequence[bytes]) -> tuple[pa.Array, Bad]:
    """Keys as a column, which may not be UTF-8."""
    return _joined(range(len(keys)), keys, len(keys), pa.large_string()), {}


def column_of(field: pa.Field, rows: Sequence[int], values: Values, length: int) -> tuple[pa.Array, Bad]:
    """The values of some rows as a column of `length` rows, and what is bad in it. What is text may not be UTF-8."""
    kind = field.type
    if is_json(field):
        return _json(rows, values, length)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _joined(rows, values, length, kind), {}
    if _kind(field.name) == _ARRAY and _is_array(kind):
        return npy_array(rows, values, length, kind)
    made: list[Any] = [None] * length
    bad: Bad = {}
    decode = int if pa.types.is_integer(kind) else msgspec.json.Decoder(python_type(kind, field.name) | None).decode
    for row, value in zip(rows, values, strict=True):
        try:
            made[row] = decode(bytes(value))
        except ValueError as error:  # those of msgspec are some, too
            bad[row] = f"{kind} is wanted: {error}"
    array, misfits = array_of(made, kind)
    return array, bad | misfits


def _is_array(kind: pa.DataType) -> bool:
    """Whether a type is numbers, or lists of them."""
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _joined(rows: Sequence[int], values: Sequence[Any], length: int, kind: pa.DataType) -> pa.Array:
    """Bytes one behind the other, copied once."""
    sizes, present = np.fromiter(map(len, values), np.int64, len(values)), None
    if len(rows) < length:
        there = np.zeros(length, np.bool_)
        there[list(rows)] = True
        sizes, packed = np.zeros(length, np.int64), sizes
        sizes[there] = packed
        present = pa.array(there).buffers()[1]
    edges = np.zeros(length + 1, np.int64)
    sizes.cumsum(out=edges[1:])
    return pa.Array.from_buffers(kind, length, [present, pa.py_buffer(edges), pa.py_buffer(b"".join(values))])


def _json(rows: Sequence[int], values: Values, length: int) -> tuple[pa.Array, Bad]:
    """JSON text exactly as it is written, null for null."""
    texts: list[Any] = []
    places: list[int] = []
    bad: Bad = {}
    for row, value in zip(rows, values, strict=True):
        try:
            text = _raw(value)
        except msgspec.MsgspecError as error:
            bad[row] = f"{error}; one whole JSON value is wanted"
            continue
        if text != _NULL:
            texts.append(text)
            places.append(row)
    made = _joined(places, [memoryview(text) for text in texts], length, pa.large_string())
    for row in _too_deep(made):
        bad.setdefault(row, TOO_DEEP)
    return made, bad


def _too_deep(column: pa.Array) -> list[int]:
    """The rows of JSON texts that make their record too deep: of those that have so many brackets at all."""
    offsets, body = np.frombuffer(column.buffers()[1], np.int64), column.buffers()[2]
    brackets = np.flatnonzero(np.frombuffer(body, np.uint8) | 32 == ord("{"))  # "[" as well
    if len(brackets) < MOST_LEVELS:
        return []
    counts = np.diff(brackets.searchsorted(offsets))
    many = np.flatnonzero(counts >= MOST_LEVELS).tolist()
    return [row for row in many if levels(body[offsets[row] : offsets[row + 1]].to_pybytes()) >= MOST_LEVELS]
