"""The plan: which rows of a dataset a lane owns in an epoch, and in which order. Computed, never stored.

An epoch of a dataset is its units in a permuted order, laid end to end and measured in rows, or in bytes where rows are not
known. Lane l of L owns one of L equal parts of that line; which one turns with the epoch, so that a dataset smaller than the
lanes reaches all of them in time. A unit at an edge is cut, so lanes are even to a row and every row comes exactly once an epoch.
What a lane owns of a unit is cut at the unit's row blocks into parts, and the rows of a row block are permuted as well.

Of a unit of which the number of row blocks is not known a lane owns a share of each of them: the rows whose hashes fall there. So
where such a unit is cut, or has to do for many lanes, each gets its part as near as chance has it, and they can read it together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from zephon_async.errors import ShardError
from zephon_async.io import FROM_START, UNIT, Catalog, block_counts
from zephon_async.randomness import mix, mix_each, permutation, seed_of
from zephon_async.records import Block, Part


class Parts(Sequence[Part]):
    """A lane's parts of one epoch of a dataset, made when they are asked for."""

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


_NO_PARTS = Parts(np.empty((0, 3), np.int64), np.empty(0, UNIT))


class DatasetPlan:
    """The plan of one dataset. Threads: values and a cache of the standard library that locks itself."""

    def __init__(self, catalog: Catalog, seed: int, shuffle: bool, lanes: int) -> None:
        self.catalog, self.shuffle, self.lanes = catalog, shuffle, lanes
        self.seed = mix(seed, seed_of(catalog.dataset))
        self._length = int(catalog.units["length"].sum())
        self._order = lru_cache(maxsize=4)(self._make_order)

    def _make_order(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The units of an epoch in their order, and where each ends on the line."""
        units = np.arange(len(self.catalog.units))
        if self.shuffle:
            units = np.argsort(mix_each(self.seed, epoch, last=units), kind="stable")
        return units, np.cumsum(self.catalog.units["length"][units])

    def parts(self, lane: int, epoch: int) -> Parts:
        """What a lane owns of an epoch."""
        part = (lane + epoch) % self.lanes
        low, high = part * self._length // self.lanes, (part + 1) * self._length // self.lanes
        if low == high:
            return _NO_PARTS
        units, ends = self._order(epoch)
        a, b = int(ends.searchsorted(low, "right")), int(ends.searchsorted(high, "left")) + 1
        mine = units[a:b]
        lengths = self.catalog.units["length"][mine]
        begins = ends[a:b] - lengths
        slices = np.stack([mine, np.maximum(low - begins, 0), np.minimum(high - begins, lengths)], axis=1)
        return Parts(slices, self.catalog.units[mine])

    def next_epoch(self, lane: int, epoch: int) -> int | None:
        """The first epoch from this one on of which a lane owns something; of a dataset smaller than the lanes, one in many."""
        if not self._length:
            return None
        part = (lane + epoch) % self.lanes
        before = part * self._length // self.lanes
        # Part q reaches beyond what lies before `part` as soon as (q + 1) * length // lanes > before. A lane's part grows by one
        # an epoch.
        first = -(-(before + 1) * self.lanes // self._length) - 1
        return epoch + first - part

    def lanes_of(self, epoch: int, unit: int) -> list[int]:
        """The lanes that own some of a unit in an epoch."""
        units, ends = self._order(epoch)
        end = int(ends[np.flatnonzero(units == unit)[0]])
        begin = end - int(self.catalog.units["length"][unit])
        # Part p of the line owns p * length // lanes to (p + 1) * length // lanes, so x is of part ((x + 1) * lanes - 1) // length.
        first, last = ((x * self.lanes - 1) // self._length for x in (begin + 1, end))
        edges = [p * self._length // self.lanes for p in range(first, last + 2)]
        return [(first + n - epoch) % self.lanes for n, (a, b) in enumerate(pairwise(edges)) if a < b]

    def select(self, part: Part, epoch: int, block: Block) -> npt.NDArray[np.int64]:
        """Which rows of a block are the part's, in the order of the plan: int64[n]. None of one that cannot be read."""
        if block.lost:
            return np.empty(0, np.int64)
        if self.catalog.measure == "bytes":
            unit = self.catalog.units[part.unit]
            if unit["entry"] == FROM_START:
                mine = np.flatnonzero(self._dealt(part, epoch, int(unit["length"]), block.rows))
            else:
                mine = np.flatnonzero((block.places >= part.start) & (block.places < part.stop))
            if not self.shuffle:
                return mine
            return mine[permutation(len(mine), self.seed, epoch, part.unit, part.block, part.start)]
        unit = self.catalog.units[part.unit]
        begin = part.block * int(unit["block"])
        rows = min(int(unit["block"]), int(unit["length"]) - begin)
        if len(block.rows) != rows:
            shard = self.catalog.shards[int(unit["shard"])].name
            raise ShardError(
                f"dataset {self.catalog.dataset!r}, shard {shard!r}: row block {part.block} of unit {part.unit} should have {rows} "
                f"rows and has {len(block.rows)}; the shard has changed since the run was planned"
            )
        order = permutation(rows, self.seed, epoch, part.unit, part.block) if self.shuffle else np.arange(rows)
        return order[part.start - begin : part.stop - begin]

    def _dealt(self, part: Part, epoch: int, length: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which rows are dealt to `start:stop` of a unit of that length: those with hash * length // 2**64 in it."""
        hashes = mix_each(self.seed, epoch, part.unit, last=rows)
        low, high = (-(-(edge << 64) // length) for edge in (part.start, part.stop))
        dealt: npt.NDArray[np.bool_] = hashes >= np.uint64(low)
        return dealt if high >> 64 else dealt & (hashes < np.uint64(high))


@dataclass(frozen=True, slots=True)
class LaneStream:
    """One dataset as a lane's draw sees it."""

    plan: DatasetPlan
    lane: int
    scale: tuple[int, int]

    @property
    def name(self) -> str:
        return self.plan.catalog.dataset

    @property
    def rows(self) -> int | None:
        return self.plan.catalog.rows

    def parts(self, epoch: int) -> Parts:
        return self.plan.parts(self.lane, epoch)

    def next_epoch(self, epoch: int) -> int | None:
        return self.plan.next_epoch(self.lane, epoch)


def sample_blocks(catalog: Catalog, seed: int, blocks: int) -> list[tuple[int, int]]:
    """Up to `blocks` (unit, block) of a catalog, chosen by a hash: the same on every rank and machine."""
    units: npt.NDArray[Any] = catalog.units
    counts = np.where(units["entry"] == FROM_START, 1, block_counts(units))
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    if total <= blocks:
        chosen = list(range(total))
    else:  # one from each of `blocks` equal parts of the line
        chosen = [i * total // blocks + mix(seed, seed_of(catalog.dataset), i) % max(1, total // blocks) for i in range(blocks)]
    found = []
    for at in chosen:
        unit = int(ends.searchsorted(at, "right"))
        found.append((unit, at - (int(ends[unit - 1]) if unit else 0)))
    return found
