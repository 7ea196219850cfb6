"""The draw: which row of which dataset comes next in a lane. Pure: it never reads and never waits.

It is told, per dataset, the sizes of the rows of one part (a piece of a row block) at a time, and gives runs of rows. Every row
has a place on a whole-numbered time line, floor((given + size / 2) / share), `given` being the size of all rows of its
dataset before it, and rows come by (time, dataset); so at any moment a dataset is off its share by half a row, and the order
knows nothing of chunks, parts or machines.

A `scale` (a, b) of a dataset says that a row of one unit of size takes a / b of time. What is kept is bounded: the time T
reached, and per dataset where it stands and its surplus `given * a - b * T`. All arithmetic is in whole numbers.

The mixture may change: behind every so many rows of the lane the draw asks what the shares are from there on. A surplus goes over
as it is, so only the future follows the new ones. A dataset without a share rests where it stands, and no part of it is asked for.

End of data: a dataset ends when the last row of its last epoch has been given, at time S = given / share. "stop": rows up to
the least S; "repeat": ended datasets begin again until the greatest S; "drop_out": the others go on without it. Rows are held
against S by their real time, not its floor. A dataset counts in this while it has a share, or will have one again.
"""

import heapq
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_async.errors import DatasetError
from zephon_async.lanes.head import Head, Stream
from zephon_async.records import Part

OnExhausted: TypeAlias = Literal["repeat", "stop", "drop_out"]
Coordinates: TypeAlias = tuple[int, int, tuple[int, int] | None, tuple[tuple[int, ...], ...]]
"""(rows given, time, horizon as a fraction, per dataset (epoch, part, row of the part, surplus, rows given)); of a mixture that may
change, per dataset also the second number of its scale, the size of its rows given, and 1 where its share is 0 for good."""


_TURNS = 16
"""Turns of epochs in which a lane may have no row where rows are not counted: a part in bytes may lie inside one long line."""


class Rule(NamedTuple):
    """How the data ends; `turn` is the number of epochs in which every row reaches every lane (the lanes)."""

    epochs: int | None = 1
    on_exhausted: OnExhausted = "repeat"
    max_repeats: int | None = None
    turn: int = 1


class Shares(NamedTuple):
    """What each dataset's share is from a row on: the second number of its scale (0: none), and whether that is so for good."""

    scales: Sequence[int]
    over: Sequence[bool]


class Mixture(Protocol):
    """Shares that change. Asked before rows 0, `every`, 2 * `every`, ... of a lane."""

    every: int

    def shares(self, rows: int, sizes: Sequence[int]) -> Shares | None:
        """The shares behind so many rows of the lane, of that size in each dataset; None: not known yet, ask again."""


class Run(NamedTuple):
    """Rows `start:stop` of a part, in the order of its sizes as they were supplied, which are `size` in sum."""

    dataset: int
    epoch: int
    part: Part
    start: int
    stop: int
    size: int


