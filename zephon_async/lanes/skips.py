"""Steps that are left out: worked, since what comes behind is packed with what they leave, and not delivered."""

from collections.abc import Iterable
from itertools import pairwise

from zephon_async.errors import CheckpointError, RecipeError


class Skips:
    """Ranges of steps, (first, stop), in their order. The tuple is exchanged as a whole: any thread may ask."""

    def __init__(self) -> None:
        self.ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, step: int) -> bool:
        return any(first <= step < stop for first, stop in self.ranges)

    def add(self, steps: range, following: int) -> None:
        """Leave out steps. following: the first step that has not begun. Raises `RecipeError`."""
        if not isinstance(steps, range) or steps.step != 1 or not steps or steps.start < 0:
            raise RecipeError(f"skip: steps is {steps!r:.80}: it must be a range of steps such as range(1000, 1020)")
        mine = (steps.start, steps.stop)
        if mine in self.ranges:  # as where a program that was restored says it again
            return
        if steps.start < following:
            raise RecipeError(f"skip: step {steps.start} has begun or is past; the first that can be left out is {following}")
        self._joined([mine], RecipeError, "skip: ")

    def join(self, of_states: Iterable[tuple[tuple[int, int], ...]]) -> None:
        """Also leave out what the states of ranks say. Raises `CheckpointError` where they do not say the same."""
        said = set(of_states)
        if len(said) > 1:
            raise CheckpointError(
                f"the states of the ranks leave out other steps ({said}); skip() must be told the same on all ranks"
            )
        self._joined(said.pop(), CheckpointError, "the checkpoint and skip(): ")

    def _joined(self, more: Iterable[tuple[int, int]], kind: type[Exception], who: str) -> None:
        ranges = tuple(sorted({*self.ranges, *more}))
        for (first, stop), (after, end) in pairwise(ranges):
            if after < stop:
                raise kind(f"{who}steps {after} to {end - 1} and {first} to {stop - 1} overlap")
        self.ranges = ranges
