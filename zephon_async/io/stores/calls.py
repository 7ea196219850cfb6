"""Blocking calls of a library, on threads of their own.

A thread makes its own client when it has its first call, for clients over blocking sockets are not made to be shared, and a new
one after a fault of the network.
Threads are started as they are needed, up to `most`, and end with `close`. Who waits for a call may be cancelled at any time: a
call that has not begun is then left out, and of one that has begun the result is dropped, for nothing can end it.

Threads: `_waiting` is a deque that the loop appends to and threads pop from; there is a turn in `_turns` for each call in it, and
at the end one for each thread, which finds nothing. `_busy` (calls that are in threads, or wait for one) and `_threads` belong
to the loop. Threads start with an empty context.
"""

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from zephon_async.io.stores.connection import Fault, Kind
from zephon_async.io.stores.faults import fault_of

CLOSE_S = 4.0  # less than whoever closes the connection waits
_log = logging.getLogger("zephon_async")
Client = TypeVar("Client")
Result = TypeVar("Result")


class _Call(NamedTuple):
    function: Callable[[Any], Any]
    future: "asyncio.Future[tuple[Any, BaseException | None]]"


class Calls(Generic[Client]):
    """Runs calls, each with a client that `make` made in the same thread. Belongs to the running loop."""

    def __init__(self, make: Callable[[], Client], most: int, name: str) -> None:
        self._make, self._most, self._name = make, most, name
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Call] = deque()
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._threads: dict[threading.Thread, asyncio.Future[Any]] = {}
        self._busy = 0
        self._closed = False

    async def call(self, function: Callable[[Client], Result]) -> Result:
        """Run a function with a client and give what it gives or raises, as it is."""
        if self._closed:
            raise Fault(Kind.REFUSED, "the connection is closed")
        if self._busy >= len(self._threads) < self._most:
            self._begin()
        call = _Call(function, self._loop.create_future())
        self._busy += 1
        self._waiting.append(call)
        self._turns.put(None)
        result, error = await call.future
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End the threads. One that is inside of a call which does not return is left behind: it is a daemon."""
        self._closed = True
        with contextlib.suppress(IndexError):
            while True:
                _deliver(self._waiting.popleft().future, None, Fault(Kind.REFUSED, "the connection is closed"))
        ends, self._threads = self._threads, {}
        for _ in ends:
            self._turns.put(None)
        if ends:
            await asyncio.wait(ends.values(), timeout=CLOSE_S)
        for thread, end in ends.items():
            if end.done():
                thread.join()
        if left := [thread.name for thread, end in ends.items() if not end.done()]:
            _log.warning("threads did not end in %.0f s and were left behind: %s", CLOSE_S, ", ".join(left))

    def _take_back(self, future: "asyncio.Future[tuple[Any, BaseException | None]]", *outcome: object) -> None:
        self._busy -= 1
        _deliver(future, *outcome)

    def _begin(self) -> None:
        end: asyncio.Future[Any] = self._loop.create_future()
        name = f"zephon-{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=contextvars.Context().run, args=(self._work, end), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                raise Fault(Kind.TRANSIENT, f"no thread can be started: {error}") from error
        else:
            self._threads[thread] = end

    def _work(self, end: "asyncio.Future[Any]") -> None:
        client: Client | None = None
        while True:
            self._turns.get()
            try:
                call = self._waiting.popleft()
            except IndexError:
                break
            result, error = None, None
            try:
                if not call.future.done():
                    client = self._make() if client is None else client
                    result = call.function(client)
            except BaseException as raised:  # it is the caller's, whatever it is
                error = raised
                if fault_of(raised).kind is Kind.TRANSIENT:  # its connection may be dead
                    client = None
            self._tell(self._take_back, call.future, result, error)
            result = error = None
            del call
        del client
        self._tell(_deliver, end)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
            self._loop.call_soon_threadsafe(function, *arguments)


def _deliver(future: "asyncio.Future[Any]", *outcome: object) -> None:
    if not future.done():
        future.set_result(outcome)
