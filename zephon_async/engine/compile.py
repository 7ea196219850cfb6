"""From the operators of a pipeline to the links of a lane.

A lane is a chain of links; each is a stateless stage (one or more fused calls on the workers) and behind it a serial half (the
accumulators up to the next stateless operator, and in the last link the cut into microbatches).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from zephon_async.engine.gather import Policy
from zephon_async.engine.limit import Limit
from zephon_async.engine.placement import Placement, of_reading, place
from zephon_async.engine.serial import Cut, Serial
from zephon_async.engine.stage import Stateless
from zephon_async.lanes import Cursor
from zephon_async.operators import Operator
from zephon_async.options import Options


@dataclass(frozen=True, slots=True)
class Link:
    """A stateless stage and the serial half behind it, for all lanes."""

    stages: tuple[Stateless, ...]
    accumulators: tuple[tuple[int, Operator], ...]
    last: bool

    @property
    def name(self) -> str:
        return " | ".join([*(operator.name for _, operator in self.accumulators), *(["batch"] if self.last else [])])


@dataclass(frozen=True, slots=True)
class Chain:
    """A compiled pipeline: its links, and what every lane needs to make its serial halves."""

    links: tuple[Link, ...]
    accumulators: tuple[Operator, ...]
    microbatch_size: int
    pads: bool
    chunk_rows: int
    policy: Policy

    @property
    def passing(self) -> frozenset[int]:
        """The stages of a lane (one before each accumulator, and one behind the last) in which nothing is done."""
        behind = {link.accumulators[0][0] if link.accumulators else len(self.accumulators) for link in self.links}
        return frozenset(range(len(self.accumulators) + 1)) - behind

    @property
    def by_processes(self) -> bool:
        """Whether rows come out of worker processes."""
        return any(stage.portable is not None for link in self.links for stage in link.stages)

    def serials(self, lane: int, cursor: Cursor) -> list[Serial]:
        """New serial halves of a lane, one a link, that begin at a cursor."""
        return [
            Serial(
                lane,
                link.accumulators,
                cursor,
                self.policy,
                self._cut(lane, cursor) if link.last else None,
                self.chunk_rows,
            )
            for link in self.links
        ]

    def _cut(self, lane: int, cursor: Cursor) -> Cut:
        limit = Limit(lane, self.policy.names.datasets, self.policy.most_bad, cursor.bad)
        return Cut(len(self.accumulators), cursor, self.microbatch_size, self.pads, self.by_processes, limit)


def compile_chain(operators: Sequence[Operator], microbatch_size: int, options: Options, chunk_rows: int, policy: Policy) -> Chain:
    """Cut a chain of operators into links. Stateless neighbours of one setting become one call."""
    stateless: list[list[_Placed]] = [[]]
    serial: list[Operator] = []
    for number, (operator, placement) in enumerate(zip(operators, place(operators, options), strict=True)):
        if operator.stateless:
            stateless[-1].append(_Placed(number, operator, placement))
        if operator.serial:
            serial.append(operator)
            stateless.append([])
    links: list[Link] = []
    i = 0
    while True:
        stages = _fuse(stateless[i], policy, None if links else of_reading(options))
        begin = i
        while i < len(serial) and (i == begin or not stateless[i]):
            i += 1
        last = i == len(serial) and (not stateless[i] or i == begin)
        links.append(Link(stages, tuple(enumerate(serial))[begin:i], last))
        if last:
            return Chain(tuple(links), tuple(serial), microbatch_size, options.on_end == "pad", chunk_rows, policy)


class _Placed(NamedTuple):
    """An operator, its number in the pipeline, and where it runs."""

    number: int
    operator: Operator
    placement: Placement


def _fuse(placed: Sequence[_Placed], policy: Policy, reads: Placement | None) -> tuple[Stateless, ...]:
    """reads: where the first stage reads, if it does."""

    def setting(each: _Placed) -> tuple[Any, ...]:
        alone = policy.quarantine and each.placement.runner == "processes"  # so that it is known which of them a row kills
        return each.operator.parallelism, each.placement.runner, each.number if alone else None

    runs = [tuple(run) for _, run in groupby(placed, key=setting)]
    if reads and (not runs or runs[0][0].placement.runner in ("processes", "users' loop")):
        runs.insert(0, ())
    stages = []
    for n, run in enumerate(runs):
        numbers, operators = tuple(each.number for each in run), tuple(each.operator for each in run)
        placement = run[0].placement if run else reads
        assert placement is not None
        stage = Stateless(numbers, operators, policy, placement, gathers=reads is not None and n == 0)
        stages.append(stage.portably() if stage.placement.runner == "processes" else stage)
    return tuple(stages)