class Draw:
    """The rows of one lane. Ask `missing()`, `supply` what it names, `take` runs; `coordinates` restart it."""

    def __init__(
        self, streams: Sequence[Stream], rule: Rule, coordinates: Coordinates | None = None, mixture: Mixture | None = None
    ) -> None:
        """mixture: how the shares change; None: they are as the streams say."""
        self._rule, self._mixture = rule, mixture
        self.number, self.time, horizon, at = coordinates or (0, 0, None, ((0, 0, 0, 0, 0),) * len(streams))
        self._horizon = None if horizon is None else Fraction(*horizon)
        self._heads = [Head(stream, where, self.time) for stream, where in zip(streams, at, strict=True)]
        self._known = -1  # the last row at which the shares were asked for
        self._heap: list[tuple[int, int]] = []
        self._missing: list[int] = []
        self._failure: Exception | None = None
        self.waits = False  # whether the shares from here on are not known yet
        self._running = 0  # datasets that count and have not ended
        if coordinates is not None and mixture is not None:
            for head, where in zip(self._heads, at, strict=True):
                head.scale, head.size, head.over = (head.scale[0], where[5]), where[6], bool(where[7])
        elif mixture is not None and (shares := mixture.shares(0, [0] * len(self._heads))) is not None:
            self._known = 0
            for head, b, over in zip(self._heads, *shares, strict=True):
                head.scale, head.over = (head.scale[0], b), over
        self._running = sum(not head.over and (rule.epochs is None or head.epoch < rule.epochs) for head in self._heads)
        self._begin()

    @property
    def coordinates(self) -> Coordinates:
        """Where the lane stands: bounded whole numbers, from which a new `Draw` gives the same rows."""
        horizon = None if self._horizon is None else (self._horizon.numerator, self._horizon.denominator)
        at: list[tuple[int, ...]] = [(h.epoch, h.part, h.row, h.surplus_at(self.time), h.rows) for h in self._heads]
        if self._mixture is not None:
            at = [(*where, h.scale[1], h.size, int(h.over)) for where, h in zip(at, self._heads, strict=True)]
        return self.number, self.time, horizon, tuple(at)

    @property
    def drawn(self) -> tuple[int, ...]:
        """Rows given of each dataset."""
        return tuple(head.rows for head in self._heads)

    @property
    def asked(self) -> list[float]:
        """The size that each dataset should have given by now, of a mixture that may change."""
        return [head.size - head.surplus_at(self.time) / head.scale[0] for head in self._heads]

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
        while self._ask() and self._heap and not self._missing:
            heap = self._heap
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
            most = rows if self._mixture is None else min(rows, self._mixture.every - self.number % self._mixture.every)
            stop = min(len(head.times), head.row + most)
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
            head.size += given - head.given
            self.time = int(head.times[stop - 1])
            head.row, head.given = stop, given
            if stop < len(head.times):
                heapq.heapreplace(heap, (int(head.times[stop]), d))
            else:
                heapq.heappop(heap)
                self._advance(d)

    def _ask(self) -> bool:
        """Whether the shares of the next row are known; where they may change there, they do."""
        if self._mixture is None or self.number % self._mixture.every or self.number == self._known:
            return True
        shares = self._mixture.shares(self.number, [head.size for head in self._heads])
        self.waits = shares is None
        if shares is None:
            return False
        self._known = self.number
        changed = False
        for head, b, over in zip(self._heads, *shares, strict=True):
            self._running -= over and not head.over and (self._rule.epochs is None or head.epoch < self._rule.epochs)
            head.over = over
            if b != head.scale[1]:
                head.weigh(b, self.time)
                changed = True
        if changed:
            self._begin()
        return True

    def _begin(self) -> None:
        """Look at all datasets anew: with other shares others rest, and others come before the end."""
        self._heap, self._missing = [], []
        for d, head in enumerate(self._heads):
            if head.times is not None and head.scale[1]:
                self._heap.append((int(head.times[head.row]), d))
            elif head.times is None:
                if head.parts is None:
                    head.parts = head.stream.parts(head.epoch)
                self._roll(head)
        heapq.heapify(self._heap)
        for d, head in enumerate(self._heads):
            if head.times is None:
                self._settle(d)

    def _advance(self, d: int) -> None:
        """Leave a part that has been given."""
        head = self._heads[d]
        head.surplus, head.since, head.times = head.surplus_at(self.time), self.time, None
        head.part, head.row = head.next_part(), 0
        self._roll(head)
        self._settle(d)

    def _roll(self, head: Head) -> None:
        """Go on to the next epoch that has a part for us, up to the last one that the rule asks for."""
        epochs = self._rule.epochs
        while head.scale[1] and head.parts is not None and head.part == len(head.parts) and (epochs is None or head.epoch < epochs):
            self._next_epoch(head)
            if head.epoch == epochs:
                self._running -= 1
                ends = [head.end()] if self._horizon is None else [head.end(), self._horizon]
                self._horizon = min(ends) if self._rule.on_exhausted == "stop" else max(ends)

    def _settle(self, d: int) -> None:
        """Decide whether a dataset that stands at the start of a part goes on; one without a share rests."""
        head = self._heads[d]
        while head.scale[1]:
            if not self._goes_on(head):
                head.parts = None
                return
            assert head.parts is not None
            if head.part < len(head.parts):
                self._missing.append(d)
                return
            self._next_epoch(head)

    def _goes_on(self, head: Head) -> bool:
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

    def _next_epoch(self, head: Head) -> None:
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
