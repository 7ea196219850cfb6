"""The stand-in for an engine that runs in a child process (`options(isolate=True)`).

The run stays on this side: the child hands over microbatches with the position behind each, and the consumer takes them and commits
as from an engine of this process, so a checkpoint needs no round trip. `agree` is called here, by the thread that iterates. What
comes is copied out of the slots of shared memory at once, so it is the consumer's own; a slot is free again when its microbatch has
been taken, so `SLOTS` of them are on their way, and no more.

Threads: one thread, "zephon-isolation", hears the child and what it writes to stderr, and is idle else. `_lock` guards the run that
is under way and what is sent; it is re-entrant, since a signal may come in between. `close_soon` takes no lock: a finalizer runs
inside any code. `_links` is added to and discarded from in one step each.
"""

import atexit
import contextlib
import logging
import os
import pickle
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from zephon_async.engine import (
    CLOSE_S,
    HURRY_S,
    Consumed,
    Deadly,
    GlooAgreement,
    Known,
    Ready,
    Run,
    Spec,
    Statistics,
    held_here,
    lets_go,
)
from zephon_async.errors import ClosedError, WorkerError
from zephon_async.forks import tell_of_forks
from zephon_async.isolation.letter import put_letter
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
    send,
)
from zephon_async.lanes import Start
from zephon_async.loops import begin
from zephon_async.runners import Arena, Child, Letters, above_stdio, new_arenas, pack_exception, pick_up, unpack_exception

SLOTS = 3  # microbatches on their way to the consumer
_LAST_LINES = 10  # of stderr, that an error tells
_LOOK_S = 2.0
_log = logging.getLogger("zephon_async")
_links: "set[_Link]" = set()  # those whose child runs


class IsolatedEngine:
    """Runs what a pipeline was told in a child process."""

    def __init__(self, spec: Spec, deadly: Deadly) -> None:
        self._spec, self._deadly, options = spec, deadly, spec.options
        self._gloo = GlooAgreement(options) if options.agree is None and options.dp_size > 1 else None
        self._agree = options.agree or self._gloo
        self._lock = threading.RLock()
        self._link: _Link | None = None
        self._facts: Mapping[str, Any] | None = None
        self._runs = count()
        self._closed = False
        self._last = Statistics()
        tell_of_forks(self)

    @lets_go
    def start(self, facts: Mapping[str, Any] | None) -> tuple[Known, str]:
        """Start the child and let it find out what is not known; gives that, and the plan in text."""
        with self._lock:
            link = _Link(self._spec, facts, self._deadly, self._agree, self._left)
            try:
                known, explained = link.prepared()
            except BaseException:
                link.close(0.0)
                raise
            self._link, self._facts = link, known.facts
            if self._closed:
                link.close_soon()
            return known, explained

    @lets_go
    def begin(self, run: Run, begins: Start, finite: bool) -> None:
        """Start a run; one that is under way ends with `ClosedError`. A child that has died is replaced."""
        if finite and self._gloo is not None and not self._closed:
            self._gloo.join()
        if self._link is not None:
            self._link.run_errands()  # the other ranks wait for what this one's consumer had asked for
        with self._lock:
            if self._closed:
                if self._gloo is not None:
                    self._gloo.leave()
                raise ClosedError("the pipeline is closed; make a new one (a forked process needs its own)")
            if self._link is None or self._link.gone:
                self.start(self._facts)
            assert self._link is not None
            self._link.begin(next(self._runs), run, begins, finite)

    @lets_go
    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Stop everything and wait for it, up to `timeout_s`; then the child is killed.

        Nothing is waited for by a signal handler that has come upon its own thread inside a lock: the end needs it.
        """
        inside = held_here(self._lock)
        with self._lock:
            self._closed, link = True, self._link
        if link is not None:
            link.close(None if inside or link.inside else timeout_s)

    def _left(self) -> None:
        """The child has ended: ranks that still wait for this one are told."""
        if self._gloo is not None and self._closed:
            self._gloo.leave()

    def close_soon(self) -> None:
        """Stop everything, without waiting for it and without a lock."""
        self._closed = True
        if self._link is not None:
            self._link.close_soon()

    def forked(self) -> None:
        """In a forked process the child is another's."""
        self._lock = threading.RLock()
        self._closed = True
        if self._link is not None:
            self._link.forked()

    def statistics(self, taken: Consumed) -> Statistics:
        """A snapshot of the run under way; the last one where the child does not answer."""
        if self._link is not None:
            self._last = self._link.look(taken) or self._last
        return self._last


