"""The traffic of one lane: draw a chunk, hand it to the workers, take results back in order, accumulate, put out microbatches.

One task draws and submits; one task a link takes the results in the order of their numbers, whatever the order in which they
finish, and runs the serial half on a worker, one call at a time. Neither does any work on the loop itself.

Threads: all on the engine's loop, except `parked`: the lane sets it before it looks at what is ready, under the run's lock, and the
consumer reads it after it has taken something under the same lock and left it. Whoever comes second sees what the first one did,
so no wake-up is missed; one too many does no harm.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from zephon_async.engine.ahead import Ahead, Standing
from zephon_async.engine.blame import noted
from zephon_async.engine.budget import Budget
from zephon_async.engine.compile import Chain
from zephon_async.engine.dry import Dry
from zephon_async.engine.gather import Chunk
from zephon_async.engine.in_processes import run_in_processes
from zephon_async.engine.line import Line, Made, Submitted
from zephon_async.engine.run import Ready, Run
from zephon_async.engine.serial import Fed, Given
from zephon_async.engine.stage import Stateless
from zephon_async.engine.stats import Books
from zephon_async.engine.unfit import Unfit
from zephon_async.io import Blocks
from zephon_async.lanes import Cursor, Draw, Trail
from zephon_async.loops import LoopThread
from zephon_async.options import Options
from zephon_async.records import Block, End, Parcel, Pick, Skipped
from zephon_async.runners import Need, ProcessRunner, Runner, deliverable
from zephon_async.work import Plan

T = TypeVar("T")
Place: TypeAlias = tuple[int, int, int]  # dataset, unit and row block


_MOST_SKIPPED = 4096  # bad records of a chunk: whether there are too many is judged behind it


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What the lanes of a run share."""

    run: Run
    plan: Plan
    chain: Chain
    options: Options
    runner: Runner
    processes: ProcessRunner | None
    users: LoopThread
    blocks: Blocks
    limits: dict[int, asyncio.Semaphore]  # by id of a stage with a parallelism of its own
    books: Books
    budget: Budget


