"""What a checkpoint says, its bytes, and how the states of several ranks become the start of one.

A rank's state is the shape it ran in (lanes, microbatches of a step, dp_size, dp_rank), the step, which numbers of its range
of that step it has taken, and a cursor for each of its lanes. The bytes are msgpack behind a magic, a version and a checksum;
they hold no pickles.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from zephon_async.errors import CheckpointError
from zephon_async.lanes.cursor import Cursor
from zephon_async.lanes.topology import Topology

_MAGIC = b"ZEPH"
_VERSION = 7

PartialStep: TypeAlias = Literal["refuse", "uneven"]


@dataclass(frozen=True, slots=True)
class RankState:
    """Where one rank stands.

    taken: numbers (within the step) that it has yielded of its range, as ranges (start, stop).
    recipe: what decides the data, each setting with its value or a short hash of it.
    facts: what was measured at the first start and holds for the whole run (tokens per byte, learned schemas).
    guards: for each dataset a short hash of what guards a run and is no part of the recipe (times and entity tags of shards).
    skips: steps that are left out, as ranges (first, stop).
    deadly: the rows that kill the processes that work them, each with the operator that it is not to reach.
    """

    topology: Topology
    step: int
    taken: tuple[tuple[int, int], ...]
    cursors: Mapping[int, Cursor]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    guards: tuple[bytes, ...] = ()
    deadly: frozenset[tuple[int, int, bytes]] = frozenset()
    skips: tuple[tuple[int, int], ...] = ()

    def encode(self) -> bytes:
        """The bytes of a checkpoint."""
        import msgspec

        t = self.topology
        body = msgspec.msgpack.encode(
            [
                [t.lanes, t.microbatches_per_step, t.dp_size, t.dp_rank],
                self.step,
                self.taken,
                {lane: _pack_cursor(cursor) for lane, cursor in self.cursors.items()},
                dict(self.recipe),
                dict(self.facts),
                self.guards,
                sorted(self.deadly),
                self.skips,
            ]
        )
        return _MAGIC + bytes([_VERSION]) + zlib.crc32(body).to_bytes(4, "little") + body

    @classmethod
    def decode(cls, state: bytes) -> "RankState":
        """Read the bytes of a checkpoint. Raises `CheckpointError` where they are not whole or of another version."""
        import msgspec

        if not isinstance(state, bytes | bytearray | memoryview):
            raise CheckpointError(f"a checkpoint is bytes, not {type(state).__name__}")
        state = bytes(state)
        if state[:4] != _MAGIC:
            raise CheckpointError(f"these {len(state)} bytes are no checkpoint of zephon_async: they begin with {state[:4]!r}")
        if state[4:5] != bytes([_VERSION]):
            raise CheckpointError(
                f"this checkpoint has version {state[4] if len(state) > 4 else '?'}; this library reads version {_VERSION}"
            )
        body = state[9:]
        if zlib.crc32(body).to_bytes(4, "little") != state[5:9]:
            raise CheckpointError(f"the checkpoint of {len(state)} bytes is damaged: its checksum does not match")
        shape, step, taken, cursors, recipe, facts, guards, deadly, skips = msgspec.msgpack.decode(body, strict=False)
        return cls(
            Topology(*shape),
            step,
            tuple((start, stop) for start, stop in taken),
            {int(lane): _unpack_cursor(cursor) for lane, cursor in cursors.items()},
            recipe,
            facts,
            tuple(guards),
            frozenset((number, row, known_by) for number, row, known_by in deadly),
            tuple((first, stop) for first, stop in skips),
        )


@dataclass(frozen=True, slots=True)
class Start:
    """Where a rank begins: a step, the numbers of it that are left for it, and a cursor for each of its lanes."""

    step: int
    left: tuple[int, ...]
    cursors: Mapping[int, Cursor]

    @classmethod
    def fresh(cls, topology: Topology, accumulators: int) -> "Start":
        """The beginning of a run."""
        return cls(0, tuple(topology.numbers), {lane: Cursor.start(accumulators) for lane in topology.owned})


def resume(states: Sequence[RankState], topology: Topology, partial_step: PartialStep = "refuse") -> Start:
    """Join the states of ranks (one step, one recipe) to the start of the rank that `topology` describes.

    They must cover the range of that rank, and a rank may only come twice with the same state. A lane brought twice takes its
    earlier cursor, which is always valid. States in the middle of a step go back onto the same dp_size; onto another one only
    with `partial_step="uneven"`, where each rank yields what is left of its range. Raises `CheckpointError` with what does not
    fit.
    """
    _one_run(states, topology)
    states = _of_one_step(states, partial_step == "uneven")
    own = [s for s in states if s.topology.dp_size == topology.dp_size and s.topology.dp_rank == topology.dp_rank]
    if own:
        states = own[:1]
    if not own:
        _covered(states, topology)
        if any(state.taken for state in states) and partial_step != "uneven":
            raise CheckpointError(
                f"the states are in the middle of step {states[0].step} on dp_size={states[0].topology.dp_size} and cannot be "
                f"restored on dp_size={topology.dp_size}; save at the end of a step, or restore with partial_step='uneven', where "
                "each rank yields what is left of its range"
            )
    taken = [span for state in states for span in state.taken]
    left = tuple(n for n in topology.numbers if not any(start <= n < stop for start, stop in taken))
    cursors: dict[int, Cursor] = {}
    for lane in topology.owned:
        brought = [state.cursors[lane] for state in states if lane in state.cursors]
        cursors[lane] = min(brought, key=lambda cursor: cursor.out)
    return Start(states[0].step, left, cursors)


def spans(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges (start, stop)."""
    found: list[tuple[int, int]] = []
    for n in numbers:
        if found and found[-1][1] == n:
            found[-1] = (found[-1][0], n + 1)
        else:
            found.append((n, n + 1))
    return tuple(found)


