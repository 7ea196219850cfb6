"""One iteration over a pipeline, between the engine's loop and the consumer.

The loop puts microbatches into one deque a lane; the consumer takes the one whose turn it is and commits its position in one
synchronous step under one lock, and a checkpoint reads that position under the same lock. The wake-up carries nothing.

With data that ends, a step is yielded only when all ranks are known to have it: `decide` is told by the loop.

Threads: every field but the constants, `_on_take`, a single store, and the deque `_errands` is guarded by `_lock`. A signal may
interrupt the consumer's thread inside of it, and its handler may ask for a checkpoint or close: the lock is re-entrant, and the
order of stores in `_commit` leaves a valid state between any two of them.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from zephon_async.engine.bad_records import BadRecords
from zephon_async.errors import ClosedError, InternalError
from zephon_async.lanes import Cursor, Start, Topology, spans
from zephon_async.records import Records, Skipped


class _Locked(Protocol):
    _lock: threading.RLock


Owner = TypeVar("Owner", bound=_Locked)
P = ParamSpec("P")
T = TypeVar("T")


class Ready(NamedTuple):
    """A microbatch of a lane, and the cursor behind it."""

    microbatch: int
    records: Records
    filled: int
    cursor: Cursor
    nbytes: int
    skipped: Sequence[Skipped] = ()


class Taken(NamedTuple):
    """What the consumer takes: `records` is None where the whole microbatch is to be made up."""

    step: int
    number: int
    lane: int
    records: Records | None
    filled: int


class Finished(NamedTuple):
    """There are no more microbatches."""

    step: int


class Failed(NamedTuple):
    """The failure whose turn it is, and its traceback as it is now: it grows with every frame that raises it."""

    error: BaseException
    traceback: TracebackType | None


@dataclass(frozen=True, slots=True)
class Position:
    """Where the consumer stands."""

    step: int
    taken: tuple[tuple[int, int], ...]
    cursors: Mapping[int, Cursor]


def held_here(lock: "threading.RLock") -> bool:
    """Whether this thread holds a lock: only then may a condition over it notify."""
    try:
        threading.Condition(lock).notify()
    except RuntimeError:
        return False
    return True


def lets_go(method: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], T]:
    """For what users' threads call: a signal may raise between the taking of the lock and the block under it, as on 3.14."""

    @wraps(method)
    def call(owner: Owner, /, *args: P.args, **named: P.kwargs) -> T:
        inside = held_here(owner._lock)
        try:
            return method(owner, *args, **named)
        except BaseException:
            while not inside and held_here(owner._lock):
                owner._lock.release()
            raise

    return call


