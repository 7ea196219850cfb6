"""Reads that arrive: what is tried again, when, and how often; bodies that are cut; reads made twice. Cases C01, C02 and C04.

Time is a number that pauses move, so nothing here waits.
"""

import asyncio
import gc
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import few
from tests.fake_storage import Call, Cut, FakeConnection, Storage
from tests.transfers import BODY, WHERE, Held, Time, passing, patched, read, run, said, storage_of, transfer_of, turns, warm
from zephon_async.errors import ShardError
from zephon_async.io.stores import Fault, Kind, Object
from zephon_async.io.transfer import Counted, Patience, Transfer, _Read

FINAL = {
    Kind.MISSING: "is not there",
    Kind.FORBIDDEN: "may not be read with these credentials",
    Kind.CHANGED: "has changed since it was listed; start again, or put the object back",
    Kind.REFUSED: "cannot be read",
}


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return patched(monkeypatch)


# Trying again


def test_a_read_that_goes_well_is_one_request(time: Time) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)
        assert await read(transfer, storage, 7, 100) == BODY[7:107]
        assert storage.calls == [Call("read", "a", 7, 100)]
        assert transfer.counted == Counted(requests=1, bytes=100)
        assert time.paused == []

    run(main)


@pytest.mark.parametrize("kind", [Kind.TRANSIENT, Kind.SLOW_DOWN])
def test_what_may_pass_is_tried_again_after_growing_pauses(kind: Kind, time: Time) -> None:  # C01
    async def main() -> None:
        storage = storage_of(*[Fault(kind, "busy", status=503)] * 11)
        transfer = transfer_of(storage)
        assert await read(transfer, storage) == BODY
        assert time.paused == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0])
        assert storage.calls == [Call("read", "a", 0, len(BODY))] * 12
        assert transfer.counted == Counted(requests=12, bytes=len(BODY), retries=11)
        assert repr(transfer.gate) == f"<Gate 0 of {16 if kind is Kind.TRANSIENT else 8} inside, 0 waiting>"

    run(main)


def test_pauses_differ_from_reader_to_reader(time: Time) -> None:  # C01
    async def main() -> None:
        time.even = False
        storage = storage_of(*[Fault(Kind.SLOW_DOWN, "SlowDown", status=503)] * 16)
        transfer = transfer_of(storage)
        assert await asyncio.gather(*[read(transfer, storage) for _ in range(16)]) == [BODY] * 16
        assert len(time.paused) == 16
        assert len(set(time.paused)) == 16
        assert all(0.05 <= pause <= 0.6 for pause in time.paused)

    run(main)


def test_no_pause_is_shorter_than_the_storage_asked_for(time: Time) -> None:  # C01
    async def main() -> None:
        asked = (7.5, 0.01, -3.0, None, float("nan"), 20.0)
        storage = storage_of(*[Fault(Kind.SLOW_DOWN, "busy", retry_after_s=seconds) for seconds in asked])
        assert await read(transfer_of(storage), storage) == BODY
        assert time.paused == pytest.approx([7.5, 0.2, 0.4, 0.8, 1.6, 20.0])

    run(main)


@pytest.mark.parametrize("kind", FINAL)
def test_what_does_not_pass_is_an_error_at_once(kind: Kind, time: Time) -> None:  # C04
    storage = storage_of(Fault(kind, "no", status=400, request="R1"))
    assert said(storage) == f"{WHERE}: fake://b/a {FINAL[kind]}: HTTP 400: no (request R1)"
    assert storage.calls == [Call("read", "a", 0, len(BODY))]
    assert time.paused == []


@pytest.mark.parametrize("kind", FINAL)
def test_what_does_not_pass_is_an_error_behind_others_too(kind: Kind, time: Time) -> None:
    storage = storage_of(passing(), Cut(500, passing()), Fault(kind, "no"))
    assert said(storage) == f"{WHERE}: fake://b/a {FINAL[kind]}: no; asked 3 times in 0 s"


