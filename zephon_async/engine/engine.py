"""The engine: one long-lived event loop in a thread of its own, where all waiting happens, and the workers it feeds.

It runs one `Run` at a time: the one before has ended, with all its tasks, before the next begins. It holds no reference to the
pipeline, so a pipeline that is dropped is closed by its finalizer; one closer at interpreter exit stops the engines that are left,
in bounded time, and starts nothing.

Threads: `_lock` guards what is asked for (`_run`, `_request`) and the start; it is re-entrant, since a signal may come in between.
`close_soon` takes no lock at all: a finalizer runs inside any code, also inside ours. `_closed`, `_patience_s` and `_loop` are
plain values that it may write or read. All else of a run is written on the loop's thread; `statistics` reads it from any, one value
at a time. `_registry` guards `_engines`.
"""

import asyncio
import atexit
import contextvars
import logging
import threading
from collections.abc import Callable, Mapping
from time import monotonic, perf_counter

from zephon_async.engine.agreement import GlooAgreement, agreed
from zephon_async.engine.bad_records import BadRecords
from zephon_async.engine.budget import Budget
from zephon_async.engine.compile import Chain
from zephon_async.engine.lane import Lane, Shared
from zephon_async.engine.placement import warn_of_the_gil
from zephon_async.engine.run import Run, held_here, lets_go
from zephon_async.engine.stats import Books, Consumed, Statistics
from zephon_async.engine.steps import Steps
from zephon_async.errors import ClosedError, WorkerError
from zephon_async.forks import tell_of_forks
from zephon_async.io import Access, Blocks, Fetcher, Reader, Spill
from zephon_async.lanes import Cursor, Start
from zephon_async.loops import LoopThread, begin, new_loop
from zephon_async.options import Options
from zephon_async.records import Block
from zephon_async.runners import RUNNERS, Need, ProcessRunner, ThreadRunner
from zephon_async.work import Plan

_log = logging.getLogger("zephon_async")
CLOSE_S = 5.0  # that workers are waited for
HURRY_S = 1.0  # the same where the program is on its way out
_NEWER = (
    "a newer iteration over this pipeline has begun; to share one among tasks or threads, let them all take from one iterator: "
    "it = aiter(pipeline), or iter(pipeline)"
)
_MORE_S = 1.0  # what closing takes besides

_registry = threading.Lock()
_engines: "set[Engine]" = set()  # those whose thread runs


