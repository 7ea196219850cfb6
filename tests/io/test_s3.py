"""Connections to S3: against a server that does wrong what a test asks for, and against a real one."""

import asyncio
import hashlib
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.system.fake_s3 import FakeS3, Faults, Request, Twist, encoded, expires, first_times, lies_in, tag_of
from tests.system.seaweed import Bucket
from zephon_async.errors import RecipeError
from zephon_async.io.stores.connection import Connection, Fault, Kind, Object
from zephon_async.io.stores.s3 import SCHEME

T = TypeVar("T")
BODY = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(256)) * 13  # 106,496 bytes
ODD_KEYS = (
    "a b", "a+b", "a%20b", "a%2Fb", "x//y", "p/./q", "p/../q", "./here", "/lead", "//two", "q?x=1#part&y", "back\\slash",
    "tab\tline\nreturn\rbell\x07", "été/日本/🙂", "~!$'()*,;:@=[]{}|^`\"<>", "two  spaces ", "end.", "s3://b/k", "&amp;",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_credentials_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@asynccontextmanager
async def opened(server: FakeS3 | Bucket, most: int = 4, **options: Any) -> AsyncIterator[Connection]:
    given = {**server.options, **options}
    connection = await SCHEME.open(server.root, {name: value for name, value in given.items() if value is not None}, most)
    try:
        yield connection
    finally:
        await connection.close()


async def read(connection: Connection, key: str, offset: int = 0, length: int = len(BODY), tag: str = "") -> bytes:
    pieces: list[bytes] = []
    await connection.read(key, offset, length, tag, pieces.append)
    return b"".join(pieces)


async def listed(connection: Connection, prefix: str = "") -> list[Object]:
    return [each async for page in connection.pages(prefix) for each in page]


async def the_list(connection: Connection) -> object:
    return await listed(connection)


async def a_look(connection: Connection) -> object:
    return await connection.look("k")


async def a_read(connection: Connection) -> object:
    return await read(connection, "k")


each_request = pytest.mark.parametrize("ask", [the_list, a_look, a_read])
bodily = pytest.mark.parametrize("ask", [the_list, a_read])
RIGHT: dict[Any, object] = {
    the_list: [Object("k", len(BODY), tag_of(BODY))],
    a_look: Object("k", len(BODY), tag_of(BODY)),
    a_read: BODY,
}


def run(
    test: Callable[[Connection, FakeS3], Coroutine[Any, Any, T]], faults: Faults = lambda request: None, **options: Any
) -> tuple[T, FakeS3]:
    """What a test gives, and the server that it was run against, which holds BODY as `k`."""

    async def all_of_it(server: FakeS3) -> T:
        async with opened(server, **options) as connection:
            return await test(connection, server)

    with FakeS3(faults) as server:
        server.put("k", BODY)
        return asyncio.run(all_of_it(server)), server


def fault_of(ask: Callable[[Connection], Coroutine[Any, Any, object]], faults: Faults, **options: Any) -> tuple[Fault, FakeS3]:
    async def failing(connection: Connection, server: FakeS3) -> Fault:
        with pytest.raises(Fault) as caught:
            await ask(connection)
        return caught.value

    return run(failing, faults, **options)


def always(twist: Twist) -> Faults:
    return lambda request: twist


def write_key(path: Path, key: str, profile: str = "default") -> None:
    path.write_text(f"[{profile}]\naws_access_key_id = {key}\naws_secret_access_key = s\n")


# What is asked, and what is right


@each_request
def test_requests_that_succeed(ask: Any) -> None:
    assert run(lambda connection, _: ask(connection))[0] == RIGHT[ask]


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (0, 100_000), (61_710, 38_290), (len(BODY) - 1, 1), (1, len(BODY) - 1)])
def test_ranges(offset: int, length: int) -> None:
    got, server = run(lambda connection, _: read(connection, "k", offset, length, tag_of(BODY)))
    assert got == BODY[offset : offset + length]
    assert [request.headers["range"] for request in server.requests] == [f"bytes={offset}-{offset + length - 1}"]
    assert server.requests[0].headers["if-match"] == tag_of(BODY)
    assert server.body_bytes == length


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