@pytest.mark.parametrize("attempts", [1, 2, 12])
def test_it_gives_up_after_so_many_attempts(attempts: int, time: Time) -> None:  # C01
    storage = storage_of(fault=lambda call: passing("broken", status=500, request="R9"))
    times = {1: "", 2: "; asked 2 times in 0 s", 12: "; asked 12 times in 53 s"}[attempts]
    assert said(storage, attempts=attempts) == f"{WHERE}: fake://b/a cannot be read: HTTP 500: broken (request R9){times}"
    assert len(storage.calls) == attempts


def test_it_gives_up_in_time(time: Time) -> None:  # C01
    storage = storage_of(fault=lambda call: passing("timed out"))
    assert said(storage, attempts=1_000, timeout_s=100) == (
        f"{WHERE}: fake://b/a cannot be read: timed out; asked 16 times in 93 s"
    )
    assert time.now <= 100


def test_a_pause_that_is_too_long_is_not_made(time: Time) -> None:
    for seconds in (181.0, float("inf")):
        storage = storage_of(fault=lambda call, s=seconds: Fault(Kind.SLOW_DOWN, "busy", status=503, retry_after_s=s))
        asked = f"it asks to wait {seconds:g} s, download_timeout is 180"
        assert said(storage) == f"{WHERE}: fake://b/a cannot be read: HTTP 503: busy; {asked}"
    assert time.paused == []


def test_attempts_and_time_begin_anew_where_bytes_have_come(time: Time) -> None:
    body = bytes(1 << 20)

    async def main() -> None:
        storage = storage_of(*[Cut(1 << 16, passing("reset"))] * 15, body=body)
        transfer = transfer_of(storage, attempts=2, timeout_s=0.5)
        assert await read(transfer, storage) == body
        assert time.paused == pytest.approx([0.1] * 15)
        assert transfer.counted == Counted(requests=16, bytes=1 << 20, retries=15)

    run(main)
    storage = storage_of(*[Cut((1 << 15) - 1, passing("reset"))] * 15, body=body)
    assert said(storage, attempts=2) == f"{WHERE}: fake://b/a cannot be read: reset; asked 2 times in 0 s"