class Engine:
    """Runs what a pipeline was compiled to."""

    def __init__(
        self, options: Options, chain: Chain, plan: Plan, reader: Reader, budget: Budget, access: Access, users: LoopThread
    ) -> None:
        self._runner = RUNNERS["inline" if options.runner == "inline" else "threads"](options.workers)
        self._options, self.chain, self._plan, self._reader, self._budget = options, chain, plan, reader, budget
        self._processes: ProcessRunner | None = None
        if chain.by_processes:
            self._processes = ProcessRunner(options.workers, self._row_name, options.worker_timeout_s)
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()
        self._closed = False
        self._patience_s = CLOSE_S
        self._run: Run | None = None
        self._request: tuple[Run, Mapping[int, Cursor], bool] | None = None
        self._blocks: Blocks | None = None
        self._fetcher: Fetcher | None = None
        self._lanes: list[Lane] = []
        self._access, self._users = access, users
        self._gloo = GlooAgreement(options) if options.agree is None and options.dp_size > 1 else None
        self._agree: ThreadRunner | None = None
        self._abandoned: list[str] = []
        self._bad_records: BadRecords | None = None
        if options.bad_records_dir is not None:
            self._bad_records = BadRecords(options.bad_records_dir, options.dp_rank, chain.policy.names)
        self._books = self._new_books()
        self._began = perf_counter()
        tell_of_forks(self)

    # -- called by any thread ------------------------------------------------------------------------------------------------

    @lets_go
    def begin(self, run: Run, begins: Start, finite: bool) -> None:
        """Start a run; one that is under way ends with `ClosedError` for whoever still iterates it.

        With data that ends, the first run joins the ranks: a collective, which may wait for them, so no lock is held.
        """
        if finite and self._gloo is not None and not self._closed:
            self._gloo.join()
        with self._lock:
            if self._closed:
                if self._gloo is not None and self._thread is None:
                    self._gloo.leave()
                raise ClosedError("the pipeline is closed; make a new one (a forked process needs its own)")
            run.tell_of_skipped(self._bad_records)
            if self._bad_records is not None and not self._options.dp_rank:
                self._bad_records.write_lost([dataset.catalog.lost for dataset in self._plan.datasets])
            before, self._run = self._run, run
            self._request = (run, dict(begins.cursors), finite)
            if before is not None:
                before.fail(ClosedError(_NEWER))
            if self._thread is None:
                self._start()
        self._ask()

    @lets_go
    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Stop everything and wait for it, up to `timeout_s` and a second. Threads inside code that does not return are left.

        Nothing is waited for by a signal handler that has come upon its own thread inside a lock: the engine needs it to end.
        """
        inside = held_here(self._lock)
        with self._lock:
            self._closed, run, thread = True, self._run, self._thread
        if run is not None:
            inside = inside or run.inside
            run.fail(ClosedError("the pipeline is closed"))
        self.close_soon(timeout_s)
        if thread is threading.current_thread() or inside:
            return
        left = [*self._access.close(timeout_s), *self._users.close(timeout_s)] if thread is None else []
        if thread is not None:
            thread.join(timeout_s + _MORE_S)
            left, self._abandoned = self._abandoned, []
            if thread.is_alive():
                left.append(thread.name)
        if left:
            _log.warning("closed, but these threads are inside code that does not return: %s", ", ".join(left))

    def forked(self) -> None:
        """In a forked child none of the threads is there, and any lock may be held for ever."""
        global _registry
        _registry = threading.Lock()
        self._lock = threading.RLock()
        self._closed, self._thread, self._users = True, None, LoopThread("zephon-users")
        if self._processes is not None:
            self._processes.forked()
        if self._run is not None:
            self._run.forked()
        _engines.discard(self)

    def close_soon(self, patience_s: float = CLOSE_S) -> None:
        """Stop everything, without waiting for it and without a lock."""
        self._closed = True
        self._patience_s = min(self._patience_s, patience_s)
        if self._loop is None:
            self._reader.close()
            self._access.close_soon()
            self._users.close_soon()
        self._ask()

    def statistics(self, taken: Consumed) -> Statistics:
        """A snapshot of the run under way."""
        held = sum(lane.held_bytes for lane in self._lanes)
        held += sum(
            0 if holder is None else holder.held_bytes
            for holder in (self._blocks, self._run, self._processes, self._access, self._fetcher)
        )
        storage = {}
        if (fetcher := self._fetcher) is not None:
            storage = {**self._access.statistics(), "fetched_twice": fetcher.fetched_twice}
        return self._books.snapshot(taken, perf_counter() - self._began, held, storage)

    def _new_books(self) -> Books:
        links = self.chain.links
        stages = [[stage.name for stage in link.stages] for link in links]
        names = [dataset.catalog.dataset for dataset in self._plan.datasets]
        books = Books(stages, [link.name for link in links], names, self._plan.weights, self._plan.ratios)
        if lost := sum(len(dataset.catalog.lost) for dataset in self._plan.datasets):
            books.counts["shards_left_out"] = lost
        return books

    def _start(self) -> None:
        loop = new_loop()
        target = contextvars.Context().run
        thread = threading.Thread(target=target, args=(self._serve, loop), name="zephon-engine", daemon=True)
        try:
            begin(thread)  # it waits for the lock that is held here
        except WorkerError:
            loop.close()
            raise
        self._loop, self._thread = loop, thread
        with _registry:
            _engines.add(self)

    def _ask(self) -> None:
        """Let the loop look what is asked for."""
        if self._loop is not None:
            _call_on(self._loop, self._asked.set)

    # -- on the loop's thread ------------------------------------------------------------------------------------------------

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        failure: BaseException = ClosedError("the pipeline is closed")
        try:
            loop.run_until_complete(self._main())
        except BaseException as error:
            failure = error
        finally:
            with self._lock:
                self._closed, run = True, self._run
            if run is not None:
                run.fail(failure)
            if tasks := asyncio.all_tasks(loop):  # reads that nobody waits for any more
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks))
            self._access.close_soon()  # workers may wait for it
            if self._processes is not None:
                self._processes.close(self._patience_s)
            self._abandoned += self._runner.close(self._patience_s)
            if self._agree is not None:
                self._abandoned += self._agree.close(0.1)
            if self._gloo is not None:
                self._gloo.leave()
            for thread in (self._access, self._users):
                self._abandoned += thread.close(min(1.0, self._patience_s))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            self._reader.close()
            with _registry:
                _engines.discard(self)

    async def _main(self) -> None:
        """One run after the other, until closed."""
        warn_of_the_gil()
        if self._processes is not None:  # they take the longest to be there
            self._processes.start(asyncio.get_running_loop())
        self._runner.start(asyncio.get_running_loop())
        driving: asyncio.Task[None] | None = None
        while True:
            with self._lock:
                request, self._request = self._request, None
            if driving is not None and (request is not None or self._closed):
                driving.cancel()
                await asyncio.wait([driving])
            if self._closed:
                return
            if request is not None:
                driving = asyncio.create_task(self._drive(*request), name="run")
            await self._asked.wait()
            self._asked.clear()

    async def _drive(self, run: Run, cursors: Mapping[int, Cursor], finite: bool) -> None:
        self._began = perf_counter()
        self._books = self._new_books()
        self._fetcher = self._new_fetcher(run)
        blocks = self._blocks = Blocks(self._reader, self._read, self._budget.cache_bytes, self._fetcher)
        limits = {
            id(stage): asyncio.Semaphore(stage.parallelism)
            for link in self.chain.links
            for stage in link.stages
            if stage.parallelism is not None
        }
        shared = Shared(
            run,
            self._plan,
            self.chain,
            self._options,
            self._runner,
            self._processes,
            self._users,
            blocks,
            limits,
            self._books,
            self._budget,
        )
        loop = asyncio.get_running_loop()
        try:
            self._lanes = [Lane(number, cursors[number], shared) for number in run.topology.owned]
            lanes, first = {lane.number: lane for lane in self._lanes}, self._lanes[0]
            run.on_take(lambda number, waits: _wake(loop, lanes.get(number, first), waits))
            end = None
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(_work(self._lanes, blocks))
                if finite:
                    alone = self._options.agree is None and self._gloo is None
                    agreed = None if alone else self._agreed
                    steps = Steps(run, self._lanes, self._options, self._books, self.chain.microbatch_size, agreed)
                    end = await steps.decide()
                    working.cancel()  # what is made ahead of the end is for nobody
            self._lanes = []  # before the consumer is told
            if end is not None:
                run.decide(end[0], final=True, error=end[1])
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            run.fail(_first(error))
        finally:
            self._lanes = []
            run.on_take(lambda number, waits: None)
            run.let_go()

    def _new_fetcher(self, run: Run) -> Fetcher | None:
        """What fetches remote shards, where there are any."""
        if not any(dataset.store.remote for dataset in self._reader.datasets):
            return None
        owned = frozenset(run.topology.owned)

        def owners(d: int, epoch: int, unit: int) -> int:
            return len(owned.intersection(self._plan.datasets[d].lanes_of(epoch, unit)))

        streams = len(owned) * len(self._plan.datasets)
        budget = self._budget
        return Fetcher(
            self._reader,
            self._access,
            self._runner.submit,
            owners,
            streams,
            budget.fetched_bytes,
            budget.coming_bytes,
            Spill(),
            {d for d, dataset in enumerate(self._plan.datasets) if not dataset.in_units},
        )

    async def _read(self, call: Callable[[], tuple[dict[int, Block], float]], need: Need) -> tuple[dict[int, Block], float]:
        """Read row blocks on a worker, and book it."""
        began = perf_counter()
        found, busy_s = await self._runner.submit(call, need)
        rows, size = sum(len(block.rows) for block in found.values()), sum(block.nbytes for block in found.values())
        self._books.reads.add(rows, size, busy_s, perf_counter() - began - busy_s)
        return found, busy_s

    async def _row_name(self, question: tuple[int, ...]) -> str:
        """What messages call a row; a worker process asks, which does not have the shards."""
        return await self._runner.submit(lambda: self._reader.row_name(*question), (0,))

    async def _agreed(self, step: int, has: bool) -> int:
        """How many steps all ranks have, on a thread of its own: whoever asks waits for the others."""
        agree, pads = self._options.agree or self._gloo, self._options.on_end == "pad"
        assert agree is not None
        if self._agree is None:
            runner = ThreadRunner(1, name="zephon-agree")
            runner.start(asyncio.get_running_loop())
            self._agree = runner
        return await self._agree.submit(lambda: agreed(agree, step, has, pads), (0,))


async def _work(lanes: list[Lane], blocks: Blocks) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            for lane in lanes:
                tasks.create_task(lane.work())
    finally:
        blocks.close()


def _wake(loop: asyncio.AbstractEventLoop, lane: Lane, waits: bool) -> None:
    """On the consumer's thread: it has taken a microbatch of a lane, or `waits` for one."""
    if lane.parked or waits:
        _call_on(loop, _look, lane)


def _look(lane: Lane) -> None:
    lane.wake()
    lane.progress()


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:  # the loop has just closed: nothing is left to be told
        return


def _first(error: BaseException) -> BaseException:
    """The first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _close_all() -> None:
    """At interpreter exit."""
    with _registry:
        left = list(_engines)
    until = monotonic() + HURRY_S
    for engine in left:
        engine.close_soon(HURRY_S)
    for engine in left:
        engine.close(max(0.0, until - monotonic()))


atexit.register(_close_all)
