"""Shuffle rows within windows of a fixed size.

Takes any columns and gives the same. Rows `k * buffer_size:(k + 1) * buffer_size` of a lane are permuted among themselves, with
randomness keyed by seed, lane and the number of the window's first output. So a window depends on nothing before it: each one
is a mark, and no buffer has to be flushed, drained or saved. A last, shorter window is permuted too.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.checks import whole
from zephon_async.errors import InternalError
from zephon_async.operators.base import Accumulator, Operator, Tally
from zephon_async.operators.holding import Holding
from zephon_async.randomness import permutation
from zephon_async.records import Marks, Records


class Shuffle(Operator):
    """Permute each window of `buffer_size` rows."""

    name = "shuffle"
    keeps_columns = True

    def __init__(self, buffer_size: int, *, seed: int) -> None:
        """buffer_size: rows of a window, at least 1 (1 leaves the order as it is). seed: a whole number."""
        self.buffer_size, self.seed = whole("shuffle: buffer_size", buffer_size, 1), whole("shuffle: seed", seed)

    def settings(self) -> Mapping[str, Any]:
        return {"buffer_size": self.buffer_size, "seed": self.seed}

    def accumulator(self, lane: int, first: int) -> Accumulator:
        return Window(self.buffer_size, self.seed, lane, first)

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        return schema

    def holds_rows(self) -> int:
        return self.buffer_size


class Window(Holding):
    """Holds rows until a window is full."""

    def __init__(self, size: int, seed: int, lane: int, first: int) -> None:
        super().__init__()
        self._size, self._key = size, (seed, lane)
        self.given = first
        self._begins = 0  # the input row at which the window that is held begins

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        if skip:
            raise InternalError(f"shuffle is told to skip {skip} tokens, but its marks name whole rows")
        self.hold(records)
        windows = self.held_rows // self._size
        starts = np.arange(windows + 1) * self._size
        marks = Marks(*(array.tolist() for array in (self.given + starts, self._begins + starts, np.zeros_like(starts))))
        if not windows:
            return None, marks
        self._begins += windows * self._size
        return self._permuted(self.release(windows * self._size)), marks

    def flush(self, tally: Tally) -> Records | None:
        self._begins = 0
        return self._permuted(self.release(self.held_rows)) if self.held_rows else None

    def _permuted(self, rows: Records) -> Records:
        """All of it, window by window; the last may be short."""
        if self._size > 1:
            starts = range(0, len(rows), self._size)
            rows = rows.take(
                np.concatenate([s + permutation(min(self._size, len(rows) - s), *self._key, self.given + s) for s in starts])
            )
        self.given += len(rows)
        return rows