def test_another_error_is_raised_as_it_is(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)

        async def broken(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(transfer.connection, "read", broken)
        with pytest.raises(ZeroDivisionError):
            await read(transfer, storage)
        assert repr(transfer.gate) == "<Gate 0 of 16 inside, 0 waiting>"

    run(main)


class Timers:
    """What the loop is asked to call later, which the test calls when it likes."""

    def __init__(self) -> None:
        self.pending: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []
        asyncio.get_running_loop().call_later = self._call_later  # type: ignore[method-assign,assignment]

    def _call_later(self, seconds: float, call: Callable[..., object], *args: Any) -> asyncio.Handle:
        self.pending.append((seconds, call, args))
        return asyncio.Handle(call, args, asyncio.get_running_loop())

    def fire(self) -> float:
        """Call the last one; gives after how many seconds that is."""
        seconds, call, args = self.pending.pop()
        call(*args)
        return seconds


@pytest.mark.parametrize("what", ["read", "look", "pages"])
def test_an_attempt_in_which_nothing_comes_is_given_up(what: str, time: Time) -> None:  # C04
    async def main() -> None:
        timers = Timers()
        storage = storage_of()
        held = Held(storage, let=lambda number: number == 1)
        transfer = transfer_of(storage, timeout_s=21)
        asked: Callable[[], Coroutine[Any, Any, object]] = {
            "read": lambda: read(transfer, storage),
            "look": lambda: transfer.look(WHERE, "a"),
            "pages": lambda: transfer.pages(WHERE, "a"),
        }[what]
        found = {"read": BODY, "look": storage.object("a"), "pages": [storage.object("a")]}[what]
        asking = asyncio.ensure_future(asked())
        await turns()
        assert [timers.fire() for _ in range(4)] == [1.75] * 4
        assert await asking == found  # the second attempt is let through
        assert held.futures[0].cancelled()
        assert transfer.counted.retries == 1
        asking = asyncio.ensure_future(asked())
        await turns()
        for _ in range(12):
            time.now += 1.75
            timers.fire()
            await turns()
        with pytest.raises(ShardError) as caught:
            await asking
        assert str(caught.value) == f"{WHERE}: fake://b/a cannot be read: nothing came for 7 s; asked 3 times in 21 s"
        assert repr(transfer.gate) == "<Gate 0 of 16 inside, 0 waiting>"

    run(main)


def test_an_attempt_in_which_something_comes_is_not(time: Time) -> None:
    async def main() -> None:
        timers = Timers()
        storage = Storage({f"k{n}": b"1" for n in range(5)}, page=1)
        held = Held(storage)
        transfer = transfer_of(storage)
        listing = asyncio.create_task(transfer.pages(WHERE, "k"))
        for n in range(5):
            await turns()
            held.futures[n].set_result(None)
            await turns()
            if n < 4:
                assert [timers.fire() for _ in range(3)] == [15] * 3
        assert [found.key for found in await listing] == list(storage.objects)
        assert transfer.counted == Counted(requests=5)

    run(main)


def test_a_loop_that_was_held_up_blames_no_storage(time: Time) -> None:  # G05
    async def main() -> None:
        timers, storage = Timers(), storage_of()
        held, transfer = Held(storage), transfer_of(storage, attempts=3)
        asking = asyncio.ensure_future(read(transfer, storage))
        for _ in range(3):  # not one of them was seen in time
            await turns()
            time.now += 1_000
            assert timers.fire() == 15
        held.futures[0].set_result(None)  # which had come long ago
        assert await asking == BODY
        assert transfer.counted == Counted(requests=1, bytes=len(BODY))

    run(main)


def test_what_broke_while_all_stood_still_is_tried_again(time: Time) -> None:
    async def main() -> None:
        storage = storage_of()
        held, transfer = Held(storage, let=lambda number: number == 1), transfer_of(storage)
        asking = asyncio.ensure_future(read(transfer, storage))
        await turns()
        time.now += 10_000  # stopped, or moved to another host
        held.futures[0].set_exception(passing("reset"))
        assert await asking == BODY
        assert transfer.counted == Counted(requests=2, bytes=len(BODY), retries=1)

    run(main)


def test_a_time_out_of_the_library_is_its_own(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)

        async def broken(*_: object) -> None:
            raise TimeoutError("theirs")

        monkeypatch.setattr(transfer.connection, "read", broken)
        with pytest.raises(TimeoutError, match=r"^theirs$"):
            await read(transfer, storage)

    run(main)


# Bodies that end early, or do not end


@few
@given(
    size=st.integers(0, 3_000),
    cuts=st.lists(st.integers(0, 1_000), max_size=30),
    piece=st.integers(1, 500),
    begin=st.integers(0, 40),
)
def test_a_body_cut_anywhere_comes_whole(size: int, cuts: list[int], piece: int, begin: int) -> None:  # C02
    body = bytes(n * n % 251 for n in range(size + begin))

    async def main() -> None:
        storage = storage_of(*[Cut(after, passing("reset")) for after in cuts], body=body, piece=piece)
        transfer = transfer_of(storage, attempts=1_000, timeout_s=1e9)
        assert await read(transfer, storage, begin) == body[begin:]
        at = begin
        for call, after in zip(storage.calls, [*cuts, size], strict=False):
            assert call == Call("read", "a", at, len(body) - at)
            at = min(at + after, len(body))
        assert at == len(body)
        assert transfer.counted.bytes == size

    with pytest.MonkeyPatch.context() as patch:
        patched(patch)
        run(main)


def test_nothing_is_asked_for_what_is_whole(time: Time) -> None:
    async def main() -> None:
        storage = storage_of(Cut(len(BODY), passing("reset behind the last byte")))
        transfer = transfer_of(storage)
        assert await read(transfer, storage) == BODY
        assert storage.calls == [Call("read", "a", 0, len(BODY))]
        assert transfer.counted == Counted(requests=1, bytes=len(BODY))
        assert await read(transfer, storage, 5, 0) == b""
        assert storage.calls == [Call("read", "a", 0, len(BODY))]
        assert time.paused == []

    run(main)


class Odd(FakeConnection):
    """Gives other pieces than were asked for. gives: of (number of the request, offset, length)."""

    def __init__(self, storage: Storage, gives: Callable[[int, int, int], list[bytes]]) -> None:
        super().__init__(storage)
        self._gives, self._number = gives, -1

    async def read(
        self, key: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object], size: int | None = None
    ) -> None:
        self._number += 1
        for piece in self._gives(self._number, offset, length):
            sink(piece)


