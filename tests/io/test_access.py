"""Connections, what is remembered, the cache, and the end of them all, over storage in memory. Case C07."""

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Queue
from textwrap import dedent
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.asked import BODY, T_S, cached, fetched, held, place, reads, threads, wanted
from tests.entries import files
from tests.fake_storage import Call, Cut, FakeConnection, FakeScheme, Storage
from zephon_async.errors import ClosedError, RecipeError, ShardError, WorkerError
from zephon_async.io import access as module
from zephon_async.io import cache as cache_module
from zephon_async.io.access import NOW, Access
from zephon_async.io.at_once import at_once
from zephon_async.io.ranges import Place
from zephon_async.io.storage_options import StorageOptions
from zephon_async.io.stores import Connection, Fault, Kind

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def scheme(monkeypatch: pytest.MonkeyPatch) -> FakeScheme:
    scheme = FakeScheme({"b": Storage({"a": BODY, "z": BODY[::-1], "empty": b""})})
    monkeypatch.setattr(module, "scheme_of", lambda url: scheme)
    return scheme


@pytest.fixture
def storage(scheme: FakeScheme) -> Storage:
    return scheme.buckets["b"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 100 bytes, a grid of 1,000, and no more than 300 of a read remembered."""
    monkeypatch.setattr(module, "_PART", 100)
    monkeypatch.setattr(cache_module, "BLOCK", 1_000)
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 300)


# Connections


def test_without_a_question_there_is_no_thread(scheme: FakeScheme) -> None:
    access = Access()
    assert access.close() == []
    assert threads() == []
    assert scheme.opened == []


@pytest.mark.parametrize("repeat", range(5))
def test_a_place_has_one_connection_whoever_asks(repeat: int, scheme: FakeScheme, storage: Storage) -> None:
    ready = threading.Barrier(16)

    def one(n: int) -> object:
        ready.wait(T_S)
        if n % 3 == 0:
            return access.look("a", place(), "a")
        if n % 3 == 1:
            return [found.key for found in access.listing("", place(), "")]
        return access.read(wanted(storage, n, 10))

    with Access() as access, ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(16)))
        assert found[0] == storage.object("a")
        assert found[1] == ["a", "z", "empty"]
        assert found[2] == BODY[2:12]
        assert len(scheme.opened) == storage.open_connections == 1
    assert storage.open_connections == 0


@pytest.mark.parametrize(
    ("others", "connections"),
    [
        ([place(), place()], 1),
        ([place(key="1", secret="2"), place(secret="2", key="1")], 1),
        ([place(client_kwargs={"a": {"b": 1, "c": 2}}), place(client_kwargs={"a": {"c": 2, "b": 1}})], 1),
        ([place(key="1"), place(key="2"), place()], 3),
        ([place(key="1"), place(key=1)], 2),
        ([place(keys=[1, 2]), place(keys=[2, 1])], 2),
        ([place("fake://b/"), place("fake://c/")], 2),
    ],
)
def test_other_options_are_another_connection(others: list[Place], connections: int, scheme: FakeScheme) -> None:
    with Access() as access:
        for _ in range(2):
            for other in others:
                access.listing("", other, "")
        assert len(scheme.opened) == connections
        given = [options for _, options, _ in scheme.opened]
        assert given == [other.options for n, other in enumerate(others) if other not in others[:n]]


def test_options_are_not_shown() -> None:
    assert repr(place(secret="s3cr3t")) == "Place(root='fake://b/')"
    assert place(secret="s3cr3t").name == "fake://b/"
    assert place(endpoint_url="http://e").name == "fake://b/ at http://e"
    assert place(client_kwargs={"endpoint_url": "http://e"}).name == "fake://b/ at http://e"


def test_one_that_cannot_be_opened_is_an_error_for_all_who_asked_and_is_tried_again(
    scheme: FakeScheme, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, tried = threading.Event(), list[str]()
    opened: Callable[..., Any] = scheme.open

    async def refused(root: str, options: Mapping[str, Any], most: int) -> Connection:
        tried.append(root)
        await asyncio.to_thread(opening.wait, T_S)
        raise RecipeError("no such key")

    monkeypatch.setattr(scheme, "open", refused)
    with Access() as access:
        futures = [access.submit(access.fetch(wanted(storage, n, 1), NOW)) for n in range(8)]
        assert access.submit(asyncio.sleep(0, "all have asked")).result(T_S) == "all have asked"
        opening.set()
        for future in futures:
            with pytest.raises(RecipeError, match=r"^no such key$"):
                future.result(T_S)
        assert len(tried) == 1
        with pytest.raises(RecipeError, match=r"^no such key$"):
            access.look("a", place(), "a")
        assert len(tried) == 2
        monkeypatch.setattr(scheme, "open", opened)
        assert access.read(wanted(storage)) == BODY
        assert len(scheme.opened) == 1


def test_whoever_gives_up_while_it_is_opened_does_not_spoil_it(
    scheme: FakeScheme, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, entered = threading.Event(), threading.Event()
    opened: Callable[..., Any] = scheme.open

    async def slow(root: str, options: Mapping[str, Any], most: int) -> Connection:
        entered.set()
        await asyncio.to_thread(opening.wait, T_S)
        connection: Connection = await opened(root, options, most)
        return connection

    monkeypatch.setattr(scheme, "open", slow)
    with Access() as access:
        first, second = (access.submit(access.fetch(wanted(storage), NOW)) for _ in range(2))
        assert entered.wait(T_S)
        first.cancel()
        opening.set()
        assert second.result(T_S) == BODY
        assert len(scheme.opened) == 1


# What is remembered


def test_what_was_read_is_remembered_with_all_that_lies_in_it(storage: Storage) -> None:
    with Access() as access:
        assert access.read(wanted(storage, 100, 50)) == BODY[100:150]
        assert access.held_bytes == 50
        storage.calls.clear()
        for offset, length in ((100, 50), (100, 1), (149, 1), (120, 10), (120, 0)):
            assert access.read(wanted(storage, offset, length)) == BODY[offset : offset + length]
            assert fetched(access, wanted(storage, offset, length)) == [BODY[offset : offset + length]]
        assert storage.calls == []
        for offset, length in ((99, 50), (101, 50), (99, 52), (0, 100), (160, 1)):
            assert access.read(wanted(storage, offset, length)) == BODY[offset : offset + length]
        assert reads(storage) == [(0, 100), (99, 50), (99, 52), (101, 50), (160, 1)]
        assert access.statistics() == {"requests": 6, "bytes": 303, "retries": 0, "hedges": 0}


def test_it_is_never_of_another_object(scheme: FakeScheme, storage: Storage) -> None:
    scheme.buckets["c"] = Storage({"a": b"c" * 5_000})
    with Access() as access:
        assert access.read(wanted(storage, 0, 10)) == BODY[:10]
        assert access.read(wanted(storage, 0, 10, "z")) == BODY[::-1][:10]
        assert access.read(wanted(scheme.buckets["c"], 0, 10, at=place("fake://c/"))) == b"c" * 10
        before = wanted(storage, 0, 10)
        storage.objects["a"] = b"n" * 5_000
        assert access.read(wanted(storage, 0, 10)) == b"n" * 10
        assert access.read(before) == BODY[:10]  # as it was when it was listed
        with pytest.raises(ShardError, match=r"shard 'a': fake://b/a has changed since it was listed"):
            access.read(before._replace(offset=5))


def test_it_is_bounded_and_the_oldest_is_forgotten(storage: Storage) -> None:
    storage.objects |= {f"k{n}": bytes([n]) * 100 for n in range(5)}
    with Access(memory_bytes=250) as access:
        for n in (0, 1, 0, 2):
            assert access.read(wanted(storage, key=f"k{n}")) == bytes([n]) * 100
        assert access.held_bytes == 200
        storage.calls.clear()
        for n in (0, 2, 1):
            access.read(wanted(storage, key=f"k{n}"))
        assert [call.key for call in storage.calls] == ["k1"]
        access.bound(99, 0)
        assert access.held_bytes == 0
        access.read(wanted(storage, key="k0"))
        assert access.held_bytes == 0
        access.bound(1_000, 0)
        access.read(wanted(storage, key="k0"))
        assert access.held_bytes == 100


def test_what_is_read_piece_by_piece_comes_in_larger_ones(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IN_ORDER", 1_000)
    with Access() as access:
        assert b"".join(access.read(wanted(storage, at, 250)) for at in range(0, 5_000, 250)) == BODY
        assert reads(storage) == [(0, 250), (250, 1_000), (1_250, 1_000), (2_250, 1_000), (3_250, 1_000), (4_250, 750)]


def test_the_same_again_is_held_once(storage: Storage) -> None:
    with Access() as access, ThreadPoolExecutor(8) as pool:
        ready = threading.Barrier(8)

        def one(n: int) -> bytes:
            ready.wait(T_S)
            return access.read(wanted(storage, 10, 100))

        assert list(pool.map(one, range(8))) == [BODY[10:110]] * 8
        assert access.held_bytes == 100


@pytest.mark.usefixtures("small")
def test_what_is_large_is_not_remembered(storage: Storage) -> None:
    with Access() as access:
        access.read(wanted(storage, 0, 301))
        assert access.held_bytes == 0
        access.read(wanted(storage, 0, 300))
        assert access.held_bytes == 300
    with Access(StorageOptions(metadata_cache_entries=0)) as access:
        access.read(wanted(storage, 0, 10))
        assert access.held_bytes == 0


@given(st.lists(st.tuples(st.sampled_from("az"), st.integers(0, 30), st.integers(0, 30)), max_size=30), st.integers(0, 100))
def test_memory_never_lies(asked: list[tuple[str, int, int]], most: int) -> None:
    storage = Storage({"a": BODY[:60], "z": BODY[60:120]})
    scheme = FakeScheme({"b": storage})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "scheme_of", lambda url: scheme)
        with Access(memory_bytes=most) as access:
            for key, offset, length in asked:
                assert access.read(wanted(storage, offset, length, key)) == storage.objects[key][offset:][:length]
                assert access.held_bytes <= most


# Large ranges


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("offset", [0, 1, 99])
@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 199, 200, 201, 1_000, 4_901])
def test_large_ranges_come_in_parts(offset: int, length: int, storage: Storage) -> None:
    storage.piece = 7
    with Access() as access:
        assert fetched(access, wanted(storage, offset, length)) == [BODY[offset:][:length]]
    asked = reads(storage)
    assert len(asked) == -(-length // 100)
    assert [begin for begin, _ in asked] == [offset, *(begin + size for begin, size in asked)][:-1]
    assert sum(size for _, size in asked) == length
    assert all(size <= 100 for _, size in asked)


@pytest.mark.usefixtures("small")
def test_where_a_part_fails_the_others_are_given_up(storage: Storage) -> None:
    stopped: list[asyncio.Future[None]] = []

    def hold(call: Call) -> "asyncio.Future[None] | None":
        if call.offset == 300:
            return None
        stopped.append(asyncio.get_running_loop().create_future())
        return stopped[-1]

    storage.hold = hold
    storage.fault = lambda call: Fault(Kind.FORBIDDEN, "no", status=403) if call.offset == 300 else None
    with Access() as access:
        future = access.submit(access.fetch(wanted(storage, 0, 1_000), NOW))
        error = future.exception(T_S)
        assert isinstance(error, ShardError)
        assert str(error) == "shard 'a': fake://b/a may not be read with these credentials: HTTP 403: no"
        assert isinstance(error.__cause__, Fault)
        assert [future.cancelled() for future in stopped] == [True] * 9


# The end


@pytest.mark.parametrize("with_cache", [False, True])
def test_closed_in_the_middle_of_reads(with_cache: bool, tmp_path: Path, storage: Storage) -> None:
    all_stopped, _ = held(storage, 9)
    access = cached(tmp_path) if with_cache else Access()

    def one(n: int) -> object:
        if n % 3 == 0:
            return access.read(wanted(storage, n, 10))
        if n % 3 == 1:
            return access.look("a", place(), "a")
        return access.listing("", place(), "")

    with ThreadPoolExecutor(9) as pool:
        futures = [pool.submit(one, n) for n in range(9)]
        all_stopped()
        assert access.close() == []
        for n, future in enumerate(futures):
            name = "shard 'a'" if n % 3 == 0 else "a" if n % 3 == 1 else ""
            with pytest.raises(ClosedError, match=rf"^{name}: storage was closed while it was being asked$"):
                future.result(T_S)
        assert access.close() == []
    assert storage.open_connections == 0
    assert threads() == []
    assert files(tmp_path) == []
    with pytest.raises(ClosedError, match=r"^the loop of zephon-storage is closed$"):
        access.read(wanted(storage))


@pytest.mark.parametrize("ways", ["c", "sc", "cs", "ss", "cc", "scs"])
def test_however_it_is_closed_no_connection_is_left(ways: str, scheme: FakeScheme, storage: Storage) -> None:
    access = Access()
    for root in ("fake://b/", "fake://c/", "fake://d/"):
        access.listing("", place(root), "")
    thread = next(thread for thread in threading.enumerate() if thread.name == "zephon-storage")
    for way in ways:
        if way == "c":
            assert access.close() == []
        else:
            access.close_soon()
    thread.join(T_S)
    assert [each.open_connections for each in scheme.buckets.values()] == [0, 0, 0]
    with pytest.raises(ClosedError):
        access.listing("", place(), "")
    assert access.close() == []


def test_a_connection_that_does_not_close_in_order_keeps_no_other_open(
    scheme: FakeScheme, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, failed = FakeConnection.close, list[FakeConnection]()

    async def fails_first(connection: FakeConnection) -> None:
        await close(connection)
        if not failed:
            failed.append(connection)
            raise Fault(Kind.TRANSIENT, "reset")

    monkeypatch.setattr(FakeConnection, "close", fails_first)
    with Access() as access:
        for root in ("fake://b/", "fake://c/", "fake://d/"):
            access.listing("", place(root), "")
    assert [each.open_connections for each in scheme.buckets.values()] == [0, 0, 0]


def test_closed_while_a_connection_is_opened(scheme: FakeScheme, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes in spite of the cancellation is closed, too."""
    entered, opened = threading.Event(), scheme.open

    async def late(root: str, options: Mapping[str, Any], most: int) -> Connection:
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return await opened(root, options, most)

    monkeypatch.setattr(scheme, "open", late)
    access = Access()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(access.read, wanted(storage))
        assert entered.wait(T_S)
        assert access.close() == []
        with pytest.raises(ClosedError):
            reading.result(T_S)
    assert len(scheme.opened) == 1
    assert storage.open_connections == 0


@pytest.mark.parametrize("repeat", range(10))
def test_closed_while_many_ask(repeat: int, scheme: FakeScheme, storage: Storage) -> None:
    access, ready = Access(memory_bytes=0), threading.Barrier(5)

    def one(n: int) -> None:
        ready.wait(T_S)
        for at in range(100_000):
            assert access.read(wanted(storage, at % 100, 10)) == BODY[at % 100 :][:10]

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(one, n) for n in range(4)]
        ready.wait(T_S)
        if repeat % 2:
            access.listing("", place(), "")
        assert access.close() == []
        errors = [future.exception(T_S) for future in futures]
    assert [type(error) for error in errors] == [ClosedError] * 4
    assert storage.open_connections == 0
    assert threads() == []


