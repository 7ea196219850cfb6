"""Arrow arrays of parts of bytes, made by array operations: parts as they are, and numbers as lists in lists.

Threads: functions of their arguments.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints: TypeAlias = npt.NDArray[np.int64]
_MOST = (1 << 31) - 1  # values of an Arrow list of the usual kind


def joined(body: Any, begin: Ints, end: Ints) -> pa.Array:
    """Parts of bytes as large_binary, in memory of their own; they lie one behind the other, in their order, with gaps."""
    n = len(begin)
    if not n:
        return pa.array([], pa.large_binary())
    edges = np.empty(2 * n, np.int64)  # the gaps are values too, which are left out
    edges[0::2], edges[1::2] = begin, end
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(body)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), 2 * n - 1, buffers).take(pa.array(np.arange(0, 2 * n - 1, 2)))


def nested(values: pa.Array, shapes: Ints) -> pa.Array:
    """Lists in lists of values that lie one behind the other, one outermost list for each shape: int64[n, rank]."""
    for axis in reversed(range(shapes.shape[1])):
        lengths = np.repeat(shapes[:, axis], shapes[:, :axis].prod(axis=1, dtype=np.int64))
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        if offsets[-1] > _MOST:
            values = pa.LargeListArray.from_arrays(offsets, values)
        else:
            values = pa.ListArray.from_arrays(offsets.astype(np.int32), values)
    return values
