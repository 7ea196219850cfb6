"""Storages that are reached through fsspec: on threads, and as coroutines."""

import asyncio
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from tests.contracts.test_connections import BODY, kind_of, listed, read
from tests.made_files import Tree, blocking, coroutines
from zephon_async.errors import RecipeError
from zephon_async.io.stores import Connection, Fault, Kind, Object, find_scheme
from zephon_async.io.stores.fsspec import _tag

Result = TypeVar("Result")
Made = Callable[[Tree], str]
PATIENCE_S = 30.0


@pytest.fixture(params=[blocking, coroutines])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Tree], None]:
    """Make a tree what lies under made://."""
    return lambda tree: monkeypatch.setitem(_registry, "made", request.param(tree))


@pytest.fixture
def made_blocking(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tree], None]:
    return lambda tree: monkeypatch.setitem(_registry, "made", blocking(tree))


def over(use: Callable[[Connection], Awaitable[Result]], options: Mapping[str, Any] | None = None, most: int = 4) -> Result:
    async def main() -> Result:
        connection = await find_scheme("made").open("made://bucket/", options or {}, most)
        try:
            return await use(connection)
        finally:
            await connection.close()

    return asyncio.run(main())


def fault_over(use: Callable[[Connection], Awaitable[object]]) -> Fault:
    with pytest.raises(Fault) as caught:
        over(use)
    return caught.value


@pytest.mark.parametrize(
    ("url", "root", "key"),
    [
        ("gs://bucket/a/b", "gs://bucket/", "a/b"),
        ("gs://bucket", "gs://bucket", ""),
        ("gs://bucket//a", "gs://bucket/", "/a"),
        ("GS://bucket/a", "GS://bucket/", "a"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/", "a"),
        ("hf://buckets/user/name/a", "hf://buckets/user/name/", "a"),
        ("memory://a/b", "memory://", "a/b"),
        ("memory:///a/b", "memory:///", "a/b"),
        ("memory://", "memory://", ""),
        ("sftp://user@host:22/a/b", "sftp://user@host:22/", "a/b"),
        ("hdfs:///a/b", "hdfs:///", "a/b"),
    ],
)
def test_what_one_connection_is_for(url: str, root: str, key: str) -> None:
    assert find_scheme("gs").split(url) == (root, key)


@pytest.mark.parametrize(
    "url",
    [
        "gs://",
        "gs:///a",
        "az://",
        "hf://",
        "hf://user",
        "hf://buckets/user",
        "hf://datasets/user/name",
        "sftp://",
        "no url",
        "a::gs://b/c",
    ],
)
def test_a_url_that_names_nothing_is_refused(url: str) -> None:
    with pytest.raises(RecipeError, match="names nothing to read"):
        find_scheme("gs").split(url)


def test_folders_are_walked(made: Callable[[Tree], None]) -> None:
    tree = Tree({f"bucket/{name}": name.encode() for name in ("a", "b/c", "b/d/e/f", "g/h", "bb", "b.c/d")})
    made(tree)

    async def use(connection: Connection) -> list[list[str]]:
        return [sorted(await listed(connection, prefix)) for prefix in ("", "b", "b/", "b/d/e/f", "c/", "none", "a/")]

    everything = ["a", "b.c/d", "b/c", "b/d/e/f", "bb", "g/h"]
    assert over(use) == [everything, ["b.c/d", "b/c", "b/d/e/f", "bb"], ["b/c", "b/d/e/f"], ["b/d/e/f"], [], [], []]


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), FileNotFoundError("folder")])
def test_a_folder_that_cannot_be_listed_is_not_left_out(made: Callable[[Tree], None], error: OSError) -> None:
    if isinstance(error, FileNotFoundError):
        error.__cause__ = TimeoutError()
    tree = Tree({"bucket/a/b": b"", "bucket/c/d": b""}, fault=lambda method, path: error if path == "bucket/c" else None)
    made(tree)
    assert fault_over(lambda connection: listed(connection, "")).kind is Kind.TRANSIENT


