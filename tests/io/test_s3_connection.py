"""Connections to S3 that are answered as they should be, and what they hold."""

import asyncio
import socket
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from botocore import UNSIGNED

from tests.io.s3_requests import (
    BODY,
    RIGHT,
    Ask,
    a_look,
    a_read,
    always,
    each_request,
    fault_of,
    listed,
    opened,
    read,
    run,
    the_list,
)
from tests.system.fake_s3 import FakeS3, Request, Twist, encoded, tag_of
from zephon_async.io.stores.connection import Connection, Fault, Kind, Object

pytestmark = pytest.mark.usefixtures("no_credentials")
ODD_KEYS = (
    "a b", "a+b", "a%20b", "a%2Fb", "x//y", "p/./q", "p/../q", "./here", "/lead", "//two", "q?x=1#part&y", "back\\slash",
    "tab\tline\nreturn\rbell\x07", "été/日本/🙂", "~!$'()*,;:@=[]{}|^`\"<>", "two  spaces ", "end.", "s3://b/k", "&amp;",
)  # fmt: skip


@each_request
def test_requests_that_succeed(ask: Ask) -> None:
    assert run(lambda connection, _: ask(connection))[0] == RIGHT[ask]


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (0, 100_000), (61_710, 38_290), (len(BODY) - 1, 1), (1, len(BODY) - 1)])
def test_ranges(offset: int, length: int) -> None:
    got, server = run(lambda connection, _: read(connection, "k", offset, length, tag_of(BODY)))
    assert got == BODY[offset : offset + length]
    assert [request.headers["range"] for request in server.requests] == [f"bytes={offset}-{offset + length - 1}"]
    assert server.requests[0].headers["if-match"] == tag_of(BODY)
    assert server.body_bytes == length


