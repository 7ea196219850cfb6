"""Rows that kill the processes that work them: where bad records are quarantined they are left out from then on.

A row is known by the number of the operator that it is not to reach again, and by a hash of its origin without the epoch. It goes
into the checkpoint and is left out on every runner, so that a run that goes on from there on threads does not die of it.

Threads: `rows` is one frozen value, replaced on the engine's loop and read by any thread.
"""

import hashlib
from collections.abc import Iterable
from typing import TypeAlias

from zephon_async.records import Records

Row: TypeAlias = tuple[int, bytes]


class Deadly:
    """A set of such rows that grows."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = frozenset(rows)

    def add(self, operator: int, records: Records, at: int) -> None:
        """Row `at` of records kills whoever gives it to an operator."""
        self.rows |= {(operator, _known_by(records, at))}

    def among(self, operator: int, records: Records) -> list[int]:
        """Which of these records are not to reach an operator."""
        if not any(number == operator for number, _ in self.rows):
            return []
        return [at for at in range(len(records)) if (operator, _known_by(records, at)) in self.rows]


def _known_by(records: Records, at: int) -> bytes:
    segments = records.origins.slice(at, at + 1).segments.copy()
    segments["epoch"] = 0
    return hashlib.blake2b(segments.tobytes(), digest_size=8).digest()
