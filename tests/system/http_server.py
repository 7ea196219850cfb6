"""A web server on loopback that serves bytes from memory, and misbehaves on demand.

`files` is what it has: by the path of the request, as it stands there. `troubles` are taken by the requests that come, one each, in
turn; `trouble` (a function of the request) is asked where none is left. What a trouble does not mention is as it should be.

Threads: one, with an event loop. Tests set `files` and `troubles` between requests; `requests` is appended to by the server alone.
"""

import asyncio
import hashlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""


class Hold:
    """Holds up an answer until the test says so, and tells the test what became of it."""

    def __init__(self) -> None:
        self.arrived, self.hung_up, self.released = threading.Event(), threading.Event(), threading.Event()


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is to be wrong with an answer.

    reset_after, close_after: bytes of the body, then a reset, or a clean end. whole: 200 and all, whatever range was asked for.
    headers: more of them; None leaves one out. body: instead of the right one. hold: nothing is sent before it is released.
    """

    status: int | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: bytes | None = None
    reset_after: int | None = None
    close_after: int | None = None
    whole: bool = False
    hold: Hold | None = None


class HttpServer:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.troubles: deque[Trouble] = deque()
        self.trouble: Callable[[Request], Trouble | None] = lambda request: None
        self.requests: list[Request] = []
        self.tag: Callable[[bytes], str] = strong_tag
        self.last_modified = ""
        self.url = ""
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="zephon-test-http")

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        self._started.set()
        await self._ended.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(await _request(reader), reader, writer):
                    pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request, and say whether the connection goes on."""
        self.requests.append(request)
        trouble = self.troubles.popleft() if self.troubles else self.trouble(request) or Trouble()
        if trouble.hold is not None and not await self._held(trouble.hold, reader):
            return False
        status, headers, body = self._right_answer(request, trouble)
        head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1"))
        sent = body if request.method != "HEAD" else b""
        stop = next((stop for stop in (trouble.reset_after, trouble.close_after) if stop is not None), len(sent))
        writer.transport.set_write_buffer_limits(0)
        writer.write(sent[:stop])
        await writer.drain()
        if trouble.reset_after is not None:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return trouble.reset_after is None and trouble.close_after is None and "Content-Length" in headers

    async def _held(self, hold: Hold, reader: asyncio.StreamReader) -> bool:
        """Wait until the answer is released; False where the client hangs up before."""
        hold.arrived.set()
        hung_up = self._loop.create_task(reader.read(1))
        released = self._loop.run_in_executor(None, hold.released.wait)
        either: list[asyncio.Future[Any]] = [hung_up, released]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hold.released.set()  # so that its thread ends
            is_gone = hung_up.done()
            hung_up.cancel()
        await asyncio.wait([hung_up])
        if is_gone:
            hold.hung_up.set()
        return not is_gone

    def _right_answer(self, request: Request, trouble: Trouble) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = self._of_file(request, trouble)
        if trouble.body is not None or (trouble.status or 200) >= 300:
            body = trouble.body or b""
        changed = {"Content-Length": str(len(body)), **headers, **trouble.headers}
        return trouble.status or status, {name: value for name, value in changed.items() if value is not None}, body

    def _of_file(self, request: Request, trouble: Trouble) -> tuple[int, dict[str, str], bytes]:
        whole = self.files.get(request.path)
        if whole is None:
            return 404, {}, b"no such file"
        tag = self.tag(whole)
        headers = {"Accept-Ranges": "bytes"} | ({"ETag": tag} if tag else {})
        if self.last_modified:
            headers["Last-Modified"] = self.last_modified
        if not trouble.whole and request.headers.get("if-match", tag) not in (tag, "*"):
            return 412, headers, b"another one"
        asked = request.headers.get("range", "")
        if trouble.whole or not asked:
            return 200, headers, whole
        start, _, last = asked.removeprefix("bytes=").partition("-")
        first, stop = int(start), min(int(last) + 1, len(whole)) if last else len(whole)
        if first >= len(whole):
            return 416, headers | {"Content-Range": f"bytes */{len(whole)}"}, b""
        return 206, headers | {"Content-Range": f"bytes {first}-{stop - 1}/{len(whole)}"}, whole[first:stop]


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def strong_tag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:16]}"'


def weak_tag(body: bytes) -> str:
    return f"W/{strong_tag(body)}"


def no_tag(body: bytes) -> str:
    return ""


@contextmanager
def http_server() -> Iterator[HttpServer]:
    server = HttpServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()
