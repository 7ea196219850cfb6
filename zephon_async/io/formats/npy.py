"""Arrays in NumPy's format as Arrow values: a number, or lists in lists, one for each dimension.

Booleans, whole numbers and floats of any byte order are read. What else an array can hold, structures, texts, and objects, which
are pickles, is not.

Layout: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

Threads: functions of their arguments.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.io.conform import nulled
from zephon_async.io.formats.pieces import nested

_Array = npt.NDArray[Any]
_MAGIC = b"\x93NUMPY"
_MOST_HEADER = 10_000
_MOST_DIMENSIONS, _MOST_EMPTY = 8, 1 << 16  # lists without a number in them that an array may have
_descr = re.compile(rb"'descr'\s*:\s*'([<>|=]?[biuf][1248])'").search
_order = re.compile(rb"'fortran_order'\s*:\s*(True|False)").search
_shape = re.compile(rb"'shape'\s*:\s*\(([\d, ]*)\)").search


def _parsed(content: bytes | memoryview) -> _Array:
    """An array. Raises `ValueError` where it is none that is read, before anything is made of a size that it states."""
    lead = bytes(content[:12])
    width = 2 if lead[6:7] == b"\x01" else 4
    begin = 8 + width
    behind = begin + int.from_bytes(lead[8:begin], "little")
    header = bytes(content[begin:behind]) if behind - begin <= _MOST_HEADER else b""
    descr, order, shaped = _descr(header), _order(header), _shape(header)
    if not lead.startswith(_MAGIC) or not (descr and order and shaped):
        raise ValueError("an array of numbers as NumPy saves them is wanted")
    kind = np.dtype(descr[1].decode())
    shape = tuple(int(size) for size in shaped[1].replace(b" ", b"").split(b",") if size)
    if len(shape) > _MOST_DIMENSIONS or math.prod(size or 1 for size in shape) > max(len(content), _MOST_EMPTY):
        raise ValueError(f"an array of the shape {shape} is stated, which cannot be in {len(content):,} bytes")
    if math.prod(shape) * kind.itemsize != len(content) - behind:
        raise ValueError(f"an array of the shape {shape} of {kind} is stated, and there are {len(content) - behind:,} bytes of it")
    values: _Array = np.frombuffer(content, kind, offset=behind)
    return values.reshape(shape, order="F" if order[1] == b"True" else "C").astype(kind.newbyteorder("="), copy=False)


def npy_type(values: Sequence[bytes | memoryview]) -> pa.DataType:
    """The type of the first array that can be read; bytes where none can."""
    for value in values:
        try:
            array = _parsed(value)
        except (ValueError, TypeError):  # there are no floats of one byte
            continue
        kind = pa.from_numpy_dtype(array.dtype)
        for _ in array.shape:
            kind = pa.list_(kind)
        return kind
    return pa.large_binary()


def npy_array(
    rows: Sequence[int], values: Sequence[bytes | memoryview], length: int, kind: pa.DataType
) -> tuple[pa.Array, dict[int, str]]:
    """The arrays of some rows as a column of `length` rows of a type, numbers or lists of them, and what of them is bad."""
    inner, depth = kind, 0
    while pa.types.is_list(inner) or pa.types.is_large_list(inner):
        inner, depth = inner.value_type, depth + 1
    number = np.dtype(inner.to_pandas_dtype())
    bad: dict[int, str] = {}
    arrays: dict[int, _Array] = {}
    for row, value in zip(rows, values, strict=True):
        try:
            array = _parsed(value)
            if array.ndim != depth:
                raise ValueError(f"{kind} is wanted, not an array of {array.ndim} dimensions")
            arrays[row] = _fitting(array, number, kind)
        except (ValueError, TypeError) as error:
            bad[row] = str(error)
    return _nested(arrays, length, number, depth), bad


def _fitting(array: _Array, number: np.dtype[Any], kind: pa.DataType) -> _Array:
    """The same numbers of another type."""
    if array.dtype == number:
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(number)
        back = cast.astype(array.dtype)
    if not np.array_equal(back, array, equal_nan=array.dtype.kind == "f"):
        raise ValueError(f"{kind} is wanted, and a number of {array.dtype} does not fit")
    return cast


def _nested(arrays: dict[int, _Array], length: int, number: np.dtype[Any], depth: int) -> pa.Array:
    """Lists of lists of all numbers, of which nothing is copied but these; null where there is no array."""
    there = np.zeros(length, np.bool_)
    there[list(arrays)] = True
    numbers = np.concatenate([np.empty(0, number), *(array.reshape(-1) for array in arrays.values())])
    if not depth:
        spread = np.zeros(length, number)
        spread[there] = numbers
        return pa.array(spread, mask=~there)
    shapes = np.zeros((length, depth), np.int64)
    shapes[there] = np.array([array.shape for array in arrays.values()], np.int64).reshape(-1, depth)
    made = nested(pa.array(numbers), shapes)
    return made if there.all() else nulled(made, np.flatnonzero(~there))
