"""Reads of objects that arrive: retries and hedges over the attempts of a `Connection`.

A fault that may pass is tried again after a pause that doubles, differs from reader to reader, and is at least what the storage
asked for; a body that ended early goes on where it stopped, and an attempt in which nothing comes any more is given up. A read that
takes much longer than others of its size is made a second time beside itself, and whichever is whole first is taken, never parts of
both. What cannot be had is a `ShardError` that says what the storage said, how often it was asked, and by which request.

Threads: everything belongs to the loop of the connection; `counted` is read from any thread, one number at a time.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isasyncgen
from statistics import median
from time import monotonic
from typing import Any, TypeVar

from zephon_async.errors import MissingError, StorageError
from zephon_async.io.gate import MOST_AT_ONCE, Gate, Need
from zephon_async.io.stores.connection import Connection, Fault, Kind, Object, Scheme, shown
from zephon_async.loops import seen

T = TypeVar("T")
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.1, 10.0
_SAMPLES = 16  # at least so many must have been seen to call one slow, ...
_SLOW, _SLOWEST = 4.0, 1.5  # ... which takes so many times the median, or so many times what nineteen in twenty took
_LATELY = 64  # reads that the median is of
_HEDGES = 0.1  # for each read, at most
_DOUBLED = 10  # times, at most: behind that a pause is the longest
_PROGRESS = 1 << 16  # bytes that make a new beginning
_SILENCE = 3  # one part in so many of the time that there is may pass in an attempt without anything that comes
_PARTS = 4  # of that time

_WHAT = {
    Kind.MISSING: "is not there",
    Kind.FORBIDDEN: "may not be read with these credentials",
    Kind.CHANGED: "has changed since it was listed; start again, or put the object back",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """How faults are borne. attempts, timeout_s: in which nothing comes, until it is an error."""

    attempts: int = 12
    timeout_s: float = 180.0
    hedges: bool = True


@dataclass(slots=True)
class Counted:
    """What storage was asked so far. bytes: of bodies."""

    requests: int = 0
    bytes: int = 0
    retries: int = 0
    hedges: int = 0


class _Unopened:
    """In the place of a connection, while that is opened."""

    streams = False


class Transfer:
    """What is asked of one connection."""

    def __init__(self, root: str, connection: Connection, patience: Patience, counted: Counted) -> None:
        """root: of its URLs, for messages."""
        self.connection, self.counted = connection, counted
        self._root, self._patience = root, patience
        self.gate = Gate()
        self._answers = deque[float](maxlen=_LATELY)  # seconds until the first bytes of reads
        self._took: dict[int, deque[float]] = {}  # seconds of whole reads, by about their size
        self._hedges = 1.0  # that may be made now

    @classmethod
    async def to(cls, scheme: Scheme, root: str, options: Mapping[str, Any], patience: Patience, counted: Counted) -> "Transfer":
        """With a connection that is opened now. Raises `ShardError` where it cannot be, and what `Scheme.open` raises else."""
        unopened: Any = _Unopened()
        opening = partial(scheme.open, root, options, MOST_AT_ONCE)
        connection = await cls(root, unopened, patience, counted).persist(shown(root), "", opening, (0,), lambda: 0)
        return cls(root, connection, patience, counted)

    async def read(self, where: str, found: Object, offset: int, length: int, need: Need) -> bytearray:
        """Bytes of an object. where: what messages call it. need: how soon they are needed; smaller is sooner."""
        first = _Read(self, where, found, offset, length, need)
        reads = {first.task}
        try:
            if await self._is_slow(first):
                self.counted.hedges += 1
                reads.add(_Read(self, where, found, offset, length, need).task)
            while True:
                done, reads = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
                good = [read for read in done if read.exception() is None]
                if good or not reads:
                    return (good or list(done))[0].result()
        finally:
            for read in reads:
                read.cancel()
            if reads:
                await asyncio.wait(reads)

    async def look(self, where: str, key: str) -> Object:
        """One object as it is now."""
        return await self.ask(where, key, lambda connection: connection.look(key))

    async def ask(self, where: str, key: str, question: Callable[[Connection], Awaitable[T]]) -> T:
        """What a small question gives. key: what it is about, for messages."""

        async def once() -> T:
            self.counted.requests += 1
            return await question(self.connection)

        return await self.persist(where, key, once, (0,), lambda: 0)

    async def pages(self, where: str, prefix: str) -> list[Object]:
        """All objects whose keys begin with a prefix. A listing goes on where it failed, if it can, else it begins anew."""
        iterator, found, pages = self.connection.pages(prefix), list[Object](), 0

        async def once() -> list[Object]:
            nonlocal iterator, pages
            before, failed = pages, 1
            try:
                async for page in iterator:
                    pages += 1
                    found.extend(page)
                failed = 0
            except BaseException:
                if isasyncgen(iterator):  # which has ended by that, and would give nothing more
                    iterator = self.connection.pages(prefix)
                    found.clear()
                raise
            finally:
                self.counted.requests += max(pages - before + failed, 1)
            return found

        return await self.persist(where, prefix, once, (0,), lambda: pages if isasyncgen(iterator) else pages * _PROGRESS)

    async def persist(self, where: str, key: str, once: Callable[[], Awaitable[T]], need: Need, got: Callable[[], int]) -> T:
        """The first attempt that does not fail. got: bytes that have come so far."""
        attempts, asked, before, spent_s = 0, 0, 0, 0.0
        first = monotonic()
        while True:
            asked += 1
            watch = _Watch(self._patience.timeout_s / (_SILENCE if self.connection.streams else 1), got)
            try:
                async with self.gate.turn(need):  # to wait for it is no fault
                    return await _in_time(once, watch)
            except Fault as raised:
                fault = raised
            spent_s += watch.spent_s
            if got() - before >= _PROGRESS:
                attempts, spent_s, before = 0, 0.0, got()
            attempts += 1
            if fault.kind is Kind.SLOW_DOWN:
                self.gate.slow_down()
            doubled = _FIRST_PAUSE_S * 2 ** min(attempts - 1, _DOUBLED)
            pause_s = max(min(_MOST_PAUSE_S, doubled) * random.uniform(0.5, 1.5), fault.retry_after_s or 0.0)
            spent_s += pause_s
            late = spent_s > self._patience.timeout_s
            if fault.kind not in (Kind.TRANSIENT, Kind.SLOW_DOWN) or attempts >= self._patience.attempts or late:
                what = _WHAT.get(fault.kind, "cannot be read")
                times = f"; asked {asked} times in {monotonic() - first:.0f} s" if asked > 1 else ""
                if late and fault.retry_after_s:
                    times = f"; it asks to wait {fault.retry_after_s:g} s, download_timeout is {self._patience.timeout_s:g}{times}"
                kind = MissingError if fault.kind is Kind.MISSING else StorageError
                raise kind(f"{where}: {shown(self._root + key)} {what}: {fault}{times}") from fault
            self.counted.retries += 1
            fault.__traceback__ = fault.__cause__ = fault.__context__ = None  # which hold what holds them: all that was read
            await asyncio.sleep(pause_s)

    async def _is_slow(self, read: "_Read") -> bool:
        """Wait until a read is done, or slow and may be hedged: without an answer for long, or not done for long."""
        if not self._patience.hedges:
            return False
        await asyncio.wait([read.task, read.begun], return_when=asyncio.FIRST_COMPLETED)
        slow = await _late([read.task, read.answered], self._answers) or await _late(
            [read.task], self._took.get(read.length.bit_length(), ())
        )
        if not slow or not read.asking or self._hedges < 1:  # in a pause nothing more is asked of the storage
            return False
        self._hedges -= 1
        return True

    def answered(self, seconds: float) -> None:
        """The first bytes of a read have come."""
        self._answers.append(seconds)

    def took(self, length: int, seconds: float) -> None:
        """A read is whole."""
        self._took.setdefault(length.bit_length(), deque(maxlen=_LATELY)).append(seconds)
        self._hedges = min(self._hedges + _HEDGES, _SAMPLES)
        self.gate.moved(length)


async def _in_time(once: Callable[[], Awaitable[T]], watch: "_Watch") -> T:
    """One attempt; one in which nothing comes any more is a fault, whatever time-outs its library has."""
    limit = watch.begin()
    try:
        async with limit:
            return await once()
    except TimeoutError:
        if limit.expired():
            raise Fault(Kind.TRANSIENT, f"nothing came for {watch.wait_s:g} s") from None
        raise
    finally:
        watch.end()


async def _late(waits: list[asyncio.Future[Any]], others: Collection[float]) -> bool:
    """Wait until one of them is done, or has taken long for what others took; whether that is so."""
    if len(others) < _SAMPLES:
        return False
    most_s = min(_SLOW * median(others), _SLOWEST * sorted(others)[len(others) * 19 // 20])
    done, _ = await asyncio.wait(waits, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    return not done


class _Watch:
    """Ends an attempt in which nothing comes for `wait_s`, and tells how long it took.

    Both are counted in parts, each as one however late the loop comes to it: while this loop is held up, or all of the process
    is, what has come is not seen, and that is no fault of the storage.
    """

    def __init__(self, wait_s: float, got: Callable[[], int]) -> None:
        self.wait_s, self.spent_s, self._got = wait_s, 0.0, got
        self._part_s = wait_s / _PARTS
        self._silent = self._before = 0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> asyncio.Timeout:
        """What to do it in. It must be ended, or what is watched stays in memory."""
        self._loop, self._limit, self._before = asyncio.get_running_loop(), asyncio.timeout(None), self._got()
        self._next()
        return self._limit

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()  # which lets go of this too
            self.spent_s += min(monotonic() - self._since, self._part_s)
        self._timer = None

    def _next(self) -> None:
        self._since = monotonic()
        self._timer = self._loop.call_later(self._part_s, self._look)

    def _look(self) -> None:
        got = self._got()
        self._silent, self._before = 0 if got > self._before else self._silent + 1, got
        self.spent_s += self._part_s
        self._timer = None
        if self._silent < _PARTS:
            self._next()
        else:
            self._limit.reschedule(self._loop.time())


class _Read:
    """One read of a range with all its attempts, and its own buffer."""

    def __init__(self, of: Transfer, where: str, found: Object, offset: int, length: int, need: Need) -> None:
        self._of, self._where, self._found, self._offset, self.length, self._need = of, where, found, offset, length, need
        self._buffer, self._got = bytearray(), 0
        self._since = 0.0
        self.asking = False
        self.begun, self.answered = (asyncio.get_running_loop().create_future() for _ in range(2))
        self.task = asyncio.ensure_future(self._all())
        self.task.add_done_callback(seen)

    async def _all(self) -> bytearray:
        await self._of.persist(self._where, self._found.key, self._once, self._need, lambda: self._got)
        self._of.took(self.length, monotonic() - self._since)
        return self._buffer

    async def _once(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)
        self._since = monotonic()
        if len(self._buffer) < self.length:  # memory for it only while it has its turn
            whole = bytearray(self.length)
            whole[: self._got] = self._buffer
            self._buffer = whole
        left = self.length - self._got
        if not left:
            return
        self.asking = True
        self._of.counted.requests += 1
        try:
            found = self._found
            await self._of.connection.read(found.key, self._offset + self._got, left, found.tag, self._take, found.size)
        except Fault as fault:
            if fault.kind is not Kind.TRANSIENT or self._got != self.length:  # else it broke behind the last byte
                raise
        finally:
            self.asking = False
            if self._got != self.length:  # cancelled as well
                del self._buffer[self._got :]
        if self._got != self.length:
            raise Fault(Kind.TRANSIENT, f"the body has {self._got:,} of {self.length:,} bytes")

    def _take(self, piece: bytes) -> None:
        self._of.counted.bytes += len(piece)
        if not self.answered.done():
            self.answered.set_result(None)
            self._of.answered(monotonic() - self._since)
        if self._got + len(piece) > self.length:
            raise Fault(Kind.REFUSED, f"the body has more than the {self.length:,} bytes that were asked for")
        self._buffer[self._got : self._got + len(piece)] = piece
        self._got += len(piece)
