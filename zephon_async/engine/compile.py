"""From the operators of a pipeline to the links of a lane.

A lane is a chain of links; each is a stateless stage (one or more fused calls on the workers) and behind it a serial half (the
accumulators up to the next stateless operator, and in the last link the cut into microbatches).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from zephon_async.engine.gather import Policy
from zephon_async.engine.serial import Cut, Serial
from zephon_async.engine.stage import Stateless
from zephon_async.lanes import Cursor
from zephon_async.operators import Operator


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

    def serials(self, lane: int, cursor: Cursor) -> list[Serial]:
        """New serial halves of a lane, one a link, that begin at a cursor."""
        k = len(self.accumulators)
        return [
            Serial(
                lane,
                link.accumulators,
                cursor,
                self.policy,
                Cut(k, cursor, self.microbatch_size, self.pads) if link.last else None,
                self.chunk_rows,
            )
            for link in self.links
        ]


def compile_chain(operators: Sequence[Operator], microbatch_size: int, pads: bool, chunk_rows: int, policy: Policy) -> Chain:
    """Cut a chain of operators into links. Stateless neighbours of one setting become one call."""
    stateless: list[list[Operator]] = [[]]
    serial: list[Operator] = []
    for operator in operators:
        if operator.stateless:
            stateless[-1].append(operator)
        if operator.serial:
            serial.append(operator)
            stateless.append([])
    links: list[Link] = []
    i = 0
    while True:
        stages = _fuse(stateless[i], policy, gathers=not links)
        begin = i
        while i < len(serial) and (i == begin or not stateless[i]):
            i += 1
        last = i == len(serial) and (not stateless[i] or i == begin)
        links.append(Link(stages, tuple(enumerate(serial))[begin:i], last))
        if last:
            return Chain(tuple(links), tuple(serial), microbatch_size, pads, chunk_rows, policy)


def _fuse(operators: Sequence[Operator], policy: Policy, gathers: bool) -> tuple[Stateless, ...]:
    runs = [tuple(run) for _, run in groupby(operators, key=lambda o: (o.parallelism, o.concurrency is not None))]
    if gathers and (not runs or runs[0][0].concurrency is not None):
        runs.insert(0, ())
    return tuple(Stateless(run, policy, gathers and n == 0) for n, run in enumerate(runs))
