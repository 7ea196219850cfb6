"""A worker process: `python -m zephon_async.runners.worker`, started by `processes`.

It runs one function at a time on records that lie in shared memory, and imports what its functions need when it gets them.

Threads: the main thread serves; a function may log from others, which appends to a list.
"""

import contextlib
import os
import pickle
import socket
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from zephon_async.records import Parcel, Skipped
from zephon_async.runners import wire
from zephon_async.runners.arena import Arena, lay_down, pick_up
from zephon_async.runners.child import Says, begun, load
from zephon_async.runners.exceptions import pack_exception
from zephon_async.runners.wire import Answer, Ask, Call, Done, Letters, Ready, encoded, to_worker

_NOT_LOADED = (
    "zephon_async: a function could not be loaded in a worker process: make its module one that can be imported there, or send it "
    "by value (cloudpickle.register_pickle_by_value(module)), or say runner='threads'"
)


class _Worker:
    """Serves one engine."""

    def __init__(self, to_engine: socket.socket, inbox: Arena, slots: Sequence[Arena]) -> None:
        self._socket, self._inbox, self._slots = to_engine, inbox, slots
        self._letters, self._unread = Letters(to_worker), list[Any]()
        self._pid = os.getpid()
        self._functions: dict[int, Any] = {}
        self._pickled: dict[int, bytes] = {}  # those that could not be loaded yet
        self._said: deque[tuple[int, str]] = deque()
        Says(self._said.append)

    def serve(self) -> None:
        """Until the socket closes."""
        self._socket.sendall(encoded(Ready()))
        while isinstance(message := self._receive(), Call):
            self._call(message)

    def ask(self, question: tuple[int, ...]) -> str:
        self._socket.sendall(encoded(Ask(question)))
        answer = self._receive()
        if not isinstance(answer, Answer):
            os._exit(0)  # there is no engine any more
        return answer.text

    def _receive(self) -> Call | Answer | None:
        while not self._unread:
            data = self._socket.recv(1 << 16)
            if not data:
                return None
            self._unread += self._letters.feed(data)
        message: Call | Answer = self._unread.pop(0)
        return message

    def _call(self, call: Call) -> None:
        began = perf_counter()
        records, pickled = pick_up(self._inbox, call.layout, call.copies)
        try:
            if pickled:
                self._pickled[call.function] = pickled
            if call.function in self._pickled:
                self._functions[call.function] = load(self._pickled[call.function])
                del self._pickled[call.function]
            given: Parcel = self._functions[call.function].run(Parcel(records))
        except BaseException as error:
            if os.getpid() != self._pid:  # a process that the function has forked: it ends as one of its own would
                os._exit(_exit_code(error))
            if call.function not in self._functions:
                BaseException.add_note(error, _NOT_LOADED)
            given = Parcel(None, failure=error)
        if os.getpid() != self._pid:
            os._exit(0)
        try:
            layout = lay_down(self._slots[call.slot], given.records, self._besides(given.failure, given.skipped))
        except BaseException as error:
            given, layout = Parcel(None), lay_down(self._slots[call.slot], None, self._besides(error, ()))
        self._socket.sendall(encoded(Done(perf_counter() - began, dict(given.counts), layout)))

    def _besides(self, failure: BaseException | None, skipped: Sequence[Skipped]) -> bytes:
        lines = [self._said.popleft() for _ in range(len(self._said))]
        if failure is None and not lines and not skipped:
            return b""
        return pickle.dumps((None if failure is None else pack_exception(failure), lines, skipped))


def _exit_code(error: BaseException) -> int:
    code = error.code if isinstance(error, SystemExit) else 1
    return code & 0xFF if isinstance(code, int) else int(code is not None)


def main() -> None:
    """Serve until the socket closes."""
    to_engine, (inbox, *slots) = begun()
    worker = _Worker(to_engine, inbox, slots)
    wire.ask_by(worker.ask)
    with contextlib.suppress(OSError):  # the engine has gone
        worker.serve()
    os._exit(0)  # as the watching thread would


if __name__ == "__main__":
    main()
