"""The draw: which row of which dataset comes next in a lane. Pure: it never reads and never waits.

It is told, per dataset, the sizes of the rows of one part (a piece of a row block) at a time, and gives runs of rows. Every row
has a place on a whole-numbered time line, floor((given + size / 2) / share), `given` being the size of all rows of its
dataset before it, and rows come by (time, dataset); so at any moment a dataset is off its share by half a row, and the order
knows nothing of chunks, parts or machines.

A `scale` (a, b) of a dataset says that a row of one unit of size takes a / b of time. What is kept is bounded: the time T
reached, and per dataset where it stands and its surplus `given * a - b * T`. All arithmetic is in whole numbers.

End of data: a dataset ends when the last row of its last epoch has been given, at time S = given / share. "stop": rows up to
the least S; "repeat": ended datasets begin again until the greatest S; "drop_out": the others go on without it. Rows are held
against S by their real time, not its floor.
"""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_async.errors import DatasetError
from zephon_async.records import Part

OnExhausted: TypeAlias = Literal["repeat", "stop", "drop_out"]
Coordinates: TypeAlias = tuple[int, int, tuple[int, int] | None, tuple[tuple[int, int, int, int, int], ...]]
"""(rows given, time, horizon as a fraction, per dataset (epoch, part, row of the part, surplus, rows given))."""


_TURNS = 16
"""Turns of epochs in which a lane may have no row where rows are not counted: a part in bytes may lie inside one long line."""


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


class Rule(NamedTuple):
    """How the data ends; `turn` is the number of epochs in which every row reaches every lane (the lanes)."""

    epochs: int | None = 1
    on_exhausted: OnExhausted = "repeat"
    max_repeats: int | None = None
    turn: int = 1


class Run(NamedTuple):
    """Rows `start:stop` of a part, in the order of its sizes as they were supplied, which are `size` in sum."""

    dataset: int
    epoch: int
    part: Part
    start: int
    stop: int
    size: int


class _Head:
    """Where a dataset stands: its next row is `row` of `part` of `epoch`."""

    __slots__ = (
        *("stream", "epoch", "part", "row", "surplus", "rows", "since", "seen", "parts", "times", "last"),
        *("current", "given", "ends", "numerators"),  # of a part that was supplied
    )

    def __init__(self, stream: Stream, at: tuple[int, int, int, int, int], since: int) -> None:
        self.stream = stream
        self.epoch, self.part, self.row, self.surplus, self.rows = at  # surplus: at `row`, against the time `since`
        self.since = since
        self.seen = self.epoch - (self.part == self.row == 0)  # the last epoch that had a row, as far as is known
        self.parts: Sequence[Part] | None = stream.parts(self.epoch)  # None: it gives no more rows
        self.times: npt.NDArray[Any] | None = None  # of all rows of the part; None: not supplied yet
        self.last = False  # no part of this unit behind this one has a row

    def supply(self, sizes: npt.NDArray[np.integer]) -> None:
        a, b = self.stream.scale
        total = int(sizes.sum())
        large = max(abs(self.surplus), a * (total + 1), self.since) >= 1 << 60
        sizes = sizes.astype(object if large else np.int64)
        assert self.parts is not None
        self.current = self.parts[self.part]
        self.ends = np.cumsum(sizes)
        self.given = int(self.ends[self.row - 1]) if self.row else 0
        self.surplus -= a * self.given  # now at the start of the part
        self.numerators = 2 * self.surplus + a * (2 * self.ends - sizes)
        self.times = self.since + self.numerators // (2 * b)
        self.seen = self.epoch

    def next_part(self) -> int:
        """The part behind the one that it stands in; where that is the last of a unit, the first of the next unit."""
        assert self.parts is not None
        if not self.last:
            return self.part + 1
        unit = self.parts[self.part].unit
        return bisect_left(self.parts, True, self.part, key=lambda part: part.unit != unit)

    def surplus_at(self, time: int) -> int:
        """The surplus before `row`, against `time`."""
        a, b = self.stream.scale
        given = self.given if self.times is not None else 0
        return self.surplus + a * given - b * (time - self.since)

    def before(self, limit: Fraction, start: int, stop: int) -> int:
        """The first of rows start:stop whose real time is not below `limit`, else `stop`."""
        twice = 2 * self.stream.scale[1]
        while start < stop:
            middle = (start + stop) // 2
            if Fraction(int(self.numerators[middle]), twice) + self.since < limit:
                start = middle + 1
            else:
                stop = middle
        return start

    def earliest(self) -> Fraction:
        """The least real time that the next row can have."""
        a, b = self.stream.scale
        return self.since + Fraction(2 * self.surplus + a, 2 * b)

    def end(self) -> Fraction:
        """S: the time at which all rows so far have been given."""
        return self.since + Fraction(self.surplus, self.stream.scale[1])