def odd(gives: Callable[[int, int, int], list[bytes]], **patience: Any) -> Transfer:
    return Transfer("fake://b/", Odd(storage_of(), gives), Patience(**patience), Counted())


def test_a_body_that_ends_early_without_a_fault_goes_on(time: Time) -> None:  # C02
    body = bytes(n % 251 for n in range(100_000))

    async def main() -> None:
        transfer = odd(lambda number, at, length: [body[at:][:length][:61_710]])
        assert bytes(await transfer.read(WHERE, Object("a", len(body), ""), 0, len(body), (0,))) == body
        assert transfer.counted == Counted(requests=2, bytes=100_000, retries=1)
        transfer = odd(lambda number, at, length: [body[at:61_710]], attempts=3)
        with pytest.raises(ShardError) as caught:
            await transfer.read(WHERE, Object("a", len(body), ""), 0, len(body), (0,))
        assert str(caught.value) == (
            f"{WHERE}: fake://b/a cannot be read: the body has 61,710 of 100,000 bytes; asked 3 times in 0 s"
        )

    run(main)


@pytest.mark.parametrize("pieces", [[b"12345"], [b"1234", b"5"], [b"1", b"", b"2345"], [b"1234", b"", b"5" * 1_000_000]])
def test_a_body_that_is_too_long_is_refused(pieces: list[bytes], time: Time) -> None:
    async def main() -> None:
        transfer = odd(lambda number, at, length: pieces)
        with pytest.raises(ShardError) as caught:
            await transfer.read(WHERE, Object("a", 10, ""), 2, 4, (0,))
        assert str(caught.value) == f"{WHERE}: fake://b/a cannot be read: the body has more than the 4 bytes that were asked for"
        assert transfer.counted.requests == 1

    run(main)


def test_empty_pieces_are_nothing(time: Time) -> None:
    async def main() -> None:
        transfer = odd(lambda number, at, length: [b"", b"12", b"", b"34", b""])
        assert bytes(await transfer.read(WHERE, Object("a", 10, ""), 2, 4, (0,))) == b"1234"

    run(main)


# Giving up


@pytest.mark.parametrize("hedged", [False, True])
def test_a_read_that_is_cancelled_anywhere_leaves_nothing(hedged: bool, time: Time) -> None:
    async def main() -> None:
        ended = 0
        for n in range(50):
            storage = storage_of()
            transfer = transfer_of(storage)
            if hedged:
                await warm(transfer, storage)
            held = Held(storage, let=lambda number: number > 1)
            storage.faults.extend([None, None, Cut(3, passing()), passing(), Cut(0, passing())])
            reading = asyncio.create_task(read(transfer, storage))
            for turn in range(n):
                for future in held.futures.values() if turn >= 12 else ():
                    if not future.done():
                        future.set_exception(passing())
                await turns(1)
            reading.cancel()
            await asyncio.wait([reading])
            ended += not reading.cancelled()
            assert reading.cancelled() or reading.result() == BODY
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert repr(transfer.gate) == "<Gate 0 of 16 inside, 0 waiting>"
        assert 0 < ended < 50

    run(main)