def test_a_folder_that_is_gone_meanwhile_is_left_out_alone(made: Callable[[Tree], None]) -> None:
    gone = FileNotFoundError("bucket/a")
    tree = Tree({"bucket/a/b": b"", "bucket/c/d": b""}, fault=lambda method, path: gone if path == "bucket/a" else None)
    made(tree)
    assert over(lambda connection: listed(connection, "")) == {"c/d": Object("c/d", 0, "")}


def test_a_bucket_that_is_not_there_is_missing(made: Callable[[Tree], None]) -> None:
    made(Tree())
    assert fault_over(lambda connection: listed(connection, "")).kind is Kind.MISSING


def test_what_is_no_object_is_not_listed(made: Callable[[Tree], None]) -> None:
    files = {"bucket/a": b"x", "bucket/b": b"four", "bucket/c": b"", "bucket/d/": b"", "bucket/e/f": b""}
    tree = Tree(files, {"bucket/b": {"type": "link", "size": 1}, "bucket/c": {"type": "other"}})
    made(tree)

    async def use(connection: Connection) -> dict[str, Object]:
        return await listed(connection, "")

    found = over(use)
    assert {key: one.size for key, one in found.items()} == {"a": 1, "b": 1, "c": 0, "e/f": 0}
    # a link is looked at, for the listing tells of the link itself
    assert ("info", "bucket/b", {}) in tree.calls
    assert ("info", "bucket/a", {}) not in tree.calls


def test_a_listing_that_goes_in_a_ring_ends(made: Callable[[Tree], None]) -> None:
    class Ring(Tree):
        def entries(self, folder: str) -> list[dict[str, Any]]:
            return [*super().entries(folder), {"name": folder, "size": 0, "type": "directory"}]

    made(Ring({"bucket/a/b": b""}))
    assert set(over(lambda connection: listed(connection, ""))) == {"a/b"}


def test_a_size_that_is_not_told_is_said(made: Callable[[Tree], None]) -> None:
    made(Tree({"bucket/a": b"x"}, {"bucket/a": {"size": None}}))
    for use in (lambda connection: connection.look("a"), lambda connection: listed(connection, "")):
        fault = fault_over(use)
        assert (fault.kind, str(fault)) == (Kind.REFUSED, "the storage does not tell the size of 'a'")


def test_a_folder_is_no_object(made: Callable[[Tree], None]) -> None:
    made(Tree({"bucket/a/b": b"x"}))
    for key in ("a", "a/", ""):
        assert fault_over(lambda connection, key=key: connection.look(key)).kind is Kind.MISSING  # type: ignore[misc]


@pytest.mark.parametrize("error", [TimeoutError("slow"), PermissionError("no"), KeyError("bug")])
@pytest.mark.parametrize("method", ["ls", "info", "cat_file"])
def test_no_exception_of_a_library_comes_out(made: Callable[[Tree], None], method: str, error: Exception) -> None:
    tree = Tree({"bucket/a": b"x"})
    made(tree)

    async def use(connection: Connection) -> Fault:
        tree.fault = lambda called, path: error if called == method else None
        calls = {"ls": listed(connection, "a"), "info": connection.look("a"), "cat_file": read(connection, "a", 0, 1)}
        for other in calls.keys() - {method}:
            calls[other].close()
        with pytest.raises(Fault) as caught:
            await calls[method]
        return caught.value

    fault = over(use)
    assert fault.__cause__ is error
    assert fault.kind is {TimeoutError: Kind.TRANSIENT, PermissionError: Kind.FORBIDDEN, KeyError: Kind.REFUSED}[type(error)]


def test_a_short_body_comes_and_is_a_fault(made: Callable[[Tree], None]) -> None:
    made(Tree({"bucket/a": BODY[:61_710]}))
    pieces: list[bytes] = []
    fault = fault_over(lambda connection: connection.read("a", 0, 100_000, "", pieces.append))
    assert (fault.kind, str(fault)) == (Kind.TRANSIENT, "the body ended after 61,710 of 100,000 bytes")
    assert b"".join(pieces) == BODY[:61_710]


def test_a_body_that_is_longer_is_cut_where_it_is_clear_what_it_is(made: Callable[[Tree], None]) -> None:
    class Whole(Tree):
        def bytes_of(self, path: str, start: int | None, end: int | None) -> bytes:
            return super().bytes_of(path, 0, None)

    made(Whole({"bucket/a": BODY}))
    assert over(lambda connection: read(connection, "a", 0, 10)) == BODY[:10]
    assert fault_over(lambda connection: read(connection, "a", 10, 10)).kind is Kind.REFUSED


