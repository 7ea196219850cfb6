"""How many bad records of a dataset a lane may leave out before the run ends.

A whole number is a limit at any time; a share is judged at the end of each segment, against the rows that were drawn by then and
the bad ones. What is counted is brought by cursors, so that a run that was stopped ends where one that was not would have.

Threads: belongs to one lane, as its `Serial` does.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from zephon_async.errors import DatasetError
from zephon_async.lanes import BadCounts
from zephon_async.records import Skipped


def counts(bad: Mapping[int, int]) -> BadCounts:
    """What a cursor says of bad records."""
    return tuple(sorted(bad.items()))


def counted(skipped: Skipped, bad: Counter[int]) -> Skipped:
    """Count a bad record of a stage with the others of it, unless one before has counted it."""
    if not skipped.counted:
        bad[skipped.origin[0]] += skipped.rows or 1
    return skipped._replace(counted=True)


class Limit:
    """Of one lane. most: records, or as a float a share. brought: what the stages of its cursor have left out before."""

    def __init__(self, lane: int, datasets: Sequence[str], most: int | float, brought: Iterable[BadCounts]) -> None:
        self._lane, self._datasets, self._most = lane, datasets, most
        self._bad = Counter[int]()
        for stage in brought:
            self._bad.update(dict(stage))

    def reached(self, skipped: Skipped) -> DatasetError | None:
        """Count a bad record; an error where it is one too many."""
        d = skipped.origin[0]
        self._bad[d] += skipped.rows or 1
        if isinstance(self._most, float) or self._bad[d] <= self._most:
            return None
        return self._too_many(d, f"more than options(max_bad={self._most}) allows")

    def judged(self, drawn: Sequence[int]) -> DatasetError | None:
        """An error where the share of a dataset is too large at the end of a segment. drawn: rows of each that were drawn."""
        if isinstance(self._most, float):
            for d, bad in sorted(self._bad.items()):
                rows = bad + (drawn[d] if d >= 0 else 0)
                if bad > self._most * rows:
                    return self._too_many(
                        d, f"of {rows:,} rows so far, and options(max_bad={self._most}) allows a share of {self._most}"
                    )
        return None

    def _too_many(self, d: int, than: str) -> DatasetError:
        name = repr(self._datasets[d]) if d >= 0 else "no origin"
        return DatasetError(
            f"lane {self._lane}: {self._bad[d]:,} bad records of dataset {name} were skipped, {than}; the log names them"
        )
