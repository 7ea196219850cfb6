"""The isolated engine's process: `python -m zephon_async.isolation.child`, started by `parent`.

It runs the engine as it would run anywhere, iterates it, and lays each microbatch into a slot of shared memory that is free. With
data that ends and other ranks it takes no further than the consumer has asked for, so that the ranks agree when they would.

Threads: the main one hears the parent; one thread a run takes and hands over, one run at a time. `_sending` guards the socket.
"""

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any

from zephon_async.engine import Deadly, Engine, Known, Run, Spec, Taken
from zephon_async.engine import Failed as RunFailed
from zephon_async.engine import Finished as RunFinished
from zephon_async.errors import ClosedError
from zephon_async.isolation.letter import get_letter
from zephon_async.isolation.messages import (
    Agree,
    Agreed,
    Begin,
    Failed,
    Free,
    LeavesOut,
    Look,
    Looked,
    Made,
    Over,
    Prepare,
    Prepared,
    Refused,
    Said,
    Want,
    received,
    send,
)
from zephon_async.runners import Arena, Layout, Says, begun, lay_down, pack_exception, unpack_exception
from zephon_async.starting import start_here

_PATIENCE_S = 8.0  # to close the engine in, once the parent says no more


class _Child:
    def __init__(self, to_parent: socket.socket, letter: Arena, slots: Sequence[Arena]) -> None:
        self._socket, self._letter, self._slots = to_parent, letter, slots
        self._sending = threading.Lock()
        self._answers: SimpleQueue[Agreed] = SimpleQueue()
        self._questions = count()
        self._known: Known | None = None
        self._engine: Engine | None = None
        self._pump: _Pump | None = None
        Says(lambda said: self.send(Said(*said)))

    def serve(self) -> None:
        """Until the parent says no more."""
        for message in received(self._socket):
            if isinstance(message, Prepare):
                self._prepare(message)
            elif isinstance(message, Begin):
                self._begin(message)
            elif isinstance(message, Agreed):
                self._answers.put(message)
            elif isinstance(message, Look):
                assert self._engine is not None
                self.send(Looked(message.number, self._engine.statistics(message.taken)))
            elif self._pump is not None and message.run == self._pump.number:
                self._pump.tell(message)
        if self._engine is not None:
            self._engine.close()

    def send(self, message: Any) -> None:
        with self._sending, contextlib.suppress(OSError):  # the parent has gone: this process ends in a moment
            send(self._socket, message)

    def _prepare(self, message: Prepare) -> None:
        try:
            source, operators, options, size, fingerprints, facts, deadly = get_letter(self._letter, message.sizes)
            self._letter.close()  # what lies in it stays for those who hold it
            agree = self._agree if message.agrees else None
            spec = Spec(source, operators, replace(options, agree=agree), size, fingerprints)
            self._deadly = Deadly(deadly)
            started = start_here(spec, facts, self._deadly)
            assert isinstance(started.engine, Engine)
            self._known, self._engine = started.known, started.engine
            self._alone = not message.agrees
            self.send(Prepared(started.known, started.explain()))
        except BaseException as error:
            self.send(Refused(pack_exception(error)))

    def _begin(self, message: Begin) -> None:
        assert self._engine is not None
        assert self._known is not None
        if self._pump is not None:
            self._answers.put(Agreed(-1, None))  # nobody answers what was asked for the run before
            self._pump.end()
        self._answers = SimpleQueue()
        run = Run(self._known.topology, message.begins, message.finite)
        self._pump = _Pump(message.run, run, self._slots, self.send, self._deadly, freely=self._alone or not message.finite)
        self._engine.begin(run, message.begins, message.finite)
        self._pump.start()

    def _agree(self, steps: int) -> int:
        """On the engine's thread for that: the parent's consumer calls what the ranks agree by."""
        number, answers = next(self._questions), self._answers
        self.send(Agree(number, steps))
        while (answer := answers.get()).number not in (number, -1):
            pass
        if answer.error is not None:
            raise unpack_exception(answer.error, "the trainer's process")
        if answer.number < 0:
            raise ClosedError("a newer iteration over this pipeline has begun")
        given: int = answer.steps
        return given


class _Pump:
    """Takes the microbatches of a run in their order and hands them over. `freely`: however far the consumer is."""

    def __init__(self, number: int, run: Run, slots: Sequence[Arena], send: Any, deadly: Deadly, freely: bool) -> None:
        self.number, self._run, self._slots, self._send, self._freely = number, run, slots, send, freely
        self._deadly, self._left_out = deadly, deadly.rows
        self._told = threading.Condition()  # guards the fields below
        self._free = deque(range(len(slots)))
        self._asked = -1
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="zephon-pump", daemon=True)
        self.start = self._thread.start

    def tell(self, message: Free | Want) -> None:
        with self._told:
            if isinstance(message, Free):
                self._free.append(message.slot)
            else:
                self._asked = max(self._asked, message.step)
            self._told.notify()

    def end(self) -> None:
        with self._told:
            self._ended = True
            self._told.notify()
        self._run.fail(ClosedError("a newer iteration over this pipeline has begun"))
        self._thread.join()

    def _work(self) -> None:
        try:
            while self._hand_over():
                pass
        except BaseException as error:
            self._send(Failed(self.number, self._run.position().step, pack_exception(error)))

    def _hand_over(self) -> bool:
        with self._told:
            self._told.wait_for(lambda: self._ended or (self._free and (self._freely or self._run.position().step <= self._asked)))
            if self._ended:
                return False
        taken = self._next()
        if self._deadly.rows != self._left_out:  # before what is behind them, so that every checkpoint knows them
            self._left_out = self._deadly.rows
            self._send(LeavesOut(self._left_out))
        if isinstance(taken, RunFinished):
            self._send(Over(self.number, taken.step))
        elif isinstance(taken, RunFailed):
            if not self._ended:
                self._send(Failed(self.number, self._run.position().step, pack_exception(taken.error)))
        else:
            position, (_, microbatch) = self._run.position(), self._run.topology.place(taken.step, taken.number)
            slot, layout = -1, Layout()
            if taken.records is not None:
                with self._told:
                    slot = self._free.popleft()
                layout = lay_down(self._slots[slot], taken.records)
            cursor = position.cursors[taken.lane]
            self._send(Made(self.number, slot, layout, taken.step, taken.lane, microbatch, taken.filled, cursor))
            return True
        return False

    def _next(self) -> Taken | RunFinished | RunFailed:
        while True:
            there: SimpleQueue[None] = SimpleQueue()
            taken = self._run.take(lambda taken: taken, partial(there.put, None))
            if taken is not None:
                return taken
            there.get()


def main() -> None:
    """Serve until the parent says no more."""
    to_parent, (letter, *slots) = begun(_PATIENCE_S)
    _Child(to_parent, letter, slots).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
