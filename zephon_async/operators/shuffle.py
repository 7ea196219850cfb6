"""Shuffle rows within windows of a fixed size.

Takes any columns and gives the same. Rows `k * buffer_size:(k + 1) * buffer_size` of a lane are permuted among themselves, with
randomness keyed by seed, lane and the number of the window's first output. So a window depends on nothing before it: each one
is a mark, and no buffer has to be flushed, drained or saved. A last, shorter window is permuted too.

What is moved are runs of `block_size` rows, whose rows stay together and in their order: neighbours that belong together, such as
the parts of a document that was split, are still neighbours then.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import one_of, whole
from zephon_async.errors import InternalError, RecipeError
from zephon_async.operators.base import Accumulator, Operator, Tally
from zephon_async.operators.holding import Holding
from zephon_async.randomness import permutation
from zephon_async.records import Marks, Records

_SAME = ("streaming", "block", "block_warmup")
"""The reference library's names for what is done to a buffer; all of them are windows here."""


class Shuffle(Operator):
    """Permute each window of `buffer_size` rows."""

    name = "shuffle"
    keeps_columns = True

    def __init__(self, buffer_size: int, *, seed: int, block_size: int = 1, algorithm: str = "window") -> None:
        """buffer_size: rows of a window, at least 1 (1 leaves the order as it is). seed: a whole number. block_size: rows that are
        moved together, a divisor of buffer_size. algorithm: "window"; "streaming", "block" and "block_warmup" mean it too."""
        self.buffer_size, self.seed = whole("shuffle: buffer_size", buffer_size, 1), whole("shuffle: seed", seed)
        self.block_size = whole("shuffle: block_size", block_size, 1)
        if self.buffer_size % self.block_size:
            raise RecipeError(
                f"shuffle: block_size={block_size} does not divide buffer_size={buffer_size}: a window consists of whole blocks"
            )
        one_of("shuffle: algorithm", algorithm, ("window", *_SAME))

    def settings(self) -> Mapping[str, Any]:
        return {"buffer_size": self.buffer_size, "seed": self.seed, "block_size": self.block_size}

    def accumulator(self, lane: int, first: int) -> Accumulator:
        return Window(self, lane, first)

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        return schema

    def holds_rows(self) -> int:
        return self.buffer_size


class Window(Holding):
    """Holds rows until a window is full."""

    def __init__(self, shuffle: Shuffle, lane: int, first: int) -> None:
        super().__init__()
        self._size, self._block, self._key = shuffle.buffer_size, shuffle.block_size, (shuffle.seed, lane)
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
        if self._size > self._block:  # else it is the order that they have
            rows = rows.take(window_order(len(rows), self._size, self._block, *self._key, self.given))
        self.given += len(rows)
        return rows


def window_order(rows: int, size: int, block: int, seed: int, lane: int, first: int) -> npt.NDArray[np.int64]:
    """In which order `rows` rows of a lane go out that make whole windows of `size` rows, but for the last: int64[rows].

    first: the number of the first output. block: rows that are moved together.
    """
    if size == block:
        return np.arange(rows)
    windows = []
    for start in range(0, rows, size):
        n = min(size, rows - start)
        blocks = permutation(-(-n // block), seed, lane, first + start)
        order = (blocks[:, None] * block + np.arange(block)).reshape(-1)
        windows.append(start + order[order < n])
    return np.concatenate(windows)