@pytest.mark.parametrize(("limit", "room_bytes"), [(1, 1_000), (2, 1_000), (16, 25), (16, 5)])
def test_many_that_are_cancelled_in_turn_leave_the_gate_open(limit: int, room_bytes: int, time: Time) -> None:
    async def main() -> None:
        storage = storage_of(fault=lambda call: passing() if call.offset % 2 else None)
        transfer = transfer_of(storage)
        transfer.gate.limit, transfer.gate.room_bytes = limit, room_bytes
        for n in range(40):
            readings = [asyncio.create_task(read(transfer, storage, at, 10)) for at in range(8)]
            for reading in readings:
                await turns(n % 7)
                reading.cancel()
            await asyncio.wait(readings)
            assert repr(transfer.gate) == f"<Gate 0 of {limit} inside, 0 waiting>"
        assert await read(transfer, storage, 0, 10) == BODY[:10]

    run(main)


def test_whoever_needs_it_sooner_is_read_first(time: Time) -> None:
    async def main() -> None:
        storage = storage_of()
        transfer = transfer_of(storage)
        transfer.gate.limit = 1
        held = Held(storage, let=lambda number: number > 0)
        readings = [asyncio.create_task(read(transfer, storage, 0, 1, need=5))]
        await turns()
        readings += [asyncio.create_task(read(transfer, storage, need, 1, need)) for need in (9, 3, 7, 1)]
        await turns()
        held.futures[0].set_result(None)
        await asyncio.gather(*readings)
        assert [call.offset for call in storage.calls] == [0, 1, 3, 7, 9]

    run(main)


def test_to_wait_for_another_turn_is_no_silence_either(time: Time) -> None:
    async def main() -> None:
        storage = storage_of(passing())
        transfer = transfer_of(storage)
        transfer.gate.limit = 1
        slow = asyncio.create_task(read(transfer, storage))
        await turns(3)  # its first attempt has failed, and it pauses
        held = Held(storage, let=lambda number: number > 0)
        other = asyncio.create_task(read(transfer, storage, need=-1))
        await turns()
        time.now += 1_000
        storage.faults.append(passing())
        held.futures[0].set_result(None)
        assert await other == BODY
        assert await slow == BODY

    run(main)


def test_pauses_double_as_often_as_there_are_attempts(time: Time) -> None:
    async def main() -> None:
        storage = storage_of(fault=lambda call: passing())
        with pytest.raises(ShardError, match="asked 1500 times"):
            await read(transfer_of(storage, attempts=1_500, timeout_s=1e9), storage)
        assert max(time.paused) == 10

    run(main)


def test_where_all_comes_at_the_end_silence_is_nothing_for_longer(time: Time) -> None:
    async def main() -> None:
        timers, storage = Timers(), storage_of()
        transfer = transfer_of(storage, timeout_s=21)
        transfer.connection.streams = False
        held = Held(storage)
        reading = asyncio.create_task(read(transfer, storage))
        await turns()
        assert timers.fire() == 21 / 4
        held.futures[0].set_result(None)
        assert await reading == BODY

    run(main)


