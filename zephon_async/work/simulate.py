"""How well rows are mixed, told from the plan alone: no row is read.

`simulate` draws row numbers as the lanes of a run would, permutes them in windows as `shuffle(buffer_size)` would, and compares
the steps that come of it with those of a uniform permutation of the data.

Displacement is Spearman's footrule: how far rows are from where they lie in storage, as a share of how far a uniform permutation
moves them on average (Diaconis, Graham, "Spearman's footrule as a measure of disarray", 1977). It sees the long range: 0 is the
order of storage, and permuted units alone make it about 1. What they leave, neighbours that come together, is seen by the other.

Variety is how many rows, drawn uniformly, would tell as much as the rows of a step, as a share of these. Rows that lie near one
another in storage are taken to be alike, as they are in crawls, books and sorted tables: with p the share of pairs of a step that
are near, and q what it is in a uniform permutation, (p - q) / (1 - q) is the correlation within a step, and a step of n rows is
worth n / (1 + (n - 1) * correlation) of them (the design effect; Kish, "Survey sampling", 1965). 1 is a uniform permutation; at
0.1 the gradient of a step of 512 rows is, in what neighbours have in common, as noisy as one of 51.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon_async.checks import checks_call, whole
from zephon_async.errors import RecipeError
from zephon_async.io import FROM_START
from zephon_async.operators import Shuffle, window_order
from zephon_async.records import Part
from zephon_async.work.base import Plan, WorkSource
from zephon_async.work.plan import DatasetPlan


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """What a window of `buffer_size` rows (1: none) makes of the first `rows` rows of a run: see the module."""

    buffer_size: int
    rows: int
    displacement: float
    variety: float


@checks_call
def simulate(
    source: WorkSource,
    *,
    buffer_sizes: Sequence[int] = (1, 256, 1024, 4096, 16384),
    lanes: int = 1,
    rows_per_step: int = 512,
    block_size: int = 1,
    rows: int = 1 << 18,
    near: int = 1000,
    row_bytes: int = 2000,
) -> list[ShuffleQuality]:
    """Tell how well the rows of a source are mixed, for each size of a shuffle's window.

    buffer_sizes, block_size: as of `shuffle`, in rows of the datasets: behind packing, rows of k documents count k times.
    lanes, rows_per_step: of the run; rows of a global batch, as many of each lane.
    rows: how many are drawn at most, of all lanes.
    near: rows that lie no further apart in storage are taken to be alike; a tenth of the rows of a dataset at most.
    row_bytes: of a row where rows are not counted. Else all rows of a dataset are taken to be of their mean size.

    The variety of the 1,048,576 rows of 8 shards, in units of 8,192 and row blocks of 512 rows (16 MiB and 1 MiB of rows of 2 KB):

        shuffle of the source  lanes  buffer_size 1  1,024  4,096  16,384
        "units"                    8           0.02   0.02   0.04    0.14
        "units"                   64           0.14   0.14   0.33    1.00
        "blocks"                   8           0.02   0.03   0.12    0.37
        "blocks"                  64           0.13   0.23   0.61    1.00
        "rows"                     8           0.99

    So lanes mix as well as windows do, and a window must hold several of the pieces that the source permutes before it tells.
    Displacement is between 0.94 and 1.1 in all of these, and 0 to 0.02 of one lane and shuffle=False.

    Raises `RecipeError` for settings that cannot be meant, and as the start of a run does for data that cannot be planned.
    """
    named = {"lanes": lanes, "rows_per_step": rows_per_step, "rows": rows, "near": near, "row_bytes": row_bytes}
    lanes, rows_per_step, rows, near, row_bytes = (whole(name, value, 1) for name, value in named.items())
    if rows_per_step % lanes:
        raise RecipeError(f"rows_per_step={rows_per_step} is not a multiple of lanes={lanes}: a step has as many rows of each lane")
    plan = source.plan([dataset.catalog() for dataset in source.datasets], {}, lanes)
    sizes = [_row_bytes(dataset, source.unit, row_bytes) for dataset in plan.datasets]
    drawn = [_drawn(plan, lane, -(-rows // lanes), sizes, row_bytes) for lane in range(lanes)]
    lengths = np.array([_rows(dataset, row_bytes) for dataset in plan.datasets])
    found = []
    for size in buffer_sizes:
        size = Shuffle(size, seed=source.seed, block_size=block_size).buffer_size  # which checks them
        mixed = [each[window_order(len(each), size, block_size, source.seed, lane, 0)] for lane, each in enumerate(drawn)]
        steps = _steps(mixed, rows_per_step // lanes)
        found.append(ShuffleQuality(size, steps[..., 0].size, _displacement(steps, lengths), _variety(steps, lengths, near)))
    return found


def _rows(dataset: DatasetPlan, row_bytes: int) -> int:
    """Rows of a dataset, about where they are not counted."""
    return dataset.length if dataset.catalog.measure == "rows" else -(-dataset.length // row_bytes)


def _row_bytes(dataset: DatasetPlan, unit: str, row_bytes: int) -> int:
    """The size of each row, in the plan's unit."""
    if unit == "samples":
        return 1
    return max(1, dataset.catalog.bytes // max(1, _rows(dataset, row_bytes)))


def _drawn(plan: Plan, lane: int, rows: int, sizes: Sequence[int], row_bytes: int) -> npt.NDArray[np.int64]:
    """The first rows of a lane, int64[n, 2]: the dataset, and the row in the order of storage."""
    draw, places = plan.draw(lane), dict[int, npt.NDArray[np.int64]]()
    lengths = [dataset.catalog.units["length"] for dataset in plan.datasets]
    before = [np.cumsum(each) - each for each in lengths]  # each unit, in storage
    runs = [np.empty((0, 2), np.int64)]
    while rows and not draw.done:
        for d, epoch, part in draw.missing():
            places[d], last = _places(plan.datasets[d], part, epoch, int(before[d][part.unit]), row_bytes)
            draw.supply(d, np.full(len(places[d]), sizes[d]), last)
        for run in draw.take(rows):
            taken = places[run.dataset][run.start : run.stop]
            runs.append(np.stack([np.full_like(taken, run.dataset), taken], axis=1))
            rows -= len(taken)
    return np.concatenate(runs)


def _places(dataset: DatasetPlan, part: Part, epoch: int, before: int, row_bytes: int) -> tuple[npt.NDArray[np.int64], bool]:
    """The rows of a part by their place in storage, as the plan orders them; and whether its unit has no other part.

    before: rows or bytes before the unit.
    """
    units = dataset.catalog.units
    if dataset.catalog.measure == "rows":
        return before + part.block * int(units["block"][part.unit]) + dataset.order(part, epoch), False
    first, stop = (-(-(before + edge) // row_bytes) for edge in (part.start, part.stop))
    return np.arange(first, stop), bool(units["entry"][part.unit] == FROM_START)


def _steps(lanes: Sequence[npt.NDArray[np.int64]], of_lane: int) -> npt.NDArray[np.int64]:
    """Rows by steps, int64[steps, rows, 2], of those that every lane fills. Raises `RecipeError` where there is none."""
    steps = min(map(len, lanes)) // of_lane
    if not steps:
        raise RecipeError(
            f"there is not one whole step of {of_lane:,} rows of each of {len(lanes)} lanes: use fewer lanes or a smaller "
            "rows_per_step"
        )
    whole_steps = [each[: steps * of_lane].reshape(steps, of_lane, 2) for each in lanes]
    return np.concatenate(whole_steps, axis=1)


def _displacement(steps: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> float:
    """Spearman's footrule over its expectation, of the rows of each dataset by their number in its epoch."""
    moved = expected = 0.0
    dataset, place = steps.reshape(-1, 2).T
    for d, length in enumerate(lengths.tolist()):
        if len(mine := place[dataset == d]):
            at = np.arange(len(mine)) % length / length
            moved += float(np.abs(mine / length - at).sum()) * length
            expected += float((at**2 + (1 - at) ** 2).sum()) / 2 * length
    return moved / expected


def _variety(steps: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], near: int) -> float:
    """The share of rows that count, by pairs of rows of a step that are near one another."""
    count, rows, _ = steps.shape
    if rows == 1:
        return 1.0
    dataset, place = steps[..., 0], steps[..., 1]
    reach = np.minimum(near, np.maximum(lengths // 10, 1))
    stride = int((lengths + reach).max()) + 1  # so that neither steps nor datasets are near one another
    keys = ((np.arange(count)[:, None] * len(lengths) + dataset) * stride + place).reshape(-1)
    close = float(np.sort(keys).searchsorted(keys + reach[dataset.reshape(-1)], "right").sum())
    close -= len(keys) * (len(keys) + 1) / 2  # what is not behind a row
    pairs = count * rows * (rows - 1) / 2
    of_dataset = np.stack([(dataset == d).sum(axis=1) for d in range(len(lengths))], axis=1)
    within = (of_dataset * (of_dataset - 1) / 2).sum(axis=0)
    reach = np.minimum(reach, lengths - 1)
    chance = reach * (2 * lengths - reach - 1) / np.maximum(lengths * (lengths - 1), 1)
    by_chance = float((within * chance).sum()) / pairs
    correlation = max(0.0, (close / pairs - by_chance) / (1 - by_chance)) if by_chance < 1 else 0.0
    return float(1 / (1 + (rows - 1) * correlation))
