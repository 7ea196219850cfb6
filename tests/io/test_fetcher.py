"""What is fetched of remote units: once however many ask, as far ahead as there is room, held until nobody reads it any more."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zephon_async.errors import ShardError
from zephon_async.io import Spill
from zephon_async.io.catalog import UNIT, Catalog, Shard
from zephon_async.io.fetcher import Fetcher, joined
from zephon_async.io.ranges import Place, Range
from zephon_async.io.stores import Object

UNIT_BYTES, BLOCKS = 800, 8  # 100 bytes a row block
BODY = b"".join(n.to_bytes(2, "little") for n in range(5 * UNIT_BYTES // 2))
NOW = (0,)


class Elsewhere:
    """A storage that notes what it is asked for, and answers when it is told to, or at once."""

    def __init__(self, waits: bool = False) -> None:
        self.asked: list[tuple[int, int]] = []
        self.waits, self.fails = waits, 0
        self.waiting: list[asyncio.Future[None]] = []
        self.waited_for: list[tuple[int, int]] = []  # reads that a worker would wait for

    async def fetch(self, wanted: Range, need: tuple[int, ...], on_grid: bool) -> bytes:
        self.asked.append((wanted.offset, wanted.length))
        if self.waits:
            self.waiting.append(asyncio.get_running_loop().create_future())
            await self.waiting[-1]
        if self.fails:
            self.fails -= 1
            raise ShardError("not to be had") from KeyError("why")
        return BODY[wanted.offset : wanted.offset + wanted.length]

    def submit(self, coroutine: Coroutine[Any, Any, bytes]) -> "Future[bytes]":
        future: Future[bytes] = Future()
        task = asyncio.ensure_future(coroutine)

        def done(_: object) -> None:
            if task.cancelled():
                future.cancel()
            elif (error := task.exception()) is not None:
                future.set_exception(error)
            elif not future.cancelled():
                future.set_result(task.result())

        task.add_done_callback(done)
        future.add_done_callback(lambda _: task.cancel())
        return future

    def answer(self) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_result(None)


class Reader:
    """One dataset of five units in one shard, measured in rows or in bytes."""

    def __init__(self, elsewhere: Elsewhere, measure: str) -> None:
        rows = [(0, u * UNIT_BYTES, (u + 1) * UNIT_BYTES, 0, UNIT_BYTES, UNIT_BYTES // BLOCKS, 0) for u in range(5)]
        catalog = Catalog("d", "made", (Shard("s", len(BODY), "t"),), np.array(rows, UNIT), measure)  # type: ignore[arg-type]
        self.datasets = [SimpleNamespace(catalog=lambda lenient: catalog)]
        self._elsewhere = elsewhere

    def open(self, dataset: int, unit: int) -> Any:
        def read(offset: int, length: int) -> bytes:
            self._elsewhere.waited_for.append((offset, length))
            return BODY[offset : offset + length]

        def of(offset: int, length: int) -> Range:
            return Range("s", Place("made://"), Object("s", len(BODY), "t"), offset, length)

        return SimpleNamespace(
            tag="",
            key="s",
            beside=None,
            where="s",
            name="s",
            size=len(BODY),
            read=read,
            range=of,
            tail=lambda length: BODY[-length:],
            keep=bytes,
        )

    def ranges(self, dataset: int, unit: int, blocks: range) -> list[tuple[int, int]]:
        return [(unit * UNIT_BYTES + blocks[0] * 100, unit * UNIT_BYTES + (blocks[-1] + 1) * 100)]


async def at_once(call: Callable[[], Any], need: tuple[int, ...]) -> Any:
    return call()


def made(
    elsewhere: Elsewhere,
    measure: str = "rows",
    memory: int = 100_000,
    spill: int = 0,
    owners: int = 1,
    streams: int = 1,
    coming: int = 100_000,
    apart: Collection[int] = (),
) -> Fetcher:
    reader: Any = Reader(elsewhere, measure)
    access: Any = elsewhere
    return Fetcher(reader, access, at_once, lambda d, epoch, unit: owners, streams, memory, coming, Spill(spill), apart)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def read(fetcher: Fetcher, unit: int, blocks: range) -> None:
    """Decode row blocks: what is read is what is there."""
    async with fetcher.source(0, unit, blocks, NOW) as source:
        for block in blocks:
            at = unit * UNIT_BYTES + block * 100
            assert source.read(at, 100) == BODY[at : at + 100]


def test_a_unit_is_fetched_once_however_many_ask() -> None:
    async def test() -> None:
        elsewhere = Elsewhere(waits=True)
        fetcher = made(elsewhere)
        reads = [asyncio.create_task(read(fetcher, 1, range(n, n + 1))) for n in range(BLOCKS)]
        await turns()
        elsewhere.answer()
        await asyncio.gather(*reads)
        await read(fetcher, 1, range(BLOCKS))
        assert elsewhere.asked == [(800, 800)]
        assert elsewhere.waited_for == []
        assert fetcher.held_bytes == 800
        fetcher.close()
        assert fetcher.held_bytes == 0

    run(test)


def test_what_was_not_fetched_is_waited_for() -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere)
        async with fetcher.source(0, 0, range(1), NOW) as source:
            assert source.read(790, 20) == BODY[790:810]
        assert elsewhere.waited_for == [(790, 20)]
        fetcher.close()

    run(test)


def places(first: int, last: int) -> list[tuple[int, int]]:
    """Row blocks one behind the other, from one to another."""
    return [divmod(n, BLOCKS) for n in range(first, last)]


def test_of_units_measured_in_bytes_runs_of_row_blocks_are_fetched() -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, "bytes", memory=800)  # runs of four blocks, and room for one more of them
        await read(fetcher, 0, range(1))
        assert elsewhere.asked == [(0, 100)]
        assert fetcher.parts_ahead(0) == 5
        assert fetcher.ahead(0, places(1, 6), NOW) == 2
        await turns()
        assert elsewhere.asked[1:] == [(100, 400)]
        fetcher.ahead(0, places(2, 7), NOW)  # what is there or coming is not fetched again, nor a run that may go on
        await turns()
        assert len(elsewhere.asked) == 2
        for block in range(1, 5):
            await read(fetcher, 0, range(block, block + 1))
        assert len(elsewhere.asked) == 2
        fetcher.close()

    run(test)


def test_runs_end_with_their_unit() -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, "bytes", memory=100_000)
        fetcher.ahead(0, places(5, 16), NOW)
        await turns()
        assert elsewhere.asked == [(500, 300), (800, 800)]
        fetcher.close()

    run(test)


def test_it_fetches_ahead_as_far_as_there_is_room() -> None:
    async def test() -> None:
        for memory, spill, streams, units in ((100_000, 0, 1, 4), (1_600, 0, 1, 1), (1_600, 1_600, 1, 2), (1_600, 0, 2, 0)):
            elsewhere = Elsewhere()
            fetcher = made(elsewhere, memory=memory, spill=spill, streams=streams)
            fetcher.ahead(0, places(8, 40), NOW)
            await turns()
            assert elsewhere.asked == [(u * 800, 800) for u in range(1, 1 + units)]
            fetcher.close()

    run(test)


def test_a_unit_is_dropped_when_all_lanes_have_left_it() -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, owners=2)
        await read(fetcher, 0, range(BLOCKS))
        fetcher.leave(0, 0, 0, 3, lane=1, last=True)
        fetcher.leave(0, 0, 0, 3, lane=1, last=True)  # the same again is no other lane
        fetcher.leave(0, 1, 0, 7, lane=0, last=True)  # nor is another epoch
        fetcher.leave(0, 0, 0, 6, lane=0, last=False)
        assert fetcher.held_bytes == 800
        fetcher.leave(0, 0, 0, 7, lane=0, last=True)
        assert fetcher.held_bytes == 0
        await read(fetcher, 0, range(BLOCKS))
        assert elsewhere.asked == [(0, 800)] * 2
        assert fetcher.fetched_twice == 0  # nobody was to need it again
        fetcher.close()

    run(test)


def test_a_run_is_dropped_when_its_last_block_is_left() -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, "bytes")
        fetcher.ahead(0, places(0, 8), NOW)
        await turns()
        for block in range(8):
            assert fetcher.held_bytes == 800
            await read(fetcher, 0, range(block, block + 1))
            fetcher.leave(0, 0, 0, block, lane=0, last=False)
        assert fetcher.held_bytes == 0
        fetcher.close()

    run(test)


def test_what_somebody_waits_for_or_decodes_is_not_dropped() -> None:
    async def test() -> None:
        elsewhere = Elsewhere(waits=True)
        fetcher = made(elsewhere)
        waiting = asyncio.create_task(read(fetcher, 0, range(BLOCKS)))
        await turns()
        fetcher.leave(0, 0, 0, 0, lane=0, last=True)
        elsewhere.answer()
        await waiting
        assert elsewhere.waited_for == []
        assert fetcher.held_bytes == 0  # it was only kept for that
        elsewhere.waits = False
        async with fetcher.source(0, 0, range(1), NOW) as source:
            fetcher.leave(0, 1, 0, 0, lane=0, last=True)
            assert source.read(0, 100) == BODY[:100]
            assert elsewhere.waited_for == []
        assert fetcher.held_bytes == 0
        fetcher.close()

    run(test)


def test_what_has_no_room_in_memory_waits_on_the_disk() -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, memory=1_000, spill=10_000)
        for unit in range(5):
            await read(fetcher, unit, range(BLOCKS))
        assert fetcher.held_bytes == 800
        for unit in range(5):
            await read(fetcher, unit, range(BLOCKS))
        assert elsewhere.asked == [(u * 800, 800) for u in range(5)]
        assert elsewhere.waited_for == []
        fetcher.close()

    run(test)


def test_where_the_disk_has_no_room_either_the_oldest_is_fetched_again() -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, memory=1_000, spill=1_700)
        for unit in (0, 1, 2, 3, 1):  # one in memory and two on the disk
            await read(fetcher, unit, range(BLOCKS))
        assert fetcher.fetched_twice == 0
        assert fetcher.held_bytes <= 1_000
        await read(fetcher, 0, range(BLOCKS))
        assert fetcher.fetched_twice == 1
        assert elsewhere.asked == [(u * 800, 800) for u in (0, 1, 2, 3, 0)]
        fetcher.close()

    run(test)


def test_no_more_is_dropped_than_makes_room() -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, memory=1_000, spill=2_500)
        for unit in (0, 1, 2, 3, 0):  # three on the disk, and the one in memory is the one used last
            await read(fetcher, unit, range(BLOCKS))
        await read(fetcher, 4, range(BLOCKS))
        for unit in (3, 4, 2):
            await read(fetcher, unit, range(BLOCKS))
        assert elsewhere.asked == [(u * 800, 800) for u in range(5)]
        assert fetcher.held_bytes <= 1_000
        fetcher.close()

    run(test)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_failure_is_told_to_who_asks_and_not_remembered(ahead: bool) -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        elsewhere.fails = 1
        fetcher = made(elsewhere)
        if ahead:
            fetcher.ahead(0, places(0, 8), NOW)
            await turns()
        else:
            with pytest.raises(ShardError, match=r"^not to be had$") as caught:
                await read(fetcher, 0, range(1))
            assert isinstance(caught.value.__cause__, KeyError)
        assert fetcher.held_bytes == 0
        await read(fetcher, 0, range(BLOCKS))
        assert elsewhere.asked == [(0, 800)] * 2
        fetcher.close()

    run(test)


def test_who_gives_up_does_not_spoil_it_for_others() -> None:
    async def test() -> None:
        elsewhere = Elsewhere(waits=True)
        fetcher = made(elsewhere)
        first, second = (asyncio.create_task(read(fetcher, 0, range(n, n + 1))) for n in range(2))
        await turns()
        first.cancel()
        await turns()
        elsewhere.answer()
        await second
        assert elsewhere.asked == [(0, 800)]
        fetcher.close()

    run(test)


def test_closing_ends_what_is_being_fetched() -> None:
    async def test() -> None:
        elsewhere = Elsewhere(waits=True)
        fetcher = made(elsewhere)
        fetcher.ahead(0, places(0, 40), NOW)
        await turns()
        fetcher.close()
        await turns()
        assert len(elsewhere.asked) == 5
        assert fetcher.held_bytes == 0

    run(test)


def test_near_ranges_are_one() -> None:
    assert joined([(200_000, 200_100), (0, 10), (20, 30), (65_000, 66_000), (150, 160)]) == [(0, 66_000), (200_000, 200_100)]
    assert joined([(0, 100), (10, 20)]) == [(0, 100)]
    assert joined([]) == []


def test_what_comes_and_what_waits_for_the_disk_has_a_bound() -> None:
    """However far ahead is fetched: here the disk has room for all of it and never takes it."""

    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, memory=1_000, spill=100_000, coming=1_700)
        waiting: list[asyncio.Future[bool]] = []

        async def stuck(call: Callable[[], Any], need: tuple[int, ...]) -> Any:
            if "spill" not in repr(call):
                return call()
            assert need == (-1,)  # before all that wants memory
            waiting.append(asyncio.get_running_loop().create_future())
            return await waiting[-1]

        fetcher._submit = stuck
        fetcher.ahead(0, [(unit, 0) for unit in range(5)], NOW)
        await turns()
        assert len(waiting) == 2
        assert fetcher.held_bytes == 800 + 2 * 800
        for future in waiting:
            future.set_result(True)
        await turns()
        assert fetcher.held_bytes == 800 + 2 * 800  # the next two
        fetcher.close()
        await turns()
        assert fetcher.held_bytes == 0

    run(test)


def test_what_a_failing_disk_had_is_read_from_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, memory=0, spill=10_000)

        def broken(*_: object) -> bytes:
            raise OSError(5, "Input/output error")

        async with fetcher.source(0, 0, range(BLOCKS), NOW) as source:
            monkeypatch.setattr("os.pread", broken)
            assert source.read(100, 100) == BODY[100:200]
        assert elsewhere.waited_for == [(100, 100)]
        fetcher.close()

    run(test)


def test_only_what_was_dropped_is_fetched_twice() -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, "bytes", memory=400)
        for blocks in (range(4), range(4, 8)):
            await read(fetcher, 0, blocks)
        await read(fetcher, 1, range(4))  # for which all of the first unit is dropped
        assert fetcher.fetched_twice == 0
        await read(fetcher, 0, range(4, 8))
        await read(fetcher, 0, range(4))
        assert fetcher.fetched_twice == 8  # each row block by itself, as it was asked for
        fetcher.close()

    run(test)


def test_of_row_blocks_that_are_not_read_unit_by_unit_each_is_fetched_and_left_alone() -> None:
    async def test() -> None:
        elsewhere = Elsewhere()
        fetcher = made(elsewhere, apart=[0])
        for block in (5, 2):
            await read(fetcher, 1, range(block, block + 1))
        assert elsewhere.asked == [(1300, 100), (1000, 100)]
        fetcher.leave(0, 0, 1, 5, 0, last=True)
        assert fetcher.held_bytes == 100
        fetcher.close()

    run(test)
