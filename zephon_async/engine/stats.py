"""What a run has done so far: counters that the loop keeps, and the frozen snapshot that users see.

Threads: a `Meter` is written on the engine's loop only; a snapshot is made on any thread of single numbers and copies of dicts,
each in one step.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from zephon_async.engine.pace import Pace

Kind: TypeAlias = Literal["storage", "workers", "accumulators"]
Bottleneck: TypeAlias = Kind | Literal["consumer", "none yet"]
_LITTLE = 0.1  # a consumer that waits less than this part of the time is the bottleneck itself


@dataclass(slots=True)
class Consumed:
    """What the consumer has taken; written by the consumer only."""

    microbatches: int = 0
    waited_s: float = 0.0

    def add(self, waited_s: float) -> None:
        self.microbatches += 1
        self.waited_s += waited_s

    def reset(self) -> None:
        self.microbatches, self.waited_s = 0, 0.0


@dataclass(slots=True)
class Meter:
    """What one stage has done."""

    kind: Kind
    calls: int = 0
    rows: int = 0
    bytes: int = 0
    busy_s: float = 0.0
    waiting_s: float = 0.0  # from when a call could have begun until it began

    def add(self, rows: int, size: int, busy_s: float, waiting_s: float) -> None:
        self.calls += 1
        self.rows += rows
        self.bytes += size
        self.busy_s += busy_s
        self.waiting_s += waiting_s


class Books:
    """What the lanes of a run add up: meters by stage, counts by name, size drawn by dataset, and their pace."""

    def __init__(
        self,
        stages: Sequence[Sequence[str]],
        serials: Sequence[str],
        datasets: Sequence[str],
        weights: Sequence[int],
        ratios: Sequence[tuple[int, int]],
    ) -> None:
        """Names of the stages of each link and of its serial half; names, weights and tokens per byte of the datasets."""
        self._ratios = ratios
        self._names = [(*names, serial) for names, serial in zip(stages, serials, strict=True)]
        self._datasets, self._weights = datasets, weights
        self.pace = Pace()
        self.reads = Meter("storage")
        self.stages = [[Meter("workers") for _ in names] for names in stages]
        self.serials = [Meter("accumulators") for _ in serials]
        self.counts: Counter[str] = Counter()
        self.drawn = [0] * len(datasets)  # rows or bytes
        self.asked: dict[int, list[float]] = {}  # by lane, what should have been drawn, where the mixture changes
        self.stuck: dict[Kind, float] = {"storage": 0.0, "workers": 0.0, "accumulators": 0.0}

    def snapshot(self, taken: Consumed, seconds: float, held_bytes: int, storage: Mapping[str, int]) -> "Statistics":
        """A frozen copy."""
        names = ["storage", *(name for each in self._names for name in each)]
        stages = tuple(
            StageStatistics(name, m.kind, m.calls, m.rows, m.bytes, m.busy_s, m.waiting_s)
            for name, m in zip(names, self._meters(), strict=True)
        )
        sizes = [size * tokens // of for size, (tokens, of) in zip(self.drawn, self._ratios, strict=True)]
        drawn = dict(zip(self._datasets, sizes, strict=True))
        total, target = sum(drawn.values()), [float(weight) for weight in self._weights]
        if asked := list(self.asked.values()):
            target = [
                max(0.0, sum(each)) * tokens / of for each, (tokens, of) in zip(zip(*asked, strict=True), self._ratios, strict=True)
            ]
        whole = sum(target) or 1.0
        return Statistics(
            stages,
            taken.microbatches,
            seconds,
            taken.waited_s,
            self._bottleneck(taken, seconds),
            drawn,
            {name: share / whole for name, share in zip(self._datasets, target, strict=True)},
            {name: size / total if total else 0.0 for name, size in drawn.items()},
            dict(self.counts),
            held_bytes,
            storage,
        )

    def _bottleneck(self, taken: Consumed, seconds: float) -> Bottleneck:
        """Whose work the lanes wait for.

        A call that a lane waits for has run in a part of that time, and has stood in the queue of the workers in the rest: that
        part is shared out by what the workers did meanwhile, for a read may wait for a function as a function for reads.
        """
        if not taken.microbatches:
            return "none yet"
        if taken.waited_s < _LITTLE * seconds:
            return "consumer"
        busy = dict.fromkeys(self.stuck, 0.0)
        waiting = dict.fromkeys(self.stuck, 0.0)
        for meter in self._meters():
            busy[meter.kind] += meter.busy_s
            waiting[meter.kind] += meter.waiting_s
        ran = {kind: self.stuck[kind] * busy[kind] / (busy[kind] + waiting[kind] or 1.0) for kind in busy}
        queued = (sum(self.stuck.values()) - sum(ran.values())) / (sum(busy.values()) or 1.0)
        return max(busy, key=lambda kind: ran[kind] + queued * busy[kind])

    def _meters(self) -> list[Meter]:
        links = zip(self.stages, self.serials, strict=True)
        return [self.reads, *(meter for stages, serial in links for meter in (*stages, serial))]


@dataclass(frozen=True, slots=True)
class StageStatistics:
    """One stage, summed over all lanes of this rank and all workers, since the iteration began.

    name: "storage" (the reading of row blocks), the operators of a stage that are one call, or those of a serial half.
    kind: "storage", "workers" (stateless stages) or "accumulators" (serial halves).
    calls: how often it ran on a worker.
    rows: rows that it took in; of storage, rows that were decoded.
    bytes: bytes of what stateless stages gave out, of what accumulators took in, of the row blocks that were decoded.
    busy_s: seconds in which it ran; more than the run's where several workers ran it at once.
    waiting_s: seconds from when a call could have begun to when it began, and until its result was seen, summed over the calls.
    """

    name: str
    kind: str
    calls: int
    rows: int
    bytes: int
    busy_s: float
    waiting_s: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of the iteration under way on this rank, or of the last one. `print` it for a table.

    stages: in the order of the flow.
    microbatches: how many the consumer has taken.
    seconds: since the iteration began.
    consumer_waited_s: seconds of them that the consumer spent in `next`.
    bottleneck: who the run waits for: "storage", "workers", "accumulators", the "consumer" (nothing else), or "none yet".
    drawn: by dataset, the size of the rows that the lanes of this rank have drawn: tokens (by the estimated ratio), bytes or
        samples, whichever the weights are ratios of. More than was delivered: also what is made ahead, filtered, and after a
        restore made again; what a lane draws that another rank works too is counted on both.
    target, actual: by dataset, the share of the mixture that was asked for (of one that changes, on the way so far), and that of
        `drawn`; from 0 to 1.
    counts: by name, records, documents, rows or tokens that were left out or made up by the operators; also for rows that are not
        delivered in the end, such as `padding_tokens` of a padded row that is left over. `rows_left`: rows behind the last step,
        as far as they were made or came next (`prefetch` microbatches a lane); no lane is read through only to count the others.
    held_bytes: bytes held now: what comes or was fetched from a storage, row blocks that are kept or being read, rows on their way,
        what accumulators hold, what is ready. What moves from one of these to another while they are counted may count twice.
    storage: by name, what remote shards have cost since the pipeline was started: `requests`, `bytes` of bodies, `retries`,
        `hedges` (slow reads that were made a second time), where there is a cache what that did, and of this iteration
        `fetched_twice`, units, or row blocks of them, that were fetched again since neither memory nor disk had room for them.
        Empty where all shards are at hand.
    """

    stages: tuple[StageStatistics, ...] = ()
    microbatches: int = 0
    seconds: float = 0.0
    consumer_waited_s: float = 0.0
    bottleneck: Bottleneck = "none yet"
    drawn: Mapping[str, int] = field(default_factory=dict)
    target: Mapping[str, float] = field(default_factory=dict)
    actual: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=Counter)
    held_bytes: int = 0
    storage: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{self.microbatches:,} microbatches taken in {self.seconds:,.1f} s, of which the consumer waited "
            f"{self.consumer_waited_s:,.1f} s; {self.held_bytes:,} bytes held; bottleneck: {self.bottleneck}"
        ]
        rows = [
            (s.name, s.kind, *(f"{n:,}" for n in (s.calls, s.rows, s.bytes)), *(f"{t:,.2f}" for t in (s.busy_s, s.waiting_s)))
            for s in self.stages
        ]
        lines += _table(("stage", "kind", "calls", "rows", "bytes", "busy s", "waiting s"), rows, 2)
        shares = [(name, f"{size:,}", f"{self.target[name]:.2%}", f"{self.actual[name]:.2%}") for name, size in self.drawn.items()]
        lines += _table(("dataset", "drawn", "target", "actual"), shares, 1)
        lines += _table(("storage", "number"), [(name, f"{n:,}") for name, n in self.storage.items()], 1)
        lines += _table(("count", "number"), [(name, f"{n:,}") for name, n in sorted(self.counts.items()) if n], 1)
        return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Rows under a head, the first `left` columns to the left; nothing where there are no rows."""
    wide = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    pad = [str.ljust if n < left else str.rjust for n in range(len(head))]
    return ["  " + "  ".join(p(cell, w) for p, cell, w in zip(pad, row, wide, strict=True)) for row in (head, *rows) if rows]
