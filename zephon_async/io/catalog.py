"""The catalog of a dataset: its shards and their units, in the byte order of the shards' names.

Takes nothing but values; `Dataset.catalog` makes one. A unit is the smallest part of a shard that can be entered alone; it is
measured in rows, or in bytes where its rows are not known, and read in row blocks of `block` rows or bytes.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

UNIT = np.dtype(
    [
        ("shard", "<i4"),
        ("start", "<i8"),  # where it begins in the shard, in the format's own coordinates (byte, row group, record batch)
        ("stop", "<i8"),  # where it ends in them
        ("first", "<i8"),  # number in the shard of its first row; 0 where rows are not counted
        ("length", "<i8"),  # in the measure of the catalog: rows or bytes
        ("block", "<i8"),  # of one row block, in that measure
    ]
)


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
    """

    dataset: str
    format: str
    shards: tuple[Shard, ...]
    units: npt.NDArray[Any]
    measure: Literal["rows", "bytes"]
    ignored: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(shard.size for shard in self.shards)

    @property
    def rows(self) -> int | None:
        """All rows, where they are known without a full read."""
        return int(self.units["length"].sum()) if self.measure == "rows" else None
