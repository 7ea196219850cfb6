"""Files on web servers, by http:// and https://.

Takes the options of fsspec's `HTTPFileSystem` and uses the session that it makes; requests are made here, so that bodies come piece
by piece, and the server's status, headers and `Retry-After` are seen. A server lists nothing: `pages` gives the one file that is
named, and no HTML is searched for links.

A URL is sent as it is written. Only what cannot stand in one is quoted: spaces, other alphabets, a "%" that quotes nothing; and
"#", for a fragment has no meaning in a request. Bytes are those of the file: what a server compresses for the way is not asked for.

The tag is the server's ETag, else its Last-Modified. A strong ETag goes along as `If-Match`; what comes is compared with the tag in
any case, for servers may ignore that, and weak ones cannot be used so. A server without ranges sends the whole file, of which all
is dropped but what was asked for; it is named in the log, once, and further into a file than `MOST_SKIPPED` nothing is read so.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from zephon_async.errors import RecipeError
from zephon_async.io.stores.connection import Connection, Fault, Kind, Object, shown
from zephon_async.io.stores.faults import fault_of, fault_of_status
from zephon_async.io.stores.file_systems import check_options, file_system_class

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_URL = re.compile(r"(?P<root>https?://[^/?#\s]+/?)(?P<key>.*)", re.DOTALL | re.IGNORECASE)
_MAY_STAND = "-._~:/?@!$&'()*+,;=%"
_BARE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_RANGE = re.compile(r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)", re.IGNORECASE)
_IS_DATE = re.compile(r"[A-Z][a-z]{2,8}, ")
_TRY_TO_GET = {400, 403, 405, 406, 501}  # answers to HEAD of servers, and of signed URLs, that know no HEAD
CONNECT_S, SILENCE_S = 30.0, 60.0
MOST_SKIPPED = 64 << 20
_ERROR_BYTES = 1_000
_log = logging.getLogger("zephon_async")


class HttpScheme:
    """Opens connections to web servers."""

    def split(self, url: str) -> tuple[str, str]:
        match = _URL.fullmatch(url)
        if not match:
            raise RecipeError(f"{url!r} names no server: give a URL such as 'https://server/folder/file.jsonl'")
        return match["root"], match["key"]

    async def open(self, root: str, options: Mapping[str, Any], most: int) -> Connection:
        scheme = root.partition("://")[0].lower()
        kind = file_system_class(scheme)
        import aiohttp  # its absence has been told

        requests = set(inspect.signature(aiohttp.ClientSession._request).parameters) - {"self", "method", "str_or_url"}
        check_options(scheme, kind, options, requests)
        own = {"asynchronous", "loop", "skip_instance_cache", "use_listings_cache", "client_kwargs"}
        given = {name: value for name, value in options.items() if name not in own}
        session: dict[str, Any] = {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)}
        try:
            session |= {"auto_decompress": False, **(options.get("client_kwargs") or {})}
            if "connector" not in session:
                session["connector"] = aiohttp.TCPConnector(limit=most)
            loop = asyncio.get_running_loop()
            file_system = kind(**given, client_kwargs=session, asynchronous=True, loop=loop, skip_instance_cache=True)
            unknown = sorted(set(file_system.kwargs) - requests)
            if unknown:
                raise RecipeError(f"{scheme}:// has no storage option {unknown[0]!r}; known: {', '.join(sorted(requests))}")
            return HttpConnection(root, await file_system.set_session(), dict(file_system.kwargs), bool(file_system.encoded))
        except (TypeError, ValueError) as error:
            raise RecipeError(f"{scheme}:// cannot be opened with storage_options {sorted(options)}: {error}") from error


SCHEME = HttpScheme()


class HttpConnection:
    """One web server."""

    streams = True
    forbidden = "; say who asks by storage_options, such as {'headers': {'Authorization': 'Bearer ...'}}"

    def __init__(self, root: str, session: "ClientSession", options: dict[str, Any], as_is: bool) -> None:
        """options: of each request. as_is: keys are quoted already, in full."""
        from yarl import URL

        self._has_ranges = False  # as far as is known

        self._url: Callable[[str], URL] = partial(URL, encoded=True)
        self._root, self._session, self._options, self._as_is = str(URL(root)), session, options, as_is

    def __repr__(self) -> str:
        return f"<HttpConnection {self._root!r}>"

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Object]]:
        """The one file of that name, if there is one. Raises a `REFUSED` fault for a folder: nobody can tell what is in it."""
        if not prefix or prefix.endswith("/"):
            raise Fault(Kind.REFUSED, "a web server lists no files, so a folder cannot be read: name each file")
        try:
            found = await self.look(prefix)
        except Fault as fault:
            if fault.kind is not Kind.MISSING:
                raise
        else:
            yield [found]

    async def look(self, key: str) -> Object:
        async with await self._ask("HEAD", key) as answer:
            size, tag = _length(answer), _tag(answer)
            if answer.status == 200 and size:
                return Object(key, size, tag)
            if answer.status != 200 and answer.status not in _TRY_TO_GET:
                raise await self._refusal(answer)
            is_empty = answer.status == 200 and size == 0
        # no size, or none to speak of: some servers say 0 to each HEAD
        async with await self._ask("GET", key, Range="bytes=0-0") as answer:
            size = _whole_size(answer)
            if answer.status == 416 and is_empty:
                return Object(key, 0, tag)
            if answer.status not in (200, 206) and not (answer.status == 416 and size == 0):
                raise await self._refusal(answer)
            answer.close()
            if size is None:
                raise Fault(Kind.REFUSED, "the server does not tell the size of the file")
            return Object(key, size, _tag(answer))

    async def read(
        self, key: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object], size: int | None = None
    ) -> None:
        condition = {"If-Match": tag} if tag.startswith('"') else {}
        async with await self._ask("GET", key, Range=f"bytes={offset}-{offset + length - 1}", **condition) as answer:
            if answer.status not in (200, 206):
                raise await self._refusal(answer)
            self._compare(answer, tag)
            skip, given, fault = _before(answer, offset, length, size), 0, None
            self._bear(answer, skip, length)
            while given < length and fault is None:
                piece, fault = await _next(answer)
                dropped = min(skip, len(piece))
                skip -= dropped
                piece = piece[dropped : dropped + length - given]
                if piece:
                    given += len(piece)
                    sink(piece)
            answer.close()  # unless the body has ended, the rest of it is not wanted
        if fault is not None and given < length:
            raise Fault(Kind.TRANSIENT, f"the body ended after {given:,} of {length:,} bytes{fault}")

    def _bear(self, answer: "ClientResponse", skip: int, length: int) -> None:
        """Raises where too much would come before what was asked for."""
        self._has_ranges = self._has_ranges or answer.status == 206
        if answer.status == 206 or _length(answer) == length:
            return
        if skip > MOST_SKIPPED:
            kind = Kind.TRANSIENT if self._has_ranges else Kind.REFUSED  # some between here and the server forget it at times
            said = f"and would send {skip:,} bytes before the {length:,} that are wanted; copy the file to this machine"
            raise Fault(kind, f"the server knows no ranges, {said}, or let a server of ranges give it", status=answer.status)
        if not self._has_ranges:
            _tell_of_wholes(shown(self._root))

    async def close(self) -> None:
        await self._session.close()

    async def _ask(self, method: str, key: str, body: object = None, **headers: str) -> "ClientResponse":
        """body: sent as JSON."""
        url = self._url(self._root + self._quoted(key))
        headers = {**dict(self._options.get("headers") or {}), "Accept-Encoding": "identity", **headers}
        try:
            return await self._session.request(method, url, **{"json": body, **self._options, "headers": headers})
        except Exception as error:
            raise fault_of(error) from error

    def _quoted(self, key: str) -> str:
        return key if self._as_is else quote(_BARE_PERCENT.sub("%25", key), safe=_MAY_STAND)

    def _compare(self, answer: "ClientResponse", tag: str) -> None:
        """Raises a `CHANGED` fault where an answer is of another file than the tag."""
        seen = answer.headers.get("Last-Modified" if _IS_DATE.match(tag) else "ETag", "")
        if tag and seen and seen.removeprefix("W/") != tag.removeprefix("W/"):
            raise Fault(Kind.CHANGED, f"its tag was {tag} and is {seen}")

    async def _refusal(self, answer: "ClientResponse") -> Fault:
        """The fault of an answer that is not what was asked for, with what its body says."""
        said = answer.reason or ""
        if answer.status in (401, 403):
            said = f"{said}{self.forbidden}"
        if "Location" in answer.headers:
            said = f"{said}, go to {answer.headers['Location']}"
        with suppress(Exception):
            if "html" not in answer.content_type and (body := await answer.content.read(_ERROR_BYTES)):
                said = f"{said}: {' '.join(body.decode(errors='replace').split())}"
        answer.close()
        return fault_of_status(answer.status, said, answer.headers)


@lru_cache(maxsize=1_000)  # of servers, each of which is told of once
def _tell_of_wholes(root: str) -> None:
    _log.warning(
        "%s knows no ranges: it sends each file from its start for every part that is read. Copy the files to this machine, "
        "or let a server of ranges give them",
        root,
    )


def _before(answer: "ClientResponse", offset: int, length: int, size: int | None) -> int:
    """How many bytes come before those that were asked for. Raises where it is not clear what comes, or where it cannot be all."""
    if answer.status == 200:
        first, whole = 0, _length(answer)
    else:
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
        if match and match[1]:
            first, whole = int(match[1]), None if match[3] == "*" else int(match[3])
            come, said = _length(answer), int(match[2]) + 1 - first
            if come not in (None, said) or first + said <= offset:
                came = "what comes" if come is None else f"the body has {come:,} bytes, and"
                raise Fault(Kind.TRANSIENT, f"{came} is said to be {match[0]!r}, where byte {offset:,} was asked for", status=206)
        elif _length(answer) == length and "multipart" not in answer.content_type:
            first, whole = offset, None
        else:
            raise Fault(Kind.REFUSED, "the server does not say which part of the file it sends", status=answer.status)
    if whole is not None and whole < offset + length:
        raise Fault(Kind.CHANGED, f"it has {whole:,} bytes, which is less than the {offset + length:,} it should have at least")
    if whole is not None and size not in (None, whole):
        raise Fault(Kind.CHANGED, f"it has {whole:,} bytes, and was listed with {size:,}")
    if first > offset:
        raise Fault(Kind.REFUSED, f"the server sends from byte {first:,} on where {offset:,} was asked for", status=answer.status)
    return offset - first


async def _next(answer: "ClientResponse") -> tuple[bytes, str | None]:
    """The bytes that come next, and, when no more will come, why."""
    try:
        piece = await answer.content.readany()
    except Exception as error:
        # what came before it failed is still there, and may be all that comes at each attempt
        with suppress(Exception):
            return answer.content._read_nowait(-1), f" ({fault_of(error)})"
        return b"", f" ({fault_of(error)})"
    return piece, None if piece else ""


def _length(answer: "ClientResponse") -> int | None:
    text = answer.headers.get("Content-Length", "").strip()
    return int(text) if text.isdecimal() else None


def _whole_size(answer: "ClientResponse") -> int | None:
    """The size of the file that an answer to a ranged request tells."""
    if answer.status == 200:
        return _length(answer)
    match = _RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
    return int(match[3]) if match and match[3] != "*" else None


def _tag(answer: "ClientResponse") -> str:
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
