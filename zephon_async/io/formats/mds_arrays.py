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
_MOST = (1 << 31) - 1  # values of an Arrow list of the usual kind


class _Part(NamedTuple):
    """The arrays of some rows that are of one type."""

    rows: Places
    array: pa.Array


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
        n, lengths = len(values.begin), values.lengths
        head = (self.code is None) + (self.shape is None)
        whole = lengths >= head
        codes, widths = np.full(n, self.code or 0), np.ones(n, np.int64)
        dims = np.full(n, len(self.shape or ()))
        if self.code is None:
            codes[whole] = values.numbers("u1", values.begin[whole])
        if self.shape is None:
            marks = values.numbers("u1", values.begin[whole] + head - 1)
            dims[whole], widths[whole] = marks >> 2, 1 << (marks & 3).astype(np.int64)
        at = values.begin + head
        starts = at + dims * widths if self.shape is None else at
        whole &= (starts <= values.end) & (dims > 0) & np.isin(codes, list(_DTYPES))
        kinds = codes * 64 + dims
        kinds[~whole] = -1
        for kind in dict.fromkeys(kinds[whole].tolist()):
            rows = np.flatnonzero(kinds == kind)
            dtype, ndim = np.dtype(_DTYPES[kind // 64]).newbyteorder("<"), kind % 64
            shapes = self._shapes(values, at[rows], widths[rows], ndim)
            fits = (shapes.prod(axis=1) * dtype.itemsize == values.end[rows] - starts[rows]) & (
                (shapes >= 1).all(axis=1) | (ndim == 1)
            )
            whole[rows] = fits
            rows = rows[fits]
            if len(rows):
                yield _Part(rows, _nested(values, starts[rows], rows, dtype, shapes[fits].astype(np.int64)))
        for row in np.flatnonzero(~whole).tolist():
            bad[row] = f"no array can be read of its {lengths[row]:,} bytes"

    def _shapes(self, values: Values, at: Places, widths: Places, ndim: int) -> npt.NDArray[np.float64]:
        """The shapes of arrays: float64[n, ndim], so that what cannot be meant does not overflow."""
        if self.shape is not None:
            return np.tile(np.array(self.shape, np.float64), (len(at), 1))
        shapes = np.empty((len(at), ndim))
        for width in (1, 2, 4, 8):
            rows = np.flatnonzero(widths == width)
            shapes[rows] = values.numbers(f"<u{width}", at[rows, None] + np.arange(ndim) * width)
        return shapes


def _nested(values: Values, starts: Places, rows: Places, dtype: np.dtype[Any], shapes: Places) -> pa.Array:
    """Lists of the numbers that lie from `starts` on to the ends of rows."""
    raw = Values(values.body, starts, values.end[rows]).joined().buffers()[2]
    size = int((values.end[rows] - starts).sum())
    array = pa.array(np.frombuffer(raw, np.uint8, size).view(dtype) if size else np.empty(0, dtype))
    for level in reversed(range(shapes.shape[1])):
        lengths = np.repeat(shapes[:, level], shapes[:, :level].prod(axis=1))
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        if offsets[-1] > _MOST:
            array = pa.LargeListArray.from_arrays(offsets, array)
        else:
            array = pa.ListArray.from_arrays(offsets.astype(np.int32), array)
    return array
