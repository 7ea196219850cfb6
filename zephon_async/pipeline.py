"""The fluent face: a recipe that grows by one call an operator, and three ways to iterate it.

`Pipeline` knows the operators; no operator knows `Pipeline`. Building it reads nothing. What is needed of the data is found out
at the first of iter(), checkpoint(), restore() and explain(); then the recipe is fixed.

A pipeline is iterated once at a time. `for` and `async for` (asyncio and trio) are thin faces over the same engine; iterating again
begins at the last restored state, else at the start, and ends the iteration before.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import RLock
from typing import Any, Self, get_args

from zephon_async.batch import Batch
from zephon_async.building import Builder
from zephon_async.checkpoints import encoded_states
from zephon_async.checks import checks_call, flag, one_of
from zephon_async.engine import (
    CHOSEN,
    CLOSE_S,
    HURRY_S,
    PLACES,
    Consumed,
    Deadly,
    GlooAgreement,
    Known,
    Run,
    Spec,
    Statistics,
    differences,
    guards,
    lets_go,
    warn_of_changes,
)
from zephon_async.errors import ClosedError, RecipeError
from zephon_async.faces import AsyncBatches, Batches
from zephon_async.forks import tell_of_forks
from zephon_async.io import Access, StorageOptions
from zephon_async.lanes import PartialStep, RankState, Skips, Start, resume, spans
from zephon_async.operators import ValidationReport, fingerprint
from zephon_async.options import Options
from zephon_async.starting import Started, examine, start
from zephon_async.work import WorkSource


@checks_call
class Pipeline(Builder):
    """A loader: a source, operators in their order, and `batch` at the end.

    Every builder method changes this pipeline and gives it back. Settings that cannot be meant raise `RecipeError` at once.

    Threads: `_lock` guards the start, the run under way and the restored state, so any thread may ask for a checkpoint or close. It
    is re-entrant, since a signal may come in between.
    """

    def __init__(self, source: WorkSource) -> None:
        if isinstance(source, type) or not isinstance(source, WorkSource):
            example = "StaticMixtureWorkSource(datasets=[...], mixture={...})"
            raise RecipeError(f"Pipeline() takes a work source, such as {example}, not {source!r:.80}")
        super().__init__(source)
        self._options = Options()
        self._lock = RLock()
        self._started: Started | None = None
        self._facts: Mapping[str, Any] | None = None  # with which the next start is to go on
        self._guards: tuple[bytes, ...] = ()
        self._deadly = Deadly()  # rows that are left out for good; it grows
        self._restored: Start | None = None
        self._skips = Skips()
        self._run: Run | None = None
        self._consumed = Consumed()
        self._closed = False
        self._access: Access | None = None  # of the last start
        tell_of_forks(self)

    # -- building ------------------------------------------------------------------------------------------------------------

    @checks_call
    def options(self, **settings: Any) -> Self:
        """Change settings: see `Options`. Unknown names are refused with the nearest right one."""
        self._still_open("options")
        options = self._options.changed(settings)
        one_of("runner", options.runner, ("auto", *PLACES))
        for name, runner in options.per_stage_runner.items():
            one_of(f"per_stage_runner[{name!r}]", runner, CHOSEN)
        StorageOptions.of(options.io_options)
        self._options = options
        return self

    def _still_open(self, what: str) -> None:
        if self._started is not None:
            raise RecipeError(f"{what}() comes too late: the pipeline has been started; make a new one")

    # -- iterating -----------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        """Iterate from code without an event loop. In a coroutine it works too, but holds the loop while it waits.

        To stop early, `break`; what runs is ended by `close`, by leaving `with`, or with the pipeline, not with the iterator.
        """
        return Batches(*self._begin(), self._consumed, self._skips, self)

    def __aiter__(self) -> AsyncBatches:
        """Iterate from a coroutine, on asyncio or trio."""
        return AsyncBatches(self._begin, self._consumed, self._skips, self._leave)

    def _begun(self, access: Access) -> None:
        """A start reads by this."""
        self._access = access
        if self._closed:
            access.close_soon()

    def _leave(self) -> None:
        """Nobody waits for the start any more."""
        if self._access is not None and self._started is None:
            self._access.leave()

    @lets_go
    def _begin(self) -> tuple[Run, Known]:
        """Start a run where the last restored state says, else at the start."""
        with self._lock:
            if self._source.finite and self._options.dp_size > 1 and self._options.agree is None:
                GlooAgreement(self._options).check()
            started = self._ready()
            known, engine = started.known, started.engine
            begins = self._begins(known)
            run = Run(known.topology, begins, self._source.finite)
            engine.begin(run, begins, self._source.finite)
            self._run = run
            self._consumed.reset()
            return run, known

    def _begins(self, known: Known) -> Start:
        return self._restored or Start.fresh(known.topology, sum(operator.serial for operator in self._operators))

    @lets_go
    def _ready(self, facts: Mapping[str, Any] | None = None) -> Started:
        with self._lock:
            if self._closed:
                raise ClosedError("the pipeline is closed; make a new one")
            if self._started is None:
                batch = self._batch
                if batch is None:
                    raise RecipeError("the pipeline has no end: call .batch(microbatch_size) last")
                self._guards = guards(self._source.datasets)
                self._started = start(self._spec(batch), self._facts if facts is None else facts, self._deadly, self._begun)
                engine = self._started.engine
                if self._closed:  # while this was found out; `close` does not wait for it
                    engine.close_soon()
                    raise ClosedError("the pipeline was closed while it started; make a new one")
                weakref.finalize(self, engine.close_soon).atexit = False  # what is left then is closed all at once
            return self._started

    def to_recipe(self) -> str:
        """This pipeline as the text of a TOML file, from which `load_recipe` makes it again; without dp_size and dp_rank.

        Raises `RecipeError` for what a file cannot hold, such as data in memory, a lambda or an object.
        """
        from zephon_async.recipes import to_recipe  # which reads them too, and so makes pipelines

        return to_recipe(self, self._source, self._steps, self._options)

    def _spec(self, batch: int) -> Spec:
        fingerprints = tuple(fingerprint(each) for each in self._operators)
        return Spec(self._source, tuple(self._operators), self._options, batch, fingerprints)

    # -- state ---------------------------------------------------------------------------------------------------------------

    @lets_go
    def checkpoint(self) -> bytes:
        """The state behind the last batch that was taken: a few whole numbers a lane and dataset.

        At any microbatch, from any thread, also while another waits for the next batch, also after an error and after `close`.
        Before the first batch it is the state from which the iteration would begin.
        """
        with self._lock:
            started = self._started or self._ready()
            known, run, begins = started.known, self._run, self._begins(started.known)
        if run is not None:
            position = run.position()
            step, taken, cursors = position.step, position.taken, position.cursors
        else:
            left = set(begins.left)
            step, cursors = begins.step, begins.cursors
            taken = spans(n for n in known.topology.numbers if n not in left)
        told = (known.recipe, known.facts, self._guards, self._deadly.rows, self._skips.ranges)
        return RankState(known.topology, step, taken, cursors, *told).encode()

    @checks_call
    @lets_go
    def skip(self, steps: range) -> Self:
        """Leave out steps, such as those of a loss spike: their data is worked, for what follows is packed with it, not delivered.

        steps: a range of whole steps of which none has begun, such as range(1000, 1020); the same on all ranks. The batches behind
        it keep their steps and their data. It is part of checkpoints; to say it again behind a restore changes nothing.

        Raises `RecipeError` for steps that are past, or that overlap others that are left out.
        """
        with self._lock:
            following = 0
            if self._run is not None:
                position = self._run.position()
                following = position.step + bool(position.taken)
            elif (begins := self._restored) is not None:
                following = begins.step + (len(begins.left) < self._ready().known.topology.per_rank)
            self._skips.add(steps, following)
        return self

    @checks_call
    @lets_go
    def restore(
        self, state: bytes | Iterable[bytes], *, partial_step: PartialStep = "refuse", allow_changed_source: bool = False
    ) -> Self:
        """Begin the next iteration behind a checkpoint: this rank's own state, or those of all ranks where dp_size has changed.

        An iteration that is under way ends with `ClosedError`. Where states of all ranks are given and dp_size is the same, this
        rank's own is taken. What is not known of the data yet is found out now, as at the first iteration, but for what the
        checkpoint tells (tokens per byte, learned types).

        partial_step: for states in the middle of a step on another dp_size. "refuse" raises; "uneven" goes on, and in that step
        each rank yields what is left of its range, which may be less than on others.
        allow_changed_source: go on where the source of your functions and operators has changed, and nothing else; it is logged.

        Raises `CheckpointError`, and stays where it was, where bytes are damaged, the recipe differs (with a list of what), the
        states are of different runs or steps, two of one rank differ, or some are missing. Shards of the same names and sizes whose
        times or entity tags have changed are only told in the log: data may have been copied.
        """
        states = [RankState.decode(each) for each in encoded_states(state)]
        one_of("partial_step", partial_step, get_args(PartialStep))
        allow = flag("allow_changed_source", allow_changed_source)
        with self._lock:
            before, added = self._started, frozenset().union(*(each.deadly for each in states)) - self._deadly.rows
            if before is not None and (before.known.facts != states[0].facts or added):
                self._resumed(states, before.known, partial_step, allow)  # refused before anything is read again
                self._started = None
            self._deadly.rows |= added  # before the start: worker processes are told of them then
            try:
                restored = self._resumed(states, self._ready(states[0].facts).known, partial_step, allow)
            except BaseException:
                if self._started is not None and self._started is not before:
                    self._started.engine.close_soon()  # what was found out is that of another run
                self._started = before
                self._deadly.rows -= added
                raise
            if before is not None and before is not self._started:
                before.engine.close_soon()
            self._skips.join(each.skips for each in states)
            self._restored = restored
            warn_of_changes([each.guards for each in states], self._source.datasets)
            if self._run is not None:
                self._run.fail(ClosedError("the pipeline was restored to another state; iterate it again"))
                self._run = None
        return self

    def _resumed(self, states: Sequence[RankState], known: Known, partial_step: PartialStep, allow: bool) -> Start:
        differences([each.recipe for each in states], known, allow)
        return resume(states, known.topology, partial_step)

    # -- looking -------------------------------------------------------------------------------------------------------------

    def explain(self) -> str:
        """The compiled plan, in text: datasets, stages, who works what, rows to the first microbatch, cost of a restore, memory."""
        return self._ready().explain()

    @lets_go
    def validate(self) -> ValidationReport:
        """Try users' functions and operators on up to 64 of the first rows, in this process: see `check_operator`.

        It reads data, as a start does, and starts nothing. What is found does not end it: the report says it.
        """
        return examine(self._spec(self._batch or 1))

    def statistics(self) -> Statistics:
        """A frozen snapshot of the iteration under way, or of the last one. `print` it for a table."""
        return Statistics() if self._started is None else self._started.engine.statistics(self._consumed)

    # -- closing -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop everything and wait for it. Closing twice is fine.

        A thread that is inside code that does not return is named in a warning, after some seconds, and left. A signal handler
        that interrupts `next` may call this too; then nothing is waited for, and `next` raises `ClosedError` behind it.
        """
        self._close(CLOSE_S)

    async def aclose(self) -> None:
        """`close` from a coroutine."""
        await self._aclose(CLOSE_S)

    def forked(self) -> None:
        """In a forked child: what has not been iterated may be started anew, also where it was being started just now."""
        self._lock = RLock()
        if self._run is None:
            if self._started is not None:
                self._facts = self._started.known.facts  # those of a restored state decide its data
            self._started = None

    def _close(self, timeout_s: float) -> None:
        self._closed = True  # before the engine is looked at, as the start sets the engine before it looks at this
        if (started := self._started) is not None:
            started.engine.close(timeout_s)
        elif (access := self._access) is not None:  # which a start may wait for
            access.close_soon()

    async def _aclose(self, timeout_s: float) -> None:
        from anyio import CancelScope, to_thread

        with CancelScope(shield=True):
            await to_thread.run_sync(self._close, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._close(_patience_s(kind))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        await self._aclose(_patience_s(kind))


def _patience_s(kind: type[BaseException] | None) -> float:
    """How long workers are waited for: not long after Ctrl-C, a cancellation or `sys.exit`."""
    return CLOSE_S if kind is None or issubclass(kind, Exception) else HURRY_S
