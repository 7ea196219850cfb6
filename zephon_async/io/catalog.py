"""The catalog of a dataset: its shards and their units, in the byte order of the shards' names.

Takes nothing but values; `Dataset.catalog` makes one. A unit is the smallest part of a shard that can be entered alone; it is
measured in rows, or in bytes where its rows are not known, and read in row blocks of `block` rows or bytes.

Not every unit can be entered at any of its row blocks: some are read in order (a Parquet row group). Of some it is not even known
how many row blocks they have before the last is read (compressed lines): these are measured in the bytes that they have in their
shard, and their row blocks in bytes of what comes out of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_async.errors import ShardError

ANYWHERE, IN_ORDER, FROM_START, WHOLE = 0, 1, 2, 3
"""How a unit is entered: at any row block; by way of those before it; so too, with an unknown number of row blocks; at any row
block, once all of it is open."""
UNIT = np.dtype(
    [
        ("shard", "<i4"),
        ("start", "<i8"),  # where it begins in the shard, in the format's own coordinates (byte, row group, record batch)
        ("stop", "<i8"),  # where it ends in them
        ("first", "<i8"),  # number in the shard of its first row; 0 where rows are not counted
        ("length", "<i8"),  # in the measure of the catalog: rows or bytes
        ("block", "<i8"),  # of one row block, in that measure, or FROM_START in bytes of what comes out
        ("entry", "<i1"),  # one of the above
    ]
)


MOST_RATIO = 1 << 16  # bytes that may come out of a byte


def block_counts(units: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """How many row blocks each of UNIT[n] has, or at most may have: int64[n]."""
    counts = -(-units["length"] // units["block"])
    most = units["length"] * MOST_RATIO // units["block"] + 1
    blocks: npt.NDArray[np.int64] = np.where(units["entry"] == FROM_START, most, counts)
    return blocks


class Shard(NamedTuple):
    """One file or object: its name relative to the root of the dataset, its size in bytes, and a tag that changes with it."""

    name: str
    size: int
    tag: str


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """What there is of one dataset.

    units: UNIT[n], in the order of shards and of places in them, without empty ones.
    ignored: names that were seen and are not shards (hidden files, markers, unknown suffixes).
    lost: shards that are broken, so that nobody knows what is in them, by their numbers, and why. They have no units.
    """

    dataset: str
    format: str
    shards: tuple[Shard, ...]
    units: npt.NDArray[Any]
    measure: Literal["rows", "bytes"]
    ignored: tuple[str, ...] = ()
    lost: Mapping[int, ShardError] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(shard.size for shard in self.shards)

    @property
    def rows(self) -> int | None:
        """All rows, where they are known without a full read."""
        return int(self.units["length"].sum()) if self.measure == "rows" else None