def test_a_tag_is_compared_at_the_first_read_and_after_a_fault(made: Callable[[Tree], None]) -> None:
    tree = Tree({"bucket/a": BODY, "bucket/b": BODY}, {"bucket/a": {"ETag": "one"}, "bucket/b": {"ETag": "one"}})
    made(tree)

    async def use(connection: Connection) -> list[str]:
        for _ in range(3):
            for key in "ab":
                await read(connection, key, 5, 5, "one")
        tree.fault = lambda method, path: TimeoutError() if (method, path) == ("cat_file", "bucket/a") else None
        assert await kind_of(connection, "a", 5, 5, "one") is Kind.TRANSIENT
        tree.fault = lambda method, path: None
        tree.info["bucket/a"] = {"ETag": "two"}
        assert await kind_of(connection, "a", 5, 5, "one") is Kind.CHANGED
        assert await kind_of(connection, "a", 5, 5, "one") is Kind.CHANGED
        assert await read(connection, "a", 5, 5, "two") == BODY[5:10]
        return [path for method, path, _ in tree.calls if method == "info"]

    assert over(use) == [*("bucket/a", "bucket/b"), *("bucket/a",) * 3]


def test_gs_reads_the_generation_that_was_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Generations(Tree):
        def enter(self, number: int, method: str, path: str, **options: Any) -> None:
            super().enter(number, method, path, **options)
            if method == "cat_file" and options.get("generation") not in (None, self.info[path]["generation"]):
                raise FileNotFoundError(path)

    tree = Generations({"bucket/a": BODY}, {"bucket/a": {"generation": "12", "etag": "x"}})
    kind = coroutines(tree)
    kind.protocol = "gs"
    kind.url = lambda self, path, generation=None: path
    monkeypatch.setitem(_registry, "gs", kind)

    async def main() -> None:
        connection = await find_scheme("gs").open("gs://bucket/", {}, 1)
        one = await connection.look("a")
        assert one.tag == "12"
        tree.calls.clear()
        assert await read(connection, "a", 5, 5, "12") == BODY[5:10]
        assert tree.calls == [("info", "bucket/a", {}), ("cat_file", "bucket/a", {"generation": "12"})]
        tree.info["bucket/a"]["generation"] = "13"
        assert await kind_of(connection, "a", 5, 5, "12") is Kind.CHANGED
        del tree.files["bucket/a"]
        assert await kind_of(connection, "a", 5, 5, "12") is Kind.MISSING
        await connection.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("info", "tag"),
    [
        ({}, ""),
        ({"ETag": None, "etag": "", "mtime": 5}, "5"),
        ({"ETag": '"a"', "mtime": 5}, '"a"'),
        ({"generation": "7", "etag": "b"}, "7"),
        ({"md5": b"\x01\xff"}, "01ff"),
        ({"version_id": "v", "last_modified": "today"}, "v"),
        ({"blob_id": "abc", "last_commit": None}, "abc"),
        ({"LastModified": datetime(2026, 1, 1, tzinfo=UTC)}, "1767225600.0"),
        ({"mtime": datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "1767225600.0"),
        ({"created": datetime(2026, 1, 1)}, "1767225600.0"),
        ({"created": 1767225600.0}, "1767225600.0"),
        ({"mtime": 0}, "0"),
    ],
)
def test_the_tag_is_what_changes_with_the_object(info: dict[str, Any], tag: str) -> None:
    assert _tag(info) == tag


@pytest.mark.parametrize("key", ["a#b?c", "a?b#c"])
def test_a_key_that_the_library_takes_for_another_is_refused(key: str, made_blocking: Callable[[Tree], None]) -> None:
    tree = Tree({f"bucket/{key}": BODY, "bucket/a": BODY[::-1]})
    made_blocking(tree)
    kind = _registry["made"]
    kind._strip_protocol = classmethod(lambda cls, path: path.removeprefix("made://").partition("?")[0].rstrip("/"))
    for use in (lambda connection: connection.look(key), lambda connection: read(connection, key, 0, 1)):
        fault = fault_over(use)
        assert fault.kind is Kind.REFUSED
        assert "for another one" in str(fault)


