"""What a run has fetched of remote shards and not decoded yet.

An *extent* is what is fetched as one: of units measured in rows all that the needed columns have in the unit, else, and where row
blocks are not read unit by unit, a run of row blocks. It is fetched when a decoder asks for a row block of it, or ahead, for it is
known what a lane reads next. It is held in memory as far as there is room, else on the disk, until the lanes that read of its unit
in this epoch have all left it; where the disk has no room either, the least recently used is dropped and fetched again, which is
counted.

Threads: everything belongs to the engine's loop but what workers call: `Held.read`, `view`, `tail` and `keep`, and `Extent.spill`.
A lock of each extent keeps its bytes where they are while they are read.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from zephon_async.errors import ColumnError, ShardError, StorageError
from zephon_async.io.access import NOW, Access
from zephon_async.io.catalog import FROM_START, Catalog
from zephon_async.io.gate import Gate, Need
from zephon_async.io.ranges import Range
from zephon_async.io.reader import Reader
from zephon_async.io.remote import RemoteSource
from zephon_async.io.spill import Spill
from zephon_async.loops import seen

Key: TypeAlias = tuple[int, int]  # dataset and unit
_AHEAD, _AHEAD_BYTES, _MOST_AHEAD = 16, 64 << 20, 64  # extents of a lane's dataset: so many, or so many bytes in at most so many
_MOST_EXTENT = 8 << 20  # bytes of a run of row blocks
_ANY_NUMBER = 1 << 30
_NEAR = 1 << 16  # bytes between two ranges that are fetched rather than asked for twice


class Submit(Protocol):
    """Runs a function on a worker."""

    def __call__(self, call: Callable[[], Any], need: Need, /) -> Awaitable[Any]: ...


class _Shape(NamedTuple):
    """What extents of a dataset are like: of whole units or of row blocks, of how many, and of how many bytes, about."""

    in_units: bool
    blocks: int
    nbytes: int

    @classmethod
    def of(cls, catalog: Catalog, most_bytes: int, apart: bool) -> "_Shape":
        units = max(len(catalog.units), 1)
        blocks = max(1, int((-(-catalog.units["length"] // catalog.units["block"])).sum()) // units)
        nbytes = max(1, catalog.bytes // units)
        if catalog.measure == "rows" and not apart:
            return cls(True, blocks, nbytes)
        block = max(1, nbytes // blocks)
        blocks = max(1, min(blocks, min(_MOST_EXTENT, most_bytes) // block))
        return cls(False, blocks, blocks * block)


class Extent:
    """Bytes of some row blocks: ranges in memory or in the spill."""

    def __init__(self, blocks: range, spill: Spill) -> None:
        self.blocks, self._spill = blocks, spill
        self._lock = threading.Lock()
        self._ranges: list[tuple[int, int, memoryview | int]] = []  # begin, end, and the bytes or their place in the spill
        self._dropped = False
        self.nbytes = 0  # in memory
        self.over = False  # nobody reads it any more
        self.fetched: asyncio.Task[None] | None = None

    def keep(self, begin: int, piece: bytes | bytearray) -> int:
        """Keep a range in memory; gives how many bytes that takes."""
        return len(piece) if self._add(begin, piece, memoryview(piece), len(piece)) else 0

    def spill(self, begin: int, piece: bytes | bytearray) -> bool:
        """Keep a range on the disk; whether it has room."""
        if (at := self._spill.put(piece)) is None:
            return False
        if not self._add(begin, piece, at, 0):
            self._spill.free(at, len(piece))
        return True

    def _add(self, begin: int, piece: bytes | bytearray, held: memoryview | int, taken: int) -> bool:
        """Whether it has not been dropped meanwhile."""
        with self._lock:
            if not self._dropped:
                self._ranges.append((begin, begin + len(piece), held))
                self.nbytes += taken
            return not self._dropped

    def view(self, begin: int, end: int) -> bytes | memoryview | None:
        """Bytes of the shard; None where they are not all here."""
        with self._lock:
            for a, b, held in self._ranges:
                if a <= begin and end <= b:
                    if isinstance(held, memoryview):
                        return held[begin - a : end - a]
                    with suppress(OSError):  # the disk has failed: it can be had from the storage
                        return self._spill.get(held + begin - a, end - begin)
        return None

    def drop(self) -> None:
        """Forget all bytes."""
        with self._lock:
            ranges, self._ranges, self.nbytes, self._dropped = self._ranges, [], 0, True
        for a, b, held in ranges:
            if isinstance(held, int):
                self._spill.free(held, b - a)


class Held:
    """A unit of a remote shard as a source: what has been fetched is at hand, all else is waited for."""

    remote = True

    def __init__(self, source: RemoteSource) -> None:
        self._source = source
        self.where, self.name, self.key = source.where, source.name, source.key
        self.size, self.tag = source.size, source.tag
        self.tail, self.keep, self.beside = source.tail, source.keep, source.beside
        self.extents: tuple[Extent, ...] = ()  # replaced on the loop, read by workers
        self.left: set[tuple[int, int]] = set()  # (epoch, lane) that have left it
        self.users = 0  # who decode, or wait until they can

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.view(offset, length))

    def view(self, offset: int, length: int) -> bytes | memoryview:
        """The same, of what is in memory without a copy."""
        for extent in self.extents:
            if (found := extent.view(offset, offset + length)) is not None:
                return found
        return self._source.read(offset, length)

    def covering(self, blocks: range) -> Extent | None:
        """The extent that has a run of row blocks."""
        return next((each for each in self.extents if blocks[0] in each.blocks and blocks[-1] in each.blocks), None)

    def range(self, offset: int, length: int) -> Range:
        return self._source.range(offset, length)


class Fetcher:
    """Extents of a run.

    submit: runs what waits for the disk, and asks a decoder for its ranges. owners: how many lanes of this rank read of a (dataset,
    epoch, unit). streams: lanes times datasets. memory_bytes: of extents that are held. coming_bytes: that are on their way at
    once, until they are held in memory or lie in the spill. apart: datasets whose row blocks are not read unit by unit.
    """

    def __init__(
        self,
        reader: Reader,
        access: Access,
        submit: Submit,
        owners: Callable[[int, int, int], int],
        streams: int,
        memory_bytes: int,
        coming_bytes: int,
        spill: Spill,
        apart: Collection[int] = (),
    ) -> None:
        self._reader, self._access, self._submit, self._owners = reader, access, submit, owners
        self._streams, self._memory_bytes, self._spill = streams, memory_bytes, spill
        self._held: OrderedDict[Key, Held] = OrderedDict()  # the least recently used first
        most = memory_bytes // (2 * streams)
        self._shapes = [_Shape.of(of.catalog(lenient=True), most, d in apart) for d, of in enumerate(reader.datasets)]
        self._usual = [shape.nbytes for shape in self._shapes]  # bytes of an extent of each dataset, lately
        self._lost: set[tuple[int, int, int]] = set()  # (dataset, unit, row block) of what was dropped
        self._coming = Gate(_ANY_NUMBER, _ANY_NUMBER, coming_bytes)
        self._held_bytes = 0
        self.fetched_twice = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that are held in memory, and that are on their way."""
        return self._held_bytes + self._coming.inside_bytes

    @asynccontextmanager
    async def source(self, d: int, unit: int, blocks: range, need: Need) -> AsyncIterator[Held]:
        """A source that has what row blocks are decoded from, as long as the context lasts."""
        held = self._of(d, unit)
        held.users += 1
        try:
            fetched = () if self._unknown(d, unit) else blocks
            waits = [self._extent(held, d, unit, range(block, block + 1), need).fetched for block in fetched]
            flights = {flight for flight in waits if flight is not None}
            if flights:
                await asyncio.wait(flights)  # who gives up must not spoil it for others
                for flight in flights:
                    flight.result()
            yield held
        finally:
            held.users -= 1
            self._drop_unused(d, unit)

    def parts_ahead(self, d: int) -> int:
        """How many row blocks of a dataset a lane should announce."""
        return self._extents_ahead(d) * self._shapes[d].blocks + 1

    def ahead(self, d: int, places: Sequence[tuple[int, int]], need: Need) -> int:
        """Fetch for what a lane reads next of a dataset, (unit, row block) in the order of their use, as far as there is room.

        Gives in how many row blocks it should be asked again.
        """
        room, (in_units, step, _) = self._extents_ahead(d), self._shapes[d]
        there: set[Extent] = set()
        runs: list[tuple[int, range]] = []
        before = -1
        for unit, block in places:
            if (in_units and unit == before) or self._unknown(d, unit):
                continue
            before, held = unit, self._held.get((d, unit))
            if held is not None and (extent := held.covering(range(block, block + 1))) is not None:
                there.add(extent)
            elif runs and runs[-1][0] == unit and runs[-1][1].stop == block and len(runs[-1][1]) < step:
                runs[-1] = unit, range(runs[-1][1].start, block + 1)
            else:
                runs.append((unit, range(block, block + 1)))
        more = len(places) == self.parts_ahead(d)  # what comes behind may belong to the last run
        if more and not in_units and len(there) + len(runs) > 1 and runs and len(runs[-1][1]) < step:
            runs.pop()
        for unit, blocks in runs[: max(0, room - len(there))]:
            self._extent(self._of(d, unit), d, unit, blocks, need)
        return step if room > 2 else max(1, step // 2)

    def leave(self, d: int, epoch: int, unit: int, block: int, lane: int, last: bool) -> None:
        """A lane has taken all that it takes of a row block; `last`: of the unit as well, in this epoch."""
        if (held := self._held.get((d, unit))) is None:
            return
        if not self._shapes[d].in_units:
            for extent in held.extents:
                extent.over = extent.over or extent.blocks[-1] == block
        elif last:
            held.left.add((epoch, lane))
            if sum(of == epoch for of, _ in held.left) >= self._owners(d, epoch, unit):
                for extent in held.extents:
                    extent.over = True
                held.left = {each for each in held.left if each[0] > epoch}
        self._drop_unused(d, unit)

    def close(self) -> None:
        """Give up what is being fetched, and forget all."""
        for key in list(self._held):
            self._forget(key)
        self._spill.close()

    # ------------------------------------------------------------------------------------------------------------------------

    def _unknown(self, d: int, unit: int) -> bool:
        """Whether nobody knows which bytes a row block is decoded from: whoever decodes it reads them, ahead (`read_ahead`)."""
        return bool(self._reader.datasets[d].catalog(lenient=True).units["entry"][unit] == FROM_START)

    def _of(self, d: int, unit: int) -> Held:
        key = (d, unit)
        if key not in self._held:
            self._held[key] = Held(cast(RemoteSource, self._reader.open(d, unit)))
        self._held.move_to_end(key)
        return self._held[key]

    def _extent(self, held: Held, d: int, unit: int, blocks: range, need: Need) -> Extent:
        """The extent that has a run of row blocks; a new one begins to be fetched."""
        if (there := held.covering(blocks)) is not None:
            there.over = False
            return there
        if self._shapes[d].in_units:
            blocks = range(_blocks(self._reader.datasets[d].catalog(lenient=True).units[unit]))
        extent = Extent(blocks, self._spill)
        held.extents = (*held.extents, extent)
        if lost := self._lost.intersection((d, unit, block) for block in blocks):
            self._lost -= lost
            self.fetched_twice += 1
        extent.fetched = asyncio.create_task(self._fetch(held, extent, d, unit, need))
        extent.fetched.add_done_callback(seen)
        return extent

    async def _fetch(self, held: Held, extent: Extent, d: int, unit: int, need: Need) -> None:
        try:
            ranges = joined(await self._submit(partial(self._ranges, d, unit, extent.blocks), need))
            async with asyncio.TaskGroup() as tasks:
                for begin, end in ranges:
                    tasks.create_task(self._piece(held, extent, begin, end, need, on_grid=not self._shapes[d].in_units))
        except BaseException as error:
            extent.fetched = None
            self._drop(held, [extent])  # whoever asks next tries again
            self._drop_unused(d, unit)
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from error.exceptions[0].__cause__
            raise
        self._usual[d] = max(1, (3 * self._usual[d] + sum(end - begin for begin, end in ranges)) // 4)
        extent.fetched = None

    def _ranges(self, d: int, unit: int, blocks: range) -> Sequence[tuple[int, int]]:
        """What row blocks are decoded from; nothing, where the shard is so broken that only their decoding can tell which are."""
        try:
            return self._reader.ranges(d, unit, blocks)
        except (StorageError, ColumnError):
            raise
        except ShardError:
            return []

    async def _piece(self, held: Held, extent: Extent, begin: int, end: int, need: Need, on_grid: bool) -> None:
        wanted = held.range(begin, end - begin)
        async with self._coming.turn(need, wanted.length):
            piece = await asyncio.wrap_future(self._access.submit(self._access.fetch(wanted, need, on_grid)))
            while self._held_bytes + len(piece) > self._memory_bytes:
                if await self._submit(partial(extent.spill, begin, piece), NOW):  # before all that wants memory
                    return
                if not self._drop_oldest(held):  # it is needed, and there is nothing else
                    break
            self._held_bytes += extent.keep(begin, piece)

    def _drop_oldest(self, needed: Held) -> bool:
        """Neither memory nor disk has room: drop what was used the longest ago, and may be dropped; whether there is something."""
        for key, held in self._held.items():
            if held is not needed and held.extents and not held.users and all(extent.fetched is None for extent in held.extents):
                self._lost.update((*key, block) for extent in held.extents for block in extent.blocks)
                self._forget(key)
                return True
        return False

    def _drop_unused(self, d: int, unit: int) -> None:
        """Drop what nobody reads any more, unless somebody is about to."""
        if (held := self._held.get((d, unit))) is None or held.users:
            return
        self._drop(held, [extent for extent in held.extents if extent.over and extent.fetched is None])
        if not held.extents:
            del self._held[d, unit]

    def _forget(self, key: Key) -> None:
        held = self._held.pop(key)
        self._drop(held, held.extents)

    def _drop(self, held: Held, extents: Sequence[Extent]) -> None:
        held.extents = tuple(extent for extent in held.extents if extent not in extents)
        for extent in extents:
            if extent.fetched is not None:
                extent.fetched.cancel()
            self._held_bytes -= extent.nbytes
            extent.drop()

    def _extents_ahead(self, d: int) -> int:
        """As many as have room beside the one that is read, in memory and in half of the spill."""
        room = self._memory_bytes + self._spill.limit_bytes // 2
        enough = min(_MOST_AHEAD, max(_AHEAD, _AHEAD_BYTES // self._usual[d]))
        return max(0, min(enough, room // (self._streams * self._usual[d]) - 1))


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges (begin, end) in their order, those that are near made one."""
    runs: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if runs and begin - runs[-1][1] <= _NEAR:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((begin, end))
    return runs


def _blocks(unit: Any) -> int:
    """Row blocks of a unit."""
    return -(-int(unit["length"]) // int(unit["block"]))
