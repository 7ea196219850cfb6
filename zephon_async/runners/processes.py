"""The process runner: functions that hold the GIL, on processes of their own.

Workers are started, not forked (see `child`). Rows go both ways through arenas of each worker, one call at a time; only short
messages go through the socket. What comes back is a view of one of a few slots, which is used again when nobody has one any more.
It is copied out where it would pin much more than it is, and where the other slots are all taken: nothing ever waits for somebody
to let go.

A worker that dies is replaced and its call run again, which is stateless, so the data cannot change; a call that three workers
have died of fails with how they ended.

Threads: everything belongs to the event loop that `start` was called on, but `held_bytes`, which reads single numbers.
"""

import asyncio
import contextlib
import heapq
import logging
import pickle
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from signal import Signals
from typing import Any

from zephon_async.errors import ClosedError, WorkerDied, WorkerError
from zephon_async.records import Parcel
from zephon_async.runners.arena import lay_down, pick_up
from zephon_async.runners.base import Need
from zephon_async.runners.child import ALONE, Child, new_arenas
from zephon_async.runners.exceptions import unpack_exception
from zephon_async.runners.threads import usable_cores
from zephon_async.runners.wire import Answer, Ask, Call, Done, Letters, Ready, encoded, to_engine

_log = logging.getLogger("zephon_async")
_DEATHS = 3  # of workers, that a call may cause
_SLOTS = 5  # for what a worker gives
_numbers = count()


class Portable:
    """Something with `run(parcel) -> Parcel` that can go to workers, pickled; once to each. Raises what pickling raises.

    copies: what it is given may be kept by somebody, and must not be a view of memory that is used again.
    """

    def __init__(self, function: Any, copies: bool = True) -> None:
        import cloudpickle

        self.number, self.pickled, self.copies = next(_numbers), bytes(cloudpickle.dumps(function)), copies


@dataclass(slots=True, eq=False)
class _Job:
    """A call, and how the workers ended that died of it, in words and by a signal of their own.

    most: deaths that it may cause. fresh: only workers that have run nothing else will do.
    """

    function: Portable
    parcel: Parcel
    need: Need
    most: int
    fresh: bool
    number: int
    future: "asyncio.Future[tuple[Parcel, float]]"
    deaths: list[str] = field(default_factory=list)
    signals: list[Signals | None] = field(default_factory=list)

    def __lt__(self, other: "_Job") -> bool:
        return (self.need, self.number) < (other.need, other.number)


