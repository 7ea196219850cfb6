"""The values of one column of some MDS samples, as places in their bytes, taken out with array operations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.io.formats.pieces import joined

Places: TypeAlias = npt.NDArray[np.int64]
Made: TypeAlias = tuple[pa.Array, dict[int, str]]
"""An array, and by row why a value of it is bad; what it has there means nothing."""


@dataclass(frozen=True, slots=True)
class Values:
    """Value n is `body[begin[n] : end[n]]`; they lie one behind the other, in their order, with gaps."""

    body: memoryview
    begin: Places
    end: Places

    @property
    def lengths(self) -> Places:
        return self.end - self.begin

    def __iter__(self) -> Iterator[memoryview]:
        return (self.body[a:b] for a, b in zip(self.begin.tolist(), self.end.tolist(), strict=True))

    def joined(self) -> pa.Array:
        """The values as large_binary, in memory of their own."""
        return joined(self.body, self.begin, self.end)

    def numbers(self, dtype: npt.DTypeLike, at: Places) -> npt.NDArray[Any]:
        """Numbers that lie anywhere in the bytes, in the shape of `at`, which must have room behind it."""
        width = np.dtype(dtype).itemsize
        if not at.size:
            return np.empty(at.shape, dtype)
        everywhere = np.ndarray((len(self.body) - width + 1,), dtype, self.body, 0, (1,))
        return everywhere[at]


NO_VALUES = Values(memoryview(b""), np.empty(0, np.int64), np.empty(0, np.int64))