# threads


def test_each_thread_has_a_client_of_its_own_and_there_are_no_more_than_most(made_blocking: Callable[[Tree], None]) -> None:
    barrier = threading.Barrier(3)

    def meet(method: str, path: str) -> None:
        if method == "cat_file":
            barrier.wait(PATIENCE_S)

    tree = Tree({"bucket/a": BODY}, fault=meet)
    made_blocking(tree)

    async def use(connection: Connection) -> list[bytes]:
        return await asyncio.gather(*(read(connection, "a", n, 9) for n in range(12)))

    assert over(use, most=3) == [BODY[n : n + 9] for n in range(12)]
    assert len(tree.made) == 3
    assert all(len(threads) == 1 for threads in tree.threads.values())
    assert threading.main_thread().ident not in set().union(*tree.threads.values())


def test_one_thread_is_enough_for_calls_one_after_the_other(made_blocking: Callable[[Tree], None]) -> None:
    tree = Tree({"bucket/a": BODY})
    made_blocking(tree)

    async def use(connection: Connection) -> None:
        for n in range(20):
            await read(connection, "a", n, 1)

    over(use)
    assert len(tree.made) == 1


def test_a_client_is_made_anew_after_a_fault_of_the_network(made_blocking: Callable[[Tree], None]) -> None:
    tree = Tree({"bucket/a": BODY})
    made_blocking(tree)

    async def use(connection: Connection) -> list[int]:
        counts = []
        for error in (FileNotFoundError("a"), ConnectionResetError(), None):
            tree.fault = lambda method, path, error=error: error if method == "cat_file" else None  # type: ignore[misc]
            await asyncio.gather(read(connection, "a", 0, 1), return_exceptions=True)
            counts.append(len(tree.made))
        return counts

    assert over(use) == [1, 1, 2]