class ProcessRunner:
    """Runs functions on `workers` processes (None: one for each core this process may use, at least 2).

    answer: what a function may ask in the middle of a call. timeout_s: how long a call may take (None: for ever); the worker that
    takes longer is killed, which is a death of it.
    """

    def __init__(
        self, workers: int | None, answer: Callable[[tuple[int, ...]], Awaitable[str]], timeout_s: float | None = None
    ) -> None:
        self.workers = workers or max(2, usable_cores())
        self._answer, self._timeout_s = answer, timeout_s
        self._processes: list[_Process] = []
        self._idle: list[_Process] = []
        self._waiting: list[_Job] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._calls = count()
        self._stillborn = 0  # workers one after the other that died before they were ready
        self._broken: WorkerError | None = None  # no worker can be had any more
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """Bytes of shared memory."""
        return sum(process.nbytes for process in self._processes)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the workers. Called once, on the loop. Raises `WorkerError` where the system gives none."""
        self._loop = loop
        for _ in range(self.workers):
            self._begin()

    def run(
        self, function: Portable, parcel: Parcel, need: Need, *, deaths: int = _DEATHS, fresh: bool = False
    ) -> "asyncio.Future[tuple[Parcel, float]]":
        """What a function gives for the records of a parcel, and the seconds it took; `end` stays.

        Fails with `WorkerDied` where `deaths` workers have died of it. fresh: run it in workers that have run nothing else.
        """
        future: asyncio.Future[tuple[Parcel, float]] = self._loop.create_future()
        if self._closed:
            raise ClosedError("the process runner is closed")
        if self._broken is not None:
            raise self._broken
        heapq.heappush(self._waiting, _Job(function, parcel, need, deaths, fresh, next(self._calls), future))
        self._hand_out()
        return future

    def close(self, timeout_s: float) -> list[str]:
        """End the workers, in the middle of calls too, and all that they have started."""
        self._closed = True
        for task in self._asking:
            task.cancel()
        for job in [*self._waiting, *(process.job for process in self._processes if process.job is not None)]:
            job.future.cancel()
        self._waiting.clear()
        for process in self._processes:
            self._forget(process)
            process.hang_up()
        until = time.monotonic() + timeout_s
        for process in self._processes:
            process.end(max(0.0, until - time.monotonic()))
        self._processes.clear()
        return []

    def forked(self) -> None:
        """In a forked child: the workers are the parent's. Its ends of the sockets must be the only ones."""
        self._closed = True
        for process in self._processes:
            process.forked()
        self._processes.clear()

    def _begin(self) -> None:
        process = _Process()
        self._processes.append(process)
        self._loop.add_reader(process.socket, self._read, process)
        if process.watch is not None:
            self._loop.add_reader(process.watch, self._died, process)
        self._idle.append(process)

    def _retire(self, process: "_Process") -> "_Process":
        """A new worker in the place of one that has nothing to do."""
        self._begin()  # first: where the system gives none, the old one stays
        self._forget(process)
        self._processes.remove(process)
        process.kill()
        process.end(0.0)
        return self._idle.pop()

    def _forget(self, process: "_Process") -> None:
        self._loop.remove_reader(process.socket)
        if process.watch is not None:
            self._loop.remove_reader(process.watch)
        if process.timer is not None:
            process.timer.cancel()

    def _hand_out(self) -> None:
        while self._idle and self._waiting:
            job = heapq.heappop(self._waiting)
            if job.future.cancelled():
                continue
            process = self._idle.pop()
            try:
                if job.fresh and process.used:
                    process = self._retire(process)
                process.call(job)
            except ConnectionError:  # it has died, which is told in its turn
                heapq.heappush(self._waiting, job)
            except BaseException as error:
                self._idle.append(process)
                job.future.set_exception(error)
            else:
                self._time(process)

    def _read(self, process: "_Process") -> None:
        for message in process.read():
            if isinstance(message, Ask):
                task = self._loop.create_task(self._ask(process, message.question))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            elif isinstance(message, Ready):
                self._stillborn, process.ready = 0, True
                self._time(process)
            else:
                self._done(process, message)
        if process.over:
            self._loop.remove_reader(process.socket)
            if process.watch is None:
                self._died(process)

    async def _ask(self, process: "_Process", question: tuple[int, ...]) -> None:
        try:
            text = await self._answer(question)
        except Exception as error:  # whoever asks waits for an answer
            text = f"row {question[-1]:,} (which cannot be named: {error})"
        with contextlib.suppress(OSError):  # it has died
            process.socket.sendall(encoded(Answer(text)))

    def _done(self, process: "_Process", done: Done) -> None:
        self._deliver(process, done)
        self._idle.append(process)
        self._hand_out()

    def _deliver(self, process: "_Process", done: Done) -> None:
        job, process.job = process.job, None
        assert job is not None
        if process.timer is not None:
            process.timer.cancel()
        try:
            parcel = process.result(job, done)
        except BaseException as error:
            outcome: Parcel | BaseException = error
        else:
            outcome = parcel
        if not job.future.cancelled():
            if isinstance(outcome, Parcel):
                job.future.set_result((outcome, done.busy_s))
            else:
                job.future.set_exception(outcome)

    def _time(self, process: "_Process") -> None:
        """Begin to time a call, of a worker that has started."""
        if self._timeout_s is not None and process.ready and process.job is not None:
            process.timer = self._loop.call_later(self._timeout_s, self._overdue, process)

    def _overdue(self, process: "_Process") -> None:
        process.overdue = True
        process.kill()

    def _died(self, process: "_Process") -> None:
        self._forget(process)
        self._processes.remove(process)
        self._read_last(process)
        if process in self._idle:
            self._idle.remove(process)
        ended = process.end(0.0)
        how = f"took more than worker_timeout_s={self._timeout_s:g} and was killed" if process.overdue else str(ended)
        self._stillborn += not process.ready
        if (job := process.job) is not None and not process.ready:  # it has not seen it
            heapq.heappush(self._waiting, job)
        elif job is not None and not job.future.cancelled():
            job.deaths.append(f"worker process {process.pid} {how}")
            job.signals.append(None if process.overdue else ended.own_signal)
            _log.warning("%s; its work is done again", job.deaths[-1])
            if len(job.deaths) < job.most:
                heapq.heappush(self._waiting, job)
            else:
                one, other = job.signals[-2:]
                job.future.set_exception(WorkerDied("; ".join(job.deaths), one if one == other else None))
        if self._stillborn > _DEATHS * self.workers:
            self._broken = WorkerError(f"worker processes end as soon as they are started: the last {how}")
        else:
            try:
                self._begin()
            except WorkerError as error:
                _log.warning("a worker process that has died is not replaced, %d are left: %s", len(self._processes), error)
                self._broken = None if self._processes else error
        if self._broken is not None:
            for each in self._waiting:
                if not each.future.cancelled():
                    each.future.set_exception(self._broken)
            self._waiting.clear()
        self._hand_out()

    def _read_last(self, process: "_Process") -> None:
        """What it had said before it died."""
        while messages := process.read():
            for message in messages:
                if isinstance(message, Ready):
                    self._stillborn, process.ready = 0, True
                elif isinstance(message, Done) and process.job is not None:
                    self._deliver(process, message)