class Lane:
    """One lane of a run."""

    def __init__(self, number: int, cursor: Cursor, shared: Shared) -> None:
        self.number, self._shared = number, shared
        self._begins = cursor.draw
        self._draw: Draw | None = None  # made with the first chunk, where what it raises has a place
        self._index: dict[int, npt.NDArray[np.integer]] = {}
        self._unfit = Unfit(shared.plan)
        self._trail = Trail(cursor, shared.chain.passing)
        self._serials = shared.chain.serials(number, cursor)
        self._dry = Dry(number, shared.chain, shared.plan.rule.turn) if shared.plan.rule.epochs is None else None
        self._lines = [Line() for _ in self._serials]
        self.made = cursor.out // shared.chain.microbatch_size  # microbatches made so far, over the whole run
        self.wanted = 0  # microbatches that must be made whatever is ready
        self.over = False
        self._held = [0] * len(self._serials)
        self._window = [0] * len(self._serials)
        self._in_flight = 0
        self._pushed = self._given = 0  # chunks that went through the first link, and rows that came out of the last
        self._flying_bytes = 0  # of parcels between a stateless stage and the serial half behind it
        self._pinned: dict[int, int] = {}  # how many chunks that are not gathered yet hold a row block, by id
        self._pinned_bytes = 0
        self._ungathered = 0
        self._pins = 0  # bytes of the row blocks of the last chunk
        self._largest = 0  # of the parcels that chunks became lately
        self._wake = asyncio.Event()
        self.parked = False
        self.progress: Callable[[], None] = lambda: None
        self._most_in_flight = shared.runner.workers + 1
        streams = len(shared.run.topology.owned) * len(shared.plan.datasets)
        returns = [dataset.by_rows for dataset in shared.plan.datasets]
        self._ahead = Ahead(number, shared.blocks, shared.options.read_ahead, streams, returns)
        self._ahead_rows = shared.budget.need.ahead_rows

    async def work(self) -> None:
        """Until the data ends, an error is put in its place, or the run is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._feeding = tasks.create_task(self._feed(tasks), name=f"lane {self.number} feed")
            for j in range(len(self._serials)):
                tasks.create_task(self._collect(j, tasks), name=f"lane {self.number} collect {j}")

    def wake(self) -> None:
        """Look again whether there is room."""
        self._wake.set()

    @property
    def held_bytes(self) -> int:
        """Bytes of this lane: row blocks that it needs now, parcels, what accumulators hold. What is ready belongs to the run."""
        return self._pinned_bytes + self._flying_bytes + sum(self._held)

    # -- drawing -------------------------------------------------------------------------------------------------------------

    async def _feed(self, tasks: asyncio.TaskGroup) -> None:
        end = False
        while not end:
            await self._room()
            chunk = await self._chunk()
            self._in_flight += 1
            self._pin(chunk, 1)
            end = chunk.end is End.RUN or chunk.failure is not None
            behind = None if chunk.failure is not None or self._draw is None else self._draw.coordinates
            at = perf_counter()
            need = self._need(self._in_flight - 1)
            self._lines[0].put(Submitted(tasks.create_task(self._gathered(chunk, need, at)), behind, at))

    async def _room(self) -> None:
        """Wait until another chunk may be drawn."""
        while True:
            self.parked = True
            self._wake.clear()
            if self._may_feed():
                self.parked = False
                return
            await self._wake.wait()

    def _may_feed(self) -> bool:
        ready, ready_bytes = self._shared.run.ready(self.number)
        must = self.made < self.wanted
        if self._in_flight == 0 and (ready == 0 or must):
            return True
        if self._in_flight >= self._most_in_flight:
            return False
        ahead = ready * self._shared.chain.microbatch_size + sum(self._window)
        coming = (self._ungathered + 1) * self._largest + self._pins
        return (must or ahead < self._ahead_rows) and self.held_bytes + ready_bytes + coming <= self._share_bytes

    async def _chunk(self) -> Chunk:
        options, plan = self._shared.options, self._shared.plan
        picks: list[Pick] = []
        skipped: list[Skipped] = []
        blocks: dict[Place, Block] = {}
        picked: dict[Place, int] = {}  # row blocks that the chunk holds, and their bytes
        try:
            if self._draw is None:
                self._draw = plan.draw(self.number, self._begins)
                self._asked = self._draw.asked
            draw = self._draw
            begin = draw.number
            want = most = min(self._chunk_rows(), options.flush_every - begin % options.flush_every)
            room = self._room_of_chunk()
            while want and not draw.done and len(skipped) < _MOST_SKIPPED:
                skipped += await self._supply(draw, blocks, most - want)
                fits = not self._shared.blocks.forgets or self._needed_bytes(picked) <= room
                if not fits:  # what is only needed later need not be held until then
                    blocks = {key: block for key, block in blocks.items() if key in picked}
                    if picks and self._too_much(draw.next, picked, room):
                        break
                for run in draw.take(want, None if fits else 1):
                    block = await self._block(run.dataset, run.part.unit, run.part.block, blocks)
                    picked[run.dataset, run.part.unit, run.part.block] = block.nbytes
                    index = self._index[run.dataset][run.start : run.stop]
                    picks.append(Pick(run.dataset, run.epoch, block, index))
                    stop = run.stop + (run.stop == len(self._index[run.dataset]))  # with those behind the last row of a part
                    skipped += self._unfit.between(run.dataset, run.start, stop, most - want)
                    self._shared.books.drawn[run.dataset] += run.size
                    want -= len(index)
            if plan.changes is not None:
                self._shared.books.asked[self.number] = [now - then for now, then in zip(draw.asked, self._asked, strict=True)]
            at_end = draw.number > begin and draw.number % options.flush_every == 0
            while at_end and draw.missing():  # an end of the run is not also one of a segment
                skipped += await self._supply(draw, blocks, most - want)
                draw.take(0)
        except Exception as error:
            row = 0 if self._draw is None else self._draw.number
            noted(error, f"while lane {self.number} read for row {row}")
            return Chunk(picks, failure=deliverable(error), skipped=skipped)
        end = End.RUN if draw.done else End.SEGMENT if at_end else End.NOTHING
        return Chunk(picks, end, skipped=skipped, drawn=draw.drawn if end is not End.NOTHING else ())

    @property
    def _share_bytes(self) -> int:
        """Bytes that this lane may hold: its share of what worker processes do not."""
        shared = self._shared
        arenas = 0 if shared.processes is None else shared.processes.held_bytes
        return shared.budget.share_bytes - arenas // len(shared.run.topology.owned)

    def _room_of_chunk(self) -> int:
        """Bytes of row blocks that the next chunk may hold, if it is to hold more than one: of many datasets each has one."""
        left = self._share_bytes - self.held_bytes - self._shared.run.ready(self.number)[1]
        return max(self._pins if self._in_flight else 0, left - (self._ungathered + 1) * self._largest)

    def _needed_bytes(self, picked: dict[Place, int]) -> int:
        """Bytes of the row blocks that a chunk holds, and of those that its datasets stand in now."""
        coming = sum(now.nbytes for d, now in self._ahead.standing.items() if (d, *now[:2]) not in picked)
        return sum(picked.values()) + coming

    def _too_much(self, d: int | None, picked: dict[Place, int], room: int) -> bool:
        """Whether a chunk would hold too much with the row block that the next row is in."""
        if d is None or (d, *self._ahead.standing[d][:2]) in picked:
            return False
        return sum(picked.values()) + self._ahead.standing[d].nbytes > room

    def _chunk_rows(self) -> int:
        """Rows of the next chunk."""
        return min(self._shared.budget.need.chunk_rows, self._shared.books.pace.next())

    async def _supply(self, draw: Draw, blocks: dict[Place, Block], at: int) -> list[Skipped]:
        """Tell the draw the sizes of the parts that it stands before; gives the bad records of those that have no others."""
        skipped: list[Skipped] = []
        missing = draw.missing()
        microbatch, lane = self._need(self._in_flight)
        later = (microbatch + 1, lane)  # behind the chunk that is drawn now
        for d, _, part in missing:
            if (d, part.unit, part.block) not in blocks:
                self._ahead.need(draw, d, part, later)
        for d, epoch, part in missing:
            block = await self._block(d, part.unit, part.block, blocks)
            index: npt.NDArray[np.integer] = self._shared.plan.datasets[d].select(part, epoch, block)
            if self._shared.chain.policy.quarantine:
                index = self._unfit.without(d, epoch, part, block, index)
            self._index[d] = index.astype(np.int32)
            draw.supply(d, block.sizes[index], block.last)
            if not len(index):
                skipped += self._unfit.between(d, 0, 1, at)
            self._ahead.stand(draw, d, Standing(part.unit, part.block, epoch, block.nbytes), later)
        return skipped

    async def _block(self, d: int, unit: int, number: int, blocks: dict[Place, Block]) -> Block:
        key = (d, unit, number)
        if key not in blocks:
            began = perf_counter()
            blocks[key] = await self._shared.blocks.get(d, unit, number)
            self._shared.books.stuck["storage"] += self._lines[0].starved(began)
        return blocks[key]

    # -- the links -----------------------------------------------------------------------------------------------------------

    def _need(self, ahead: int) -> Need:
        """How soon the work behind `ahead` chunks of this lane is needed: the microbatch that it is expected to begin with."""
        size = self._shared.chain.microbatch_size
        given = self._given / self._pushed if self._pushed else self._ahead_rows
        return self.made + int(ahead * given + sum(self._window)) // size, self.number

    async def _gathered(self, chunk: Chunk, need: Need, at: float) -> Made:
        """The first stateless stage, of a chunk whose row blocks stay in memory until it is gathered."""
        made = await self._stateless(0, chunk, need, at)
        self._pin(chunk, -1)
        self._largest = max(made.parcel.nbytes, self._largest * 7 // 8)
        return made

    def _pin(self, chunk: Chunk, by: Literal[1, -1]) -> None:
        """A chunk holds its row blocks, or lets them go."""
        self._ungathered += by
        self._pins = 0
        for key, block in {id(pick.block): pick.block for pick in chunk.picks}.items():
            size, before = block.nbytes, self._pinned.pop(key, 0)
            self._pins += size
            if before + by:
                self._pinned[key] = before + by
            if not before or not before + by:
                self._pinned_bytes += by * size

    async def _stateless(self, j: int, work: Chunk | Parcel, need: Need, at: float) -> Made:
        """The stateless stage of link j, which could have begun at a time."""
        try:
            parcel = await self._stages(j, work, need, at)
        except Exception as error:  # of the runner itself
            parcel = Parcel(None, work.end, deliverable(error))
        self._flying_bytes += parcel.nbytes
        return Made(parcel, perf_counter())

    async def _stages(self, j: int, work: Chunk | Parcel, need: Need, at: float) -> Parcel:
        link, books = self._shared.chain.links[j], self._shared.books
        given, took_s = 0, 0.0
        for stage, meter in zip(link.stages, books.stages[j], strict=True):
            limit = self._shared.limits.get(id(stage))
            rows = sum(len(pick.rows) for pick in work.picks) if isinstance(work, Chunk) else len(work)
            if limit is None:
                work, busy_s = await self._one(stage, work, need)
            else:
                async with limit:
                    work, busy_s = await self._one(stage, work, need)
            assert isinstance(work, Parcel)
            began, at = at, perf_counter()
            meter.add(rows, work.nbytes, busy_s, at - began - busy_s)
            given, took_s = given or rows, took_s + busy_s
        if j == 0:
            books.pace.add(given, took_s)
        assert isinstance(work, Parcel)
        return work

    async def _one(self, stage: Stateless, work: Chunk | Parcel, need: Need) -> tuple[Parcel, float]:
        if stage.portable is not None:
            assert isinstance(work, Parcel)
            assert self._shared.processes is not None
            return await run_in_processes(self._shared.processes, stage, work, need)
        if not stage.concurrent:
            return await self._shared.runner.submit(partial(_timed, partial(stage.run, work)), (*need, 1))
        assert isinstance(work, Parcel)
        began = perf_counter()
        done = await asyncio.wrap_future(self._shared.users.submit(stage.run_async(work)))
        return done, perf_counter() - began

    async def _collect(self, j: int, tasks: asyncio.TaskGroup) -> None:
        """The serial half of link j, until its input ends."""
        books, serial, over = self._shared.books, self._serials[j], False
        while not over:
            began = perf_counter()
            submitted = await self._lines[j].get()
            made = [each.result.result() for each in submitted]
            fed = [Fed(parcel, each.behind) for (parcel, _), each in zip(made, submitted, strict=True)]
            nbytes = sum(parcel.nbytes for parcel, _ in fed)
            there = max(began, made[0].at)
            given, busy_s = await self._shared.runner.submit(partial(_timed, partial(serial.run, fed)), (*self._need(0), 0))
            took = perf_counter() - there
            books.stuck["workers"] += there - max(began, submitted[0].at)
            books.stuck["accumulators"] += took
            books.serials[j].add(sum(len(parcel) for parcel, _ in fed), nbytes, busy_s, took - busy_s)
            self._in_flight += len(given.out) - len(fed)
            self._flying_bytes -= nbytes
            self._held[j], self._window[j] = given.held_bytes, given.held_rows
            over = self._take_in(j, len(fed), given, tasks)
            self._wake.set()
            self.progress()
        if j == 0:
            self._feeding.cancel()

    def _take_in(self, j: int, fed: int, given: Given, tasks: asyncio.TaskGroup) -> bool:
        """Book what a serial half gave; gives whether that was the last of it."""
        run, chain = self._shared.run, self._shared.chain
        for i, edge in given.edges:
            self._trail.edge(i, edge)
        for i, marks in given.marks:
            self._trail.marks(i, marks)
        for parcel, behind in given.out:
            at = perf_counter()
            task = tasks.create_task(self._stateless(j + 1, parcel, self._need(0), at))
            self._lines[j + 1].put(Submitted(task, behind, at))
        if j == 0:
            self._pushed += fed
        self._given += chain.microbatch_size * len(given.microbatches)
        for microbatch in given.microbatches:
            self.made = microbatch.number + 1
            if run.keeps(self.number, microbatch.number):
                cursor = self._trail.cursor(self.made * chain.microbatch_size)
                records = microbatch.records
                ready = Ready(microbatch.number, records, microbatch.filled, cursor, microbatch.nbytes, microbatch.skipped)
                if not run.put(self.number, ready):
                    given.tally["rows_left"] += len(records)
        if run.keeps(self.number, self.made):
            run.skipped_behind(given.skipped)
        else:
            given.tally.pop("rows_left", None)  # of a lane that another rank works too, which counts them
        self._shared.books.counts.update(given.tally)
        if self._dry is not None:
            given.failure = given.failure or self._dry.look(j, given, self._shared.books.counts)
        over = given.failure is not None or given.end is End.RUN
        if over and chain.links[j].last:
            self.over = True
            if given.failure is not None:
                run.lane_failed(self.number, given.failure)
            else:
                run.lane_ended(self.number, self.made)
        return over


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    began = perf_counter()
    result = call()
    return result, perf_counter() - began