def test_a_silent_attempt_holds_no_memory_when_it_is_over(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        timers, storage = Timers(), storage_of()
        transfer = transfer_of(storage)
        held = Held(storage)
        rested: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def rest(seconds: float) -> None:
            await rested

        monkeypatch.setattr(asyncio, "sleep", rest)
        reading = asyncio.create_task(read(transfer, storage))
        await turns()
        for _ in range(4):
            timers.fire()
        await turns()
        assert [len(each._buffer) for each in gc.get_objects() if isinstance(each, _Read) and not each.task.done()] == [0]
        rested.set_result(None)
        await turns()
        held.futures[1].set_result(None)
        assert await reading == BODY

    run(main)


@pytest.mark.parametrize("came", [0, 3, 999])
def test_no_memory_is_held_during_a_pause_but_for_what_came(came: int, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        storage = storage_of(*[Cut(came, passing())] * 20)
        transfer = transfer_of(storage)
        rested: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def rest(seconds: float) -> None:
            await rested

        monkeypatch.setattr(asyncio, "sleep", rest)
        readings = [asyncio.create_task(read(transfer, storage)) for _ in range(20)]
        await turns(200)
        buffers = [len(each._buffer) for each in gc.get_objects() if isinstance(each, _Read) and not each.task.done()]
        assert buffers == [came] * 20
        rested.set_result(None)
        assert await asyncio.gather(*readings) == [BODY] * 20

    run(main)


def test_no_place_is_held_during_a_pause(time: Time) -> None:
    async def main() -> None:
        seen: list[str] = []
        storage = storage_of(passing())
        transfer = transfer_of(storage)

        async def pause(seconds: float) -> None:
            seen.append(repr(transfer.gate))
            await time.sleep(seconds)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "sleep", pause)
            assert await read(transfer, storage) == BODY
        assert seen == ["<Gate 0 of 16 inside, 0 waiting>"]

    run(main)


# Looks and listings


def test_looks_are_tried_again_unless_there_is_nothing(time: Time) -> None:  # C04
    async def main() -> None:
        storage = storage_of(passing("no answer"), Fault(Kind.SLOW_DOWN, "busy", status=503))
        transfer = transfer_of(storage)
        assert await transfer.look("fake://b/a", "a") == storage.object("a")
        assert transfer.counted == Counted(requests=3, retries=2)
        with pytest.raises(ShardError) as caught:
            await transfer.look("fake://b/c", "c")
        assert str(caught.value) == "fake://b/c: fake://b/c is not there: there is no 'c'"
        assert transfer.counted == Counted(requests=4, retries=2)

    run(main)


def test_a_listing_that_breaks_off_begins_again_and_gives_nothing_twice(time: Time) -> None:  # C04
    async def main() -> None:
        keys = [f"k{n:02}" for n in range(25)]
        storage = Storage(dict.fromkeys(keys, b"1"), deque([None, None, passing(), None, passing()]), page=10)
        transfer = transfer_of(storage)
        assert [found.key for found in await transfer.pages("fake://b/", "k")] == keys
        assert storage.calls == [Call("pages", "k")] * 8
        assert transfer.counted == Counted(requests=8, retries=2)

    run(main)


@pytest.mark.parametrize(("n", "requests"), [(0, 1), (1, 1), (10, 1), (11, 2)])
def test_a_page_is_a_request(n: int, requests: int, time: Time) -> None:
    async def main() -> None:
        storage = Storage({f"k{n:02}": b"1" for n in range(n)}, page=10)
        transfer = transfer_of(storage)
        assert len(await transfer.pages("fake://b/", "k")) == n
        assert transfer.counted == Counted(requests=requests)

    run(main)


# Memory


def test_what_was_read_is_let_go_without_the_garbage_collector(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs seldom where few objects are made, and each read may be of 16 MiB."""
    made: list[weakref.ref[Any]] = []
    begin = _Read.__init__

    def noted(self: Any, *arguments: Any) -> None:
        made.append(weakref.ref(self))
        begin(self, *arguments)

    monkeypatch.setattr(_Read, "__init__", noted)

    async def main() -> None:
        storage = storage_of()
        storage.faults.extend([Cut(5, Fault(Kind.TRANSIENT, "reset")), None])
        transfer = transfer_of(storage)
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                await read(transfer, storage)
            await turns()
            assert [one() for one in made] == [None] * 3
        finally:
            gc.enable()

    run(main)
