"""The order of data whose mixture changes, worked out slowly: one row at a time, in exact fractions."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import floor
from typing import Any

from tests.oracle import TICKS, Dataset, Oracle, Row

Points = list[tuple[int, dict[str, int]]]


class Scheduled(Oracle):
    """An oracle whose weights change, worked out one row at a time in exact fractions."""

    def __init__(self, several: Sequence[Dataset], points: Points, by: str, between: str, every: int, **settings: Any) -> None:
        super().__init__(several, **settings)
        names = [dataset.name for dataset in self.datasets]
        self.places = [place for place, _ in points]
        self.points = [[Fraction(weights.get(name, 0), sum(weights.values())) for name in names] for _, weights in points]
        self.by, self.between, self.every = by, between, every

    def shares(self, place: int) -> list[int]:
        """The weights at a place, over 2**32."""
        now = max(i for i, at in enumerate(self.places) if at <= place)
        first = _rounded([share * TICKS for share in self.points[now]])
        if self.between == "constant" or now + 1 == len(self.places):
            return first
        second = _rounded([share * TICKS for share in self.points[now + 1]])
        begin, end = self.places[now : now + 2]
        way = Fraction(floor(Fraction(place - begin, end - begin) * TICKS), TICKS)
        return _rounded([old + (new - old) * way for old, new in zip(first, second, strict=True)])

    def draw(self, lane: int) -> Iterator[Row]:
        count = range(len(self.datasets))
        ratios = [Fraction(*dataset.ratio) for dataset in self.datasets]
        sources = [self._epochs(d, lane) for d in count]
        due = [None if self.epochs is None else sum(len(self.owned(d, lane, e)) for e in range(self.epochs)) for d in count]
        following: list[Row | None] = [None] * len(sources)
        sizes, taken, ends = [0] * len(sources), [0] * len(sources), dict[int, Fraction]()
        owed, since, time, rows = [Fraction(0)] * len(sources), 0, 0, 0
        weights: list[int] = []
        while True:
            if rows % self.every == 0:
                of = rows if self.by == "samples" else sum(floor(s * ratio) for s, ratio in zip(sizes, ratios, strict=True))
                if weights:
                    owed = [due + Fraction((time - since) * w, TICKS) for due, w in zip(owed, weights, strict=True)]
                since, weights = time, self.shares(of * self.lanes)
                later = [d for d in count if any(point[d] for point in self.points[self._now(of * self.lanes) :])]
            for d in count:  # those that have nothing to give have ended when they are looked at
                if weights[d] and due[d] == 0:
                    ends.setdefault(d, since + (sizes[d] * ratios[d] - owed[d]) * TICKS / weights[d])
            limit = None
            if self.on_exhausted == "stop" and ends:
                limit = min(ends.values())
            if self.on_exhausted == "repeat" and all(d in ends for d in later):
                limit = max(ends.values(), default=None)
            best: tuple[int, int] | None = None
            for d in count:
                if not weights[d]:
                    continue
                at = since + (sizes[d] * ratios[d] - owed[d]) * TICKS / weights[d]
                least = Fraction(1, 2) * ratios[d] * TICKS / weights[d]  # before the middle of its next row
                if following[d] is None and (limit is None or at + least < limit):
                    following[d] = next(sources[d], None)
                if (row := following[d]) is not None:
                    real = at + Fraction(row.length, 2) * ratios[d] * TICKS / weights[d]
                    if (limit is None or real < limit) and (best is None or (floor(real), d) < best):
                        best = floor(real), d
            if best is None:
                return
            time, d = best
            row = following[d]
            assert row is not None
            following[d] = None
            sizes[d], taken[d], rows = sizes[d] + row.length, taken[d] + 1, rows + 1
            if taken[d] == due[d]:
                ends[d] = since + (sizes[d] * ratios[d] - owed[d]) * TICKS / weights[d]
            yield row

    def _now(self, place: int) -> int:
        return max(i for i, at in enumerate(self.places) if at <= place)


def _rounded(shares: Sequence[Fraction]) -> list[int]:
    whole = [floor(share) for share in shares]
    for d in sorted(range(len(whole)), key=lambda d: whole[d] - shares[d])[: TICKS - sum(whole)]:
        whole[d] += 1
    return whole
