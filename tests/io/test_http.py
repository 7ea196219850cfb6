"""Web servers, good ones and bad ones."""

import asyncio
import gzip
import json
import subprocess
import sys
import sysconfig
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import pytest

from tests.contracts.test_connections import BODY, kind_of, listed, read
from tests.system.http_server import Hold, HttpServer, Trouble, http_server, no_tag, weak_tag
from tests.whole import whole
from zephon_async.errors import DatasetError, RecipeError, StorageError
from zephon_async.io import Dataset
from zephon_async.io.stores import Connection, Fault, Kind, Object, find_scheme
from zephon_async.io.stores import http as http_module

Result = TypeVar("Result")
SIZE = len(BODY)
PATIENCE_S = 30.0


def over(
    server: HttpServer, use: Callable[[Connection], Awaitable[Result]], options: Mapping[str, Any] | None = None, most: int = 4
) -> Result:
    """Open a connection to a server, use it, close it."""

    async def main() -> Result:
        connection = await find_scheme("http").open(server.url, options or {}, most)
        try:
            return await use(connection)
        finally:
            await connection.close()

    server.files.setdefault("/body", BODY)
    return asyncio.run(main())


def read_of(server: HttpServer, offset: int = 0, length: int = SIZE, tag: str = "") -> bytes:
    return over(server, lambda connection: read(connection, "body", offset, length, tag))


def fault_of(server: HttpServer, offset: int = 0, length: int = SIZE, tag: str = "") -> tuple[Fault, bytes]:
    """The fault of a read, and what came before it."""
    pieces: list[bytes] = []

    async def use(connection: Connection) -> Fault:
        with pytest.raises(Fault) as caught:
            await connection.read("body", offset, length, tag, pieces.append)
        return caught.value

    return over(server, use), b"".join(pieces)


def test_a_body_that_ends_early_is_a_fault_behind_all_that_came() -> None:
    with http_server() as server:
        server.troubles.append(Trouble(close_after=61_710))
        fault, given = fault_of(server)
    assert fault.kind is Kind.TRANSIENT
    assert str(fault).startswith("the body ended after 61,710 of 100,000 bytes")
    assert given == BODY[:61_710]


def test_a_body_without_a_length_that_ends_early_is_a_fault_too() -> None:
    with http_server() as server:
        server.troubles.append(Trouble(close_after=61_710, headers={"Content-Length": None}))
        fault, given = fault_of(server)
    assert (fault.kind, str(fault)) == (Kind.TRANSIENT, "the body ended after 61,710 of 100,000 bytes")
    assert given == BODY[:61_710]


def test_a_reset_is_a_fault_behind_what_came() -> None:
    with http_server() as server:
        server.troubles.append(Trouble(reset_after=61_710))
        fault, given = fault_of(server)
    assert fault.kind is Kind.TRANSIENT
    assert BODY[:61_710].startswith(given)
    assert f"after {len(given):,} of 100,000 bytes" in str(fault)


def test_a_reset_before_the_answer_is_a_fault() -> None:
    with http_server() as server:
        server.troubles.append(Trouble(reset_after=0, body=b""))
        assert fault_of(server)[0].kind is Kind.TRANSIENT


def test_a_server_that_is_not_there_is_a_fault_that_may_pass() -> None:
    with http_server() as server:
        server.url = "http://127.0.0.1:9/"
        assert fault_of(server)[0].kind is Kind.TRANSIENT


@pytest.mark.parametrize("headers", [{}, {"Content-Length": None}, {"ETag": None, "Accept-Ranges": None}])
@pytest.mark.parametrize(("offset", "length"), [(0, SIZE), (0, 1), (SIZE - 1, 1), (12_345, 6_789)])
def test_a_server_that_sends_the_whole_file_is_cut(offset: int, length: int, headers: dict[str, str | None]) -> None:
    with http_server() as server:
        server.trouble = lambda request: Trouble(whole=True, headers=headers)
        assert read_of(server, offset, length) == BODY[offset : offset + length]


def test_a_server_without_ranges_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with http_server() as server:
        server.trouble = lambda request: Trouble(whole=True)
        assert read_of(server) == BODY
        assert not caplog.text, "what sends no more than was asked for is no matter"
        for offset in (10, 20):
            assert read_of(server, offset, 5) == BODY[offset : offset + 5]
    assert [record.getMessage() for record in caplog.records] == [
        f"{server.url} knows no ranges: it sends each file from its start for every part that is read. "
        "Copy the files to this machine, or let a server of ranges give them"
    ]


