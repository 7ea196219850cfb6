"""Where rows begin in a shard: what an index keeps of shards that do not say so themselves.

Threads: values.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

APART = 1 << 20  # bytes, about, between those that an index keeps


class Edges(NamedTuple):
    """Some rows of a shard, the first among them: their numbers, and the bytes that they begin at. Last, behind all rows, how
    many there are, and where they end.

    The bytes are those of a shard as it is, or of what comes out of a compressed one, of which no more than the outer two are told.
    """

    rows: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @property
    def total(self) -> int:
        """All rows."""
        return int(self.rows[-1])

    @property
    def end(self) -> int:
        """Where they end."""
        return int(self.offsets[-1])

    def thinned(self, nbytes: int) -> "Edges":
        """The first row of each block of so many bytes."""
        kept = np.flatnonzero(np.diff(self.offsets[:-1] // nbytes, prepend=-1))
        kept = np.append(kept, len(self.rows) - 1)
        return Edges(self.rows[kept], self.offsets[kept])

    def described(self) -> dict[str, Any]:
        """As an index has them."""
        return {"edges": {"rows": self.rows.tolist(), "offsets": self.offsets.tolist()}}


def outer(rows: int, end: int) -> Edges:
    """Of a shard of which no more is known."""
    return Edges(np.array([0, rows]), np.array([0, end]))


def edges_of(starts: npt.ArrayLike, end: int) -> Edges:
    """Of a shard of which it is known where each row begins."""
    offsets = np.append(np.asarray(starts, np.int64), end)
    return Edges(np.arange(len(offsets)), offsets)