def test_a_cancelled_wait_ends_at_once_and_its_call_disturbs_nobody(made_blocking: Callable[[Tree], None]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def stop(method: str, path: str) -> None:
        if path == "bucket/slow":
            begun.set()
            go_on.wait(PATIENCE_S)

    tree = Tree({"bucket/slow": BODY, "bucket/a": BODY, "bucket/left": BODY}, fault=stop)
    made_blocking(tree)

    async def use(connection: Connection) -> bytes:
        slow = asyncio.create_task(read(connection, "slow", 0, 1))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        other = await read(connection, "a", 1, 2)
        other += await read(connection, "a", 3, 2)  # on the second thread, for the first is still in its call
        begun.clear()
        slower = asyncio.create_task(read(connection, "slow", 0, 1))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        left = asyncio.create_task(read(connection, "left", 0, 1))
        await asyncio.sleep(0)
        for task in (slow, slower, left):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        go_on.set()
        return other + await read(connection, "a", 5, 2)

    assert over(use, most=2) == BODY[1:7]
    assert not [path for _, path, _ in tree.calls if path == "bucket/left"]


def stuck_reads(made_blocking: Callable[[Tree], None]) -> tuple[threading.Event, threading.Event]:
    """A tree whose reads wait: set when one has begun, and to be set for them to go on."""
    begun, go_on = threading.Event(), threading.Event()

    def stop(method: str, path: str) -> None:
        if method == "cat_file":
            begun.set()
            go_on.wait(PATIENCE_S)

    made_blocking(Tree({"bucket/a": BODY}, fault=stop))
    return begun, go_on


def test_calls_that_wait_when_it_is_closed_are_told(made_blocking: Callable[[Tree], None]) -> None:
    begun, go_on = stuck_reads(made_blocking)

    async def use(connection: Connection) -> list[Any]:
        reads = [asyncio.create_task(read(connection, "a", n, 1)) for n in range(3)]
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        closing = asyncio.create_task(connection.close())
        await asyncio.wait(reads[1:])
        go_on.set()
        await closing
        return await asyncio.gather(*reads, return_exceptions=True)

    first, *others = over(use, most=1)
    assert first == BODY[:1]
    assert [(type(other), other.kind) for other in others] == [(Fault, Kind.REFUSED)] * 2


def test_a_thread_that_does_not_come_back_is_named(
    made_blocking: Callable[[Tree], None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zephon_async.io.stores.calls.CLOSE_S", 0.01)
    begun, go_on = stuck_reads(made_blocking)

    async def use(connection: Connection) -> None:
        reading = asyncio.create_task(read(connection, "a", 0, 1))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        await connection.close()
        assert "were left behind: zephon-made-0" in caplog.text
        go_on.set()
        await reading

    over(use, most=1)


def test_what_a_library_would_do_at_the_end_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lasts = []

    class AsAdlfs(coroutines(Tree({"bucket/a": BODY}))):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            lasts.append(weakref.finalize(self, print, "kept alive", self))

    monkeypatch.setitem(_registry, "made", AsAdlfs)
    over(lambda connection: connection.look("a"))
    assert [last.alive for last in lasts] == [False]


# options


def test_two_connections_share_nothing(made: Callable[[Tree], None]) -> None:
    tree = Tree({"bucket/a": BODY})
    made(tree)
    for token in ("one", "two", "two"):
        over(lambda connection: connection.look("a"), {"token": token})
    assert [options["token"] for options in tree.made] == ["one", "two", "two"]


def test_nothing_listed_is_remembered(made: Callable[[Tree], None]) -> None:
    tree = Tree({"bucket/a": BODY})
    made(tree)

    async def use(connection: Connection) -> list[set[str]]:
        before = set(await listed(connection, ""))
        tree.files["bucket/b"] = b""
        return [before, set(await listed(connection, ""))]

    for options in ({}, {"use_listings_cache": True, "asynchronous": False, "loop": None, "skip_instance_cache": False}):
        tree.files.pop("bucket/b", None)
        assert over(use, options) == [{"a"}, {"a", "b"}]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tokn": "secret"}, "did you mean 'token'"),
        ({1: 2}, "named by text"),
        (
            {"token": "bad", "more": "secret"},
            "made:// cannot be opened with the storage_options more, token: ValueError: that token",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_refused(made: Callable[[Tree], None], options: dict[Any, Any], says: str) -> None:
    made(Tree(fault=lambda method, path: ValueError("that token") if path == "bad" else None))
    with pytest.raises(RecipeError, match=says) as caught:
        over(lambda connection: connection.look("a"), options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("error", "kind"), [(ConnectionRefusedError(), Kind.TRANSIENT), (PermissionError("key"), Kind.FORBIDDEN)])
def test_a_server_that_cannot_be_reached_at_the_start_is_a_fault(made: Callable[[Tree], None], error: OSError, kind: Kind) -> None:
    made(Tree(fault=lambda method, path: error))
    assert fault_over(lambda connection: connection.look("a")).kind is kind


@pytest.mark.parametrize(
    ("scheme", "library", "says"),
    [
        ("gs", "gcsfs", r"zephon-async\[gcs\]"),
        ("gcs", "gcsfs", r"zephon-async\[gcs\]"),
        ("az", "adlfs", r"zephon-async\[azure\]"),
        ("abfs", "adlfs", r"zephon-async\[azure\]"),
        ("http", "fsspec.implementations.http", r"zephon-async\[http\]"),
        ("https", "fsspec.implementations.http", r"zephon-async\[http\]"),
        ("webdav", "webdav4", "Install webdav4"),
    ],
)
def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, scheme: str, library: str, says: str) -> None:
    monkeypatch.delitem(_registry, scheme, raising=False)
    for name in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RecipeError, match=f"{scheme}:// needs a library that is not there: .*{says}"):
        asyncio.run(find_scheme(scheme).open(f"{scheme}://bucket/", {}, 1))


# file systems that are there


def test_memory_is_one_store_for_the_whole_process() -> None:
    files = MemoryFileSystem(skip_instance_cache=True)
    files.pipe_file("/train.jsonl", b"{}")

    async def main() -> dict[str, Object]:
        connection = await find_scheme("memory").open("memory://", {}, 1)
        try:
            return await listed(connection, "train")
        finally:
            await connection.close()

    assert [(key, one.size) for key, one in asyncio.run(main()).items()] == [("train.jsonl", 2)]
    files.rm_file("/train.jsonl")
