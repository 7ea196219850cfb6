"""What a work source promises: it says what to train on, and makes a `Plan`. It has no state and moves no payload."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from zephon_async.io import Catalog, Dataset
from zephon_async.lanes import Coordinates, Draw, Rule
from zephon_async.work.estimation import TokenEstimation
from zephon_async.work.plan import DatasetPlan, LaneStream
from zephon_async.work.schedule import Changes

Unit: TypeAlias = Literal["tokens", "bytes", "samples"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a mixture: one `DatasetPlan` each, in the order of names, their weights and tokens per byte, and how they end.

    changes: how the weights change; then `weights` are those at the beginning.
    """

    datasets: tuple[DatasetPlan, ...]
    weights: tuple[int, ...]
    ratios: tuple[tuple[int, int], ...]
    rule: Rule
    changes: Changes | None = None

    def draw(self, lane: int, begin: Coordinates | None = None) -> Draw:
        """The draw of a lane, from its beginning or from where one stood."""
        mixture = None if self.changes is None else self.changes.of(self.ratios, self.rule.turn)
        return Draw(self._streams(lane), self.rule, begin, mixture)

    def _streams(self, lane: int) -> list[LaneStream]:
        """The datasets as a lane draws them. A row of size s takes s * (tokens per byte) / (share) of time."""
        total = sum(self.weights)
        streams = []
        for dataset, weight, (tokens, size) in zip(self.datasets, self.weights, self.ratios, strict=True):
            a, b = total * tokens, weight * size
            if self.changes is None:  # the smaller the numbers, the less the draw leaves 64 bits; but a surplus goes over changes
                short = gcd(a, b)
                a, b = a // short, b // short
            streams.append(LaneStream(dataset, lane, (a, b)))
        return streams


@runtime_checkable
class WorkSource(Protocol):
    """What to train on."""

    seed: int
    unit: Unit

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The datasets that are drawn from, in the byte order of their names."""

    @property
    def token_estimation(self) -> TokenEstimation | None:
        """How tokens per byte are found; None where sizes are not tokens."""

    @property
    def finite(self) -> bool:
        """Whether the data ends."""

    def settings(self) -> Mapping[str, Any]:
        """What of it decides the data, as plain values. It is fingerprinted."""

    def plan(self, catalogs: Sequence[Catalog], ratios: Mapping[str, tuple[int, int]], lanes: int) -> Plan:
        """The plan over `lanes`, given the catalogs of `datasets` and the tokens per byte by name (1 / 1 for other units)."""
