"""The cache of row blocks: one read however many ask, bounded in bytes, and errors that are told but not kept."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zephon_async.errors import ShardError
from zephon_async.io import Blocks
from zephon_async.records import Block

SIZE = 200  # bytes of a block


def made(number: int) -> Block:
    rows = np.array([number])
    return Block(pa.record_batch({"a": pa.array([b"x" * (SIZE - 32)], pa.large_binary())}), 0, rows, rows, rows)


class Slow:
    """A reader that notes what it is asked for, and a worker that finishes when it is told."""

    def __init__(self, passes: int = 0, ordered: bool = False, fails: int = 0) -> None:
        self.read: list[tuple[int, int, int]] = []  # dataset, unit, the last block
        self.runs: list[tuple[int, int]] = []  # the first block and how many
        self.needs: list[tuple[int, ...]] = []
        self.waiting: list[Callable[[], None]] = []
        self.passes, self.ordered, self.fails = passes, ordered, fails

    def read_several(self, dataset: int, unit: int, blocks: range, source: object = None) -> dict[int, Block]:
        self.read.append((dataset, unit, blocks[-1]))
        self.runs.append((blocks.start, len(blocks)))
        if self.fails:
            self.fails -= 1
            raise ShardError("broken")
        return {n: made(n) for n in range(blocks.start - self.passes, blocks.stop)}

    def in_order(self, dataset: int, unit: int) -> bool:
        return self.ordered

    def run(self, function: Callable[[], Any], need: tuple[int, ...]) -> Awaitable[Any]:
        self.needs.append(need)
        answer = asyncio.get_running_loop().create_future()

        def finish() -> None:
            try:
                result = function()
            except ShardError as error:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        self.waiting.append(finish)
        return answer

    async def finish(self, number: int = 0) -> None:
        await turns()
        self.waiting.pop(number)()
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def blocks_of(slow: Slow, budget: int = 10 * SIZE) -> Blocks:
    return Blocks(slow, slow.run, budget)  # type: ignore[arg-type]


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())
        gc.collect()  # "never retrieved" is said here

    run.__name__ = test.__name__
    return run


def test_a_block_has_the_size_that_these_tests_count_on() -> None:
    assert made(0).nbytes == SIZE


@on_a_loop
async def test_one_read_for_all_who_ask() -> None:
    slow = Slow()
    blocks = blocks_of(slow)
    asked = [asyncio.ensure_future(blocks.get(0, 1, 2)) for _ in range(3)]
    await slow.finish()
    got = await asyncio.gather(*asked)
    assert all(block is got[0] for block in got)
    assert await blocks.get(0, 1, 2) is got[0]
    assert slow.read == [(0, 1, 2)]
    assert (blocks.hits, blocks.misses, blocks.bytes) == (1, 3, SIZE)
    assert repr(blocks) == "<Blocks 1 kept, 200 of 2,000 bytes, 0 being read>"


@on_a_loop
async def test_one_who_gives_up_does_not_spoil_it() -> None:
    slow = Slow()
    blocks = blocks_of(slow)
    first, second = (asyncio.ensure_future(blocks.get(0, 0, 0)) for _ in range(2))
    await turns()
    first.cancel()
    await slow.finish()
    assert (await second).rows.tolist() == [0]
    assert first.cancelled()
    third = asyncio.ensure_future(blocks.get(0, 0, 1))
    await turns()
    third.cancel()
    await slow.finish()
    assert (await blocks.get(0, 0, 1)).rows.tolist() == [1]  # it came all the same
    assert slow.read == [(0, 0, 0), (0, 0, 1)]


@on_a_loop
async def test_an_error_is_told_to_all_and_not_kept() -> None:
    slow = Slow(fails=1)
    blocks = blocks_of(slow)
    asked = [asyncio.ensure_future(blocks.get(0, 0, 0)) for _ in range(2)]
    await slow.finish()
    told = [answer.exception() for answer in asked]
    assert told[0] is not told[1]
    for error in told:
        assert (type(error), error.args) == (ShardError, ("broken",))  # type: ignore[union-attr]
    again = asyncio.ensure_future(blocks.get(0, 0, 0))
    await slow.finish()
    assert (await again).rows.tolist() == [0]


@on_a_loop
async def test_prefetching() -> None:
    slow = Slow(fails=1)
    blocks = blocks_of(slow)
    blocks.prefetch(0, [(0, 0)])
    await slow.finish()  # fails, and nobody hears
    blocks.prefetch(0, [(0, 0)])
    blocks.prefetch(0, [(0, 0)])
    await slow.finish()
    blocks.prefetch(0, [(0, 0)])
    await turns()
    assert slow.waiting == []
    assert (await blocks.get(0, 0, 0)).rows.tolist() == [0]
    assert (slow.read, blocks.hits, blocks.misses) == ([(0, 0, 0)] * 2, 1, 0)


@on_a_loop
async def test_neighbours_that_come_next_are_read_in_one_go() -> None:
    slow = Slow()
    blocks = blocks_of(slow)
    coming = [(0, 3), (0, 4), (0, 5), (1, 0), (1, 1), (1, 2), (1, 3), (1, 7)]
    blocks.prefetch(0, coming, (7, 1))
    for _ in range(5):
        await slow.finish()
    assert slow.runs == [(3, 2), (5, 1), (0, 2), (2, 2), (7, 1)]
    assert slow.needs == [(7, 1)] * 5
    assert [(await blocks.get(0, unit, number)).rows.tolist() for unit, number in coming] == [[n] for _, n in coming]
    assert blocks.misses == 0
    blocks.prefetch(0, [*coming[1:], (1, 8)])  # more than three quarters are there
    await turns()
    assert slow.waiting == []
    blocks.prefetch(0, [*coming[2:], (1, 8), (1, 9)])
    await slow.finish()
    assert slow.runs[5:] == [(8, 2)]


@on_a_loop
async def test_no_more_is_read_ahead_than_has_room() -> None:
    slow = Slow()
    blocks = blocks_of(slow, 4 * SIZE)
    blocks.prefetch(0, [(0, 0)])
    await slow.finish()  # by now it is known how large a block is
    coming = [(unit, 1) for unit in range(9)]
    blocks.prefetch(0, coming, (7, 1))
    assert blocks.held_bytes == 4 * SIZE
    blocks.prefetch(0, coming, (7, 1))
    assert blocks.held_bytes == 4 * SIZE
    blocks.prefetch(0, [(9, 1)])  # it is needed now
    await slow.finish()
    assert slow.read[-1] == (0, 0, 1)
    blocks.close()
    await turns()


@on_a_loop
async def test_of_blocks_read_in_one_go_each_fails_by_itself() -> None:
    slow = Slow(fails=2)
    blocks = blocks_of(slow)
    blocks.prefetch(0, [(0, number) for number in range(1, 9)])
    first, second = (asyncio.ensure_future(blocks.get(0, 0, number)) for number in (1, 2))
    await slow.finish()  # both at once
    await slow.finish(3)  # one by one: the first fails again
    await slow.finish(3)
    assert isinstance(first.exception(), ShardError)
    assert (await second).rows.tolist() == [2]
    assert slow.runs == [(1, 2), (1, 1), (2, 1)]
    blocks.close()
    await turns()


@on_a_loop
async def test_the_least_recently_used_go_first() -> None:
    slow = Slow()
    blocks = blocks_of(slow, 3 * SIZE)
    for number in range(3):
        blocks.prefetch(0, [(0, number)])
        await slow.finish()
    await blocks.get(0, 0, 0)
    blocks.prefetch(0, [(0, 3)])
    await slow.finish()
    assert [key[2] for key in blocks._kept] == [2, 0, 3]
    assert blocks.bytes == 3 * SIZE


@on_a_loop
async def test_a_block_larger_than_the_budget_is_given_and_not_kept() -> None:
    slow = Slow()
    blocks = blocks_of(slow, SIZE - 1)
    asked = asyncio.ensure_future(blocks.get(0, 0, 0))
    await slow.finish()
    assert (await asked).rows.tolist() == [0]
    assert (blocks.bytes, len(blocks._kept)) == (0, 0)


@on_a_loop
async def test_what_a_read_brings_along_pushes_out_nothing() -> None:
    slow = Slow(passes=3)
    blocks = blocks_of(slow, 3 * SIZE)
    blocks.prefetch(0, [(1, 9)])
    await slow.finish()
    assert {key[2] for key in blocks._kept} == {9, 7, 6}
    slow.passes = 0
    blocks.prefetch(0, [(1, 10)])
    await slow.finish()
    assert {key[2] for key in blocks._kept} == {10, 9, 6}
    assert next(reversed(blocks._kept)) == (0, 1, 10)


@on_a_loop
async def test_what_a_read_brings_along_may_have_no_room_once_its_size_is_known() -> None:
    slow = Slow(passes=1)
    blocks = blocks_of(slow, SIZE * 3 // 2)
    blocks.prefetch(0, [(1, 0)])  # is being read all the time
    asked = asyncio.ensure_future(blocks.get(0, 0, 5))
    await turns()
    await slow.finish(1)
    assert (await asked).rows.tolist() == [5]
    assert blocks.held_bytes <= blocks.budget_bytes
    blocks.close()
    await turns()


@on_a_loop
async def test_a_read_waits_for_that_of_the_block_before() -> None:
    slow = Slow(ordered=True, fails=1)
    blocks = blocks_of(slow)
    for number in (4, 5, 6):
        blocks.prefetch(0, [(0, number)])
    blocks.prefetch(0, [(1, 5)])
    await turns()
    assert len(slow.waiting) == 2
    await slow.finish()  # fails; the next goes on
    await slow.finish(1)
    await slow.finish()
    await slow.finish()
    assert slow.read == [(0, 0, 4), (0, 0, 5), (0, 1, 5), (0, 0, 6)]
    slow.ordered = False
    blocks.prefetch(0, [(2, 0)])
    blocks.prefetch(0, [(2, 1)])
    await turns()
    assert len(slow.waiting) == 2
    blocks.close()
    await turns()
    assert repr(blocks) == "<Blocks 0 kept, 0 of 2,000 bytes, 0 being read>"


@on_a_loop
async def test_closing_ends_what_is_being_read() -> None:
    slow = Slow()
    blocks = blocks_of(slow)
    asked = asyncio.ensure_future(blocks.get(0, 0, 0))
    await turns()
    blocks.close()
    with pytest.raises(asyncio.CancelledError):
        await asked
