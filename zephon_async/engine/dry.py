"""What is said where too little comes out: of a lane of endless data, which would be read for ever, and of a whole run that ends.

`Dry` takes what the links of a lane say at the ends of segments: how many rows went into each stage and how many came out, in
absolute numbers. So the answer follows from what was drawn since the start or resume and from nothing else: no chunk, no clock.

A stage is dry when rows went in and none came out through a whole turn of epochs of every dataset (in which every row is expected
at every lane once) and, since a shuffled turn may miss the one row that a rare filter waits for, through sixteen turns of 256 rows
in all, or a million rows. Rows that an accumulator holds have not gone in vain: a window that fills is not dry, nor is what
waits behind it.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from zephon_async.engine.compile import Chain
from zephon_async.engine.serial import Given
from zephon_async.engine.stats import Books
from zephon_async.errors import DatasetError
from zephon_async.lanes import Edge, Topology
from zephon_async.records import End

_TURNS = 16
_FEW, _ROWS = 256, 1_000_000


class _Stand(NamedTuple):
    """Where a stage stands at the end of a segment: rows that went in and came out, bytes that are held, epochs of the draw."""

    took: int
    gave: int
    held_bytes: int
    epochs: tuple[int, ...]


class Dry:
    """Watches one lane."""

    def __init__(self, lane: int, chain: Chain, turn: int) -> None:
        self._lane, self._chain, self._turn = lane, chain, turn
        # Ends of segments that later links have not come to.
        self._ends: list[deque[tuple[dict[int, Edge[Any]], int]]] = [deque() for _ in chain.links]
        self._since: list[_Stand] = []  # by stage, when it last gave rows, or had none to give

    def look(self, j: int, given: Given, counts: Mapping[str, int]) -> DatasetError | None:
        """Take what link j gave; an error when the last link comes to the end of a segment and a stage is dry."""
        if given.end is not End.SEGMENT or given.failure is not None:
            return None
        self._ends[j].append((dict(given.edges), given.held_bytes))
        if not self._chain.links[j].last:
            return None
        stands = self._stands([ends.popleft() for ends in self._ends])
        for stage, (now, since) in enumerate(zip(stands, self._since, strict=False)):
            if now.gave == since.gave and now.took > since.took and now.held_bytes == since.held_bytes:
                if self._too_long(since, now):
                    return self._error(stage, since, now, counts)
                stands[stage] = since
        self._since = stands
        return None

    def _stands(self, ends: list[tuple[dict[int, Edge[Any]], int]]) -> list[_Stand]:
        """Stateless stages and accumulators in turn, from the draw to the cut."""
        edges = {i: edge for of_link, _ in ends for i, edge in of_link.items()}
        held = {i: held_bytes for link, (_, held_bytes) in zip(self._chain.links, ends, strict=True) for i, _ in link.accumulators}
        number, _, _, at = edges[0].position
        epochs = tuple(epoch for epoch, *_ in at)
        stands = [_Stand(number, edges[0].row, 0, epochs)]
        for i, operator in enumerate(self._chain.accumulators):
            flushed = 0 if operator.needs_flush else held[i]  # at the end of a segment
            stands.append(_Stand(edges[i].row, edges[i + 1].position, flushed, epochs))
            stands.append(_Stand(edges[i + 1].position, edges[i + 1].row, 0, epochs))
        return stands

    def _too_long(self, since: _Stand, now: _Stand) -> bool:
        turns, rows = _epochs(since, now) // self._turn, now.took - since.took
        return (turns >= _TURNS and rows >= _FEW) or (turns >= 1 and rows >= _ROWS)

    def _error(self, stage: int, since: _Stand, now: _Stand, counts: Mapping[str, int]) -> DatasetError:
        said = ", ".join(f"{name} {n:,}" for name, n in counts.items() if n)
        return DatasetError(
            f"lane {self._lane} gives nothing more: {self._name(stage)} let none of {now.took - since.took:,} rows through, in "
            f"{_epochs(since, now):,} epochs of every dataset{f' (counted so far: {said})' if said else ''}. Endless data would be "
            "read for ever: let something through, or set epochs=1, which ends"
        )

    def _name(self, stage: int) -> str:
        i, serial = divmod(stage, 2)
        if serial:
            return self._chain.accumulators[i].name
        link = next(link for link in self._chain.links if link.last or link.accumulators[0][0] == i)
        return " + ".join(operator.name for each in link.stages for operator in each.operators) or "reading"


def _epochs(since: _Stand, now: _Stand) -> int:
    """Whole epochs that every dataset has gone through."""
    return min(new - old - 1 for old, new in zip(since.epochs, now.epochs, strict=True))


def no_step(topology: Topology, microbatch_size: int, books: Books) -> str:
    """What to say of a run that ended without one full step, with the numbers of this rank's lanes."""
    lanes, left = topology.owned, books.counts["rows_left"]
    of_lane = topology.per_lane * microbatch_size
    said = "".join(f"; {name} {n:,}" for name, n in books.counts.items() if n and name != "rows_left")
    return (
        f"the run ended without one full step: of {books.stages[0][0].rows:,} rows drawn, {left:,} came out of lanes "
        f"{lanes.start} to {lanes.stop - 1}{said}; a step takes {of_lane:,} rows of each of {topology.lanes} lanes, "
        f"{topology.lanes * of_lane:,} in all. Give more data or epochs, filter less, or use a smaller microbatch_size or "
        "microbatches_per_step, fewer lanes, or on_end='pad'"
    )