class _Process:
    """One worker process, and what is going on with it."""

    def __init__(self) -> None:
        self._outbox, *self._slots = arenas = new_arenas(1 + _SLOTS)  # what this side writes, what it reads
        self._free, self._slot = deque(range(1, _SLOTS)), 0  # slots of which nobody has a view; what lies in slot 0 is copied out
        self._child = Child("zephon_async.runners.worker", arenas, settings=ALONE)
        self.pid, self.socket, self.watch = self._child.pid, self._child.socket, self._child.watch
        self.socket.setblocking(False)
        self.job: _Job | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.ready = self.over = self.overdue = self.used = False
        self._known: set[int] = set()
        self._letters = Letters(to_engine)
        self.kill, self.end, self.forked = self._child.kill, self._child.end, self._child.forked

    @property
    def nbytes(self) -> int:
        return sum(arena.nbytes for arena in (self._outbox, *self._slots))

    def call(self, job: _Job) -> None:
        function = job.function
        new = function.number not in self._known
        layout = lay_down(self._outbox, job.parcel.records, function.pickled if new else b"")
        self._slot = self._free.pop() if self._free else 0  # the last, which is still in the caches
        self.socket.sendall(encoded(Call(function.number, layout, self._slot, function.copies)))
        self._known.add(function.number)
        self.job, self.used = job, True

    def read(self) -> list[Any]:
        """What has come, if anything has; called again as long as there is more."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.over = not data
        return self._letters.feed(data)

    def result(self, job: _Job, done: Done) -> Parcel:
        slot = self._slots[self._slot]
        slot.view(0)  # as large as it is by now
        copied = self._slot == 0 or 2 * done.layout.nbytes < slot.nbytes
        records, besides = pick_up(
            slot, done.layout, copied, partial(self._free.append, self._slot) if self._slot else lambda: None
        )
        failure, lines, skipped = pickle.loads(besides) if besides else (None, (), ())
        for level, line in lines:
            _log.log(level, "%s", line)
        error = None if failure is None else unpack_exception(failure, f"worker process {self.pid}")
        before = job.parcel
        counts = Counter(before.counts) + Counter(done.counts) if done.counts else before.counts
        return before.made(records, error or before.failure, counts, skipped)

    def hang_up(self) -> None:
        """Let it end by itself."""
        self.socket.close()