@pytest.fixture
def complaints() -> Iterator[Queue[logging.LogRecord]]:
    """What asyncio complains of in this test; what others left is complained of before."""
    gc.collect()
    heard: Queue[logging.LogRecord] = Queue()
    handler = QueueHandler(heard)
    logging.getLogger("asyncio").addHandler(handler)
    yield heard
    logging.getLogger("asyncio").removeHandler(handler)


def test_cancelled_anywhere_it_leaves_nothing(tmp_path: Path, storage: Storage, complaints: Queue[logging.LogRecord]) -> None:
    for with_cache in (False, True):
        for n in range(30):
            storage.faults.extend([Cut(3, Fault(Kind.REFUSED, "no"))] if n % 3 == 2 else [])
            access = cached(tmp_path / f"{with_cache}{n}") if with_cache else Access()

            async def stopped(access: Access = access, n: int = n) -> None:
                reading = asyncio.create_task(access.fetch(wanted(storage), NOW))
                for _ in range(n):
                    await asyncio.sleep(0)
                reading.cancel()
                await asyncio.wait([reading])

            access.submit(stopped()).result(T_S)
            storage.faults.clear()
            assert fetched(access, wanted(storage, 1)) == [BODY[1:]]
            assert access.close() == []
            assert storage.open_connections == 0
    gc.collect()
    assert list(complaints.queue) == []


