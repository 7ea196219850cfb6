"""A small S3 server in this process, which does wrong what a test asks for.

It holds objects by their exact keys and answers GET, HEAD and lists. `faults` is asked about every request and may give a `Twist`:
how this answer differs from a right one. Signatures are not checked; the key and the region that a request was signed with are
told.

    with FakeS3() as s3:
        s3.put("a.jsonl", b"...")
        connection = await SCHEME.open(s3.root, s3.options, 4)

Threads: the server has a loop on a thread of its own. `objects` is guarded by `lock`; `requests` and the counters are written by
the server's thread alone, and are complete for every request that has been answered. Nothing else is shared.
"""

import asyncio
import hashlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, quote, quote_plus, unquote
from xml.sax.saxutils import escape

BUCKET = "bucket-1"
WRITTEN = "2026-01-01T00:00:00.000Z"  # every object, as lists say


class Request(NamedTuple):
    """What was asked. number: from 0 on. target: as it was sent. key: "" for a list. signed_by: a key, "" for nobody."""

    number: int
    method: str
    target: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    signed_by: str
    region: str


@dataclass(frozen=True, slots=True)
class Twist:
    """How an answer differs from a right one.

    status: of an error, which has code and text in XML, or `body` instead, and more headers.
    stop_after: so many bytes of the body are sent, and then the connection is closed, or with `reset` broken off.
    gone: it is closed or broken off before there is an answer. silent: nothing comes, or nothing after `stop_after`, until the
    client goes. hold: the answer waits for this.
    whole: answer 200 with the whole object, whatever range was asked for. claims: another Content-Range than the right one.
    chunked: no Content-Length.
    """

    status: int = 0
    code: str = ""
    text: str = ""
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stop_after: int | None = None
    reset: bool = False
    gone: bool = False
    whole: bool = False
    claims: str = ""
    hold: threading.Event | None = None
    silent: bool = False
    chunked: bool = False


Faults: TypeAlias = Callable[[Request], Twist | None]
RIGHT = Twist()


