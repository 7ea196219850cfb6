"""How many steps there are, of data that ends.

When the consumer asks for the first microbatch of a step, the ranks agree whether all of them have it, and not a step ahead: how
often a rank has called `agree` must follow from what its consumer has asked for and from nothing else, so that ranks which leave
an iteration early at the same place and begin another one stay in step. A rank that is alone need not wait to be asked for what is
made already.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from zephon_async.engine.dry import no_step
from zephon_async.engine.lane import Lane
from zephon_async.engine.run import Run
from zephon_async.engine.stats import Books
from zephon_async.options import Options

_log = logging.getLogger("zephon_async")


class Steps:
    """Decides one step after the other. Threads: all on the engine's loop."""

    def __init__(
        self,
        run: Run,
        lanes: Sequence[Lane],
        options: Options,
        books: Books,
        microbatch_size: int,
        agreed: Callable[[int, bool], Awaitable[int]] | None,
    ) -> None:
        """agreed: (step, whether this rank has it) -> how many steps all have; None: this rank is alone."""
        self._run, self._lanes, self._books = run, lanes, books
        self._pads, self._prefetch, self._size = options.on_end == "pad", options.prefetch, microbatch_size
        self._agreed = agreed
        self._step, self._enough = run.first_step, 0  # the step in question, and the microbatches of a lane up to its end
        self._changed = asyncio.Event()
        for lane in lanes:
            lane.progress = self._changed.set

    async def decide(self) -> tuple[int, Exception | None]:
        """Until the first step that there is not, which it gives, with the error where the ranks could not agree."""
        while True:
            self._enough = (self._step + 1) * self._run.topology.per_lane
            await self._until(lambda: self._asked() or (self._agreed is None and self._there() and not self._run.failing))
            if self._asked():
                self._want()
            await self._until(self._there)
            try:
                steps = self._step + self._has() if self._agreed is None else await self._agreed(self._step, self._has())
            except Exception as error:
                return self._step, error
            if steps <= self._step:
                await self._end()
                return self._step, None
            self._step += 1
            self._run.decide(self._step, final=False)

    async def _end(self) -> None:
        """Count what is left over; no lane is read through only for that."""
        self._books.counts.update({"rows_left": self._run.leave_from(self._step)})
        self._enough += self._prefetch
        self._want()
        await self._until(self._there)
        if not self._step:
            _log.warning(no_step(self._run.topology, self._size, self._books))

    def _asked(self) -> bool:
        return self._run.asked >= self._step

    def _there(self) -> bool:
        return all(lane.over or lane.made >= self._enough for lane in self._lanes)

    def _has(self) -> bool:
        """Whether this rank has the step; with a lane that has failed it has, and gives the error in its place."""
        if self._pads:
            begun = self._step * self._run.topology.per_lane
            return any(lane.made > begun for lane in self._lanes) or self._run.failing
        return all(lane.made >= self._enough for lane in self._lanes) or self._run.failing

    def _want(self) -> None:
        """Let every lane make the step, whatever is ready."""
        for lane in self._lanes:
            lane.wanted = self._enough
            lane.wake()

    async def _until(self, so: Callable[[], bool]) -> None:
        while not so():
            self._changed.clear()
            await self._changed.wait()