@pytest.mark.parametrize("body", [b"<html><p>sign in</p></html>", b"<html><p>sign in", b"", b"{}", b"<ListBucketResult><Na"])
def test_an_answer_that_is_no_listing_is_not_an_empty_one(body: bytes) -> None:
    assert fault_of(the_list, always(Twist(200, body=body)))[0].kind is Kind.TRANSIENT


def test_requests_are_signed_paid_for_or_neither() -> None:
    for options, signed_by, payer in (
        ({}, "a-key", None),
        ({"requester_pays": True}, "a-key", "requester"),
        ({"key": None, "secret": None, "anon": True}, "", None),
    ):

        async def test(connection: Connection, server: FakeS3) -> None:
            for ask in (the_list, a_look, a_read):
                await ask(connection)

        _, server = run(test, **options)
        assert [(each.signed_by, each.headers.get("x-amz-request-payer")) for each in server.requests] == [(signed_by, payer)] * 3


# What goes wrong


ANSWERS: dict[Kind, list[tuple[int, str]]] = {
    Kind.TRANSIENT: [(500, "InternalError"), (500, ""), (502, ""), (504, ""), (507, ""), (400, "RequestTimeout"), (408, "")],
    Kind.SLOW_DOWN: [(503, "SlowDown"), (503, ""), (429, ""), (429, "TooManyRequestsException"), (400, "ThrottlingException")],
    Kind.MISSING: [(404, "NoSuchKey"), (404, "NoSuchBucket"), (404, "")],
    Kind.FORBIDDEN: [(403, "AccessDenied"), (403, "SignatureDoesNotMatch"), (403, "InvalidAccessKeyId"), (403, ""), (401, "")],
    Kind.CHANGED: [(412, "PreconditionFailed"), (412, ""), (416, "InvalidRange"), (416, "")],
    Kind.REFUSED: [(400, "InvalidRequest"), (400, ""), (405, "MethodNotAllowed"), (409, "")],
}
each_answer = pytest.mark.parametrize(
    ("kind", "status", "code"), [(kind, *answer) for kind, answers in ANSWERS.items() for answer in answers]
)


@bodily
@each_answer
def test_what_an_answer_means(ask: Any, kind: Kind, status: int, code: str) -> None:
    fault, server = fault_of(ask, always(Twist(status, code, "words of the storage" if code else "")))
    assert (fault.kind, fault.status, fault.request) == (kind, status, "R0")
    assert f"HTTP {status}: {code}" in str(fault)
    assert not code or "words of the storage" in str(fault)
    assert len(server.requests) == 1


@each_answer
def test_what_an_answer_without_a_body_means(kind: Kind, status: int, code: str) -> None:
    if status != 400:
        fault, _ = fault_of(a_look, always(Twist(status, code)))
        assert (fault.kind, fault.status) == (kind, status)


@bodily
@pytest.mark.parametrize(
    "body", [b"", b"<html><body>Bad <b>gateway", b"<html><p>no</p></html>", b'{"error": "no"}', b"\xff\xfe\x00"]
)
def test_errors_that_are_not_told_in_xml(ask: Any, body: bytes) -> None:
    for status, kind in (
        (500, Kind.TRANSIENT),
        (503, Kind.SLOW_DOWN),
        (404, Kind.MISSING),
        (403, Kind.FORBIDDEN),
        (409, Kind.REFUSED),
    ):
        fault, _ = fault_of(ask, always(Twist(status, body=body)))
        assert (fault.kind, fault.status) == (kind, status)


@each_request
def test_how_long_the_storage_asks_to_wait(ask: Any) -> None:
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    for said, least, most in (("7", 7, 7), ("0.5", 0.5, 0.5), (in_an_hour, 3_000, 3_600), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0)):
        fault, _ = fault_of(ask, always(Twist(503, "SlowDown", headers={"Retry-After": said})))
        assert fault.kind is Kind.SLOW_DOWN
        assert fault.retry_after_s is not None
        assert least <= fault.retry_after_s <= most
    assert fault_of(ask, always(Twist(503, headers={"Retry-After": "soon"})))[0].retry_after_s is None