class FakeS3:
    """The server, as a context manager. After it nothing is left.

    page_keys: keys on a page of a list. reverse: lists begin at the end.
    """

    def __init__(self, faults: Faults = lambda request: None, page_keys: int = 1000, reverse: bool = False) -> None:
        self.faults, self.page_keys, self.reverse = faults, page_keys, reverse
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.requests: list[Request] = []
        self.body_bytes = 0
        self.connections = 0
        self.root = f"s3://{BUCKET}/"
        self._idle = threading.Condition()
        self._open: set[asyncio.Task[None]] = set()

    @property
    def options(self) -> dict[str, Any]:
        return {"key": "a-key", "secret": "a-secret", "endpoint_url": self.url}

    def put(self, key: str, body: bytes) -> None:
        with self.lock:
            self.objects[key] = body

    def delete(self, key: str) -> None:
        with self.lock:
            del self.objects[key]

    def __enter__(self) -> "FakeS3":
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(listening),), name="fake-s3")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def wait_for_connections(self, number: int, timeout_s: float = 20) -> bool:
        """Whether there come to be so many open connections."""
        with self._idle:
            return self._idle.wait_for(lambda: self.connections == number, timeout_s)

    async def _serve(self, listening: socket.socket) -> None:
        async with await asyncio.start_server(self._accept, sock=listening):
            await self._stop.wait()
            for task in self._open:  # else leaving waits for clients that keep their connections, from Python 3.12 on
                task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self._count(1)
        try:
            while (request := await self._request(reader)) is not None and await self._answer(request, reader, writer):
                pass
        except (ConnectionError, asyncio.CancelledError):  # the client has gone, or the test has ended
            pass
        finally:
            writer.transport.abort()
            self._open.discard(task)
            self._count(-1)
            with suppress(ConnectionError):  # else asyncio may complain of it when the garbage is collected, in another test
                await writer.wait_closed()

    def _count(self, change: int) -> None:
        with self._idle:
            self.connections += change
            self._idle.notify_all()

    async def _request(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        path, _, query = target.partition("?")
        bucket, _, key = path.removeprefix("/").partition("/")
        if headers["host"].startswith(f"{BUCKET}."):  # virtual-hosted style
            key = path.removeprefix("/")
        else:
            assert bucket == BUCKET, target
        scope = headers.get("authorization", "").partition("Credential=")[2].split(",")[0].split("/")
        signed_by, region = (scope[0], scope[2]) if len(scope) > 2 else ("", "")
        asked = dict(parse_qsl(query, keep_blank_values=True))
        self.requests.append(
            request := Request(len(self.requests), method, target, unquote(key), asked, headers, signed_by, region)
        )
        return request

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection may be used again."""
        twist = self.faults(request) or RIGHT
        if twist.reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if twist.gone:
            return False
        if twist.silent and twist.stop_after is None:
            await reader.read()
            return False
        if twist.hold is not None:
            await asyncio.to_thread(twist.hold.wait, 20)
        status, headers, body = self._right(request, twist) if not twist.status else _error(twist)
        headers = {"x-amz-request-id": f"R{request.number}", **headers, **twist.headers}
        if twist.chunked:
            headers["Transfer-Encoding"] = "chunked"
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        else:
            headers.setdefault("Content-Length", str(len(body)))
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        sent = b"" if request.method == "HEAD" else body[: twist.stop_after]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + sent)
        await writer.drain()
        self.body_bytes += len(sent)
        if twist.silent:
            await reader.read()
        return twist.stop_after is None and not twist.reset

    def _right(self, request: Request, twist: Twist) -> tuple[int, dict[str, str], bytes]:
        if not request.key:
            return 200, {"Content-Type": "application/xml"}, self._list(request.query)
        with self.lock:
            body = self.objects.get(request.key)
        if body is None:
            return _error(Twist(404, "NoSuchKey", "The specified key does not exist."))
        if request.headers.get("if-match", tag_of(body)).strip('"') != tag_of(body).strip('"'):
            return _error(Twist(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"))
        headers = {"ETag": tag_of(body), "Last-Modified": formatdate(0, usegmt=True)}
        if twist.whole or (asked := request.headers.get("range")) is None:
            return 200, headers, body
        first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
        if first >= len(body):
            return _error(Twist(416, "InvalidRange", "The requested range is not satisfiable"))
        part = body[first : last + 1]
        headers["Content-Range"] = twist.claims or f"bytes {first}-{first + len(part) - 1}/{len(body)}"
        return 206, headers, part

    def _list(self, query: Mapping[str, str]) -> bytes:
        with self.lock:
            found = {key: body for key, body in self.objects.items() if key.startswith(query.get("prefix", ""))}
        keys, begin = sorted(found, reverse=self.reverse), int(query.get("continuation-token", "0"))
        more, encode = len(keys) > begin + self.page_keys, query.get("encoding-type") == "url"
        entries = "".join(
            f"<Contents><Key>{quote_plus(key, safe='/') if encode else escape(key)}</Key><Size>{len(found[key])}</Size>"
            f"<LastModified>{WRITTEN}</LastModified>"
            f"<ETag>{escape(tag_of(found[key]), {chr(34): '&quot;'})}</ETag></Contents>"
            for key in keys[begin : begin + self.page_keys]
        )
        following = f"<NextContinuationToken>{begin + self.page_keys}</NextContinuationToken>" if more else ""
        encoding = "<EncodingType>url</EncodingType>" if encode else ""
        return (
            f"<ListBucketResult><Name>{BUCKET}</Name>{encoding}<IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{following}{entries}</ListBucketResult>"
        ).encode()


def tag_of(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def _error(twist: Twist) -> tuple[int, dict[str, str], bytes]:
    xml = f"<Error><Code>{twist.code}</Code><Message>{escape(twist.text)}</Message></Error>".encode()
    return twist.status, {"Content-Type": "application/xml"}, xml if twist.body is None else twist.body


def first_times(number: int, twist: Twist, key: str | None = None) -> Faults:
    """This is what the first requests get, of one key or in all."""
    seen: list[Request] = []

    def faults(request: Request) -> Twist | None:
        if key in (None, request.key):
            seen.append(request)
            return twist if len(seen) <= number else None
        return None

    return faults


def expires(after: int, right: str, status: int = 400, code: str = "ExpiredToken") -> Faults:
    """After so many requests the credentials have ended for all that are not signed by the right key."""

    def faults(request: Request) -> Twist | None:
        ended = request.number >= after and request.signed_by != right
        return Twist(status, code, "The provided token has expired.") if ended else None

    return faults


def lies_in(region: str, status: int = 301, code: str = "PermanentRedirect", headers: bool = True) -> Faults:
    """The bucket is in that region: requests that are signed for another one are sent away."""

    def faults(request: Request) -> Twist | None:
        if request.region == region:
            return None
        said = {"x-amz-bucket-region": region} if headers else {}
        body = f"<Error><Code>{code}</Code><Message>wrong</Message><Region>{region}</Region></Error>".encode()
        return Twist(status, body=body, headers=said)

    return faults


def encoded(key: str) -> str:
    """A key as it must stand in the path of a request."""
    return quote(key, safe="/~")
