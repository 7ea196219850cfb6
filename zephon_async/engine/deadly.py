"""Rows that kill the processes that work them: where bad records are quarantined they are left out from then on.

A row is known by the number of the operator that it is not to reach again, by its row in the shard, and by a hash of its origin
without the epoch. It goes into the checkpoint and is left out on every runner, so that a run that goes on from there on threads
does not die of it.

Threads: `rows` is one frozen value, replaced on the engine's loop and read by any thread.
"""

import hashlib
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_async.records import Records

Row: TypeAlias = tuple[int, int, bytes]


class Deadly:
    """A set of such rows that grows."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = frozenset(rows)

    def add(self, operator: int, records: Records, at: int) -> None:
        """Row `at` of records kills whoever gives it to an operator."""
        self.rows |= {(operator, int(_rows(records)[at]), _hash(records, at))}

    def among(self, operator: int, records: Records) -> list[int]:
        """Which of these records are not to reach an operator."""
        if not (suspects := [row for number, row, _ in self.rows if number == operator]):
            return []
        rows = _rows(records)
        found = np.flatnonzero(np.isin(rows, suspects)).tolist()
        return [at for at in found if (operator, int(rows[at]), _hash(records, at)) in self.rows]


def _rows(records: Records) -> npt.NDArray[np.int64]:
    """The row in its shard of the first segment of each record; -1 where it has none."""
    segments, bounds = records.origins.segments, records.origins.bounds()
    rows = np.append(segments["row"], -1)[bounds[:-1]]
    return np.where(np.diff(bounds) > 0, rows, -1)


def _hash(records: Records, at: int) -> bytes:
    segments = records.origins.slice(at, at + 1).segments.copy()
    segments["epoch"] = 0
    return hashlib.blake2b(segments.tobytes(), digest_size=8).digest()
