"""How ranks agree on the last step where no `agree` is given: through torch.distributed, where it is initialised.

A group of its own (gloo, on the CPU), so that its collectives never mix with the trainer's. Making one is a collective itself, so
nothing that only looks makes it: `join` is called at the beginning of the first iteration, in the thread that iterates, where the
trainer's own groups are made too. `leave` gives its sockets and threads back, and tells ranks that still wait for this one.

Threads: `join` is called before the run that needs it begins, `leave` when no run is left; in between the group does not change.
"""

import sys
from collections.abc import Callable
from operator import index
from traceback import clear_frames
from typing import Any

from zephon_async.engine.blame import noted
from zephon_async.errors import RecipeError
from zephon_async.options import Options


def agreed(agree: Callable[[int], Any], step: int, has: bool, pads: bool) -> int:
    """How many steps the ranks say there are, asked for a step that this one has or has not.

    Raises `TypeError` or `ValueError` for what cannot be the minimum (`pads`: the maximum) over ranks that are all asked that.
    """
    steps = step + has
    try:
        given = agree(steps)
    except BaseException as error:
        noted(error, f"the ranks could not agree whether there is a step {step}; has one failed or gone?")
        raise
    least, most = (steps, step + 1) if pads else (step, steps)
    try:
        number = index(given)
    except TypeError:
        raise TypeError(f"options(agree=) gave {given!r:.80}, wanted a whole number") from None
    if not least <= number <= most:
        kind, end = ("maximum", "pad") if pads else ("minimum", "drop")
        can_be = f"{least}" if least == most else f"{least} or {most}"
        raise ValueError(
            f"the ranks agreed on {number} steps, and this one, asked for step {step}, proposed {steps}: with on_end={end!r} "
            f"options(agree=) must give the {kind} over all ranks, here {can_be}; or have the ranks not taken the same steps?"
        )
    return number


class GlooAgreement:
    """The minimum (on_end="drop") or maximum ("pad") over ranks."""

    def __init__(self, options: Options) -> None:
        self._ranks, self._pads = options.dp_size, options.on_end == "pad"
        self._group: Any = None

    def check(self) -> None:
        """Raise `RecipeError` where torch.distributed cannot serve: then options(agree=...) must be given. No collective."""
        if not _initialised():
            raise RecipeError(
                f"with finite epochs and dp_size={self._ranks} the ranks must agree on the last step: initialise "
                "torch.distributed before iterating, give options(agree=...) a collective int -> int (min for on_end='drop', max "
                "for 'pad'), or use epochs=None"
            )
        import torch.distributed as dist

        if dist.get_world_size() != self._ranks:
            raise RecipeError(
                f"torch.distributed has {dist.get_world_size()} ranks and dp_size is {self._ranks}: give options(agree=...) a "
                "collective int -> int over the data-parallel ranks"
            )

    def join(self) -> None:
        """Make the group, once. All ranks must come here at the same point."""
        if self._group is None:
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo")

    def __call__(self, steps: int) -> int:
        import torch
        import torch.distributed as dist

        value = torch.tensor([steps], dtype=torch.int64)
        try:
            dist.all_reduce(value, dist.ReduceOp.MAX if self._pads else dist.ReduceOp.MIN, group=self._group)
        except Exception as error:
            clear_frames(error.__traceback__)  # they hold the group, and the run holds the error: no rank would see it left
            raise
        return int(value.item())

    def leave(self) -> None:
        """Give the group up. Not a collective; ranks that wait for this one get an error instead."""
        group, self._group = self._group, None
        if group is not None and _initialised():
            import torch.distributed as dist

            dist.destroy_process_group(group)


def _initialised() -> bool:
    dist: Any = sys.modules.get("torch.distributed")  # who has initialised it has imported it
    return dist is not None and bool(dist.is_available() and dist.is_initialized())
