"""A checkpoint as its user holds it: the bytes of one rank, or those of all ranks; and what such bytes say."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from zephon_async.checks import checks_call
from zephon_async.errors import CheckpointError
from zephon_async.lanes import RankState


def encoded_states(state: Any) -> list[Any]:
    """The encoded states of a call of `restore`."""
    alone = isinstance(state, bytes | bytearray | memoryview | str | PathLike)
    if not alone and not isinstance(state, Iterable):
        raise CheckpointError(f"restore() takes the bytes of a checkpoint, or a list of those of all ranks, not {state!r:.80}")
    if not (several := [state] if alone else list(state)):
        raise CheckpointError("restore() was given no state: give the bytes of a checkpoint, or a list of those of all ranks")
    return [_not_empty("restore", each) for each in several]


def _not_empty(who: str, state: Any) -> Any:
    if state == b"":
        raise CheckpointError(f"{who}() was given an empty checkpoint, of 0 bytes: was its file written to the end?")
    if isinstance(state, str | PathLike):
        raise CheckpointError(
            f"{who}() takes the bytes of a checkpoint, not a path ({state!r:.80}): read the file and give its bytes"
        )
    return state


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """What a checkpoint says, for people.

    lanes, microbatches_per_step, dp_size, dp_rank: the shape it was saved in.
    step, taken: the step that the rank stands in, and how many microbatches of it the rank has yielded.
    rows: by lane that the state brings, output rows taken since the start.
    recipe, facts: what decides the data (long values as a hash), and what was found out at the first start.
    nbytes: of the checkpoint.
    """

    lanes: int
    microbatches_per_step: int
    dp_size: int
    dp_rank: int
    step: int
    taken: int
    rows: Mapping[int, int]
    recipe: Mapping[str, Any]
    facts: Mapping[str, Any]
    nbytes: int


@checks_call
def inspect_checkpoint(state: bytes) -> CheckpointSummary:
    """Read a checkpoint without a pipeline. Raises `CheckpointError` where it is damaged."""
    s = RankState.decode(_not_empty("inspect_checkpoint", state))
    t = s.topology
    taken = sum(stop - start for start, stop in s.taken)
    rows = {lane: cursor.out for lane, cursor in s.cursors.items()}
    return CheckpointSummary(
        t.lanes, t.microbatches_per_step, t.dp_size, t.dp_rank, s.step, taken, rows, s.recipe, s.facts, len(state)
    )
