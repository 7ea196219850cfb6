"""The faces of a run: iterators for plain code, asyncio and trio.

Each waits in its own way and takes in one synchronous step, after the last point at which it could be cancelled; so a cancelled
or timed-out `next` loses nothing.

Threads: an iterator shares the run, which has a lock; `_starting` guards the start of an `AsyncBatches`, which is in a thread.
"""

import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from zephon_async.batch import Batch, fill_rows
from zephon_async.engine import Consumed, Failed, Finished, Known, Run, Taken
from zephon_async.errors import InternalError
from zephon_async.lanes import Skips
from zephon_async.loops import begin, next_of
from zephon_async.records import Records

if TYPE_CHECKING:
    import anyio


class Batches:
    """Batches for a plain `for`."""

    def __init__(self, run: Run, known: Known, consumed: Consumed, skips: Skips, pipeline: object) -> None:
        self._taker, self._consumed = _Taker(run, known, skips), consumed
        self._pipeline = pipeline  # held for as long as this is: its finalizer closes the engine

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        began = perf_counter()
        while True:
            # no lock, see runners/threads.py; no Event, on which a signal handler would hang
            there: SimpleQueue[None] = SimpleQueue()
            waker = partial(there.put, None)
            taken = self._taker.take(waker)
            if taken is not None:
                break
            try:
                next_of(there)
            except BaseException:
                self._taker.forget(waker)
                raise
        if isinstance(taken, Finished):
            raise StopIteration
        self._consumed.add(perf_counter() - began)
        return taken


class AsyncBatches:
    """Batches for `async for`. The run is started by the first `__anext__`, in a thread, since it reads files.

    leave: is told when a `__anext__` is cancelled that waits for the start.
    """

    def __init__(self, begin: Callable[[], tuple[Run, Known]], consumed: Consumed, skips: Skips, leave: Callable[[], None]) -> None:
        self._begin, self._consumed, self._skips, self._leave = begin, consumed, skips, leave
        self._starting = threading.Lock()
        self._taker: _Taker | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        import anyio

        began = perf_counter()
        if self._taker is None:
            try:
                await _in_thread(self._start)
            except BaseException:
                self._leave()
                raise
        assert self._taker is not None
        await anyio.lowlevel.checkpoint()
        while True:
            there = anyio.Event()
            waker = _waker(there)
            taken = self._taker.take(waker)
            if taken is not None:
                break
            try:
                await there.wait()
            except BaseException:
                self._taker.forget(waker)
                raise
        if isinstance(taken, Finished):
            raise StopAsyncIteration
        self._consumed.add(perf_counter() - began)
        return taken

    def _start(self) -> None:
        """Once, however often a `__anext__` that waits for it is cancelled: its thread goes on."""
        with self._starting:
            if self._taker is None:
                self._taker = _Taker(*self._begin(), self._skips)


class _Taker:
    """Takes microbatches from a run and makes batches of them; keeps its failure, to be raised again ever after."""

    def __init__(self, run: Run, known: Known, skips: Skips) -> None:
        self._run, self._skips, self._names, self._schema = run, skips, known.names, known.output
        self._size = int(known.recipe["microbatch_size"])
        self._last = known.topology.numbers.stop - 1
        self._failed: Failed | None = None

    def take(self, waker: Callable[[], None]) -> Batch | Finished | None:
        """The next batch; None where it is not there yet, and `waker` will be called."""
        while self._failed is None:
            taken = self._run.take(self._batch, waker)
            if isinstance(taken, Batch) and taken.step in self._skips:
                continue
            if not isinstance(taken, Failed):
                return taken
            self._failed = taken
        raise BaseException.with_traceback(self._failed.error, self._failed.traceback)  # a class may have another

    def forget(self, waker: Callable[[], None]) -> None:
        """Nobody waits for this waker any more."""
        self._run.forget(waker)

    def _batch(self, taken: Taken) -> Batch:
        records, filled = taken.records, taken.filled
        if records is None:
            if self._schema is None:
                raise InternalError("a microbatch is to be made up, and its schema is not known")
            filled = self._size
            records = fill_rows(self._schema, filled)
        elif filled:
            records = Records.concat([records, fill_rows(records.columns.schema, filled)])
        step, lane, number = taken.step, taken.lane, taken.number
        return Batch(records, self._names, step=step, lane=lane, number=number, filled=filled, last_of_step=number == self._last)


async def _in_thread(work: Callable[[], object]) -> None:
    """Wait for work in a thread. One that is left behind does not keep the process, as anyio's would."""
    import anyio

    there, failed = anyio.Event(), list[BaseException]()
    waker = _waker(there)

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            waker()

    begin(threading.Thread(target=copy_context().run, args=(run,), name="zephon-start", daemon=True))
    await there.wait()
    if failed:
        raise failed.pop()


def _waker(there: "anyio.Event") -> Callable[[], None]:
    """A call for any thread that sets an event of the running loop; a loop that has ended is a consumer that has gone."""
    trio: Any = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        token = trio.lowlevel.current_trio_token()
        return lambda: _quietly(trio.RunFinishedError, token.run_sync_soon, there.set)
    import asyncio

    loop = asyncio.get_running_loop()
    return lambda: _quietly(RuntimeError, loop.call_soon_threadsafe, there.set)


def _quietly(gone: type[Exception], call: Callable[..., Any], *args: Any) -> None:
    try:
        call(*args)
    except gone:
        return
