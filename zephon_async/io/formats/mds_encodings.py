"""How the values of an MDS column are bytes, by the name of its encoding, and what they become as Arrow.

    str, bytes, int                    text, bytes, int64
    uint8 to int64, float16 to float64 the same numbers
    str_int, str_float                 int64, float64; pinned with schema= to text they are as they stand, or another kind of number
    str_decimal                        text, as no one type holds all of them; or as it is pinned
    json                               as in JSON lines: values of one type, or JSON text as written
    ndarray[:dtype[:shape]]            lists of numbers, as deep as the array has dimensions, with the dtype of the first rows
    jpeg, png                          bytes, still encoded
    pil                                bytes: a PNG of the same pixels, not compressed
    list[...], jpegarray, jpeg_array   lists of these bytes

Not read: `pkl`, since reading a pickle can run any code; images in modes that PNG has not (such as CMYK) are bad rows.
Numbers and lists of them are made with array operations; JSON and `pil` cost a Python object for each value.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from zephon_async.io.conform import cast_rows, fit
from zephon_async.io.formats.json_types import array_of, looked_type, python_type
from zephon_async.io.formats.mds_arrays import Arrays
from zephon_async.io.formats.mds_values import Made, Values
from zephon_async.io.formats.png import png_of
from zephon_async.kinds import is_json, json_field
from zephon_async.nesting import TOO_DEEP, is_too_deep

T = pa.types
PICKLE = "pkl"
_NUMBERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_Unpack: TypeAlias = Callable[[memoryview], Any]


@dataclass(frozen=True, slots=True)
class Coder:
    """One encoding.

    size: bytes of every value; None: they vary. decode: values as an array for a field, which need not have its type yet, and which
    of them are bad. look: the type that values have. looks: whether that takes a look at them.
    """

    size: int | None
    decode: Callable[[Values, pa.Field], Made]
    look: Callable[[Values, str], pa.Field]
    looks: bool = False


@lru_cache(maxsize=1024)
def coder_of(encoding: str) -> Coder | None:
    """What decodes an encoding; None where it is not known."""
    name, _, settings = encoding.partition(":")
    if name == "ndarray":
        arrays = Arrays.of(settings)
        return None if arrays is None else Coder(arrays.size, arrays.decode, arrays.look, looks=True)
    return None if settings else _CODERS.get(name)


def _fixed(kind: pa.DataType) -> Callable[[Values, str], pa.Field]:
    return lambda values, name: pa.field(name, kind)


def _number(name: str) -> Coder:
    dtype = np.dtype(name).newbyteorder("<")

    def decode(values: Values, field: pa.Field) -> Made:
        fits = values.lengths == dtype.itemsize
        numbers = np.zeros(len(fits), dtype)
        numbers[fits] = values.numbers(dtype, values.begin[fits])
        bad = {row: f"a value of {name} has {values.lengths[row]:,} bytes" for row in np.flatnonzero(~fits).tolist()}
        return pa.array(numbers), bad

    return Coder(dtype.itemsize, decode, _fixed(pa.from_numpy_dtype(np.dtype(name))))


def _binary(values: Values, field: pa.Field) -> Made:
    return values.joined(), {}


def _text(values: Values, field: pa.Field) -> Made:
    return values.joined().view(pa.large_string()), {}  # whether it is UTF-8 is found out where it is conformed


def _digits(kind: pa.DataType) -> Coder:
    """Numbers as text."""

    def decode(values: Values, field: pa.Field) -> Made:
        text, bad = fit(_text(values, field)[0], pa.large_string())
        if T.is_integer(field.type) or T.is_floating(field.type) or T.is_decimal(field.type):
            text = cast_rows(text, field.type, bad)
        return text, bad

    return Coder(None, decode, _fixed(kind))


def _json(values: Values, field: pa.Field) -> Made:
    kind: Any = msgspec.Raw if is_json(field) else python_type(field.type, field.name) | None
    decode, found, bad = msgspec.json.Decoder(kind).decode, list[Any](), dict[int, str]()
    for row, text in enumerate(values):
        try:
            found.append(_sound_json(decode, text))
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            found.append(None)
            bad[row] = str(error)
    if is_json(field):
        return pa.array([None if one in (None, "null") else one for one in found], pa.large_string()), bad
    array, misfits = array_of(found, field.type)
    return array, {**misfits, **bad}


def _sound_json(decode: Callable[[memoryview], Any], text: memoryview) -> Any:
    """A JSON value, or where it is wanted as it stands its text."""
    said = str(text, "utf-8")
    if is_too_deep(said):
        raise ValueError(TOO_DEEP)
    value = decode(text)
    return said if isinstance(value, msgspec.Raw) else value


def _look_at_json(values: Values, name: str) -> pa.Field:
    decode, found = msgspec.json.Decoder().decode, []
    for text in values:
        try:
            found.append(_sound_json(decode, text))
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
            continue  # it will be a bad row when it is read
    field = looked_type(found, name)
    return json_field(name) if T.is_null(field.type) or field.type == pa.list_(pa.null()) else field


def _images(unpack: _Unpack, kind: pa.DataType) -> Coder:
    """Values of which each is made by a function, which raises `ValueError` for one that is broken."""

    def decode(values: Values, field: pa.Field) -> Made:
        made, bad = list[Any](), dict[int, str]()
        for row, value in enumerate(values):
            try:
                made.append(unpack(value))
            except (ValueError, struct.error) as error:
                made.append(None)
                bad[row] = f"is broken: {error}"
        return pa.array(made, kind), bad

    return Coder(None, decode, _fixed(kind))


def _listed(unpack: _Unpack, at: int) -> _Unpack:
    """Lists: a number at `at`, so many lengths, and the elements one behind the other."""

    def elements(value: memoryview) -> Iterator[Any]:
        number = struct.unpack_from("<I", value, at)[0]
        place = at + 4 + 4 * number
        if place > len(value):
            raise ValueError(f"a list of {number:,} elements in {len(value):,} bytes")
        for length in struct.unpack_from(f"<{number}I", value, at + 4):
            yield unpack(value[place : place + length])
            place += length
        if place != len(value):
            raise ValueError(f"its elements take {place:,} bytes, and it has {len(value):,}")

    return lambda value: list(elements(value))


def _png(value: memoryview) -> bytes:
    return png_of(value, ("1", "L", "LA", "RGB", "RGBA", "I;16", "I;16L", "I;16B"))


_BYTES, _MANY = pa.large_binary(), pa.list_(pa.large_binary())
_AS_IT_IS = Coder(None, _binary, _fixed(_BYTES))
_CODERS = {
    "bytes": _AS_IT_IS,
    "str": Coder(None, _text, _fixed(pa.large_string())),
    "int": _number("int64"),
    **{name: _number(name) for name in _NUMBERS},
    "str_int": _digits(pa.int64()),
    "str_float": _digits(pa.float64()),
    "str_decimal": _digits(pa.large_string()),
    "json": Coder(None, _json, _look_at_json, looks=True),
    "jpeg": _AS_IT_IS,
    "png": _AS_IT_IS,
    "pil": _images(_png, _BYTES),
    "list[jpeg]": _images(_listed(bytes, 4), _MANY),
    "list[png]": _images(_listed(bytes, 4), _MANY),
    "list[pil]": _images(_listed(_png, 4), _MANY),
    "jpegarray": _images(_listed(bytes, 0), _MANY),
    "jpeg_array": _images(_listed(bytes, 0), _MANY),
}
