"""What a work source promises: it says what to train on, and makes a `Plan`. It has no state and moves no payload."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from zephon_async.io import Catalog, Dataset
from zephon_async.lanes import Rule
from zephon_async.work.estimation import TokenEstimation
from zephon_async.work.plan import DatasetPlan, LaneStream

Unit: TypeAlias = Literal["tokens", "bytes", "samples"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a mixture: one `DatasetPlan` each, in the order of names, their weights and tokens per byte, and how they end."""

    datasets: tuple[DatasetPlan, ...]
    weights: tuple[int, ...]
    ratios: tuple[tuple[int, int], ...]
    rule: Rule

    def streams(self, lane: int) -> list[LaneStream]:
        """The datasets as a lane draws them. A row of size s takes s * (tokens per byte) / (share) of time."""
        total = sum(self.weights)
        streams = []
        for dataset, weight, (tokens, size) in zip(self.datasets, self.weights, self.ratios, strict=True):
            a, b = total * tokens, weight * size
            short = gcd(a, b)  # the smaller the numbers, the less the draw leaves 64 bits
            streams.append(LaneStream(dataset, lane, (a // short, b // short)))
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
