"""Who works what: the microbatches of a step, dealt over lanes and ranks.

The G microbatches of a step are numbered lane-major: lane 0's k = G / L, then lane 1's, and so on. Rank r of R yields the
contiguous range [r * G / R, (r + 1) * G / R). Only G % R == 0 is required: where a border between ranks falls inside a lane, both
ranks work that lane and each keeps its part.
"""

from dataclasses import dataclass

from zephon_async.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Topology:
    """lanes L, microbatches_per_step G, dp_size R, dp_rank r. Raises `RecipeError` where they do not fit."""

    lanes: int
    microbatches_per_step: int
    dp_size: int = 1
    dp_rank: int = 0

    def __post_init__(self) -> None:
        if self.dp_size < 1:
            raise RecipeError(f"dp_size is {self.dp_size}: there must be at least one rank")
        if not 0 <= self.dp_rank < self.dp_size:
            raise RecipeError(f"dp_rank is {self.dp_rank}: with dp_size={self.dp_size} it must be from 0 to {self.dp_size - 1}")
        if self.lanes < 1:
            raise RecipeError(f"lanes is {self.lanes}: there must be at least one")
        if self.microbatches_per_step < 1 or self.microbatches_per_step % self.lanes:
            raise RecipeError(
                f"microbatches_per_step is {self.microbatches_per_step}: it must be a positive multiple of the {self.lanes} lanes"
            )
        if self.microbatches_per_step % self.dp_size:
            raise RecipeError(
                f"{self.microbatches_per_step} microbatches a step cannot be shared evenly by dp_size={self.dp_size} ranks; "
                f"set microbatches_per_step to a multiple of both {self.lanes} lanes and {self.dp_size} ranks"
            )

    @property
    def per_lane(self) -> int:
        """k: microbatches that each lane gives to a step."""
        return self.microbatches_per_step // self.lanes

    @property
    def per_rank(self) -> int:
        """Microbatches that this rank yields in a step."""
        return self.microbatches_per_step // self.dp_size

    @property
    def numbers(self) -> range:
        """Numbers within a step of the microbatches this rank yields."""
        return range(self.dp_rank * self.per_rank, (self.dp_rank + 1) * self.per_rank)

    @property
    def owned(self) -> range:
        """The lanes this rank works, wholly or in part."""
        return range(self.numbers.start // self.per_lane, (self.numbers.stop - 1) // self.per_lane + 1)

    @property
    def shared(self) -> int:
        """How many lanes this rank works although another rank yields a part of them."""
        return sum(len(self.kept(lane)) < self.per_lane for lane in self.owned)

    def kept(self, lane: int) -> range:
        """Which of the k microbatches that a lane gives to a step this rank yields."""
        first = lane * self.per_lane
        return range(max(self.numbers.start - first, 0), min(self.numbers.stop - first, self.per_lane))

    def place(self, step: int, number: int) -> tuple[int, int]:
        """(lane, microbatch of that lane over the whole run) of number `number` of a step."""
        lane, within = divmod(number, self.per_lane)
        return lane, step * self.per_lane + within

    def number(self, lane: int, microbatch: int) -> tuple[int, int]:
        """(step, number in it) of a lane's microbatch: the inverse of `place`."""
        step, within = divmod(microbatch, self.per_lane)
        return step, lane * self.per_lane + within