def test_bytes_come_as_they_are_stored() -> None:
    packed = Twist(headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"})
    assert run(lambda connection, _: read(connection, "k", 5, 50_000), always(packed))[0] == BODY[5:50_005]


@pytest.mark.parametrize("style", ["path", "virtual"])
def test_odd_keys_come_through_exactly(style: str) -> None:
    async def test(server: FakeS3) -> None:
        # a server at a name of its own for every bucket, which leads here
        here: dict[str, Any] = {"endpoint_url": f"http://s3.test:{server.port}"} if style == "virtual" else {}
        arguments = {"s3": {"addressing_style": style}, "connector_args": {"resolver": Here()}}
        async with opened(server, config_kwargs=arguments, **here) as connection:
            assert sorted(each.key for each in await listed(connection)) == sorted(ODD_KEYS)
            for key in ODD_KEYS:
                assert await connection.look(key) == Object(key, len(key.encode()), tag_of(key.encode()))
                assert await read(connection, key, 0, len(key.encode())) == key.encode()
                assert [each.key for each in await listed(connection, key)] == [key]

    with FakeS3() as server:
        for key in ODD_KEYS:
            server.put(key, key.encode())
        asyncio.run(test(server))
        before = "/" if style == "virtual" else "/bucket-1/"
        asked = [request.target for request in server.requests if request.method == "HEAD"]
        assert asked == [before + encoded(key) for key in ODD_KEYS]


class Here(AbstractResolver):
    """Every name is this machine."""

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("reverse", [False, True])
def test_lists_of_many_pages(reverse: bool) -> None:
    keys = {f"part/{number:05}.jsonl" for number in range(2_345)}

    async def pages(server: FakeS3) -> list[list[str]]:
        async with opened(server) as connection:
            return [[each.key for each in page] async for page in connection.pages("part/")]

    with FakeS3(reverse=reverse) as server:
        for key in [*keys, "other"]:
            server.put(key, b"1")
        found = asyncio.run(pages(server))
        assert [len(page) for page in found] == [1_000, 1_000, 345]
        assert {key for page in found for key in page} == keys


def test_a_page_that_failed_may_be_asked_for_again() -> None:
    def fails_once(request: Request) -> Twist | None:
        return Twist(500, "InternalError") if request.number == 1 else None

    async def test(server: FakeS3) -> list[str]:
        async with opened(server) as connection:
            pages = connection.pages("")
            found = list(await anext(pages))
            with pytest.raises(Fault, match="InternalError"):
                await anext(pages)
            return [each.key for each in [*found, *[each async for page in pages for each in page]]]

    with FakeS3(fails_once, page_keys=2) as server:
        for key in "abcde":
            server.put(key, b"1")
        assert asyncio.run(test(server)) == list("abcde")


def test_empty_keys_that_stand_for_folders_are_left_out() -> None:
    async def test(connection: Connection, server: FakeS3) -> list[str]:
        for key, body in {"f/": b"", "g/": b"1", "empty": b""}.items():
            server.put(key, body)
        assert await listed(connection, "none") == []
        return [each.key for each in await listed(connection)]

    assert run(test)[0] == ["empty", "g/", "k"]


def test_a_listing_that_does_not_go_on_is_a_fault_and_no_loop() -> None:
    xml = b"<ListBucketResult><Name>b</Name><IsTruncated>true</IsTruncated>%s</ListBucketResult>"
    for token in (b"", b"<NextContinuationToken>1</NextContinuationToken>"):
        fault, _ = fault_of(the_list, always(Twist(200, body=xml % token)))
        assert str(fault) == "the listing says that there is more, and not where it goes on"

    def in_turn(request: Any) -> Twist:
        other = b"2" if request.query.get("continuation-token") == "1" else b"1"
        return Twist(200, body=xml % (b"<NextContinuationToken>%s</NextContinuationToken>" % other))

    assert str(fault_of(the_list, in_turn)[0]) == "the listing says that there is more, and not where it goes on"


@pytest.mark.parametrize("body", [b"<html><p>sign in</p></html>", b"<html><p>sign in", b"", b"{}", b"<ListBucketResult><Na"])
def test_an_answer_that_is_no_listing_is_not_an_empty_one(body: bytes) -> None:
    assert fault_of(the_list, always(Twist(200, body=body)))[0].kind is Kind.TRANSIENT


def test_requests_are_signed_paid_for_or_neither() -> None:
    for options, signed_by, payer in (
        ({}, "a-key", None),
        ({"requester_pays": True}, "a-key", "requester"),
        ({"key": None, "secret": None, "anon": True}, "", None),
        ({"key": None, "secret": None, "config_kwargs": {"signature_version": UNSIGNED}}, "", None),
    ):

        async def test(connection: Connection, server: FakeS3) -> None:
            for ask in (the_list, a_look, a_read):
                await ask(connection)

        _, server = run(test, **options)
        assert [(each.signed_by, each.headers.get("x-amz-request-payer")) for each in server.requests] == [(signed_by, payer)] * 3


def test_a_read_that_is_cancelled_leaves_no_connection() -> None:
    async def test(connection: Connection, server: FakeS3) -> bytes:
        reads = [asyncio.create_task(read(connection, "k")) for _ in range(2)]
        assert await asyncio.to_thread(server.wait_for_connections, 2)
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        assert await asyncio.to_thread(server.wait_for_connections, 0)
        server.faults = lambda request: None
        return await read(connection, "k")  # there is only room for two

    assert run(test, always(Twist(silent=True)), most=2)[0] == BODY


def test_a_read_that_is_cancelled_in_its_body() -> None:
    async def test(connection: Connection, server: FakeS3) -> bytes:
        for _ in range(4):
            pieces: asyncio.Queue[bytes] = asyncio.Queue()
            task = asyncio.create_task(connection.read("k", 0, 200_000, "", pieces.put_nowait))
            await pieces.get()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await asyncio.to_thread(server.wait_for_connections, 0)
        server.faults = lambda request: None
        return await read(connection, "k")

    half = Twist(206, body=BODY, headers={"Content-Length": "200000", "Content-Range": "bytes 0-199999/200000"})
    assert run(test, always(half), most=1)[0] == BODY


def test_reads_one_after_the_other_take_one_connection() -> None:
    async def test(connection: Connection, server: FakeS3) -> int:
        for number in range(20):
            await read(connection, "k", number, 1_000 + number)
        return server.connections

    assert run(test)[0] == 1


def test_no_more_connections_than_were_allowed() -> None:
    async def test(connection: Connection, server: FakeS3) -> int:
        await asyncio.gather(*(read(connection, "k", number, 1_000) for number in range(50)))
        return server.connections

    assert 1 <= run(test, most=3)[0] <= 3
