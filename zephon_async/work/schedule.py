"""Weights that change as a run goes on: a pure function of how far a lane has come, so that nothing about it needs to be kept.

A schedule is a list of points, each a place and the weights there. Places are counted over all lanes, and each lane looks at what
it has drawn itself, times the lanes: no lane knows of others. Between two points the weights stay as they are, or go over in a
line or along half a wave of the cosine; they are worked out every `change_rows` rows of a lane, in whole numbers, since the
functions of floating point are not the same on all machines.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

from zephon_async.checks import checks_call, one_of, whole
from zephon_async.errors import RecipeError
from zephon_async.lanes import Shares
from zephon_async.work.weights import TOTAL, MixtureSpec, Weights, largest_remainders

By: TypeAlias = Literal["samples", "tokens", "bytes"]
Between: TypeAlias = Literal["constant", "linear", "cosine"]
_BITS = 96  # of the fixed point that the cosine is worked out in
_PI = 248902613312231085230521944622  # times 2**-96, rounded down


@checks_call
class MixtureSchedule:
    """Weights by how far a run has come.

    points: (place, weights), in ascending order, the first at 0. Datasets that a point does not name have no weight there.
    by: what places count, of what all lanes have drawn: "samples" (rows), or "tokens" or "bytes" as the unit of the source.
    between: what the weights are between two points: those of the first ("constant"), or on the way to those of the second
        ("linear", "cosine"). Behind the last point they stay.
    change_rows: in a lane they change every so many rows at most, and hold for these.

    Raises `RecipeError` for what cannot be meant.
    """

    def __init__(
        self,
        points: Iterable[tuple[int, MixtureSpec | Weights]],
        *,
        by: By = "samples",
        between: Between = "constant",
        change_rows: int = 256,
    ) -> None:
        one_of("MixtureSchedule: by", by, get_args(By))
        one_of("MixtureSchedule: between", between, get_args(Between))
        self.by: By = by
        self.between: Between = between
        self.change_rows = whole("MixtureSchedule: change_rows", change_rows, 1)
        self.points = tuple(_point(point) for point in points)
        places = [at for at, _ in self.points]
        if not places or places[0]:
            raise RecipeError(f"the points of a MixtureSchedule begin at 0, not at {places[0] if places else 'none'}")
        for before, after in pairwise(places):
            if before >= after:
                raise RecipeError(f"the points of a MixtureSchedule must ascend, and {after:,} stands behind {before:,}")

    @property
    def names(self) -> tuple[str, ...]:
        """All datasets that are named, in byte order."""
        return tuple(sorted({name for _, spec in self.points for name in spec.names}, key=str.encode))

    def settings(self) -> dict[str, Any]:
        """What decides the data, as plain values."""
        points = [(at, spec.exact()) for at, spec in self.points]
        return {"points": points, "by": self.by, "between": self.between, "change_rows": self.change_rows}


@dataclass(frozen=True, slots=True)
class Course:
    """A schedule over the datasets of a plan: weights, in their order, at any place.

    places: of the points. weights: there, each list 2**32 in sum.
    """

    places: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    between: Between

    @classmethod
    def of(cls, schedule: MixtureSchedule, names: Sequence[str]) -> "Course":
        exact = [spec.exact() for _, spec in schedule.points]
        weights = tuple(tuple(each.get(name, 0) for name in names) for each in exact)
        return cls(tuple(at for at, _ in schedule.points), weights, schedule.between)

    def at(self, place: int) -> tuple[int, ...]:
        """The weights at a place; their sum is 2**32."""
        i = self._point(place)
        if self.between == "constant" or i + 1 == len(self.places):
            return self.weights[i]
        begin, end = self.places[i : i + 2]
        way = (place - begin) * TOTAL // (end - begin)  # of 2**32
        if self.between == "cosine":
            way = eased(way)
        pairs = zip(self.weights[i], self.weights[i + 1], strict=True)
        return tuple(largest_remainders([old * (TOTAL - way) + new * way for old, new in pairs], TOTAL))

    def over(self, place: int) -> tuple[bool, ...]:
        """Which datasets have no weight at this place nor behind it."""
        i = self._point(place)
        return tuple(not any(later) for later in zip(*self.weights[i:], strict=True))

    def _point(self, place: int) -> int:
        return sum(at <= place for at in self.places) - 1


@dataclass(frozen=True, slots=True)
class Changes:
    """How the weights of a plan change: the course they take, what its places count, and every how many rows of a lane they may."""

    course: Course
    by: By
    every: int

    def __str__(self) -> str:
        way = {"constant": "at once", "linear": "in a line", "cosine": "along a cosine"}[self.course.between]
        places = ", ".join(f"{place:,}" for place in self.course.places[1:])
        return f"{way} to {places or 'nothing else'} {self.by} over all lanes, every {self.every:,} rows of a lane at most"

    def of(self, ratios: Sequence[tuple[int, int]], lanes: int) -> "LaneShares":
        """What the draw of a lane asks."""
        return LaneShares(self, ratios, lanes)


class LaneShares:
    """The shares of the datasets in a lane. See `lanes.Mixture`."""

    def __init__(self, changes: Changes, ratios: Sequence[tuple[int, int]], lanes: int) -> None:
        self.every = changes.every
        self._course, self._by, self._ratios, self._lanes = changes.course, changes.by, ratios, lanes

    def shares(self, rows: int, sizes: Sequence[int]) -> Shares:
        """The shares behind `rows` rows of a lane, of those sizes in each dataset."""
        drawn = rows
        if self._by != "samples":
            drawn = sum(size * tokens // each for size, (tokens, each) in zip(sizes, self._ratios, strict=True))
        place = drawn * self._lanes
        scales = [weight * each for weight, (_, each) in zip(self._course.at(place), self._ratios, strict=True)]
        return Shares(scales, self._course.over(place))


def eased(way: int) -> int:
    """(1 - cos(pi * way)) / 2 in parts of 2**32, of a whole number of such parts, rounded down: by the series of the cosine."""
    angle = _PI * way >> 32
    square, term, total, n = angle * angle >> _BITS, 1 << _BITS, 0, 0
    while term:
        total += -term if n % 4 else term
        n += 2
        term = (term * square >> _BITS) // ((n - 1) * n)
    return max(0, min(TOTAL, ((1 << _BITS) - total) * TOTAL >> _BITS + 1))


def _point(given: Any) -> tuple[int, MixtureSpec]:
    if not isinstance(given, Sequence) or len(given) != 2:
        raise RecipeError(f"a point of a MixtureSchedule is {given!r:.80}: give (place, weights)")
    at, weights = given
    if not isinstance(weights, MixtureSpec | Mapping):
        raise RecipeError(
            f"the weights of a MixtureSchedule at {at!r} are {weights!r:.80}: give a dict of a weight for each dataset"
        )
    return whole("MixtureSchedule: a place", at, 0), weights if isinstance(weights, MixtureSpec) else MixtureSpec(weights)
