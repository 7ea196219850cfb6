"""What a lane owns of an epoch of a dataset, as a sequence of parts that are made when they are asked for."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from zephon_async.io import FROM_START, block_counts
from zephon_async.randomness import permuted
from zephon_async.records import Part

_PAGE = 1024  # single rows whose places are worked out at once


class Parts(Sequence[Part]):
    """The row blocks of slices of units."""

    def __init__(self, slices: npt.NDArray[np.int64], units: npt.NDArray[Any]) -> None:
        """slices: int64[n, 3] of (unit, start, stop); units: UNIT[n]."""
        self._slices, self._sizes, self._whole = slices, units["block"], units["entry"] == FROM_START
        first = np.where(self._whole, 0, slices[:, 1] // self._sizes)
        counts = np.where(self._whole, block_counts(units), -(-slices[:, 2] // self._sizes) - first)
        self._ends = np.cumsum(counts)
        self._shifts = first - (self._ends - counts)  # from the number of a part to that of its row block

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, at: int) -> Part: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Part]: ...
    def __getitem__(self, at: int | slice) -> Part | Sequence[Part]:
        if isinstance(at, slice):  # many at once, in a tenth of the time
            numbers = np.arange(*at.indices(len(self)))
            of = self._ends.searchsorted(numbers, "right")
            (units, starts, stops), sizes, whole = self._slices[of].T, self._sizes[of], self._whole[of]
            blocks = self._shifts[of] + numbers
            begins = np.where(whole, starts, np.maximum(starts, blocks * sizes))
            ends = np.where(whole, stops, np.minimum(stops, (blocks + 1) * sizes))
            return list(map(Part, *(column.tolist() for column in (units, blocks, begins, ends))))
        if not 0 <= at < len(self):
            raise IndexError(at)
        s = self._ends.searchsorted(at, "right")
        (unit, start, stop), size, block = self._slices[s].tolist(), int(self._sizes[s]), int(self._shifts[s]) + at
        if self._whole[s]:
            return Part(unit, block, start, stop)
        return Part(unit, block, max(start, block * size), min(stop, (block + 1) * size))


class RowParts(Sequence[Part]):
    """Single rows: `places` of a permutation of all rows of a dataset."""

    def __init__(self, units: npt.NDArray[Any], places: range, key: tuple[int, ...]) -> None:
        """units: UNIT[n], all of them. key: of the permutation."""
        self._units, self._places, self._key = units, places, key
        self._ends = np.cumsum(units["length"])
        self._page = lru_cache(maxsize=2)(self._make_page)  # that of the row that is drawn, and what is read ahead

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Part: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Part]: ...
    def __getitem__(self, at: int | slice) -> Part | Sequence[Part]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        if not 0 <= at < len(self):
            raise IndexError(at)
        return self._page(at // _PAGE)[at % _PAGE]

    def _make_page(self, page: int) -> list[Part]:
        places = np.array(self._places[page * _PAGE : (page + 1) * _PAGE], np.int64)
        rows = permuted(places, int(self._ends[-1]), *self._key)  # in the order of the catalog
        units = self._ends.searchsorted(rows, "right")
        rows -= self._ends[units] - self._units["length"][units]
        blocks = rows // self._units["block"][units]
        return list(map(Part, *(column.tolist() for column in (units, blocks, rows, rows + 1))))