@pytest.mark.parametrize(("knows_ranges", "kind"), [(False, Kind.REFUSED), (True, Kind.TRANSIENT)])
def test_far_into_a_file_of_a_server_without_ranges_nothing_is_read(
    knows_ranges: bool, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has known them before is asked again."""
    monkeypatch.setattr(http_module, "MOST_SKIPPED", 1_000)

    async def use(connection: Connection) -> tuple[Fault, bytes]:
        if knows_ranges:
            assert await read(connection, "body", 5_000, 10, "") == BODY[5_000:5_010]
        server.trouble = lambda request: Trouble(whole=True)
        assert await read(connection, "body", 1_000, 10, "") == BODY[1_000:1_010]
        with pytest.raises(Fault) as caught:
            await connection.read("body", 1_001, 10, "", lambda piece: pytest.fail("a byte"))
        return caught.value, b""

    with http_server() as server:
        fault, _ = over(server, use)
    assert fault.kind is kind
    assert str(fault) == (
        "HTTP 200: the server knows no ranges, and would send 1,001 bytes before the 10 that are wanted; "
        "copy the file to this machine, or let a server of ranges give it"
    )


@pytest.mark.parametrize("status", [401, 403])
def test_a_file_that_may_not_be_read_is_not_called_missing(status: int) -> None:
    with http_server() as server:
        server.trouble = lambda request: Trouble(status=status)
        with pytest.raises(StorageError) as caught:
            Dataset.from_path("d", f"{server.url}a.jsonl")
    assert f"{server.url}a.jsonl may not be read with these credentials: HTTP {status}: " in str(caught.value)
    assert str(caught.value).endswith("; say who asks by storage_options, such as {'headers': {'Authorization': 'Bearer ...'}}")


def test_the_whole_file_of_another_version_is_changed() -> None:
    with http_server() as server:
        server.trouble = lambda request: Trouble(whole=True)
        assert fault_of(server, tag='"other"')[0].kind is Kind.CHANGED
        server.files["/body"] = BODY[:-1]
        fault, given = fault_of(server)
    assert (fault.kind, given) == (Kind.CHANGED, b"")
    assert "99,999 bytes" in str(fault)


def test_a_whole_file_that_ends_before_the_place_asked_for() -> None:
    with http_server() as server:
        server.troubles.append(Trouble(whole=True, close_after=100))
        fault, given = fault_of(server, 200, 50)
    assert (fault.kind, given) == (Kind.TRANSIENT, b"")
    assert "after 0 of 50 bytes" in str(fault)


@pytest.mark.parametrize(
    ("content_range", "body", "wanted"),
    [
        ("bytes 0-99999/100000", BODY, BODY[100:200]),  # the whole file, and it says so
        ("bytes 50-249/100000", BODY[50:250], BODY[100:200]),
        ("bytes 50-249/*", BODY[50:250], BODY[100:200]),
        ("bytes 100-299/100000", BODY[100:300], BODY[100:200]),
        ("Bytes 100-199/100000", BODY[100:200], BODY[100:200]),
        (None, BODY[100:200], BODY[100:200]),
        ("bytes 100-149/100000", BODY[100:150], Kind.TRANSIENT),  # a part of it: the rest can be asked for
        ("bytes 100-149/150", BODY[100:150], Kind.CHANGED),
        ("bytes 150-249/100000", BODY[150:250], Kind.REFUSED),
        ("bytes 0-99/100000", BODY[100:200], Kind.TRANSIENT),  # which lies
        ("bytes 50-249/100000", BODY[100:200], Kind.TRANSIENT),
        ("bytes 50-149/*", BODY[100:300], Kind.TRANSIENT),
        ("bytes 199-100/*", BODY[100:200], Kind.TRANSIENT),
        ("nonsense", BODY[:50], Kind.REFUSED),
        (None, BODY, Kind.REFUSED),
    ],
)
def test_another_range_than_was_asked_for(content_range: str | None, body: bytes, wanted: bytes | Kind) -> None:
    with http_server() as server:
        server.troubles.append(Trouble(headers={"Content-Range": content_range}, body=body))
        if isinstance(wanted, Kind):
            fault, given = fault_of(server, 100, 100)
            assert fault.kind is wanted
            assert BODY[100:200].startswith(given)
        else:
            assert read_of(server, 100, 100) == wanted


def test_many_ranges_in_one_body_are_not_taken_for_the_file() -> None:
    headers = {"Content-Range": None, "Content-Type": "multipart/byteranges; boundary=x"}
    with http_server() as server:
        server.troubles.append(Trouble(headers=headers, body=b"--x\r\n" + bytes(95)))
        assert fault_of(server, 100, 100)[0].kind is Kind.REFUSED


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Kind.REFUSED),
        (401, Kind.FORBIDDEN),
        (403, Kind.FORBIDDEN),
        (404, Kind.MISSING),
        (408, Kind.TRANSIENT),
        (410, Kind.MISSING),
        (412, Kind.CHANGED),
        (416, Kind.CHANGED),
        (418, Kind.REFUSED),
        (429, Kind.SLOW_DOWN),
        (500, Kind.TRANSIENT),
        (502, Kind.TRANSIENT),
        (503, Kind.SLOW_DOWN),
        (504, Kind.TRANSIENT),
        (204, Kind.REFUSED),
    ],
)
def test_what_a_status_means(status: int, kind: Kind) -> None:
    said = b"" if status == 204 else b"the server\n says why"
    headers = {"Retry-After": "7", "X-Request-Id": "abc"}
    with http_server() as server:
        server.troubles.append(Trouble(status=status, headers=headers, body=said))
        fault, given = fault_of(server)
    assert (fault.kind, fault.status, fault.request, fault.retry_after_s, given) == (kind, status, "abc", 7.0, b"")
    assert str(fault).startswith(f"HTTP {status}: ")
    assert "says why (request abc)" in str(fault) or status == 204


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_fault_of_a_look_is_no_missing_file(status: int, method: str) -> None:
    async def use(connection: Connection) -> list[Kind]:
        kinds = []
        for call in (connection.look("body"), listed(connection, "body")):
            with pytest.raises(Fault) as caught:
                await call
            kinds.append(caught.value.kind)
        return kinds

    with http_server() as server:
        server.trouble = lambda request: Trouble(status=status if request.method == method else 405)
        assert over(server, use) == [Kind.TRANSIENT if status == 500 else Kind.SLOW_DOWN] * 2


@pytest.mark.parametrize(
    "head",
    [
        Trouble(status=405),
        Trouble(status=403),
        Trouble(status=501),
        Trouble(headers={"Content-Length": None}),
        Trouble(headers={"Content-Length": "0"}),
    ],
    ids=["not allowed", "signed for GET", "not there", "no length", "length 0"],
)
@pytest.mark.parametrize("get", [Trouble(), Trouble(whole=True)], ids=["range", "whole"])
def test_a_size_that_head_does_not_tell_is_found_by_a_get(head: Trouble, get: Trouble) -> None:
    async def use(connection: Connection) -> tuple[Object, Object]:
        return await connection.look("body"), await connection.look("empty")

    with http_server() as server:
        server.files["/empty"] = b""
        server.trouble = lambda request: head if request.method == "HEAD" else get
        body, empty = over(server, use)
        assert (body, empty.size) == (Object("body", SIZE, server.tag(BODY)), 0)


@pytest.mark.parametrize(
    "get", [Trouble(headers={"Content-Range": "bytes 0-0/*"}), Trouble(whole=True, headers={"Content-Length": None})]
)
def test_a_size_that_the_server_does_not_tell_is_said(get: Trouble) -> None:
    async def use(connection: Connection) -> Fault:
        with pytest.raises(Fault) as caught:
            await connection.look("body")
        return caught.value

    with http_server() as server:
        server.trouble = lambda request: Trouble(headers={"Content-Length": None}) if request.method == "HEAD" else get
        fault = over(server, use)
    assert fault.kind is Kind.REFUSED
    assert "does not tell the size" in str(fault)


@pytest.mark.parametrize("knows_ranges", [False, True])
@pytest.mark.parametrize("lies", [False, True])
def test_a_file_of_another_size_than_was_listed_is_changed(lies: bool, knows_ranges: bool) -> None:
    """Without a tag it may have grown since; or the answer to HEAD was wrong. What lies behind that size would be lost."""
    with http_server() as server:
        server.tag = no_tag
        server.files["/a.jsonl"] = b'{"n": 1}\n' * (2 if lies else 1)
        server.troubles.append(Trouble(headers={"Content-Length": "9"}))
        server.trouble = lambda request: Trouble(whole=not knows_ranges)
        dataset = Dataset.from_path("d", f"{server.url}a.jsonl")
        server.files["/a.jsonl"] = b'{"n": 1}\n' * 2
        with pytest.raises(StorageError, match=r"has changed since it was listed; .*: it has 18 bytes, and was listed with 9$"):
            dataset.total()


@pytest.mark.parametrize("ignores_conditions", [False, True])
@pytest.mark.parametrize("tags", ["strong", "weak", "date", "bare", "none"])
def test_tags_of_all_kinds_guard_a_read(tags: str, ignores_conditions: bool) -> None:
    async def use(connection: Connection) -> tuple[str, Kind | bytes]:
        one = await connection.look("body")
        assert await read(connection, "body", 5, 5, one.tag) == BODY[5:10]
        server.files["/body"] = BODY[::-1]
        if tags == "date":
            server.last_modified = "Fri, 02 Jan 2026 00:00:00 GMT"
        if tags == "none":
            return one.tag, await read(connection, "body", 5, 5, one.tag)
        return one.tag, await kind_of(connection, "body", 5, 5, one.tag)

    with http_server() as server:
        if tags != "strong":
            server.tag = {"weak": weak_tag, "bare": lambda body: weak_tag(body)[3:-1]}.get(tags, no_tag)
        if tags == "date":
            server.last_modified = "Thu, 01 Jan 2026 00:00:00 GMT"
        if ignores_conditions:
            server.trouble = lambda request: Trouble(whole=True)
        tag, found = over(server, use)
        conditions = {request.headers.get("if-match") for request in server.requests} - {None}
    assert found == (BODY[::-1][5:10] if tags == "none" else Kind.CHANGED)
    assert conditions == ({tag} if tags == "strong" else set())


@pytest.mark.parametrize(
    ("path", "body", "format", "name"),
    [
        ("x/a.tsv?sig=a%2Fb/c", b"n\tt\n1\ta\n", None, "a.tsv"),
        ("a.tsv?sig=x", b"n\tt\n1\ta\n", "csv", "a.tsv"),
        ("a.json.gz?download=true", gzip.compress(b'{"n": 1, "t": "a"}\n', mtime=0), "jsonl", "a.json.gz"),
        ("a.dat?sig=x", b"n,t\n1,a\n", "csv", "a.dat"),
        ("get.php?file=a.jsonl.gz", gzip.compress(b'{"n": 1, "t": "a"}\n', mtime=0), None, "get.php?file=a.jsonl.gz"),
        ("?file=a.csv", b"n,t\n1,a\n", None, "?file=a.csv"),
    ],
)
def test_a_file_is_named_by_what_is_before_a_signature(path: str, body: bytes, format: str | None, name: str) -> None:
    """What it is named says how it is read, and is a part of the recipe: signed anew it is the same file."""
    with http_server() as server:
        server.files[f"/{path}"] = body
        found = whole(Dataset.from_path("d", server.url + path, format=format))
    assert (found.rows, found.places[0][0]) == ([{"n": 1, "t": "a"}], name)


def test_a_signature_is_not_told() -> None:
    with http_server() as server:
        server.files["/a.dat?sig=secret"] = b"x"
        with pytest.raises(DatasetError, match="holds no shard") as caught:
            Dataset.from_path("d", f"{server.url}a.dat?sig=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a b", "/a%20b"),
        ("%41%2f%2F", "/%41%2f%2F"),
        ("100%", "/100%25"),
        ("a+b?x=1&y=a%20b;c", "/a+b?x=1&y=a%20b;c"),
        ("é/数据", "/%C3%A9/%E6%95%B0%E6%8D%AE"),
        ("a#b", "/a%23b"),
        ("a/../b/./c//d", "/a/../b/./c//d"),
        ('[x]{y}"<>|\\^`', "/%5Bx%5D%7By%7D%22%3C%3E%7C%5C%5E%60"),
        ("it's(1)*!~$,:@", "/it's(1)*!~$,:@"),
    ],
)
def test_a_url_is_sent_as_it_is_written(key: str, path: str) -> None:
    with http_server() as server:
        server.files[path] = BODY
        over(server, lambda connection: read(connection, key, 0, 5))
        assert {request.path for request in server.requests} == {path}


def test_bytes_are_those_of_the_file_whatever_the_server_says_of_them() -> None:
    with http_server() as server:
        server.trouble = lambda request: Trouble(headers={"Content-Encoding": "gzip"})
        assert read_of(server, 3, 50) == BODY[3:53]
        assert {request.headers["accept-encoding"] for request in server.requests} == {"identity"}


def test_a_redirect_is_followed_with_range_and_condition() -> None:
    async def use(connection: Connection) -> bytes:
        one = await connection.look("old")
        return await read(connection, "old", 7, 7, one.tag)

    with http_server() as server:
        server.trouble = lambda request: Trouble(status=302, headers={"Location": "/body"}) if request.path == "/old" else None
        assert over(server, use) == BODY[7:14]
        server.trouble = lambda request: Trouble(status=302, headers={"Location": "/body"})
        assert fault_of(server)[0].kind is Kind.REFUSED


def test_a_page_of_links_is_a_file_like_any_other_and_a_folder_is_refused() -> None:
    async def use(connection: Connection) -> list[Any]:
        found: list[Any] = [await listed(connection, "page.html"), await listed(connection, "none")]
        for prefix in ("", "folder/"):
            with pytest.raises(Fault, match="lists no files") as caught:
                await listed(connection, prefix)
            found.append(caught.value.kind)
        return found

    page = b'<html><a href="a.jsonl">a</a><a href="/body">b</a></html>'
    with http_server() as server:
        server.files |= {"/page.html": page, "/a.jsonl": b"{}", "/folder/": page}
        one = Object("page.html", len(page), server.tag(page))
        assert over(server, use) == [{"page.html": one}, {}, Kind.REFUSED, Kind.REFUSED]


def test_a_cancelled_read_ends_its_request() -> None:
    async def use(connection: Connection) -> bytes:
        task = asyncio.create_task(read(connection, "body", 0, SIZE))
        assert await asyncio.to_thread(hold.arrived.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(hold.hung_up.wait, PATIENCE_S)
        return await read(connection, "body", 0, SIZE)

    with http_server() as server:
        hold = Hold()
        server.troubles.append(Trouble(hold=hold))
        assert over(server, use) == BODY


def test_no_more_requests_than_most_at_once() -> None:
    holds = [Hold() for _ in range(6)]

    async def use(connection: Connection) -> None:
        reads = [asyncio.create_task(read(connection, "body", n, 9)) for n in range(6)]
        for number, hold in enumerate(holds):
            assert await asyncio.to_thread(hold.arrived.wait, PATIENCE_S)
            assert sum(one.arrived.is_set() for one in holds) <= number + 2
            hold.released.set()
        assert await asyncio.gather(*reads) == [BODY[n : n + 9] for n in range(6)]

    with http_server() as server:
        server.troubles.extend(Trouble(hold=hold) for hold in holds)
        over(server, use, most=2)


def test_options_go_along_with_their_own_connection_alone() -> None:
    async def main() -> None:
        scheme = find_scheme("http")
        several = [await scheme.open(server.url, {"headers": {"Authorization": name}}, 1) for name in ("one", "two")]
        several.append(await scheme.open(server.url, {"client_kwargs": {"headers": {"Authorization": "three"}}}, 1))
        for connection in several:
            await connection.look("body")
        for connection in several:
            await connection.read("body", 0, 1, "", lambda piece: None)
            await connection.close()

    with http_server() as server:
        server.files["/body"] = BODY
        asyncio.run(main())
        assert [request.headers.get("authorization") for request in server.requests] == ["one", "two", "three"] * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"heders": {}}, "did you mean 'headers'"),
        ({"anon": True}, "no storage option 'anon'"),
        ({"client_kwargs": {"nothing": 1}}, "nothing"),
        ({"client_kwargs": 7}, "storage_options"),
        ({3: 4}, "named by text"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[Any, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        asyncio.run(find_scheme("http").open("http://127.0.0.1:9/", options, 1))


@pytest.mark.parametrize("url", ["http://", "http:///a", "https://?x", "http://#"])
def test_a_url_without_a_server_is_refused(url: str) -> None:
    with pytest.raises(RecipeError, match="names no server"):
        find_scheme("https").split(url)


def test_the_gil_stays_off() -> None:
    code = "import asyncio, json, sys; from zephon_async.io.stores import find_scheme\n"
    code += "async def main(): await (await find_scheme('http').open('http://127.0.0.1:9/', {}, 1)).close()\n"
    code += "asyncio.run(main()); print(json.dumps(getattr(sys, '_is_gil_enabled', lambda: True)()))"
    answer = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) is not bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