@each_request
def test_a_server_that_is_silent_or_not_there(ask: Any) -> None:
    fault, _ = fault_of(ask, always(Twist(silent=True)), read_timeout=0.1)
    assert (fault.kind, fault.status) == (Kind.TRANSIENT, None)
    for reset in (False, True):
        assert fault_of(ask, always(Twist(gone=True, reset=reset)))[0].kind is Kind.TRANSIENT
        assert fault_of(ask, always(Twist(500, "InternalError", stop_after=20, reset=reset)))[0].kind is Kind.TRANSIENT
    fault, _ = fault_of(ask, always(Twist()), endpoint_url="http://127.0.0.1:9")
    assert fault.kind is Kind.TRANSIENT
    assert "http://127.0.0.1:9" in str(fault)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_cut_short(reset: bool, chunked: bool) -> None:
    cut = first_times(1, Twist(stop_after=61_710 + len(b"186a0\r\n") * chunked, reset=reset, chunked=chunked))

    async def test(connection: Connection, server: FakeS3) -> bytes:
        pieces: list[bytes] = []
        with pytest.raises(Fault, match=r"61,710 of 100,000 bytes came: ") as caught:
            await connection.read("k", 0, 100_000, tag_of(BODY), pieces.append)
        assert caught.value.kind is Kind.TRANSIENT
        got = b"".join(pieces)
        return got + await read(connection, "k", len(got), 100_000 - len(got), tag_of(BODY))

    assert run(test, cut)[0] == BODY[:100_000]


def test_a_body_that_stops_coming() -> None:
    fault, _ = fault_of(a_read, always(Twist(stop_after=61_710, silent=True)), read_timeout=0.1)
    assert fault.kind is Kind.TRANSIENT
    assert str(fault).startswith("61,710 of 106,496 bytes came: ")