def _one_run(states: Sequence[RankState], topology: Topology) -> None:
    if not states:
        raise CheckpointError("restore() was given no state")
    first, of_rank = states[0], dict[int, RankState]()
    for state in states:
        for name in ("lanes", "microbatches_per_step"):
            found, wanted = getattr(state.topology, name), getattr(topology, name)
            if found != wanted:
                raise CheckpointError(f"the checkpoint was made with {name}={found}; this pipeline has {name}={wanted}")
        if (state.recipe, state.facts, state.topology.dp_size) != (first.recipe, first.facts, first.topology.dp_size):
            ranks = (first.topology.dp_rank, state.topology.dp_rank)
            raise CheckpointError(f"the states of ranks {ranks[0]} and {ranks[1]} are of different runs")
        if of_rank.setdefault(rank := state.topology.dp_rank, state) != state:
            raise CheckpointError(f"restore() was given two states of rank {rank} that differ; give one of each rank")


def _of_one_step(states: Sequence[RankState], uneven: bool) -> list[RankState]:
    """The states told from one step: a step that a rank has ended is also the start of its next.

    Where some have ended it and the others have not begun it, they may as well be of different steps: only `uneven` takes that.
    """
    ended = [s.step + (sum(stop - start for start, stop in s.taken) == s.topology.per_rank) for s in states]
    step = min(ended)
    if max(ended) == step:
        return [s if s.step == step else replace(s, step=step, taken=()) for s in states]
    inside = uneven or any(s.taken and s.step == e for s, e in zip(states, ended, strict=True))
    told = []
    for state in states:
        if inside and state.step == step + 1 and not state.taken:
            numbers = state.topology.numbers
            state = replace(state, step=step, taken=((numbers.start, numbers.stop),))
        if state.step != step:
            where = ", ".join(f"rank {s.topology.dp_rank} at step {s.step}" for s in states)
            hint = (
                ""
                if uneven or max(ended) > step + 1
                else ", or, if they are of the middle of one, restore with partial_step='uneven'"
            )
            raise CheckpointError(f"the states are of different steps ({where}); save those of all ranks at the same step{hint}")
        told.append(state)
    return told


def _covered(states: Sequence[RankState], topology: Topology) -> None:
    old = states[0].topology
    have = {state.topology.dp_rank for state in states}
    need = {n // old.per_rank for n in topology.numbers}
    if missing := sorted(need - have):
        raise CheckpointError(
            f"rank {topology.dp_rank} of {topology.dp_size} needs the states of ranks {sorted(need)} of the {old.dp_size} that "
            f"saved; missing: {missing}. Give restore() the states of all ranks"
        )


def _pack_cursor(c: Cursor) -> list[Any]:
    draw = None
    if c.draw is not None:
        number, time, horizon, at = c.draw
        draw = [number, time, None if horizon is None else [_pack(h) for h in horizon], [[_pack(n) for n in a] for a in at]]
    carried = [[_pack(n) for n in numbers] for numbers in c.carried]
    return [draw, c.first, c.taken, c.skips, c.outputs, c.rows, carried, c.bad, c.out]


def _unpack_cursor(packed: Sequence[Any]) -> Cursor:
    draw, *numbers, carried, bad, out = packed
    if draw is not None:
        number, time, horizon, at = draw
        fraction = None if horizon is None else (_unpack(horizon[0]), _unpack(horizon[1]))
        draw = (number, time, fraction, tuple(tuple(_unpack(n) for n in a) for a in at))
    first, taken, skips, outputs, rows = (tuple(n) for n in numbers)
    counts = tuple(tuple((d, drawn, n) for d, drawn, n in stage) for stage in bad)
    kept = tuple(tuple(_unpack(n) for n in of_one) for of_one in carried)
    return Cursor(draw, first, taken, skips, outputs, rows, out, counts, kept)


def _pack(n: int) -> int | bytes:
    """msgpack's whole numbers end at 64 bits; longer ones travel as bytes."""
    return n if -(1 << 63) <= n < 1 << 63 else n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)


def _unpack(n: int | bytes) -> int:
    return n if isinstance(n, int) else int.from_bytes(n, "little", signed=True)
