"""Row blocks in memory, read once however many ask for them.

`get` gives a block from the cache, or joins the read of it that is under way, or starts one on a worker. `prefetch` reads what
comes next, several blocks in one call, since a worker that is asked for one at a time waits longer than it reads. The cache is
bounded in bytes and forgets the least recently used; losing a block costs time, never data. What a read brings along is kept while
there is room, and never pushes out a block that was asked for. Of blocks that a lane has left behind only a few are kept: they are
asked for again where data repeats soon, and else new ones want their memory, which is costly to get from the system.

Threads: everything here belongs to one event loop, but for the function that is run on a worker, which shares nothing with it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from time import perf_counter
from typing import Protocol, TypeAlias

from zephon_async.io.fetcher import Fetcher
from zephon_async.io.reader import Reader
from zephon_async.io.stores import Source
from zephon_async.loops import seen
from zephon_async.records import Block

READS_AHEAD = 4
"""Calls in which what is read ahead is read: fewer wait long for their first block, more wait for the loop in between."""
_LEFT = 8  # one part in so many of the budget is for blocks that were left
Key: TypeAlias = tuple[int, int, int]
_Read: TypeAlias = tuple[dict[int, Block], float]  # and the seconds that it took, for whoever runs it
_NOW = (-1,)  # before anything else


class Run(Protocol):
    """Runs a function on a worker; `need` says where in the order of use the result is needed, smaller is sooner."""

    def __call__(self, function: Callable[[], _Read], need: tuple[int, ...], /) -> Awaitable[_Read]: ...


class Blocks:
    """A cache of row blocks of at most `budget_bytes` in front of a reader. `hits`, `misses` and `bytes` count."""

    def __init__(self, reader: Reader, run: Run, budget_bytes: int, fetcher: Fetcher | None = None) -> None:
        """fetcher: of remote shards."""
        self._reader = reader
        self._run = run
        self._fetcher = fetcher
        self.budget_bytes = budget_bytes
        self._kept: OrderedDict[Key, Block] = OrderedDict()  # the least recently used first
        self._left: OrderedDict[Key, Block] = OrderedDict()  # likewise
        self._left_bytes = 0
        self._flights: dict[Key, asyncio.Task[dict[int, Block]]] = {}
        self._lasts: dict[tuple[int, int], int] = {}  # the last row block of a unit (dataset, unit), where that is found out
        self.forgets = False  # whether a block that was not left has had to go: then what is held outside of here is more than this
        self.hits = 0
        self.misses = 0
        self.bytes = 0
        self._largest = 0  # of the blocks read lately

    def __repr__(self) -> str:
        kept = len(self._kept) + len(self._left)
        return f"<Blocks {kept} kept, {self.bytes:,} of {self.budget_bytes:,} bytes, {len(self._flights)} being read>"

    @property
    def held_bytes(self) -> int:
        """Bytes of the blocks that are kept and, about, of those that are being read."""
        return self.bytes + len(self._flights) * self._largest

    def fetches(self, dataset: int) -> Fetcher | None:
        """What fetches the shards of a dataset; None where they are at hand."""
        if self._fetcher is None or not self._reader.datasets[dataset].store.remote:
            return None
        return self._fetcher

    async def get(self, dataset: int, unit: int, block: int) -> Block:
        """A row block. Raises what its read raises, an exception for each who asks; a failed read is not remembered."""
        key = (dataset, unit, block)
        if (left := self._left.pop(key, None)) is not None:
            self._left_bytes -= left.nbytes
            self._kept[key] = left
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            self.hits += 1
            return kept
        self.misses += 1
        while True:
            flight = self._flights.get(key) or self._start(dataset, unit, range(block, block + 1), _NOW)
            await asyncio.wait([flight])  # one who gives up must not spoil it for the others
            if (error := flight.exception()) is not None:
                raise _own(error)
            if block in (found := flight.result()):
                return found[block]

    def prefetch(self, dataset: int, places: Sequence[tuple[int, int]], need: tuple[int, ...] = _NOW) -> None:
        """Start reading row blocks (unit, block), given in the order of their use, that are neither here nor under way.

        Nothing is read until a quarter of the places, the last ones, or two, need a read: neighbours of these are read in one
        go. Of a unit that has ended before them nothing is read. If a read fails, `get` will try again and say so. What is needed
        later than now is read only while all that is being read has room in the budget.
        """
        places = [place for place in places if not self._is_behind(dataset, *place)]
        size, room = max(min(2, len(places)), len(places) // READS_AHEAD), len(places)
        if need != _NOW and self._largest:
            room = max(0, self.budget_bytes // self._largest - len(self._flights))
        missing = [n for n, place in enumerate(places) if not self._has((dataset, *place))][:room]
        if not missing or missing[0] > len(places) - size:
            return
        unit, first = places[missing[0]]
        stop = first + 1
        for place in [*(places[n] for n in missing[1:]), None]:
            if place == (unit, stop) and stop - first < size:
                stop += 1
                continue
            self._start(dataset, unit, range(first, stop), need)
            if place is not None:
                (unit, first), stop = place, place[1] + 1

    def leave(self, dataset: int, unit: int, block: int) -> None:
        """A lane has taken all that it takes of a row block."""
        key = (dataset, unit, block)
        if (kept := self._kept.pop(key, None)) is None:
            return
        self._left[key] = kept
        self._left_bytes += kept.nbytes
        while self._left_bytes > self.budget_bytes // _LEFT:
            self._forget_left()

    def close(self) -> None:
        """Give up what is being read, and forget all."""
        if self._fetcher is not None:
            self._fetcher.close()
        for flight in set(self._flights.values()):
            flight.cancel()
        self._flights.clear()
        self._kept.clear()
        self._left.clear()
        self.bytes = self._left_bytes = 0

    def _is_behind(self, dataset: int, unit: int, block: int) -> bool:
        """Whether a row block lies behind the last one of its unit."""
        last = self._lasts.get((dataset, unit))
        return last is not None and block > last

    def _has(self, key: Key) -> bool:
        return key in self._kept or key in self._left or key in self._flights

    def _start(self, dataset: int, unit: int, blocks: range, need: tuple[int, ...]) -> "asyncio.Task[dict[int, Block]]":
        flight = asyncio.get_running_loop().create_task(self._read(dataset, unit, blocks, need))
        for block in blocks:
            self._flights[dataset, unit, block] = flight
        flight.add_done_callback(seen)
        self._make_room()
        return flight

    async def _read(self, dataset: int, unit: int, blocks: range, need: tuple[int, ...]) -> dict[int, Block]:
        """Read row blocks. Where several at once fail, none is given, so that each can fail or not by itself."""
        before = self._flights.get((dataset, unit, blocks.start - 1))
        if before is not None and self._reader.in_order(dataset, unit):
            await asyncio.wait([before])
        try:
            if need != _NOW and self._is_behind(dataset, unit, blocks.start):
                return {}
            if (fetcher := self.fetches(dataset)) is None:
                found, _ = await self._run(lambda: _timed(self._reader, dataset, unit, blocks, None), need)
            else:
                async with fetcher.source(dataset, unit, blocks, need) as source:
                    found, _ = await self._run(lambda: _timed(self._reader, dataset, unit, blocks, source), need)
        except Exception:
            if len(blocks) > 1:
                return {}
            raise
        finally:
            for block in blocks:
                self._flights.pop((dataset, unit, block), None)
        if lasts := [number for number, block in found.items() if block.last]:
            self._lasts[dataset, unit] = min(lasts)
        for number, passed in found.items():
            key = (dataset, unit, number)
            if number not in blocks and not self._has(key) and self.held_bytes + passed.nbytes <= self.budget_bytes:
                self._keep(key, passed, last=False)
        for number in blocks:
            if not self._is_behind(dataset, unit, number):
                self._keep((dataset, unit, number), found[number])
        return found

    def _keep(self, key: Key, block: Block, last: bool = True) -> None:
        """Keep a block, as the last or the first that will be forgotten; that may be at once."""
        if (replaced := self._kept.pop(key, None)) is not None:
            self.bytes -= replaced.nbytes
        self._kept[key] = block
        self._kept.move_to_end(key, last)
        self.bytes += block.nbytes
        self._largest = max(block.nbytes, self._largest * 7 // 8)
        self._make_room()

    def _make_room(self) -> None:
        """Forget blocks until those that are kept and those that are being read have room."""
        while self._left and self.held_bytes > self.budget_bytes:
            self._forget_left()
        while self._kept and self.held_bytes > self.budget_bytes:
            self.bytes -= self._kept.popitem(last=False)[1].nbytes
            self.forgets = True

    def _forget_left(self) -> None:
        size = self._left.popitem(last=False)[1].nbytes
        self._left_bytes -= size
        self.bytes -= size


def _own(error: BaseException) -> BaseException:
    """A copy, for whoever raises it adds notes and frames; of a format's own exception that cannot be copied, that itself."""
    try:
        own = copy(error)
    except Exception:
        return error
    if type(own) is not type(error):
        return error
    own.__notes__ = list(getattr(error, "__notes__", ()))
    own.__cause__, own.__context__ = error.__cause__, error.__context__
    own.__suppress_context__ = error.__suppress_context__
    return own.with_traceback(error.__traceback__)


def _timed(reader: Reader, dataset: int, unit: int, blocks: range, source: Source | None) -> _Read:
    start = perf_counter()
    return reader.read_several(dataset, unit, blocks, source), perf_counter() - start
