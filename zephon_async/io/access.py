"""How a pipeline comes by bytes that lie elsewhere: a loop in a thread, a connection to each storage, and what was read before.

It is asked from any thread: by those that list, plan and decode, which wait, and by the engine's loop, which does not. All that is
waited for happens on a loop of its own, since catalogs are made before there is an engine, and since the bodies that are copied
there must not keep the engine's loop.

What was waited for (footers, headers, the lines of small data that is counted) is remembered as far as there is room, for it is
asked for again when its rows are read.

Threads: a lock guards what is remembered; connections belong to the loop; counters are read from any thread, one at a time.
"""

import asyncio
import atexit
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import asdict
from itertools import pairwise
from typing import Any, TypeVar
from weakref import WeakSet

from zephon_async.errors import ClosedError, ShardError
from zephon_async.forks import keep, tell_of_forks
from zephon_async.io.cache import DiskCache, Entry, blocks, opened
from zephon_async.io.gate import Need
from zephon_async.io.ranges import Place, Range
from zephon_async.io.read_ahead import ReadAhead
from zephon_async.io.storage_options import StorageOptions
from zephon_async.io.stores import Connection, Fault, Kind, Object, scheme_of
from zephon_async.io.transfer import Counted, Patience, Transfer
from zephon_async.loops import SIGNALS_S, LoopThread, seen

T = TypeVar("T")
NOW = (-1,)
_MOST_REMEMBERED = 2 << 20  # bytes of a read
_IN_ORDER = 1 << 20  # bytes that are read at once, at least, where one read follows upon the other
_PART = 16 << 20  # bytes of one request, at most
_CLOSE_S = 5.0
_HURRY_S = 1.0  # where the program is on its way out


_left: "WeakSet[Access]" = WeakSet()


