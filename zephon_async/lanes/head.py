"""Where a dataset stands in a lane's draw: the times of its next rows, and its surplus. Pure arithmetic in whole numbers."""

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zephon_async.records import Part


class Stream(Protocol):
    """One dataset as a lane sees it."""

    @property
    def name(self) -> str: ...

    @property
    def scale(self) -> tuple[int, int]: ...

    @property
    def rows(self) -> int | None:
        """All rows of the dataset, where they are known: for messages."""

    def parts(self, epoch: int) -> Sequence[Part]:
        """The lane's parts of an epoch, in order."""

    def next_epoch(self, epoch: int) -> int | None:
        """The first epoch from this one on of which the lane has a part; None: there is none."""


class Head:
    """Where a dataset stands: its next row is `row` of `part` of `epoch`."""

    __slots__ = (
        *("stream", "epoch", "part", "row", "surplus", "rows", "since", "seen", "parts", "times", "last"),
        *("scale", "size", "over"),
        *("current", "given", "ends", "numerators"),  # of a part that was supplied
    )

    def __init__(self, stream: Stream, at: Sequence[int], since: int) -> None:
        self.stream = stream
        self.epoch, self.part, self.row, self.surplus, self.rows = at[:5]  # surplus: at `row`, against the time `since`
        self.scale = stream.scale  # with a weight of 0 its second number is 0: no row comes of it
        self.size = 0  # of all rows given, where the mixture may change
        self.over = False  # it will never have a weight again
        self.since = since
        self.seen = self.epoch - (self.part == self.row == 0)  # the last epoch that had a row, as far as is known
        self.parts: Sequence[Part] | None = stream.parts(self.epoch)  # None: it gives no more rows
        self.times: npt.NDArray[Any] | None = None  # of all rows of the part; None: not supplied yet
        self.last = False  # no part of this unit behind this one has a row

    def supply(self, sizes: npt.NDArray[np.integer]) -> None:
        assert self.parts is not None
        self.current = self.parts[self.part]
        self.ends = np.cumsum(sizes, dtype=np.int64)
        self.given = int(self.ends[self.row - 1]) if self.row else 0
        self.surplus -= self.scale[0] * self.given  # now at the start of the part
        self.seen = self.epoch
        self._reckon(np.asarray(sizes))

    def _reckon(self, sizes: npt.NDArray[np.integer]) -> None:
        """The times of the rows of a part, whose sizes are given."""
        a, b = self.scale
        large = max(abs(self.surplus), a * (int(self.ends[-1]) + 1), self.since) >= 1 << 60
        kind = object if large else np.int64
        sizes, ends = sizes.astype(kind), self.ends.astype(kind)
        self.numerators = 2 * self.surplus + a * (2 * ends - sizes)
        self.times = self.since + self.numerators // (2 * b) if b else ends

    def weigh(self, b: int, time: int) -> None:
        """From `time` on a row of one unit of size takes a / b of time. The surplus goes over as it is."""
        self.surplus, self.since = self.surplus_at(time), time
        self.scale = self.scale[0], b
        if self.times is not None:
            self.surplus -= self.scale[0] * self.given
            self._reckon(np.diff(self.ends, prepend=0))

    def next_part(self) -> int:
        """The part behind the one that it stands in; where that is the last of a unit, the first of the next unit."""
        assert self.parts is not None
        if not self.last:
            return self.part + 1
        unit = self.parts[self.part].unit
        return bisect_left(self.parts, True, self.part, key=lambda part: part.unit != unit)

    def surplus_at(self, time: int) -> int:
        """The surplus before `row`, against `time`."""
        a, b = self.scale
        given = self.given if self.times is not None else 0
        return self.surplus + a * given - b * (time - self.since)

    def before(self, limit: Fraction, start: int, stop: int) -> int:
        """The first of rows start:stop whose real time is not below `limit`, else `stop`."""
        twice = 2 * self.scale[1]
        while start < stop:
            middle = (start + stop) // 2
            if Fraction(int(self.numerators[middle]), twice) + self.since < limit:
                start = middle + 1
            else:
                stop = middle
        return start

    def earliest(self) -> Fraction:
        """The least real time that the next row can have."""
        a, b = self.scale
        return self.since + Fraction(2 * self.surplus + a, 2 * b)

    def end(self) -> Fraction:
        """S: the time at which all rows so far have been given."""
        return self.since + Fraction(self.surplus, self.scale[1])