def test_what_the_sink_raises_is_not_a_fault_of_the_storage() -> None:
    def full(piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def test(connection: Connection, server: FakeS3) -> bytes:
        with pytest.raises(OSError, match="No space left"):
            await connection.read("k", 0, 100, "", full)
        return await read(connection, "k")

    assert run(test)[0] == BODY


@pytest.mark.parametrize("tag", ["", tag_of(BODY)])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_whole_object_instead_of_a_range_is_cut(tag: str, chunked: bool) -> None:
    got, _ = run(lambda connection, _: read(connection, "k", 70_000, 1_000, tag), always(Twist(whole=True, chunked=chunked)))
    assert got == BODY[70_000:71_000]


@pytest.mark.parametrize(
    ("twist", "kind", "text"),
    [
        (Twist(claims="bytes 0-999/106496"), Kind.TRANSIENT, "bytes 0 to 1,000 came, 500 to 1,500 were asked for"),
        (Twist(claims="bytes 501-1500/106496"), Kind.TRANSIENT, "bytes 501 to 1,501 came, 500 to 1,500 were asked for"),
        (
            Twist(claims="bytes 0-106495/106496"),
            Kind.TRANSIENT,
            "the body has 1,000 bytes, and is said to be 'bytes 0-106495/106496'",
        ),
        (Twist(claims="items 1-2"), Kind.TRANSIENT, "the part of an object is said to be 'items 1-2'"),
        (Twist(claims="bytes 500-1499/1499"), Kind.CHANGED, "it has 1,499 bytes, 1,500 were asked for"),
        (Twist(200, body=b"x" * 1_000), Kind.CHANGED, "it has 1,000 bytes, 1,500 were asked for"),
        (Twist(headers={"ETag": '"other"'}), Kind.CHANGED, f'its tag was {tag_of(BODY)} and is "other"'),
    ],
)
def test_a_body_that_is_not_what_was_asked_for(twist: Twist, kind: Kind, text: str) -> None:
    pieces: list[bytes] = []
    fault, _ = fault_of(lambda connection: connection.read("k", 500, 1_000, tag_of(BODY), pieces.append), always(twist))
    assert fault.kind is kind
    assert text in str(fault)
    assert not pieces


def test_an_object_that_has_changed_or_gone() -> None:
    async def test(connection: Connection, server: FakeS3) -> list[Kind]:
        tag = (await connection.look("k")).tag
        kinds = []
        for body in (BODY[::-1], b"short", None):
            server.delete("k")
            if body is not None:
                server.put("k", body)
            with pytest.raises(Fault) as caught:
                await read(connection, "k", 500, 1_000, tag)
            kinds.append(caught.value.kind)
        server.put("k", b"short")
        with pytest.raises(Fault, match="416"):
            await read(connection, "k", 500, 1_000)
        with pytest.raises(Fault) as caught:
            await connection.look("")
        return [*kinds, caught.value.kind]

    assert run(test)[0] == [Kind.CHANGED, Kind.CHANGED, Kind.MISSING, Kind.MISSING]


# Credentials


@pytest.mark.parametrize("status", [400, 403])
@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken", "InvalidAccessKeyId"])
def test_new_credentials_are_found_once_and_nothing_is_lost(
    status: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = counted_searches(monkeypatch)
    write_key(tmp_path / "credentials", "old")

    async def test(connection: Connection, server: FakeS3) -> list[bytes]:
        first = [await read(connection, "k", number, 1) for number in range(10)]
        write_key(tmp_path / "credentials", "new")
        async with asyncio.TaskGroup() as group:
            rest = [group.create_task(read(connection, "k", number * 1_000, 1_000)) for number in range(100)]
        return [*first, *(task.result() for task in rest)]

    got, server = run(test, expires(10, "new", status, code), most=16, key=None, secret=None)
    assert b"".join(got) == BODY[:10] + BODY[:100_000]
    assert len(searches) == 2
    assert len([request for request in server.requests if request.signed_by == "new"]) == 100
    assert server.requests[-1].signed_by == "new"


@each_request
@pytest.mark.parametrize("status", [400, 403])
def test_every_kind_of_request_finds_new_credentials(ask: Any, status: int, tmp_path: Path) -> None:
    write_key(tmp_path / "credentials", "old", "mine")

    async def test(connection: Connection, server: FakeS3) -> object:
        assert await ask(connection) == RIGHT[ask]
        write_key(tmp_path / "credentials", "new", "mine")
        return await ask(connection)

    assert run(test, expires(1, "new", status), key=None, secret=None, profile="mine")[0] == RIGHT[ask]


@each_request
@pytest.mark.parametrize("status", [400, 403])
@pytest.mark.parametrize("where", ["file", "options"])
def test_credentials_that_have_ended_and_stay_so(ask: Any, status: int, where: str, tmp_path: Path) -> None:
    write_key(tmp_path / "credentials", "old")
    nothing: Mapping[str, None] = {"key": None, "secret": None} if where == "file" else {}
    fault, server = fault_of(ask, expires(0, "new", status), **nothing)
    assert (fault.kind, fault.status) == (Kind.FORBIDDEN, status)
    assert "the credentials have ended (ExpiredToken: The provided token has expired.)" in str(fault)
    assert "still the same where they came from" in str(fault)
    assert len(server.requests) <= 3


def test_new_credentials_that_have_ended_as_well(tmp_path: Path) -> None:
    write_key(tmp_path / "credentials", "old")

    def faults(request: Request) -> Twist:
        write_key(tmp_path / "credentials", f"new-{request.number}")
        return Twist(400, "ExpiredToken", "expired")

    fault, server = fault_of(a_read, faults, key=None, secret=None)
    assert fault.kind is Kind.FORBIDDEN
    assert [request.signed_by for request in server.requests] == ["old", "new-0"]


def test_a_credentials_file_that_is_just_being_written(tmp_path: Path) -> None:
    write_key(tmp_path / "credentials", "old")

    async def test(connection: Connection, server: FakeS3) -> bytes:
        for text in ("", "[default]\naws_access_key_id = new\n", "[defau"):
            (tmp_path / "credentials").write_text(text)
            with pytest.raises(Fault, match="no new ones yet") as caught:
                await read(connection, "k")
            assert caught.value.kind is Kind.TRANSIENT
        write_key(tmp_path / "credentials", "new")
        return await read(connection, "k")

    async def begun(connection: Connection, server: FakeS3) -> bytes:
        await read(connection, "k")
        return await test(connection, server)

    assert run(begun, expires(1, "new"), key=None, secret=None)[0] == BODY


def test_a_body_on_its_way_outlives_the_renewal_of_credentials(tmp_path: Path) -> None:
    write_key(tmp_path / "credentials", "old")
    goes_on = threading.Event()

    def faults(request: Request) -> Twist | None:
        if request.headers.get("range") == "bytes=0-99999":
            return Twist(hold=goes_on)
        return expires(0, "new")(request)

    async def test(connection: Connection, server: FakeS3) -> bytes:
        slow = asyncio.create_task(read(connection, "k", 0, 100_000))
        await asyncio.to_thread(server.wait_for_connections, 1)
        write_key(tmp_path / "credentials", "new")
        assert await read(connection, "k", 5, 5) == BODY[5:10]
        goes_on.set()
        return await slow

    assert run(test, faults, key=None, secret=None)[0] == BODY[:100_000]


@each_request
def test_no_credentials_at_all(ask: Any) -> None:
    fault, server = fault_of(ask, always(Twist()), key=None, secret=None)
    assert (fault.kind, len(server.requests)) == (Kind.FORBIDDEN, 0)
    assert str(fault) == "Unable to locate credentials; for a public bucket give storage_options={'anon': True}"


def counted_searches(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows with every search for credentials."""
    from zephon_async.io.stores import s3_connection

    found: list[None] = []
    search = s3_connection._Credentials._resolved

    async def counted(credentials: Any) -> Any:
        found.append(None)
        return await search(credentials)

    monkeypatch.setattr(s3_connection._Credentials, "_resolved", counted)
    return found


# Regions


@each_request
@pytest.mark.parametrize("status", [301, 307, 400])
def test_a_bucket_in_another_region_is_asked_for_there_and_remembered(ask: Any, status: int) -> None:
    code = "AuthorizationHeaderMalformed" if status == 400 else "PermanentRedirect"

    async def test(connection: Connection, server: FakeS3) -> list[object]:
        return [await ask(connection), await ask(connection)]

    got, server = run(test, lies_in("eu-north-1", status, code), region_name="us-west-2")
    assert got == [RIGHT[ask]] * 2
    assert [request.region for request in server.requests] == ["us-west-2", "eu-north-1", "eu-north-1"]


def test_the_region_in_the_body_alone() -> None:
    got, server = run(lambda connection, _: a_read(connection), lies_in("eu-north-1", headers=False), region_name="us-west-2")
    assert got == BODY
    assert [request.region for request in server.requests] == ["us-west-2", "eu-north-1"]


def test_a_redirect_that_leads_nowhere_is_not_followed_for_ever() -> None:
    fault, server = fault_of(a_read, always(Twist(301, "PermanentRedirect", headers={"x-amz-bucket-region": "eu-north-1"})))
    assert fault.kind is Kind.REFUSED
    assert "the bucket is in the region 'eu-north-1': give storage_options={'region_name': 'eu-north-1'}" in str(fault)
    assert len(server.requests) == 2


def test_a_signature_is_not_sent_to_where_a_redirect_leads() -> None:
    with FakeS3() as elsewhere:
        elsewhere.put("k", BODY)
        fault, _ = fault_of(a_read, always(Twist(307, "TemporaryRedirect", headers={"Location": f"{elsewhere.url}/bucket-1/k"})))
        assert (fault.kind, fault.status) == (Kind.REFUSED, 307)
        assert elsewhere.url in str(fault)
        assert elsewhere.requests == []


@each_request
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_that_does_not_say_where(ask: Any, status: int) -> None:
    fault, server = fault_of(ask, always(Twist(status, body=b"moved")))
    assert (fault.kind, fault.status) == (Kind.REFUSED, status)
    assert len(server.requests) <= 2


# What is held, and what is left


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


# The options


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("s3://b-1/a/b.jsonl", "s3://b-1/"),
        ("s3a://b-1/a%20b?c#d", "s3a://b-1/"),
        ("s3://b-1//lead", "s3://b-1/"),
        ("s3://b-1/line\nline", "s3://b-1/"),
        ("s3://b-1", "s3://b-1"),
        ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/a/b", "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/"),
    ],
)
def test_urls(url: str, root: str) -> None:
    assert SCHEME.split(url) == (root, url.removeprefix(root))


@pytest.mark.parametrize("url", ["s3://", "s3:///key", "s3:bucket", "bucket/key"])
def test_urls_that_name_no_bucket(url: str) -> None:
    with pytest.raises(RecipeError, match=r"names no bucket: write s3://bucket/"):
        SCHEME.split(url)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keys": "a"}, "storage_options of S3 know no 'keys'; did you mean 'key'?"),
        ({"endpoint": "a"}, "did you mean 'endpoint_url'?"),
        ({"client_kwargs": {"region": "a"}}, "client_kwargs of S3 know no 'region'; did you mean 'region_name'?"),
        ({"config_kwargs": {"signature": "a"}}, "config_kwargs of S3 know no 'signature'; did you mean 'signature_version'?"),
        ({"key": "a"}, "need both of key and secret"),
        ({"token": "a"}, "needs key and secret"),
        ({"key": "a", "secret": "b", "anon": True}, "anon=True and a key"),
        ({"anon": "yes"}, "anon in storage_options of S3 is 'yes': it must be True or False"),
        ({"secret": 17, "key": "a"}, "secret in storage_options of S3 is of another type: it must be a text"),
        ({"endpoint_url": 17}, "endpoint_url in storage_options of S3 is 17: it must be a text"),
        ({"endpoint_url": "no url"}, "cannot be opened: Invalid endpoint: no url"),
        ({"region_name": "no region"}, "cannot be opened: Provided region_name 'no region'"),
        ({"region_name": "a", "client_kwargs": {"region_name": "b"}}, "say 'region_name' twice"),
        ({"client_kwargs": []}, "client_kwargs in storage_options of S3 is []: it must be a dictionary"),
        ({"client_kwargs": [1]}, "client_kwargs of S3 is [1]: it must be a dictionary"),
        ({"read_timeout": 0}, "it must be a number of seconds above 0"),
        ({"profile": "none-such"}, "none-such"),
        ({"config_kwargs": {"s3": {"addressing_style": "paths"}}}, "cannot be opened: S3 addressing style paths is invalid"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, Any], text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        asyncio.run(SCHEME.open("s3://bucket-1/", options, 1))
    assert text in str(caught.value)


def test_a_bucket_that_cannot_be() -> None:
    with pytest.raises(RecipeError, match="Invalid bucket name"):
        asyncio.run(SCHEME.open("s3://a bucket/", {}, 1))


def test_options_inside_of_options_and_none_of_them_given() -> None:
    with FakeS3() as server:
        server.put("k", BODY)
        inner = {"aws_access_key_id": "inner", "aws_secret_access_key": "s", "endpoint_url": server.url, "region_name": "eu-west-3"}
        outer = dict.fromkeys(("key", "secret", "token", "endpoint_url", "profile", "verify"))
        given = {**outer, "client_kwargs": inner, "config_kwargs": {"retries": {"max_attempts": 9}, "signature_version": "s3v4"}}

        async def test() -> bytes:
            connection = await SCHEME.open(server.root, given, 1)
            try:
                return await read(connection, "k")
            finally:
                await connection.close()

        assert asyncio.run(test()) == BODY
        assert (server.requests[0].signed_by, server.requests[0].region) == ("inner", "eu-west-3")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "zephon_async.io.stores.s3_connection", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "aiobotocore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    with pytest.raises(RecipeError, match=r"pip install 'zephon-async\[s3\]'"):
        asyncio.run(SCHEME.open("s3://bucket-1/", {}, 1))


def test_the_library_is_loaded_by_the_first_connection_and_leaves_the_gil_off() -> None:
    program = """
import asyncio, sys
from zephon_async.io.stores.s3 import SCHEME
def loaded(): return "aiobotocore" in sys.modules
def gil(): return getattr(sys, "_is_gil_enabled", lambda: None)()
before = loaded(), gil()
async def main():
    await (await SCHEME.open("s3://bucket-1/", {"anon": True, "region_name": "us-east-1"}, 1)).close()
asyncio.run(main())
assert (before, loaded()) == ((False, before[1]), True) and gil() == before[1]
"""
    subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], check=True, cwd=Path(__file__).parents[2], timeout=60
    )


# A real server


def test_lists_ranges_and_tags_of_a_real_server(seaweed_bucket: Bucket) -> None:
    keys = {"a b", "a+b", "a%20b", "été/日本/🙂", "q?x=1#part&y", "~!$'()*,;:@=[]{}|^`\"<>", "f/g/h", "empty"}
    for key in keys:
        seaweed_bucket.put(key, b"" if key == "empty" else BODY)
    seaweed_bucket.put("folder/", b"")

    async def test() -> None:
        async with opened(seaweed_bucket) as connection:
            objects = {each.key: each for each in await listed(connection)}
            assert objects.keys() == keys
            assert [each.key for each in await listed(connection, "f/")] == ["f/g/h"]
            assert await listed(connection, "none/") == []
            for key in sorted(keys - {"empty"}):
                assert objects[key] == Object(key, len(BODY), tag_of(BODY)) == await connection.look(key)
                assert await read(connection, key, 61_710, 38_290, objects[key].tag) == BODY[61_710:100_000]
            with pytest.raises(Fault) as caught:
                await read(connection, "a b", 0, 10, '"00000000000000000000000000000000"')
            assert caught.value.kind is Kind.CHANGED
            with pytest.raises(Fault) as caught:
                await read(connection, "a b", len(BODY), 10, objects["a b"].tag)
            assert caught.value.kind is Kind.CHANGED
            for ask in (connection.look("none"), read(connection, "none")):
                with pytest.raises(Fault) as caught:
                    await ask
                assert caught.value.kind is Kind.MISSING

    asyncio.run(test())


def test_objects_that_were_uploaded_in_parts_to_a_real_server(seaweed_bucket: Bucket) -> None:
    parts = [bytes([1]) * (5 << 20), bytes([2]) * 1_000]
    seaweed_bucket.put_in_parts("parts", parts)

    async def test() -> None:
        async with opened(seaweed_bucket) as connection:
            found = await listed(connection)
            assert found == [await connection.look("parts")]
            assert found[0].size == (5 << 20) + 1_000
            assert found[0].tag.endswith('-2"')
            assert await read(connection, "parts", (5 << 20) - 1, 2, found[0].tag) == b"\1\2"
            await asyncio.to_thread(seaweed_bucket.put, "parts", b"3" * found[0].size)
            with pytest.raises(Fault) as caught:
                await read(connection, "parts", 0, 10, found[0].tag)
            assert caught.value.kind is Kind.CHANGED

    asyncio.run(test())


def test_many_pages_and_keys_of_a_real_server(seaweed_bucket: Bucket) -> None:
    seaweed_bucket.put_all({f"part/{number:05}": b"1" for number in range(1_001)})

    async def test() -> None:
        async with opened(seaweed_bucket) as connection:
            pages = [[each.key for each in page] async for page in connection.pages("part/")]
            assert [key for page in pages for key in page] == [f"part/{number:05}" for number in range(1_001)]
            assert len(pages) > 1

    asyncio.run(test())


@pytest.mark.parametrize("options", [{"key": "wrong"}, {"secret": "wrong"}, {"key": None, "secret": None, "anon": True}])
def test_wrong_credentials_for_a_real_server(seaweed_bucket: Bucket, options: dict[str, Any]) -> None:
    seaweed_bucket.put("k", BODY)

    async def test() -> None:
        async with opened(seaweed_bucket, **options) as connection:
            for ask in (the_list, a_look, a_read):
                with pytest.raises(Fault) as caught:
                    await ask(connection)
                assert (caught.value.kind, caught.value.status) == (Kind.FORBIDDEN, 403)

    asyncio.run(test())
