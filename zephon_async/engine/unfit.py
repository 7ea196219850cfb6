"""The bad records of the parts that a lane stands in: they have no place in the draw, and are left out between its rows.

Threads: belongs to one lane, on the engine's loop.
"""

import numpy as np
import numpy.typing as npt

from zephon_async.engine.gather import reason_of, sound
from zephon_async.records import Block, Part, Skipped
from zephon_async.work import Plan


class Unfit:
    """By dataset; `at` of each is how many sound rows of the part come before it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._of: dict[int, list[Skipped]] = {}

    def without(self, d: int, epoch: int, part: Part, block: Block, index: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """The rows of a part (numbers in its block) that are not bad; of a block that cannot be read the part is one bad record."""
        if block.lost:
            catalog = self._plan.datasets[d].catalog
            in_rows = catalog.measure == "rows"
            row = int(catalog.units["first" if in_rows else "start"][part.unit]) + part.start
            rows = part.stop - part.start if in_rows else 0
            self._of[d] = [Skipped(0, (d, block.shard, row, epoch, 0), block.lost, rows, drawn=False)]
            return index
        index, bad = sound(block, index)
        self._of[d] = []
        for at, number in bad:
            error, origin = block.bad[number], (d, block.shard, int(block.rows[number]), epoch, 0)
            self._of[d].append(Skipped(at, origin, reason_of(error), start=getattr(error, "start", b""), drawn=False))
        return index

    def between(self, d: int, start: int, stop: int, at: int) -> list[Skipped]:
        """Those before sound rows `start:stop` of the part, of which the first stands behind `at` rows of a chunk."""
        return [each._replace(at=at + each.at - start) for each in self._of.get(d, ()) if start <= each.at < stop]