class Access:
    """Connections, while they are held open, and what is remembered of what was read."""

    def __init__(self, options: StorageOptions | None = None, memory_bytes: int = 64 << 20) -> None:
        """memory_bytes: that may be remembered, and as many that may be read ahead.

        Raises `RecipeError` where the cache that is asked for cannot be.
        """
        options = options or StorageOptions()
        self._patience = Patience(options.download_retry, options.download_timeout_s, options.download_hedges)
        self._memory = _Memory(memory_bytes if options.metadata_cache_entries else 0)
        self._ahead = ReadAhead(self._start, memory_bytes)
        self._cache = opened(options.cache)
        options.size_pools()
        self._coming: dict[Entry, asyncio.Task[bytes | bytearray]] = {}  # entries of the cache
        self._thread = LoopThread("zephon-storage", self._disconnect, asyncio.new_event_loop)
        self._transfers: dict[Place, asyncio.Task[Transfer]] = {}
        self.counted = Counted()
        tell_of_forks(self)

    def __enter__(self) -> "Access":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forked(self) -> None:
        """In a forked child the thread is not there, and its sockets are the parent's."""
        keep(self._thread, self._transfers, self._coming)
        self._memory, self._transfers, self._coming = _Memory(0), {}, {}
        self._ahead = ReadAhead(self._start, 0)
        self._thread = LoopThread("zephon-storage", self._disconnect, asyncio.new_event_loop)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine of ours on the loop of storage."""
        return self._thread.submit(coroutine)

    @property
    def held_bytes(self) -> int:
        """Bytes that are remembered, and that are read ahead."""
        return self._memory.nbytes + self._ahead.nbytes

    def statistics(self) -> dict[str, int]:
        """What storage was asked, by name, and the cache."""
        asked = asdict(self.counted)
        if self._cache is not None:
            now = self._cache.statistics()
            asked |= {"cache_hits": now.hits, "cache_misses": now.misses, "cache_broken": now.broken, "cache_evicted": now.evicted}
        return asked

    def bound(self, remembered_bytes: int, ahead_bytes: int) -> None:
        """Remember and read ahead no more than so many bytes from now on."""
        self._memory.bound(remembered_bytes)
        self._ahead.bound(ahead_bytes)

    def read(self, wanted: Range) -> bytes:
        """Bytes, waited for. Raises `ShardError`."""
        if (known := self._memory.get(wanted)) is not None:
            return known
        if (pieces := self._ahead.pieces(wanted)) is not None:
            return self._joined(wanted, pieces)
        more = wanted
        if wanted.length < _IN_ORDER and self._memory.ends_at(wanted):  # read piece by piece: in larger ones
            more = wanted._replace(length=min(_IN_ORDER, wanted.found.size - wanted.offset))
        found = bytes(self._waited(wanted.name, self.fetch(more, NOW)))
        if len(found) <= _MOST_REMEMBERED:
            self._memory.put(more, found)
        return found[: wanted.length]

    def tail(self, wanted: Range) -> bytes:
        """The end of an object: what is remembered of it, else what is wanted, which ends where it does."""
        known = self._memory.tail(wanted)
        return self.read(wanted) if known is None else known

    def keep(self, tail: Range, piece: bytes) -> None:
        """Of the end of an object remember no more than this."""
        self._memory.keep(tail, piece)

    def look(self, name: str, place: Place, key: str) -> Object | None:
        """An object as it is now, waited for; None where there is none."""
        return self._waited(name, self._look(name, place, key))

    def ask(self, name: str, place: Place, question: Callable[[Connection], Awaitable[T]]) -> T:
        """What a small question to a storage gives, waited for."""
        return self._waited(name, self._ask(name, place, question))

    def listing(self, name: str, place: Place, prefix: str) -> Sequence[Object]:
        """The objects whose keys begin with a prefix, waited for."""
        return self._waited(name, self._listing(name, place, prefix))

    async def fetch(self, wanted: Range, need: Need, on_grid: bool = False) -> bytes | bytearray:
        """Bytes, on the loop of storage.

        on_grid: what is asked for depends on who asks; it is cached as blocks of a grid, and else as it is.
        """
        if not wanted.length:
            return b""
        if (known := self._memory.get(wanted)) is not None:
            return known
        if self._cache is None or not wanted.found.tag:
            return await self._from_storage(wanted, need)
        place, (key, size, tag) = wanted.place, wanted.found
        if on_grid:
            entries = list(blocks(place.name, key, tag, size, wanted.offset, wanted.length))
        else:
            entries = [Entry(place.name, key, tag, size, wanted.offset, wanted.length)]
        return await _all(self._from_cache(self._cache, wanted, entry, need) for entry in entries)

    def leave(self) -> None:
        """Nobody waits any more for the start that waits for this: a program that ends before it is over does not wait either."""
        _left.add(self)

    def started(self) -> None:
        """The start is over."""
        _left.discard(self)

    def close(self, timeout_s: float = _CLOSE_S) -> list[str]:
        """Cancel what is read, close the connections, end the thread; gives its name if it did not come back."""
        self._ahead.clear()
        return self._thread.close(timeout_s)

    def close_soon(self) -> None:
        """The same without waiting, and without a lock."""
        self._thread.close_soon()

    def _waited(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        return _result(name, self.submit(coroutine))

    def _start(self, wanted: Range, need: Need) -> "Future[bytes | bytearray]":
        """Begin to fetch a piece of a grid."""
        return self.submit(self.fetch(wanted, need, on_grid=True))

    def _joined(self, wanted: Range, pieces: Sequence[tuple[int, "Future[bytes | bytearray]"]]) -> bytes:
        """What is wanted, of pieces that have it."""
        parts, end = list[bytes | memoryview](), wanted.offset + wanted.length
        try:
            for begin, piece in pieces:
                body = _result(wanted.name, piece)
                parts.append(memoryview(body)[max(wanted.offset - begin, 0) : end - begin])
        except ShardError:
            self._ahead.forget(wanted)
            raise
        return b"".join(parts)

    async def _from_storage(self, wanted: Range, need: Need) -> bytes | bytearray:
        """Bytes over the network; many in several requests at once."""
        transfer = await self._transfer(wanted.place)
        parts = -(-wanted.length // _PART)
        edges = [wanted.offset + wanted.length * n // parts for n in range(parts + 1)]
        return await _all(transfer.read(wanted.name, wanted.found, a, b - a, need) for a, b in pairwise(edges))

    async def _from_cache(self, cache: DiskCache, wanted: Range, entry: Entry, need: Need) -> bytes | bytearray:
        """What is wanted of an entry; whoever is first fetches one that is not there, for all."""
        begin = max(wanted.offset, entry.offset)
        length = min(wanted.offset + wanted.length, entry.offset + entry.length) - begin
        if (found := await asyncio.to_thread(cache.get, entry, begin - entry.offset, length)) is not None:
            return found
        if (coming := self._coming.get(entry)) is None:
            whole = wanted._replace(offset=entry.offset, length=entry.length)
            coming = self._coming[entry] = asyncio.create_task(self._into_cache(cache, whole, entry, need))
            coming.add_done_callback(seen)
        await asyncio.wait([coming])  # who gives up must not spoil it for others
        body = coming.result()
        return body if length == entry.length else body[begin - entry.offset :][:length]

    async def _into_cache(self, cache: DiskCache, whole: Range, entry: Entry, need: Need) -> bytes | bytearray:
        try:
            body = await self._from_storage(whole, need)
            await asyncio.to_thread(cache.put, entry, memoryview(body))
            return body
        finally:
            del self._coming[entry]

    async def _listing(self, name: str, place: Place, prefix: str) -> Sequence[Object]:
        return await (await self._transfer(place)).pages(name, prefix)

    async def _ask(self, name: str, place: Place, question: Callable[[Connection], Awaitable[T]]) -> T:
        return await (await self._transfer(place)).ask(name, "", question)

    async def _look(self, name: str, place: Place, key: str) -> Object | None:
        try:
            return await (await self._transfer(place)).look(name, key)
        except ShardError as error:
            if not is_missing(error):
                raise
        return None

    async def _transfer(self, place: Place) -> Transfer:
        """The transfer of a storage; whoever is first opens the connection, and who gives up does not spoil it for others."""
        opening = self._transfers.get(place)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._transfers[place] = asyncio.create_task(self._open(place))
            opening.add_done_callback(seen)
        await asyncio.wait([opening])
        return opening.result()

    async def _open(self, place: Place) -> Transfer:
        return await Transfer.to(scheme_of(place.root), place.root, place.options, self._patience, self.counted)

    def _opened(self) -> list[Transfer]:
        """Transfers whose connections could be opened."""
        opening = list(self._transfers.values())
        return [task.result() for task in opening if task.done() and not task.cancelled() and task.exception() is None]

    async def _disconnect(self) -> None:
        opened = self._opened()
        self._transfers.clear()
        closes = (transfer.connection.close() for transfer in opened)
        await asyncio.gather(*closes, return_exceptions=True)  # one that breaks must not keep another open


class _Memory:
    """Bytes of objects, of at most so many; the object that was used the longest ago is forgotten."""

    def __init__(self, most_bytes: int) -> None:
        self._lock = threading.Lock()
        self._most_bytes = most_bytes
        self._pieces: OrderedDict[tuple[Place, Object], dict[int, bytes]] = OrderedDict()  # by where they begin
        self.nbytes = 0

    def get(self, wanted: Range) -> bytes | None:
        """Bytes that lie in a piece."""
        begin, end, key = wanted.offset, wanted.offset + wanted.length, (wanted.place, wanted.found)
        with self._lock:
            for at, piece in self._pieces.get(key, {}).items():
                if at <= begin and end <= at + len(piece):
                    self._pieces.move_to_end(key)
                    return piece[begin - at : end - at]
        return None

    def tail(self, wanted: Range) -> bytes | None:
        """The longest piece that ends where the object does."""
        with self._lock:
            pieces = self._pieces.get((wanted.place, wanted.found), {})
            ending = [at for at, piece in pieces.items() if at + len(piece) == wanted.found.size]
            if not ending:
                return None
            self._pieces.move_to_end((wanted.place, wanted.found))
            return pieces[min(ending)]

    def keep(self, tail: Range, piece: bytes) -> None:
        """A piece in the place of all that end where the object does."""
        with self._lock:
            pieces = self._pieces.get((tail.place, tail.found), {})
            for at in [at for at, other in pieces.items() if at + len(other) == tail.found.size]:
                self.nbytes -= len(pieces.pop(at))
        self.put(tail, piece)

    def ends_at(self, wanted: Range) -> bool:
        """Whether a piece ends where something begins."""
        with self._lock:
            pieces = self._pieces.get((wanted.place, wanted.found), {})
            return any(at + len(piece) == wanted.offset for at, piece in pieces.items())

    def put(self, wanted: Range, piece: bytes) -> None:
        key = (wanted.place, wanted.found)
        with self._lock:
            pieces = self._pieces.setdefault(key, {})
            self.nbytes += len(piece) - len(pieces.get(wanted.offset, b""))
            pieces[wanted.offset] = piece
            self._pieces.move_to_end(key)
        self.bound(self._most_bytes)

    def bound(self, most_bytes: int) -> None:
        """Hold no more than so many."""
        with self._lock:
            self._most_bytes = most_bytes
            while self.nbytes > most_bytes:
                _, pieces = self._pieces.popitem(last=False)
                self.nbytes -= sum(map(len, pieces.values()))


def _result(name: str, future: "Future[T]") -> T:
    """What a future gives, waited for."""
    try:
        while not wait([future], SIGNALS_S).done:
            continue
        return future.result()
    except CancelledError:
        raise ClosedError(f"{name}: storage was closed while it was being asked") from None


def is_forbidden(error: ShardError) -> bool:
    """Whether credentials do not allow what failed. Some storages say so of what is not there to whoever may not list."""
    return _kind_of(error) is Kind.FORBIDDEN


def is_missing(error: ShardError) -> bool:
    """Whether what failed is not there."""
    return _kind_of(error) is Kind.MISSING


def _kind_of(error: ShardError) -> Kind | None:
    return error.__cause__.kind if isinstance(error.__cause__, Fault) else None


async def _all(reads: Iterable[Coroutine[Any, Any, bytes | bytearray]]) -> bytes | bytearray:
    """What several reads give, one behind the other; where one fails, the others are given up."""
    first, *others = reads
    if not others:
        return await first
    try:
        async with asyncio.TaskGroup() as tasks:
            pieces = [tasks.create_task(read) for read in (first, *others)]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return b"".join(piece.result() for piece in pieces)


def _close_left() -> None:
    """When the main thread has ended, before threads are waited for: one of these may wait for a storage."""
    for access in list(_left):
        access.close(_HURRY_S)


getattr(threading, "_register_atexit", atexit.register)(_close_left)
