"""How many bad records of a dataset a lane may leave out before the run ends.

A whole number is a limit at any time; a share is judged at the end of each segment, against the rows of the dataset that the lane
has come by until then. What is counted is brought by cursors: a run that was stopped ends where one that was not would have.

Threads: belongs to one lane, as its `Serial` does.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from zephon_async.errors import DatasetError
from zephon_async.lanes import BadCounts
from zephon_async.records import Skipped

Bad: TypeAlias = Counter[tuple[int, bool]]
"""Bad records by dataset, and whether they were drawn."""


def told(bad: Bad) -> BadCounts:
    """What a cursor says of bad records."""
    return tuple((d, int(drawn), n) for (d, drawn), n in sorted(bad.items()))


def brought(counts: BadCounts) -> Bad:
    """What a cursor has said."""
    return Counter({(d, bool(drawn)): n for d, drawn, n in counts})


def counted(skipped: Skipped, bad: Bad) -> Skipped:
    """Count a bad record of a stage with the others of it, unless one before has counted it."""
    if not skipped.counted:
        bad[skipped.origin[0], skipped.drawn] += skipped.rows or 1
    return skipped._replace(counted=True)


class Limit:
    """Of one lane. most: records, or as a float a share. stages: what those of its cursor have left out before."""

    def __init__(self, lane: int, datasets: Sequence[str], most: int | float, stages: Iterable[BadCounts]) -> None:
        self._lane, self._datasets, self._most = lane, datasets, most
        self._bad: Bad = Counter()
        for stage in stages:
            self._bad.update(brought(stage))

    def reached(self, skipped: Skipped) -> DatasetError | None:
        """Count a bad record; an error where it is one too many."""
        d = skipped.origin[0]
        self._bad[d, skipped.drawn] += skipped.rows or 1
        if isinstance(self._most, float) or self._of(d) <= self._most:
            return None
        return self._too_many(d, f"more than options(max_bad={self._most}) allows")

    def judged(self, drawn: Sequence[int]) -> DatasetError | None:
        """An error where the share of a dataset is too large at the end of a segment. drawn: rows of each that were drawn."""
        if isinstance(self._most, float):
            for d in sorted({d for d, _ in self._bad if d >= 0}):
                rows = drawn[d] + self._bad[d, False]
                if self._of(d) > self._most * rows:
                    return self._too_many(d, f"of {rows:,} rows so far, and options(max_bad={self._most}) allows a share of that")
        return None

    def _of(self, d: int) -> int:
        return self._bad[d, False] + self._bad[d, True]

    def _too_many(self, d: int, than: str) -> DatasetError:
        name = repr(self._datasets[d]) if d >= 0 else "no origin"
        return DatasetError(
            f"lane {self._lane}: {self._of(d):,} bad records of dataset {name} were skipped, {than}; the log names them"
        )