class _Link:
    """A child, and the run that it works at."""

    def __init__(self, spec: Spec, facts: Mapping[str, Any] | None, deadly: Deadly, agree: Any, leave: Callable[[], None]) -> None:
        self._deadly, self._agree, self._leave = deadly, agree, leave
        self._lock = threading.RLock()
        self._told: SimpleQueue[Prepared | Refused] = SimpleQueue()
        self._looks: dict[int, SimpleQueue[Statistics]] = {}
        self._numbers = count()
        self._number = -1
        self._run: Run | None = None
        self._slots: deque[int] = deque()  # in which the microbatches lie that were not taken
        self._closing = self.gone = False
        self._ended: BaseException = ClosedError("the pipeline is closed")  # what a run of a child that has gone fails with
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        with contextlib.ExitStack() as undo:
            letter = self._letter = Arena.new()
            undo.callback(letter.close)
            sizes = put_letter(letter, spec, facts, deadly)
            self._arenas = new_arenas(SLOTS)
            for arena in self._arenas:
                undo.callback(arena.close)
            self._stderr, theirs = map(above_stdio, os.pipe())
            undo.callback(os.close, self._stderr)
            try:
                self._child = Child("zephon_async.isolation.child", [letter, *self._arenas], stderr=theirs)
            finally:
                os.close(theirs)
            self._thread = threading.Thread(target=self._hear, name="zephon-isolation", daemon=True)
            undo.callback(self._child.end, 0.0)
            begin(self._thread)
            undo.pop_all()
        _links.add(self)
        self._send(Prepare(sizes, agree is not None))

    # -- called by any thread ------------------------------------------------------------------------------------------------

    def prepared(self) -> Prepared:
        """What the child found out, when it has; its error where it could not."""
        told = self._told.get()
        if isinstance(told, Refused):
            raise unpack_exception(told.error, f"the isolated engine, process {self._child.pid}")
        return told

    def begin(self, number: int, run: Run, begins: Start, finite: bool) -> None:
        with self._lock:
            before, slots = self._run, deque[int]()
            self._number, self._run, self._slots = number, run, slots
            run.on_take(partial(self._taken, number, run, slots))
            self._send(Begin(number, begins, finite))
            if self.gone:
                run.fail(self._ended)
        if before is not None:
            before.fail(ClosedError("a newer iteration over this pipeline has begun; let all take from one iterator"))

    def run_errands(self) -> None:
        """On the thread that iterates: call what the run that is under way has for it."""
        if self._run is not None:
            self._run.run_errands()

    @property
    def inside(self) -> bool:
        """Whether the thread that asks is a signal handler's that has interrupted the run."""
        return held_here(self._lock) or (self._run is not None and self._run.inside)

    def close(self, timeout_s: float | None) -> None:
        """None: nothing is waited for."""
        self.close_soon()
        if self._run is not None:
            self._run.fail(ClosedError("the pipeline is closed"))
        if timeout_s is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._child.kill()
                self._thread.join(CLOSE_S)

    def close_soon(self) -> None:
        """Let the child end: it closes its engine when it hears no more."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._child.socket.shutdown(socket.SHUT_WR)

    def forked(self) -> None:
        self._lock, self.gone = threading.RLock(), True
        self._child.forked()
        os.close(self._stderr)
        if self._run is not None:
            self._run.forked()

    def look(self, taken: Consumed) -> Statistics | None:
        if self.gone or self._closing or held_here(self._lock):  # the last: a signal handler's, which cannot wait here
            return None
        number, answer = next(self._numbers), SimpleQueue[Statistics]()
        self._looks[number] = answer
        self._send(Look(number, taken))
        try:
            found = answer.get(timeout=_LOOK_S)
        except Empty:
            return None
        finally:
            self._looks.pop(number, None)
        here = sum(arena.nbytes for arena in self._arenas) + (0 if self._run is None else self._run.held_bytes)
        return replace(found, held_bytes=found.held_bytes + here)

    @lets_go
    def _send(self, message: Any) -> None:
        with self._lock, contextlib.suppress(OSError):  # a child that has gone is told of by its end of the socket
            send(self._child.socket, message)

    def _taken(self, number: int, run: Run, slots: deque[int], lane: int, waits: bool) -> None:
        """On the consumer's thread: it has taken a microbatch, or waits for one."""
        left = run.ready_in_all
        while len(slots) > left:
            try:
                slot = slots.popleft()
            except IndexError:  # another thread was faster
                break
            self._send(Free(number, slot))
        if waits and (asked := run.asked) >= 0:
            self._send(Want(number, asked))

    # -- on the thread that hears --------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        letters, poll, says = Letters(pickle.loads), select.poll(), True
        poll.register(self._child.socket, select.POLLIN)
        poll.register(self._stderr, select.POLLIN)
        try:
            while says:
                for descriptor, _ in poll.poll():
                    if descriptor == self._stderr:
                        if not self._tell():
                            poll.unregister(self._stderr)
                    else:
                        data = _read(self._child.socket)
                        says = bool(data)
                        for message in letters.feed(data):
                            self._heard(message)
        except BaseException as error:
            self._told.put(Refused(pack_exception(error)))
            if self._run is not None:
                self._run.fail(error)
        finally:
            self._end()

    def _tell(self) -> bool:
        """Hand on what the child writes to stderr; False where it writes no more."""
        data = os.read(self._stderr, 1 << 16)
        text = data.decode("utf-8", "backslashreplace")
        self._lines.extend(text.splitlines())
        with contextlib.suppress(Exception):
            sys.stderr.write(text)
            sys.stderr.flush()
        return bool(data)

    def _end(self) -> None:
        """The child has ended, or is to."""
        how = self._child.end(CLOSE_S if self._closing else 0.1)
        _links.discard(self)
        poll = select.poll()
        poll.register(self._stderr, select.POLLIN)
        while poll.poll(0) and self._tell():
            pass
        os.close(self._stderr)
        last = "".join(f"\n  {line}" for line in self._lines)
        error = WorkerError(f"the isolated engine, process {self._child.pid}, {how}{'; its last lines:' if last else ''}{last}")
        self._told.put(Refused(pack_exception(error)))
        with self._lock:
            self._ended = self._ended if self._closing else error
            self.gone, run = True, self._run
        if run is not None:
            run.fail(self._ended)
        self._leave()

    def _heard(self, message: Any) -> None:
        if isinstance(message, Prepared | Refused):
            self._letter.close()
            self._told.put(message)
        elif isinstance(message, LeavesOut):
            self._deadly.rows = message.deadly
        elif isinstance(message, Said):
            _log.log(message.level, "%s", message.text)
        elif isinstance(message, Looked):
            if (answer := self._looks.get(message.number)) is not None:
                answer.put(message.statistics)
        elif isinstance(message, Agree):
            if self._run is not None:
                self._run.errand(partial(self._agreed, message))
        else:
            with self._lock:  # no other run begins, which would use the slots again
                if self._run is not None and message.run == self._number:
                    self._of_run(self._run, message)

    def _of_run(self, run: Run, message: Made | Over | Failed) -> None:
        if isinstance(message, Over):
            run.decide(message.step, final=True)
            return
        run.decide(message.step + 1, final=False)
        if isinstance(message, Failed):
            error = unpack_exception(message.error, f"the isolated engine, process {self._child.pid}")
            for lane in run.topology.owned:  # each behind what it has made: so the first that lacks its microbatch fails
                run.lane_failed(lane, error)
        elif message.slot < 0:
            run.lane_ended(message.lane, message.microbatch)
        else:
            records, _ = pick_up(self._arenas[message.slot], message.layout, copied=True)
            assert records is not None
            self._slots.append(message.slot)
            run.put(message.lane, Ready(message.microbatch, records, message.filled, message.cursor, records.nbytes))

    def _agreed(self, message: Agree) -> None:
        """On the thread that iterates."""
        try:
            answer = Agreed(message.number, self._agree(message.steps))
        except BaseException as error:
            answer = Agreed(message.number, None, pack_exception(error))
        self._send(answer)


def _read(of: socket.socket) -> bytes:
    try:
        return of.recv(1 << 16)
    except OSError:
        return b""


def _close_all() -> None:
    """At interpreter exit."""
    left, until = list(_links), monotonic() + HURRY_S
    for link in left:
        link.close_soon()
    for link in left:
        link.close(max(0.0, until - monotonic()))


atexit.register(_close_all)
