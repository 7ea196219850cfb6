"""What goes wrong with S3, and what kind of fault it is (C01, C02, C04)."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from tests.io.s3_requests import BODY, Ask, a_look, a_read, always, bodily, each_request, fault_of, read, run, the_list, told
from tests.system.fake_s3 import FakeS3, Twist, first_times, tag_of
from zephon_async.io.stores.connection import Connection, Fault, Kind

pytestmark = pytest.mark.usefixtures("no_credentials")


ANSWERS: dict[Kind, list[tuple[int, str]]] = {
    Kind.TRANSIENT: [(500, "InternalError"), (500, ""), (502, ""), (504, ""), (507, ""), (400, "RequestTimeout"), (408, "")],
    Kind.SLOW_DOWN: [(503, "SlowDown"), (503, ""), (429, ""), (429, "TooManyRequestsException"), (400, "ThrottlingException")],
    Kind.MISSING: [(404, "NoSuchKey"), (404, "NoSuchBucket"), (404, "")],
    Kind.FORBIDDEN: [(403, "AccessDenied"), (403, "SignatureDoesNotMatch"), (403, "InvalidAccessKeyId"), (403, ""), (401, "")],
    Kind.CHANGED: [(412, "PreconditionFailed"), (412, ""), (416, "InvalidRange"), (416, "")],
    Kind.REFUSED: [(400, "InvalidRequest"), (400, ""), (405, "MethodNotAllowed"), (409, "")],
}


@bodily
@pytest.mark.parametrize("kind", Kind)
def test_what_an_answer_means(ask: Ask, kind: Kind) -> None:
    twists = [Twist(status, code, "words of the storage" if code else "") for status, code in ANSWERS[kind]]
    for number, (fault, twist) in enumerate(zip(told(ask, twists), twists, strict=True)):
        assert (fault.kind, fault.status, fault.request) == (kind, twist.status, f"R{number}")
        assert str(fault).startswith(f"HTTP {twist.status}: {twist.code}")
        assert twist.text in str(fault)


@pytest.mark.parametrize("kind", Kind)
def test_what_an_answer_without_a_body_means(kind: Kind) -> None:
    statuses = sorted({status for status, _ in ANSWERS[kind]} - ({400} if kind is not Kind.REFUSED else set()))
    faults = told(a_look, [Twist(status) for status in statuses])
    assert [(fault.kind, fault.status) for fault in faults] == [(kind, status) for status in statuses]


@bodily
@pytest.mark.parametrize(
    "body", [b"", b"<html><body>Bad <b>gateway", b"<html><p>no</p></html>", b'{"error": "no"}', b"\xff\xfe\x00"]
)
def test_errors_that_are_not_told_in_xml(ask: Ask, body: bytes) -> None:
    means = {500: Kind.TRANSIENT, 503: Kind.SLOW_DOWN, 404: Kind.MISSING, 403: Kind.FORBIDDEN, 409: Kind.REFUSED}
    faults = told(ask, [Twist(status, body=body) for status in means])
    assert {fault.status: fault.kind for fault in faults} == means


@each_request
def test_how_long_the_storage_asks_to_wait(ask: Ask) -> None:
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    said = ["7", "0.5", "Wed, 21 Oct 2015 07:28:00 GMT", "soon", "-1", in_an_hour]
    *waits, hour = [fault.retry_after_s for fault in told(ask, [Twist(503, headers={"Retry-After": text}) for text in said])]
    assert waits == [7, 0.5, 0, None, None]
    assert hour is not None
    assert 3_000 <= hour <= 3_600


def test_a_success_that_holds_an_error_or_says_too_little() -> None:
    slow, nameless = told(
        the_list,
        [
            Twist(200, body=b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>less</Message></Error>"),
            Twist(200, body=b"<ListBucketResult><Name>b</Name><Contents><Size>1</Size></Contents></ListBucketResult>"),
        ],
    )
    assert (slow.kind, str(slow)) == (Kind.SLOW_DOWN, "HTTP 500: SlowDown: less (request R0)")
    assert (nameless.kind, str(nameless)) == (Kind.TRANSIENT, "HTTP 200: the answer is no listing")
    assert str(told(a_look, [Twist(chunked=True)])[0]) == "HTTP 200: the storage does not say how long it is"


@each_request
def test_a_server_that_is_silent_or_not_there(ask: Ask) -> None:
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
        (Twist(claims="bytes 500-1499/106497"), Kind.CHANGED, "it has 106,497 bytes, and was listed with 106,496"),
        (Twist(headers={"ETag": '"other"'}), Kind.CHANGED, f'its tag was {tag_of(BODY)} and is "other"'),
    ],
)
def test_a_body_that_is_not_what_was_asked_for(twist: Twist, kind: Kind, text: str) -> None:
    pieces: list[bytes] = []
    fault, _ = fault_of(lambda connection: connection.read("k", 500, 1_000, tag_of(BODY), pieces.append, len(BODY)), always(twist))
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
