"""Arrays of an MDS column as nested lists.

A value is `[dtype] [dimensions and the width of a shape] [shape] [numbers]`; an encoding that states the dtype leaves out the first
of these, and one that states the shape the next two. Values of one column may differ in all of it: those of another number of
dimensions than the column has are bad rows, numbers that are narrower than those of the column are widened.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.io.conform import fit, promote
from zephon_async.io.formats.mds_values import Made, Places, Values
from zephon_async.io.formats.pieces import joined, nested

_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_CODES = {name: code for code, name in _DTYPES.items()}
_KNOWN = np.isin(np.arange(256), list(_DTYPES))


class _Part(NamedTuple):
    """The arrays of some rows that are of one type."""

    rows: Places
    array: pa.Array


class _Heads(NamedTuple):
    """Of each value: its kind (64 times the code, and dimensions) or -1; bytes of a dimension; where shape and numbers begin."""

    kinds: Places
    widths: Places
    shapes: Places
    numbers: Places


@dataclass(frozen=True, slots=True)
class Arrays:
    """One of the encodings `ndarray`. code: of the dtype, where it is stated, else None; so the shape."""

    code: int | None
    shape: tuple[int, ...] | None

    @staticmethod
    def of(settings: str) -> "Arrays | None":
        """What `ndarray:` is followed by; None where that is not known."""
        dtype, colon, shape = settings.partition(":")
        dims = shape.split(",") if colon else []
        if (dtype and dtype not in _CODES) or (colon and not dtype) or not all(dim.isdecimal() and int(dim) for dim in dims):
            return None
        return Arrays(_CODES.get(dtype), tuple(map(int, dims)) if colon else None)

    @property
    def size(self) -> int | None:
        """Bytes of every value; None: they vary."""
        if self.code is None or self.shape is None:
            return None
        return int(np.prod(self.shape, dtype=object)) * np.dtype(_DTYPES[self.code]).itemsize

    def look(self, values: Values, name: str) -> pa.Field:
        """The type of the first value, its numbers as wide as those of the others want."""
        kind = pa.null()
        for part in self._parts(values, {}):
            kind = promote(kind, part.array.type) or kind
        return pa.field(name, kind)

    def decode(self, values: Values, field: pa.Field) -> Made:
        """Values as nested lists; of several types only where they must be, and then as the type of the field."""
        bad: dict[int, str] = {}
        parts = list(self._parts(values, bad))
        n = len(values.begin)
        if len(parts) == 1 and len(parts[0].rows) == n:
            return parts[0].array, bad
        arrays, places, before = [], np.full(n, -1), 0
        for part in parts:
            array, misfits = fit(part.array, field.type)
            bad |= {int(part.rows[row]): reason for row, reason in misfits.items()}
            arrays.append(array)
            places[part.rows] = np.arange(before, before + len(array))
            before += len(array)
        joined = pa.concat_arrays([*arrays, pa.nulls(1, field.type)])
        return joined.take(pa.array(np.where(places < 0, before, places))), bad

    def _parts(self, values: Values, bad: dict[int, str]) -> Iterator[_Part]:
        """The values by their type, in the order in which types come first; of those that are broken, why."""
        heads = self._heads(values)
        whole = heads.kinds >= 0
        for kind in dict.fromkeys(heads.kinds[whole].tolist()):
            rows = np.flatnonzero(heads.kinds == kind)
            dtype, ndim = np.dtype(_DTYPES[kind // 64]).newbyteorder("<"), kind % 64
            shapes = self._shapes(values, heads, rows, ndim)
            fits = shapes.prod(axis=1) * dtype.itemsize == values.end[rows] - heads.numbers[rows]
            if ndim > 1:
                fits &= (shapes >= 1).all(axis=1)
            if not fits.all():
                whole[rows], rows, shapes = fits, rows[fits], shapes[fits]
            if len(rows):
                yield _Part(rows, _nested(values, heads.numbers[rows], values.end[rows], dtype, shapes.astype(np.int64)))
        for row in np.flatnonzero(~whole).tolist():
            bad[row] = f"no array can be read of its {values.lengths[row]:,} bytes"

    def _heads(self, values: Values) -> _Heads:
        """What stands before the numbers of values."""
        if self.code is not None and self.shape is not None:
            kinds = np.full(len(values.begin), self.code * 64 + len(self.shape))
            return _Heads(kinds, kinds, values.begin, values.begin)
        length = (self.code is None) + (self.shape is None)
        whole = values.lengths >= length
        begin, at = np.where(whole, values.begin, 0), values.begin + length
        if len(values.body) < length:
            return _Heads(np.full(len(at), -1), at, at, at)
        codes: Any = values.numbers("u1", begin).astype(np.int64) if self.code is None else self.code
        marks = values.numbers("u1", begin + length - 1).astype(np.int64) if self.shape is None else np.full(len(at), 0)
        dims = marks >> 2 if self.shape is None else len(self.shape or ())
        widths = 1 << (marks & 3)
        numbers = at + dims * widths if self.shape is None else at
        whole &= (numbers <= values.end) & (dims > 0) & _KNOWN[codes]
        return _Heads(np.where(whole, codes * 64 + dims, -1), widths, at, numbers)

    def _shapes(self, values: Values, heads: _Heads, rows: Places, ndim: int) -> npt.NDArray[np.float64]:
        """The shapes of arrays: float64[n, ndim], so that what cannot be meant does not overflow."""
        if self.shape is not None:
            return np.broadcast_to(np.array(self.shape, np.float64), (len(rows), ndim))
        shapes = np.empty((len(rows), ndim))
        widths = heads.widths[rows]
        for width in (1, 2, 4, 8):
            if len(those := np.flatnonzero(widths == width)):
                shapes[those] = values.numbers(f"<u{width}", heads.shapes[rows[those], None] + np.arange(ndim) * width)
        return shapes


def _nested(values: Values, begin: Places, end: Places, dtype: np.dtype[Any], shapes: Places) -> pa.Array:
    """Lists of the numbers that lie at some places."""
    raw = joined(values.body, begin, end).buffers()[2]
    size = int((end - begin).sum())
    return nested(pa.array(np.frombuffer(raw, np.uint8, size).view(dtype) if size else np.empty(0, dtype)), shapes)