class Run:
    """What has been made and not taken, and where the consumer stands."""

    def __init__(self, topology: Topology, start: Start, finite: bool) -> None:
        self.topology = topology
        self._first_step, self._first_left = start.step, frozenset(start.left)
        self._lock = threading.RLock()
        self._step, self._left = start.step, tuple(start.left)
        self._cursors = dict(start.cursors)
        self._ready: dict[int, deque[Ready]] = {lane: deque() for lane in topology.owned}
        self._ready_bytes = dict.fromkeys(topology.owned, 0)
        self._ended: dict[int, int] = {}  # microbatches of lanes that have ended
        self._failed: dict[int, BaseException] = {}
        self._failure: BaseException | None = None  # of the whole run, delivered at once
        self._decided = None if not finite else start.step  # steps before this one may be yielded; None: all
        self._asked = start.step - 1 if finite else None  # the last step that the consumer has asked for
        self._final: int | None = None  # where the run ends, in `_final_error` if there is one
        self._last: int | None = None  # nothing of this step or later will be yielded
        self._final_error: BaseException | None = None
        self._wakers: list[Callable[[], None]] = []
        self._errands: deque[Callable[[], None]] = deque()
        self._bad_records: BadRecords | None = None
        self._skipped: list[Skipped] = []  # bad records before what was taken
        self._skipped_behind: list[Skipped] = []  # and behind the last of it
        self._ends = False  # whether the consumer was just told that there is no more
        self._on_take: Callable[[int, bool], None] = lambda lane, waits: None
        if not self._left:
            self._step, self._left = self._step + 1, tuple(topology.numbers)

    # -- the consumer's side -------------------------------------------------------------------------------------------------

    @lets_go
    def take(self, build: Callable[[Taken], T], waker: Callable[[], None] | None) -> T | Finished | Failed | None:
        """The next microbatch, built and then committed, so that one that cannot be built is not lost.

        None where it is not there yet; then `waker` is called when it is worth another look. A failure is handed over, once, and
        not kept: whoever raises it puts its own frames into it, and these hold the pipeline, which must not hang on its engine.
        """
        try:
            return self._take_next(build, waker)
        finally:
            self._tell()

    def _take_next(self, build: Callable[[Taken], T], waker: Callable[[], None] | None) -> T | Finished | Failed | None:
        built, lane = None, -1
        self.run_errands()
        with self._lock:
            step = self._step
            if self._final is not None and step >= self._final:
                if self._final_error is None:
                    self._tell_the_rest()
                    return Finished(step)
                self._set_failure(self._final_error)
            if self._asked is not None:
                self._asked = step
            if self._failure is None and (self._decided is None or step < self._decided):
                lane = self.topology.place(step, self._left[0])[0]
                built = self._take(build)
            if self._failure is not None:
                self._tell_the_rest()
                failed = Failed(self._failure, self._failure.__traceback__)
                self._failed.clear()
                self._final_error, self._failure = None, ClosedError("this iteration has failed; iterate the pipeline again")
                return failed
            if built is None and waker is not None:
                self._wakers.append(waker)
        if built is None and self._errands:  # it came before the waker did
            self._wake()
        self._on_take(lane, built is None)  # who waits tells again: a signal may have come before it was told
        return built

    def _take(self, build: Callable[[Taken], T]) -> T | None:
        number = self._left[0]
        lane, microbatch = self.topology.place(self._step, number)
        ready = self._ready[lane]
        while ready and ready[0].microbatch < microbatch:  # taken, but a signal came before it was let go
            self._ready_bytes[lane] -= ready.popleft().nbytes
        records, filled = None, 0
        if ready:
            first = ready[0]
            if first.microbatch != microbatch:
                self._set_failure(InternalError(f"lane {lane} gave microbatch {first.microbatch} where {microbatch} was due"))
                return None
            records, filled = first.records, first.filled
        elif lane in self._failed:
            self._set_failure(self._failed[lane])
            return None
        elif self._ended.get(lane, microbatch + 1) > microbatch:
            return None
        try:
            built = build(Taken(self._step, number, lane, records, filled))
        except Exception as error:
            self._set_failure(error)
            return None
        self._commit(lane, ready[0].cursor if ready else None)
        if ready:
            taken = ready.popleft()
            self._ready_bytes[lane] -= taken.nbytes
            self._skipped += taken.skipped
        return built

    def _tell_the_rest(self) -> None:
        self._skipped += self._skipped_behind
        self._skipped_behind, self._ends = [], True

    def _tell(self) -> None:
        """Write down the bad records before what was taken; at the end also what could not be written."""
        if self._skipped or self._ends:
            with self._lock:
                told, self._skipped, self._ends = self._skipped, [], False
            if self._bad_records is not None:
                self._bad_records.write(told)

    def _commit(self, lane: int, cursor: Cursor | None) -> None:
        """The consumer stands behind the first microbatch that was left."""
        step, left = self._step, self._left[1:]
        if not left:
            step, left = step + 1, tuple(self.topology.numbers)
        self._left, self._step = left, step  # plain stores: no signal is let in between
        if cursor is not None:
            self._cursors[lane] = cursor  # until then an earlier one, which is as valid

    def _set_failure(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    def run_errands(self) -> None:
        """Make the calls that are for the thread that iterates."""
        while True:
            try:
                errand = self._errands.popleft()
            except IndexError:
                return
            errand()

    @lets_go
    def forget(self, waker: Callable[[], None]) -> None:
        """Nobody waits for this waker any more."""
        with self._lock:
            if waker in self._wakers:
                self._wakers.remove(waker)

    @lets_go
    def position(self) -> Position:
        """Where the consumer stands now."""
        with self._lock:
            left = set(self._left)
            return Position(self._step, spans(n for n in self.topology.numbers if n not in left), dict(self._cursors))

    @property
    def inside(self) -> bool:
        """Whether the thread that asks is a signal handler's that has interrupted this run."""
        return held_here(self._lock)

    @lets_go
    def fail(self, error: BaseException) -> None:
        """End the run with an error that has no place in the order."""
        with self._lock:
            self._set_failure(error)
        self._wake()

    def forked(self) -> None:
        """In a forked child nobody makes anything."""
        self._lock = threading.RLock()
        self.fail(ClosedError("the process was forked, and the pipeline stays with its parent; make a new one here"))

    # -- the loop's side -----------------------------------------------------------------------------------------------------

    def on_take(self, call: Callable[[int, bool], None]) -> None:
        """Call on the consumer's thread after each microbatch that is taken, with its lane, and, with True, before each wait."""
        self._on_take = call

    def keeps(self, lane: int, microbatch: int) -> bool:
        """Whether this rank yields that microbatch."""
        step, number = self.topology.number(lane, microbatch)
        if step == self._first_step:
            return number in self._first_left
        return step > self._first_step and number in self.topology.numbers

    def put(self, lane: int, ready: Ready) -> bool:
        """A lane has made its next microbatch. False where that comes too late to be yielded."""
        with self._lock:
            if self._last is not None and ready.microbatch >= self._last * self.topology.per_lane:
                return False
            self._ready[lane].append(ready)
            self._ready_bytes[lane] += ready.nbytes
            awaited = self._awaited() == lane
        if awaited:
            self._wake()
        return True

    def leave_from(self, step: int) -> int:
        """Nothing of this step or later will be yielded; gives how many rows of that were ready."""
        left = 0
        with self._lock:
            self._last = step
            for lane, ready in self._ready.items():
                while ready and ready[-1].microbatch >= step * self.topology.per_lane:
                    late = ready.pop()
                    self._ready_bytes[lane] -= late.nbytes
                    left += len(late.records)
        return left

    def tell_of_skipped(self, bad_records: BadRecords | None) -> None:
        """Where bad records are written down, by the thread that takes."""
        self._bad_records = bad_records

    def skipped_behind(self, skipped: Sequence[Skipped]) -> None:
        """Bad records behind the last microbatch of a lane."""
        with self._lock:
            self._skipped_behind += skipped

    def lane_ended(self, lane: int, microbatches: int) -> None:
        """A lane has no microbatch from this number on; what is told first holds."""
        with self._lock:
            self._ended.setdefault(lane, microbatches)
        self._wake()

    def lane_failed(self, lane: int, error: BaseException) -> None:
        """A lane ends in an error, to be raised behind the microbatches it has made."""
        with self._lock:
            self._failed[lane] = error
        self._wake()

    def decide(self, steps: int, final: bool, error: BaseException | None = None) -> None:
        """Steps before number `steps` may be yielded; `final`: and no others, but the error that is given."""
        with self._lock:
            self._decided = steps
            if final:
                self._final, self._final_error = steps, error
        self._wake()

    def errand(self, call: Callable[[], None]) -> None:
        """Let the thread that iterates make a call, when it takes next; one that waits does so now."""
        self._errands.append(call)
        self._wake()

    @property
    def ready_in_all(self) -> int:
        """Microbatches that wait for the consumer."""
        with self._lock:
            return sum(map(len, self._ready.values()))

    def ready(self, lane: int) -> tuple[int, int]:
        """(microbatches, bytes) of a lane that wait for the consumer."""
        with self._lock:
            return len(self._ready[lane]), self._ready_bytes[lane]

    @property
    def held_bytes(self) -> int:
        """Bytes of all microbatches that wait for the consumer."""
        with self._lock:
            return sum(self._ready_bytes.values())

    def let_go(self) -> None:
        """Nothing is made any more; of a run that has failed nothing is taken either."""
        with self._lock:
            if self._failure is not None:
                for lane, ready in self._ready.items():
                    ready.clear()
                    self._ready_bytes[lane] = 0

    @property
    def first_step(self) -> int:
        """The step that the run began in."""
        return self._first_step

    @property
    def asked(self) -> int:
        """The last step that the consumer has asked for, of data that ends."""
        with self._lock:
            return -1 if self._asked is None else self._asked

    @property
    def failing(self) -> bool:
        """Whether a lane has failed."""
        with self._lock:
            return bool(self._failed)

    def _awaited(self) -> int:
        return self.topology.place(self._step, self._left[0])[0]

    def _wake(self) -> None:
        """Call those who wait, outside the lock, which they will want at once."""
        with self._lock:
            wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()
