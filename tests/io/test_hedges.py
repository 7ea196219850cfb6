"""Reads made twice: when, how often, and whose bytes are taken."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import few
from tests.fake_storage import Call, Cut, FakeConnection
from tests.transfers import BODY, WHERE, Held, Time, passing, patched, read, run, storage_of, transfer_of, turns, warm
from zephon_async.errors import ShardError
from zephon_async.io.stores import Fault, Kind, Object
from zephon_async.io.transfer import Counted, Patience, Transfer


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return patched(monkeypatch)


def test_no_read_is_made_twice_before_enough_were_seen(time: Time) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)
        await warm(transfer, storage, 15)
        held = Held(storage)
        reading = asyncio.create_task(read(transfer, storage))
        await turns()
        assert len(storage.calls) == 1
        held.futures[0].set_result(None)
        assert await reading == BODY
        assert transfer.counted == Counted(requests=1, bytes=len(BODY))

    run(main)


@pytest.mark.parametrize(("length", "hedges", "calls"), [(len(BODY), False, 1), (len(BODY), True, 2), (64, True, 2)])
def test_a_read_without_an_answer_is_made_twice_whatever_its_size_unless_that_is_off(
    length: int, hedges: bool, calls: int, time: Time
) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage, hedges=hedges)
        await warm(transfer, storage)
        held = Held(storage)
        reading = asyncio.create_task(read(transfer, storage, 0, length))
        await turns()
        assert len(storage.calls) == calls
        held.futures[0].set_result(None)
        assert await reading == BODY[:length]

    run(main)


class Stepped(FakeConnection):
    """Gives what a test lets it give."""

    def __init__(self) -> None:
        super().__init__(storage_of())
        self.sinks: list[Callable[[bytes], object]] = []
        self.left: list[int] = []
        self.done: list[asyncio.Future[None]] = []

    async def read(
        self, key: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object], size: int | None = None
    ) -> None:
        self.sinks.append(sink)
        self.left.append(length)
        self.done.append(asyncio.get_running_loop().create_future())
        await self.done[-1]

    def give(self, to: int, nbytes: int) -> None:
        nbytes = min(nbytes, self.left[to])
        self.left[to] -= nbytes
        self.sinks[to](b"ab"[to : to + 1] * nbytes)


@pytest.mark.parametrize(("size", "reads"), [(1_000, 2), (64, 1)])
def test_one_that_was_answered_is_compared_with_others_of_its_size(size: int, reads: int) -> None:
    async def main() -> None:
        connection = Stepped()
        transfer = Transfer("fake://b/", connection, Patience(), Counted())
        for _ in range(16):
            transfer.answered(1_000.0)
            transfer.took(1_000, 0.0)
        reading = asyncio.create_task(transfer.read(WHERE, Object("a", size, "t"), 0, size, (0,)))
        await turns()
        assert len(connection.sinks) == 1
        connection.give(0, 1)
        await turns()
        assert len(connection.sinks) == reads
        connection.give(0, size)
        connection.done[0].set_result(None)
        assert bytes(await reading) == b"a" * size

    run(main)


@pytest.mark.parametrize("winner", [0, 1])
def test_the_first_that_is_whole_is_taken_and_the_other_given_up(winner: int, time: Time) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)
        await warm(transfer, storage)
        held = Held(storage)
        reading = asyncio.create_task(read(transfer, storage))
        await turns()
        assert storage.calls == [Call("read", "a", 0, len(BODY))] * 2
        assert repr(transfer.gate) == "<Gate 2 of 16 inside, 0 waiting>"
        held.futures[winner].set_result(None)
        assert await reading == BODY
        assert held.futures[1 - winner].cancelled()
        assert repr(transfer.gate) == "<Gate 0 of 16 inside, 0 waiting>"
        assert transfer.counted == Counted(requests=2, bytes=len(BODY), hedges=1)

    run(main)


def test_both_whole_at_once(time: Time) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)
        await warm(transfer, storage)
        held = Held(storage)
        reading = asyncio.create_task(read(transfer, storage))
        await turns()
        for future in held.futures.values():
            future.set_result(None)
        assert await reading == BODY
        assert repr(transfer.gate) == "<Gate 0 of 16 inside, 0 waiting>"

    run(main)


@few
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=12), st.booleans())
def test_what_two_reads_give_is_never_mixed(pieces: list[tuple[bool, int]], last: bool) -> None:
    """The storage gives other bytes to each of two requests, some to the one, some to the other, and then all to one of them."""
    size = 1_000

    async def main() -> None:
        connection = Stepped()
        transfer = Transfer("fake://b/", connection, Patience(), Counted())
        for _ in range(16):
            transfer.took(size, 0.0)
        reading = asyncio.create_task(transfer.read(WHERE, Object("a", size, "t"), 0, size, (0,)))
        await turns()
        assert len(connection.sinks) == 2

        for to, nbytes in pieces:
            if connection.left[to] > nbytes:  # neither is whole before the last
                connection.give(to, nbytes)
                await turns(2)
        connection.give(last, size)
        connection.done[last].set_result(None)
        assert bytes(await reading) == b"ab"[last : last + 1] * size
        assert connection.done[not last].cancelled()

    with pytest.MonkeyPatch.context() as patch:
        patched(patch)
        run(main)


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.MISSING])
def test_one_that_fails_does_not_spoil_the_other(failing: int, kind: Kind, time: Time) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)
        await warm(transfer, storage)
        held = Held(storage)
        storage.faults.extend([None] * failing + [Fault(kind, "no")])
        reading = asyncio.create_task(read(transfer, storage))
        await turns()
        held.futures[failing].set_result(None)
        await turns()
        assert not reading.done()
        held.futures[1 - failing].set_result(None)
        assert await reading == BODY
        assert repr(transfer.gate) == "<Gate 0 of 16 inside, 0 waiting>"
        assert transfer.counted == Counted(requests=2, bytes=len(BODY), hedges=1)

    run(main)


@pytest.mark.parametrize("at_once", [False, True])
def test_both_fail(at_once: bool, time: Time) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)
        await warm(transfer, storage)
        held = Held(storage)
        storage.fault = lambda call: Fault(Kind.MISSING, "gone")
        reading = asyncio.create_task(read(transfer, storage))
        await turns()
        held.futures[0].set_result(None)
        if not at_once:
            await turns()
        held.futures[1].set_result(None)
        with pytest.raises(ShardError, match=r"^dataset 'd', shard 'a': fake://b/a is not there: gone$"):
            await reading
        assert repr(transfer.gate) == "<Gate 0 of 16 inside, 0 waiting>"

    run(main)


def test_the_second_is_tried_again_too(time: Time) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)
        await warm(transfer, storage)
        held = Held(storage, let=lambda number: number > 0)
        storage.faults.extend([None, Cut(300, passing()), Cut(1, passing())])
        assert await read(transfer, storage) == BODY
        assert held.futures[0].cancelled()
        assert [(call.offset, call.length) for call in storage.calls] == [(0, 1_004), (0, 1_004), (300, 704), (301, 703)]
        assert transfer.counted == Counted(requests=4, bytes=len(BODY), retries=2, hedges=1)

    run(main)


@pytest.mark.parametrize("kind", [Kind.SLOW_DOWN, Kind.TRANSIENT])
def test_a_read_that_pauses_is_not_made_twice(kind: Kind, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:  # C01
    """The storage has asked to wait: then nothing more is asked of it."""

    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)
        await warm(transfer, storage)
        rested: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def rest(seconds: float) -> None:
            assert seconds == 10.0
            await rested

        monkeypatch.setattr(asyncio, "sleep", rest)
        storage.faults.append(Fault(kind, "busy", status=503, retry_after_s=10.0))
        reading = asyncio.create_task(read(transfer, storage))
        await turns(50)
        assert len(storage.calls) == 1
        rested.set_result(None)
        assert await reading == BODY
        assert transfer.counted == Counted(requests=2, bytes=len(BODY), retries=1)

    run(main)


def test_one_in_ten_is_made_twice_at_most(time: Time) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)
        await warm(transfer, storage)
        for _ in range(100):
            held = Held(storage)
            reading = asyncio.create_task(read(transfer, storage))
            await turns()
            held.futures[0].set_result(None)
            assert await reading == BODY
        assert len(storage.calls) == 100 + transfer.counted.hedges
        assert 11 <= transfer.counted.hedges <= 1 + 116 // 10

    run(main)