class Draw:
    """The rows of one lane. Ask `missing()`, `supply` what it names, `take` runs; `coordinates` restart it."""

    def __init__(self, streams: Sequence[Stream], rule: Rule, coordinates: Coordinates | None = None) -> None:
        self._rule = rule
        self.number, self.time, horizon, at = coordinates or (0, 0, None, ((0, 0, 0, 0, 0),) * len(streams))
        self._horizon = None if horizon is None else Fraction(*horizon)
        self._heads = [_Head(stream, where, self.time) for stream, where in zip(streams, at, strict=True)]
        self._heap: list[tuple[int, int]] = []
        self._missing: list[int] = []
        self._failure: Exception | None = None
        self._running = len(self._heads)  # datasets that have not ended
        if rule.epochs is not None:
            self._running = sum(head.epoch < rule.epochs for head in self._heads)
        for head in self._heads:
            self._roll(head)
        for d in range(len(self._heads)):
            self._settle(d)

    @property
    def coordinates(self) -> Coordinates:
        """Where the lane stands: bounded whole numbers, from which a new `Draw` gives the same rows."""
        horizon = None if self._horizon is None else (self._horizon.numerator, self._horizon.denominator)
        at = tuple((h.epoch, h.part, h.row, h.surplus_at(self.time), h.rows) for h in self._heads)
        return self.number, self.time, horizon, at

    @property
    def drawn(self) -> tuple[int, ...]:
        """Rows given of each dataset."""
        return tuple(head.rows for head in self._heads)

    @property
    def done(self) -> bool:
        """There is no row any more."""
        return not self._heap and not self._missing and self._failure is None

    def missing(self) -> list[tuple[int, int, Part]]:
        """(dataset, epoch, part) whose sizes must be supplied before another row can be taken."""
        return [(d, head.epoch, head.parts[head.part]) for d in self._missing if (head := self._heads[d]).parts is not None]

    def coming(self, d: int, ahead: int) -> Sequence[Part]:
        """Up to `ahead` parts of a dataset's running epoch that follow the one it stands in."""
        head = self._heads[d]
        if head.parts is None:
            return []
        return head.parts[head.part + 1 : head.part + 1 + ahead]

    def supply(self, d: int, sizes: npt.NDArray[np.integer], last: bool = False) -> None:
        """Tell the sizes (each at least 1) of the rows of the part that `missing` named for dataset d; there may be none.

        last: no part of the same unit behind it has a row.
        """
        head = self._heads[d]
        head.last = last
        self._missing.remove(d)
        if head.row < len(sizes):
            head.supply(sizes)
            assert head.times is not None
            heapq.heappush(self._heap, (int(head.times[head.row]), d))
        else:
            self._advance(d)

    @property
    def next(self) -> int | None:
        """The dataset that the next row most likely comes from; None where that is not known yet."""
        return self._heap[0][1] if self._heap and not self._missing else None

    def take(self, rows: int, most_runs: int | None = None) -> list[Run]:
        """Up to `rows` rows in up to `most_runs` runs, fewer where something is missing or the data ends.

        Any way to cut it gives the same sequence.

        `take(0)` gives none; where nothing is missing after it, `done` says whether there is another row. What a stream raises is
        raised behind the rows before it.
        """
        runs: list[Run] = []
        try:
            if self._failure is None:
                self._take(rows, runs, most_runs)
        except Exception as error:
            self._failure = error
        if self._failure is not None and not runs:
            raise self._failure
        return runs

    def _take(self, rows: int, runs: list[Run], most_runs: int | None) -> None:
        heap = self._heap
        while heap and not self._missing:
            d = heap[0][1]
            head = self._heads[d]
            assert head.times is not None
            limit = self._limit()
            if limit is not None and head.before(limit, head.row, head.row + 1) == head.row:
                heapq.heappop(heap)
                head.surplus, head.since, head.times, head.parts = head.surplus_at(self.time), self.time, None, None
                continue
            if not rows or len(runs) == most_runs:
                break
            stop = min(len(head.times), head.row + rows)
            if len(heap) > 1:
                time, other = min(heap[1:3])
                stop = head.row + int(head.times[head.row : stop].searchsorted(time, "right" if d < other else "left"))
            if limit is not None:
                stop = head.before(limit, head.row, stop)
            given = int(head.ends[stop - 1])
            runs.append(Run(d, head.epoch, head.current, head.row, stop, given - head.given))
            rows -= stop - head.row
            self.number += stop - head.row
            head.rows += stop - head.row
            self.time = int(head.times[stop - 1])
            head.row, head.given = stop, given
            if stop < len(head.times):
                heapq.heapreplace(heap, (int(head.times[stop]), d))
            else:
                heapq.heappop(heap)
                self._advance(d)

    def _advance(self, d: int) -> None:
        """Leave a part that has been given."""
        head = self._heads[d]
        head.surplus, head.since, head.times = head.surplus_at(self.time), self.time, None
        head.part, head.row = head.next_part(), 0
        self._roll(head)
        self._settle(d)

    def _roll(self, head: _Head) -> None:
        """Go on to the next epoch that has a part for us, up to the last one that the rule asks for."""
        epochs = self._rule.epochs
        while head.parts is not None and head.part == len(head.parts) and (epochs is None or head.epoch < epochs):
            self._next_epoch(head)
            if head.epoch == epochs:
                self._running -= 1
                ends = [head.end()] if self._horizon is None else [head.end(), self._horizon]
                self._horizon = min(ends) if self._rule.on_exhausted == "stop" else max(ends)

    def _settle(self, d: int) -> None:
        """Decide whether a dataset that stands at the start of a part goes on."""
        head = self._heads[d]
        while True:
            if not self._goes_on(head):
                head.parts = None
                return
            assert head.parts is not None
            if head.part < len(head.parts):
                self._missing.append(d)
                return
            self._next_epoch(head)

    def _goes_on(self, head: _Head) -> bool:
        epochs, on_exhausted, max_repeats, _ = self._rule
        if epochs is None or head.epoch < epochs:
            return True
        if on_exhausted != "repeat" or (max_repeats is not None and head.epoch >= epochs + max_repeats):
            return False
        limit = self._limit()
        return limit is None or head.earliest() < limit

    def _limit(self) -> Fraction | None:
        """The time at which the lane ends, as soon as it is known."""
        on_exhausted = self._rule.on_exhausted
        return self._horizon if on_exhausted == "stop" or (on_exhausted == "repeat" and not self._running) else None

    def _next_epoch(self, head: _Head) -> None:
        """The next epoch that has a part for us, but none behind the first that the rule looks at."""
        epochs, _, max_repeats, turn = self._rule
        to = head.stream.next_epoch(head.epoch + 1)
        stop = None
        if epochs is not None and head.epoch < epochs:
            stop = epochs
        elif epochs is not None and max_repeats is not None:
            stop = epochs + max_repeats
        if stop is not None:
            to = stop if to is None else min(to, stop)
        rows, seen = head.stream.rows, max(head.seen, -1 if epochs is None else epochs - 1)
        most = turn if rows is not None else _TURNS * turn
        if to is None or to - seen > most:
            raise DatasetError(
                f"dataset {head.stream.name!r} has no rows for one of {turn} lanes in {most} epochs in a row "
                f"({'its rows are not counted' if rows is None else f'it has {rows:,} in all'}), so it cannot be repeated; use no "
                "more lanes than it has rows, remove it from the mixture, give it the weight 0, or use on_exhausted='drop_out' "
                "with finite epochs"
            )
        head.parts = head.stream.parts(to)
        head.epoch, head.part, head.row = to, 0, 0
