"""How the memory budget is divided: a cache of row blocks that all lanes share, and an equal share for each lane.

A lane must be able to hold what its operators hold, a microbatch, a chunk, and a row block. Where the lanes together need more
than the budget, the run is refused. Of what is left over the need up to a quarter is for units that stand open in the middle, and
up to a quarter of the budget for blocks that are read ahead or may be asked for again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zephon_async.errors import RecipeError
from zephon_async.operators import Operator

_CACHE = 4  # one part in so many of the budget is for row blocks
_REMOTE = 2  # times that where shards are remote, if there is room: as much is for what was fetched and is not decoded yet

# Of that one part in so many is for what was read to plan, as much for reading ahead, and half of the rest for what is on its way.
_REMEMBERED = 8

# Of what is over the need one part in so many, at most, is for units that stand open: one for each dataset of each lane, since they
# take turns and each would push out the next; of each so many bytes at least, and of all.
_OPEN, _OPEN_BYTES, _LEAST_OPEN_BYTES = 4, 4 << 20, 64 << 20

_CHUNK_BYTES = 4 << 20  # of the rows that are dispatched as one, on average: larger chunks are no quicker
_CHUNK_ROWS = 256  # even where fewer are made ahead: smaller chunks cost more than they are worth


@dataclass(frozen=True, slots=True)
class Need:
    """What one lane must be able to hold, in bytes: each accumulator by name, a microbatch, a chunk, a row block."""

    holds: tuple[tuple[str, int], ...]
    ahead_rows: int  # that the lane makes before they are asked for
    chunk_rows: int  # at most, as set, and fewer where rows are large or few are made ahead
    chunk_bytes: int
    block_bytes: int
    row_bytes: int  # of a row of the datasets on average, which the others are reckoned from

    @classmethod
    def of(
        cls, operators: Sequence[Operator], microbatch_size: int, prefetch: int, chunk_rows: int, row_bytes: int, block_bytes: int
    ) -> "Need":
        """For rows of `row_bytes` on average, of which each operator says what it makes. `prefetch`: microbatches that wait."""
        holds, first, ahead = [], row_bytes, prefetch * microbatch_size
        for operator in operators:
            if operator.serial:
                holds.append((operator.name, operator.holds_bytes(row_bytes)))
                ahead += operator.holds_rows()
            row_bytes = operator.row_bytes(row_bytes)
        holds.append(("a microbatch", microbatch_size * row_bytes))
        rows = min(chunk_rows, max(_CHUNK_ROWS, ahead), max(1, _CHUNK_BYTES // max(first, 1)))
        return cls(tuple(holds), ahead, rows, rows * first, block_bytes, first)

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.holds) + self.chunk_bytes + self.block_bytes

    def __str__(self) -> str:
        parts = [f"{size:,} for {name}" for name, size in self.holds if size]
        return ", ".join([*parts, f"{self.chunk_bytes:,} for a chunk", f"{self.block_bytes:,} for a row block"])


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes for cached row blocks, for units that stand open, for what was fetched of remote shards, is on its way, was read
    to plan (as many are for reading ahead), and for each lane, which must be able to hold `need`."""

    cache_bytes: int
    open_bytes: int
    fetched_bytes: int
    coming_bytes: int
    remembered_bytes: int
    share_bytes: int
    need: Need


def divide(
    budget_bytes: int, lanes: int, need: Need, datasets: int = 1, remote: bool = False, opened_bytes: int = _OPEN_BYTES
) -> Budget:
    """Divide a budget over `lanes` lanes, each of `datasets` datasets. remote: whether shards are. opened_bytes: of an open unit.

    Raises `RecipeError` where it is below what the lanes need.
    """
    needed = lanes * need.bytes
    if needed > budget_bytes:
        raise RecipeError(
            f"memory_budget is {budget_bytes:,} bytes, and {lanes} lanes must be able to hold {needed:,}: each {need}. "
            f"Set options(memory_budget={needed}) or more, or use fewer lanes, smaller windows or a smaller chunk_rows"
        )
    opened = max(lanes * datasets * max(opened_bytes, _OPEN_BYTES), _LEAST_OPEN_BYTES)
    open_bytes = min(opened, (budget_bytes - needed) // _OPEN)
    spare = min(budget_bytes // _CACHE * (_REMOTE if remote else 1), budget_bytes - needed - open_bytes)
    fetched_bytes = spare // _REMOTE if remote else 0
    remembered_bytes = fetched_bytes // _REMEMBERED
    coming_bytes = (fetched_bytes - 2 * remembered_bytes) // 2
    return Budget(
        cache_bytes=spare - fetched_bytes,
        open_bytes=open_bytes,
        fetched_bytes=fetched_bytes - 2 * remembered_bytes - coming_bytes,
        coming_bytes=coming_bytes,
        remembered_bytes=remembered_bytes,
        share_bytes=(budget_bytes - spare - open_bytes) // lanes,
        need=need,
    )
