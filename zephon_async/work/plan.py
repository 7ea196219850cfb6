"""The plan: which rows of a dataset a lane owns in an epoch, and in which order. Computed, never stored.

An epoch of a dataset is its units in a permuted order, laid end to end and measured in rows, or in bytes where rows are not
known. Lane l of L owns one of L equal parts of that line; which one turns with the epoch, so that a dataset smaller than the
lanes reaches all of them in time. A unit at an edge is cut, so lanes are even to a row and every row comes exactly once an epoch.
What a lane owns of a unit is cut at the unit's row blocks into parts, and the rows of a row block are permuted as well.

Smaller pieces than units may be permuted: row blocks, where units can be entered at any of them, or single rows. Rows are not
sorted: which of them is at a place of the line is told by a permutation that is worked out for any place alone; each is a part.

Of a unit of which the number of row blocks is not known a lane owns a share of each of them: the rows whose hashes fall there. So
where such a unit is cut, or has to do for many lanes, each gets its part as near as chance has it, and they can read it together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_async.errors import RecipeError, ShardError
from zephon_async.io import ANYWHERE, FROM_START, WHOLE, Catalog, block_counts
from zephon_async.randomness import mix, mix_each, permutation, seed_of
from zephon_async.records import Block, Part
from zephon_async.work.parts import Parts, RowParts

Pieces: TypeAlias = Literal["units", "blocks", "rows"]
"""What is permuted over a whole epoch."""


class DatasetPlan:
    """The plan of one dataset. Threads: values and a cache of the standard library that locks itself.

    Raises `RecipeError` where single rows are to be permuted, and cannot be read by themselves.
    """

    def __init__(self, catalog: Catalog, seed: int, shuffle: Pieces | bool, lanes: int) -> None:
        self.catalog, self.shuffle, self.lanes = catalog, shuffle, lanes
        self.seed = mix(seed, seed_of(catalog.dataset))
        self.length = int(catalog.units["length"].sum())
        self.by_rows = shuffle == "rows"
        """Whether each row is a part of its own, so that a lane comes back to a row block that it has left."""
        if self.by_rows:
            _check_rows(catalog)
        self._pieces = _pieces(catalog.units, blocks=shuffle == "blocks")
        self.in_units = not self.by_rows and len(self._pieces) == len(catalog.units)
        """Whether what a lane owns of a unit comes one behind the other."""
        self._order = lru_cache(maxsize=4)(self._make_order)

    def _make_order(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The pieces of an epoch in their order, and where each ends on the line."""
        order = np.arange(len(self._pieces))
        if self.shuffle:
            order = np.argsort(mix_each(self.seed, epoch, last=order), kind="stable")
        return order, np.cumsum(self._pieces[order, 2] - self._pieces[order, 1])

    def parts(self, lane: int, epoch: int) -> Sequence[Part]:
        """What a lane owns of an epoch."""
        part = (lane + epoch) % self.lanes
        low, high = part * self.length // self.lanes, (part + 1) * self.length // self.lanes
        if low == high:
            return ()
        if self.by_rows:
            return RowParts(self.catalog.units, range(low, high), (self.seed, epoch))
        order, ends = self._order(epoch)
        a, b = int(ends.searchsorted(low, "right")), int(ends.searchsorted(high, "left")) + 1
        slices = self._pieces[order[a:b]]
        lengths = slices[:, 2] - slices[:, 1]
        before = ends[a:b] - lengths
        slices[:, 2] = slices[:, 1] + np.minimum(high - before, lengths)
        slices[:, 1] += np.maximum(low - before, 0)
        return Parts(slices, self.catalog.units[slices[:, 0]])

    def next_epoch(self, lane: int, epoch: int) -> int | None:
        """The first epoch from this one on of which a lane owns something; of a dataset smaller than the lanes, one in many."""
        if not self.length:
            return None
        part = (lane + epoch) % self.lanes
        before = part * self.length // self.lanes
        # Part q reaches beyond what lies before `part` as soon as (q + 1) * length // lanes > before. A lane's part grows by one
        # an epoch.
        first = -(-(before + 1) * self.lanes // self.length) - 1
        return epoch + first - part

    def lanes_of(self, epoch: int, unit: int) -> list[int]:
        """The lanes that own some of a unit in an epoch; where pieces of it are permuted, all that may."""
        if not self.in_units:
            return list(range(self.lanes))
        units, ends = self._order(epoch)
        end = int(ends[np.flatnonzero(units == unit)[0]])
        begin = end - int(self.catalog.units["length"][unit])
        # Part p of the line owns p * length // lanes to (p + 1) * length // lanes, so x is of part ((x + 1) * lanes - 1) // length.
        first, last = ((x * self.lanes - 1) // self.length for x in (begin + 1, end))
        edges = [p * self.length // self.lanes for p in range(first, last + 2)]
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
        rows = min(int(unit["block"]), int(unit["length"]) - part.block * int(unit["block"]))
        if len(block.rows) != rows:
            shard = self.catalog.shards[int(unit["shard"])].name
            raise ShardError(
                f"dataset {self.catalog.dataset!r}, shard {shard!r}: row block {part.block} of unit {part.unit} should have {rows} "
                f"rows and has {len(block.rows)}; the shard has changed since the run was planned"
            )
        return self.order(part, epoch)

    def order(self, part: Part, epoch: int) -> npt.NDArray[np.int64]:
        """The rows of a part, counted within its row block, where rows are counted: int64[n]."""
        unit = self.catalog.units[part.unit]
        begin = part.block * int(unit["block"])
        if self.by_rows or not self.shuffle:
            return np.arange(part.start - begin, part.stop - begin)
        rows = min(int(unit["block"]), int(unit["length"]) - begin)
        return permutation(rows, self.seed, epoch, part.unit, part.block)[part.start - begin : part.stop - begin]

    def _dealt(self, part: Part, epoch: int, length: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which rows are dealt to `start:stop` of a unit of that length: those with hash * length // 2**64 in it."""
        hashes = mix_each(self.seed, epoch, part.unit, last=rows)
        low, high = (-(-(edge << 64) // length) for edge in (part.start, part.stop))
        dealt: npt.NDArray[np.bool_] = hashes >= np.uint64(low)
        return dealt if high >> 64 else dealt & (hashes < np.uint64(high))


def _pieces(units: npt.NDArray[Any], blocks: bool) -> npt.NDArray[np.int64]:
    """What is permuted, int64[n, 3] of (unit, start, stop): units, or their row blocks where all can be entered at any of them."""
    numbers, starts, stops = np.arange(len(units)), np.zeros(len(units), np.int64), units["length"]
    if blocks and (units["entry"] == ANYWHERE).all():
        counts = block_counts(units)
        numbers = np.repeat(numbers, counts)
        starts = (np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)) * units["block"][numbers]
        stops = np.minimum(starts + units["block"][numbers], units["length"][numbers])
    return np.stack([numbers, starts, stops], axis=1)


def _check_rows(catalog: Catalog) -> None:
    if catalog.measure == "rows" and np.isin(catalog.units["entry"], (ANYWHERE, WHOLE)).all():
        return
    if catalog.measure == "bytes" and (catalog.units["entry"] == ANYWHERE).all():
        why, instead = "where its rows begin is not known", "write an index with `zephon-async index`"
    else:
        why, instead = f"{catalog.format} as it is stored is read in order", "store it as Arrow, MDS or plain lines"
    raise RecipeError(
        f"shuffle='rows' needs rows that can be read by themselves, but of dataset {catalog.dataset!r} {why}: {instead}, or use "
        "shuffle='units' or 'blocks' with a large .shuffle(buffer_size=...)"
    )


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

    def parts(self, epoch: int) -> Sequence[Part]:
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