def test_failures_that_nobody_waits_for_are_not_complained_of(
    tmp_path: Path,
    scheme: FakeScheme,
    storage: Storage,
    complaints: Queue[logging.LogRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who asked has given up before the connection, or the body, could not be had."""
    opened: Callable[..., Any] = scheme.open
    for opening in (True, False):
        all_stopped, leave = held(storage, 1)

        async def refused(*_: object) -> Connection:
            await cast(asyncio.Future[None], storage.hold(Call("open", "")))
            raise RecipeError("no such key")

        storage.fault = lambda call: Fault(Kind.FORBIDDEN, "no")
        monkeypatch.setattr(scheme, "open", refused if opening else opened)
        with cached(tmp_path) as access:
            future = access.submit(access.fetch(wanted(storage), NOW))
            all_stopped()
            future.cancel()
            access.submit(leave()).result(T_S)
    gc.collect()
    assert list(complaints.queue) == []


FORKED = """
    import asyncio, os, signal, sys, threading
    from pathlib import Path
    from tests.fake_storage import FakeScheme, Storage
    from zephon_async.io import access as module
    from zephon_async.io.access import NOW, Access
    from zephon_async.io.ranges import Place, Range
    from zephon_async.io.storage_options import CacheOptions, StorageOptions

    storage = Storage({"a": b"0123456789"})
    scheme = FakeScheme({"b": storage})
    module.scheme_of = lambda url: scheme
    options = CacheOptions(enabled=bool(int(sys.argv[1])), root=Path(sys.argv[2]), limit_bytes=1 << 20)
    access = Access(StorageOptions(options))
    wanted = Range("a", Place("fake://b/"), storage.object("a"), 0, 10)
    assert access.read(wanted._replace(length=3)) == b"012"
    stopped = threading.Event()

    def hold(call):
        stopped.set()
        return asyncio.get_running_loop().create_future()

    storage.hold = hold
    reading = access.submit(access.fetch(wanted, NOW))
    assert stopped.wait(20)
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        storage.hold = lambda call: None
        assert access.held_bytes == 0
        assert access.read(wanted) == b"0123456789"
        assert len(scheme.opened) == 2  # a connection of its own
        assert access.close() == []
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert access.close() == []
    assert reading.cancelled()
    print("both")
"""


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_forked_child_has_connections_of_its_own(with_cache: bool, tmp_path: Path) -> None:
    script = [sys.executable, "-W", "ignore", "-c", dedent(FORKED), str(int(with_cache)), str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("both\n", "", 0)


# Many at once


def test_at_once_gives_what_calls_give_in_their_order() -> None:
    assert at_once(lambda n: n * n, range(100)) == [n * n for n in range(100)]
    assert at_once(lambda n: n, []) == []


def test_at_once_raises_the_first_error_and_begins_no_more() -> None:
    begun, leave = set[int](), threading.Event()

    def call(n: int) -> int:
        begun.add(n)
        if n == 3:
            leave.set()
            raise ShardError("the third")
        leave.wait(T_S)
        return n

    with pytest.raises(ShardError, match=r"^the third$"):
        at_once(call, range(10_000))
    assert len(begun) < 10_000


def test_at_once_does_not_wait_for_others_when_one_has_failed() -> None:
    """They may be waiting for a storage that does not answer, which is closed behind it."""
    begun, leave, went = threading.Event(), threading.Event(), list[int]()

    def call(n: int) -> None:
        if n == 0:
            assert begun.wait(T_S)
            raise KeyboardInterrupt
        begun.set()
        assert leave.wait(T_S)
        went.append(n)

    with pytest.raises(KeyboardInterrupt):
        at_once(call, range(2))
    assert went == []
    leave.set()


@pytest.mark.parametrize("kind", [Kind.TRANSIENT, Kind.FORBIDDEN])
def test_a_connection_that_cannot_be_opened_at_once(
    kind: Kind, scheme: FakeScheme, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zephon_async.io.transfer._FIRST_PAUSE_S", 0.001)
    opened, faults = cast(Any, scheme.open), [Fault(kind, "no")]

    async def refused(*arguments: Any) -> Connection:
        if faults:
            raise faults.pop()
        return cast(Connection, await opened(*arguments))

    monkeypatch.setattr(scheme, "open", refused)
    with Access() as access:
        if kind is Kind.FORBIDDEN:
            with pytest.raises(ShardError, match=r"^fake://b/: fake://b/ may not be read with these credentials: no$"):
                access.read(wanted(storage))
        assert access.read(wanted(storage)) == BODY
        assert access.counted.requests == 1


def test_two_accounts_are_two_storages() -> None:
    said = {
        Place("az://c/", options).name
        for options in (
            {},
            {"account_name": "a"},
            {"account_name": "b"},
            {"connection_string": "AccountName=c;AccountKey=secret=="},
            {"connection_string": "AccountName=c;AccountKey=another="},
            {"client_kwargs": {"endpoint_url": "http://here"}},
            {"endpoint_url": "http://here"},
        )
    }
    assert said == {"az://c/", "az://c/ at a", "az://c/ at b", "az://c/ at c", "az://c/ at http://here"}


def test_at_once_leaves_no_thread_where_there_are_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def third_fails(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", third_fails)
    with pytest.raises(WorkerError, match="zephon-waits cannot be started"):
        at_once(lambda n: n, range(10))
    for thread in started:
        thread.join(T_S)
        assert not thread.is_alive()
