"""What is read from its start: what follows is asked for before it is wanted, once, and no more of it than has room."""

import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from tests.asked import BODY, T_S, held, place, reads, wanted
from tests.fake_storage import FakeScheme, Storage
from tests.whole import all_blocks, ones, schema_of, whole
from zephon_async.errors import ShardError
from zephon_async.io import Access, Dataset, Reader, read_ahead
from zephon_async.io import access as access_module
from zephon_async.io.formats import inflate, line_format
from zephon_async.io.gate import Need
from zephon_async.io.ranges import Range
from zephon_async.io.read_ahead import ReadAhead
from zephon_async.io.stores import Fault, Kind, Object

PIECE, SIZE = 400, 5_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is large."""
    monkeypatch.setattr(read_ahead, "PIECE", PIECE)
    monkeypatch.setattr(read_ahead, "_LONG", 100)
    monkeypatch.setattr(read_ahead, "_NEAR", 20)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    scheme = FakeScheme({"b": Storage({"a": BODY})})
    monkeypatch.setattr(access_module, "scheme_of", lambda url: scheme)
    return scheme.buckets["b"]


class Asked:
    """What is asked for: where, and how soon it is needed."""

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self.all: list[tuple[int, int]] = []
        self.slow = False
        self.flights: dict[int, Future[bytes | bytearray]] = {}
        self.ahead = ReadAhead(self._fetch, limit_bytes)

    def _fetch(self, asked: Range, need: Need) -> "Future[bytes | bytearray]":
        self.all.append((asked.offset, need[1]))
        future: Future[bytes | bytearray] = Future()
        if self.slow:
            self.flights[asked.offset] = future
        else:
            future.set_result(BODY[asked.offset : asked.offset + asked.length])
        return future

    def read(self, offset: int, length: int, key: str = "a") -> list[int] | None:
        """Where the pieces begin that have it."""
        found = self.ahead.pieces(Range(key, place(), Object(key, SIZE, "t"), offset, length))
        assert found is None or self.slow or all(piece.result() == BODY[at : at + PIECE] for at, piece in found)
        return None if found is None else [at for at, _ in found]

    def new(self) -> list[int]:
        """Where what was asked for since begins."""
        asked, self.all = self.all, []
        return [at for at, _ in asked]


def test_what_follows_a_second_read_is_asked_for_once() -> None:
    asked = Asked()
    assert asked.read(0, 400) is None
    assert asked.new() == []
    assert asked.read(400, 400) == [400]
    assert asked.all == [(400, 0), (800, 1), (1_200, 2), (1_600, 3), (2_000, 4)]
    asked.new()
    assert asked.read(790, 500) == [400, 800, 1_200]  # a little of it once more
    assert asked.new() == [2_400, 2_800]
    assert asked.read(1_290, 10) == [1_200]  # it may be short now
    assert asked.new() == []
    assert asked.ahead.nbytes == 5 * PIECE
    assert asked.read(1_300, SIZE - 1_300) == list(range(1_200, SIZE, PIECE))
    assert asked.ahead.nbytes == 0  # that was the end


@pytest.mark.parametrize("offset", [0, 379, 401, 2_000])
def test_who_skips_asks_for_nothing_else(offset: int) -> None:
    asked = Asked()
    asked.read(0, 400)
    assert asked.read(offset, 300) is None
    assert asked.read(400, 300, "b") is None
    assert asked.new() == []


def test_short_reads_are_no_run() -> None:
    asked = Asked()
    assert [asked.read(at, 50) for at in range(0, 1_000, 50)] == [None] * 20
    assert asked.read(4_000, 1_000) is None  # nor is one up to the end
    assert asked.ahead._runs == []


def test_readers_at_several_places_share_the_room() -> None:
    asked = Asked(limit_bytes=6 * PIECE)
    for at in (0, 2_000):
        asked.read(at, 400)
    asked.read(400, 400)
    assert asked.new() == [400, 800, 1_200, 1_600, 2_000]
    assert asked.read(2_400, 400) == [2_400]
    assert asked.new() == [2_400]  # there is no room for more
    assert [asked.read(at, 400) for at in (800, 1_200, 1_600)] == [[800], [1_200], [1_600]]
    assert asked.new() == [2_400]  # the other one has its share
    asked.read(2_800, 400)
    assert asked.new() == [2_800, 3_200, 3_600]
    assert asked.ahead.nbytes <= 6 * PIECE


@pytest.mark.parametrize("limit", [0, PIECE - 1])
def test_without_room_nothing_is_foreseen(limit: int) -> None:
    asked = Asked(limit)
    assert [asked.read(at, 400) for at in range(0, SIZE - 400, 400)] == [None] * 12
    assert asked.new() == []


@pytest.mark.parametrize("limit", [PIECE, 2 * PIECE - 1])
def test_what_has_no_room_as_a_whole_is_not_asked_for(limit: int) -> None:
    """Whoever wants it reads it itself: a part of it would come twice."""
    asked = Asked(limit)
    asked.read(0, 400)
    assert [asked.read(400, 500), asked.read(900, 400)] == [None, None]
    assert (asked.new(), asked.ahead.nbytes) == ([], 0)
    assert asked.read(1_300, 200) == [1_200]  # this has
    assert asked.read(1_500, 200) is None
    assert asked.new() == [1_200]
    asked.read(1_700, SIZE - 1_700)
    assert (asked.new(), asked.ahead.nbytes, asked.ahead._runs) == ([], 0, [])


def test_what_nobody_waits_for_is_given_up() -> None:
    asked = Asked()
    asked.slow = True
    asked.read(0, 400)
    asked.read(400, 500)
    asked.ahead.clear()
    assert {at: flight.cancelled() for at, flight in asked.flights.items()} == {
        400: False, 800: False, 1_200: True, 1_600: True, 2_000: True, 2_400: True,
    }  # fmt: skip
    asked.flights.clear()
    for offset, length in ((0, 400), (400, 400), (800, 410), (1_195, 5)):  # the last begins before the end of the one before
        asked.read(offset, length)
    asked.ahead.forget(Range("a", place(), Object("a", SIZE, "t"), 1_195, 5))
    wanted = {at: flight for at, flight in asked.flights.items() if at <= 1_200}
    assert list(wanted) == [400, 800, 1_200]
    assert not any(flight.cancelled() for flight in wanted.values())  # what was passed may be waited for


def test_a_run_that_is_not_read_on_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_STALE", 3)
    asked = Asked()
    for at in (0, 400):
        asked.read(at, 400)
    assert asked.ahead.nbytes == 5 * PIECE
    for at in range(0, 800, 100):
        asked.read(at, 100, "other")
    assert [run.last.found.key for run in asked.ahead._runs] == ["other"]
    assert asked.ahead.nbytes == 5 * PIECE
    asked.ahead.clear()
    assert asked.ahead._runs == []


def test_all_is_on_its_way_while_the_first_is_waited_for(storage: Storage) -> None:
    with Access() as access, ThreadPoolExecutor(1) as pool:
        assert access.read(wanted(storage, 0, 400)) == BODY[:400]
        wait_for, leave = held(storage, 5)
        second = pool.submit(access.read, wanted(storage, 400, 400))
        wait_for()
        assert reads(storage)[1:] == [(at, 400) for at in range(400, 2_400, 400)]
        access.submit(leave()).result(T_S)
        storage.hold = lambda call: None
        assert second.result(T_S) == BODY[400:800]
        assert b"".join(access.read(wanted(storage, at, 300)) for at in range(800, 5_000, 300)) == BODY[800:]
        assert reads(storage) == [(at, min(400, 5_000 - at)) for at in range(0, 5_000, 400)]


def test_what_did_not_come_is_asked_for_anew(storage: Storage) -> None:
    with Access() as access:
        access.read(wanted(storage, 0, 400))
        storage.faults.append(Fault(Kind.FORBIDDEN, "not now"))
        with pytest.raises(ShardError, match="not now"):
            access.read(wanted(storage, 400, 400))
        assert access.read(wanted(storage, 400, 400)) == BODY[400:800]
        assert access.read(wanted(storage, 800, 400)) == BODY[800:1_200]


def numbered(rows: int) -> Iterator[bytes]:
    chance = random.Random(1)
    return (json.dumps({"n": n, "text": chance.randbytes(40).hex()}).encode() + b"\n" for n in range(rows))


def test_a_compressed_shard_is_asked_for_once_from_its_start_to_its_end(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)
    monkeypatch.setattr(inflate, "_TAKEN_FAR", PIECE)
    monkeypatch.setattr("zephon_async.io.remote.scheme_of", lambda url: FakeScheme({"b": storage}))
    body = zstd.compress(b"".join(numbered(400)))
    storage.objects = {"a.jsonl.zst": body}
    (tmp_path / "a.jsonl.zst").write_bytes(body)
    near, far = (Dataset.from_path("d", at).with_sizes(block_bytes=1_000) for at in (tmp_path, "fake://b/"))
    far.catalog()
    storage.calls.clear()
    with Access(memory_bytes=5 * PIECE) as access:
        reader = Reader([far], schema_of(near), ones, access=access)
        rows = [row for block in all_blocks(reader) for row in block.columns.to_pylist()]
        reader.close()
    assert rows == whole(near).rows
    assert reads(storage) == [(at, min(PIECE, len(body) - at)) for at in range(0, len(body), PIECE)]
