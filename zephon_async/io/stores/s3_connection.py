"""The requests of S3, on aiobotocore. Loaded when the first bucket is opened.

One client with one pool of sockets for a connection. What botocore would do by itself and must not is switched off: its retries,
and aiohttp's way of following redirects, which would send a signature to another server. What it does and may: a bucket in
another region is asked for there, and that is remembered.

Credentials come from botocore's chain, which renews those that it knows the end of. For the others, such as keys in a file that
something else renews, the storage's "expired" is the sign: the chain is gone through anew, once for all requests that are told
so, and a request is sent again when that gave other credentials. The same ones again are a `FORBIDDEN` fault.

Bodies are read from aiohttp's stream itself, since what has come when a connection is lost must not be lost with it.

Threads: a connection belongs to the loop that it was opened on.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore import UNSIGNED, exceptions
from botocore.handlers import validate_bucket_name
from botocore.loaders import create_loader
from botocore.parsers import ResponseParserError

from zephon_async.checks import nearest
from zephon_async.errors import RecipeError
from zephon_async.io.stores.connection import Fault, Kind, Object
from zephon_async.io.stores.s3 import Settings
from zephon_async.io.stores.s3_faults import ENDED, fault_of

_RENEW = ENDED | {"InvalidAccessKeyId"}  # a key that was replaced and taken away
_SAME = "the credentials are still the same where they came from"
_TIMEOUTS_S = {"connect_timeout": 10, "read_timeout": 60}
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_LOST = (aiohttp.ClientError, TimeoutError, OSError)
_AGAIN = (
    *_LOST,
    exceptions.HTTPClientError,
    exceptions.ConnectionError,
    exceptions.MetadataRetrievalError,
    exceptions.IncompleteReadError,
    ResponseParserError,
)
_NO_CREDENTIALS = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.TokenRetrievalError,
    exceptions.ProfileNotFound,
    exceptions.SSOError,
)


@cache
def _loader(data_path: str | None) -> Any:
    """What knows the operations of S3: to read that takes most of the time that a client takes to be made."""
    return create_loader(data_path)


async def open_bucket(bucket: str, settings: Settings, most: int) -> "S3Connection":
    """Open a connection. Raises `RecipeError` for what botocore refuses before there is a request."""
    known = {*AioConfig.OPTION_DEFAULTS, "connector_args"}
    for name in settings.config:
        if name not in known:
            raise RecipeError(f"config_kwargs of S3 know no {name!r}; {nearest(name, known)}")
    given = {"max_pool_connections": most, "response_checksum_validation": "when_required", **_TIMEOUTS_S, **settings.config}
    if settings.anon:
        given["signature_version"] = UNSIGNED
    credentials = _Credentials(settings, signs=given.get("signature_version") is not UNSIGNED)
    session = AioSession(profile=settings.profile)
    session.register_component("credential_provider", credentials)
    async with AsyncExitStack() as stack:
        try:
            validate_bucket_name({"Bucket": bucket})
            session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
            config = AioConfig(**{**given, "retries": {"total_max_attempts": 1}, "http_session_cls": _Session})
            client = await stack.enter_async_context(session.create_client("s3", config=config, **settings.client))
        except (exceptions.BotoCoreError, ValueError, TypeError, AttributeError) as error:  # the last two of values of a wrong type
            raise RecipeError(f"the bucket {bucket!r} cannot be opened: {error}") from error
        client.meta.events.register("before-call.s3.HeadBucket", _not_followed)
        return S3Connection(client, bucket, credentials, settings.requester_pays, stack.pop_all())


class S3Connection:
    """A bucket."""

    streams = True

    def __init__(self, client: Any, bucket: str, credentials: "_Credentials", requester_pays: bool, opened: AsyncExitStack) -> None:
        self._client, self._credentials, self._opened = client, credentials, opened
        self._closed = False
        self._always = {"Bucket": bucket, **({"RequestPayer": "requester"} if requester_pays else {})}

    def pages(self, prefix: str) -> AsyncIterator[Sequence[Object]]:
        return _Pages(partial(self._ask, "list_objects_v2"), prefix)

    async def look(self, key: str) -> Object:
        if not key:
            raise Fault(Kind.MISSING, "an object must have a key")
        try:
            answer = await self._ask("head_object", Key=key)
        except Fault as fault:
            if fault.status not in (400, 403):
                raise
            await self._ask_why(key)
            answer = await self._ask("head_object", Key=key)
        if "ContentLength" not in answer:
            raise Fault(Kind.REFUSED, "the storage does not say how long it is", status=_status(answer))
        return Object(key, answer["ContentLength"], answer.get("ETag", ""))

    async def read(
        self, key: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object], size: int | None = None
    ) -> None:
        end = offset + length
        meant = {"IfMatch": tag} if tag else {}
        answer = await self._ask("get_object", Key=key, Range=f"bytes={offset}-{end - 1}", **meant)
        body = answer["Body"].raw_stream
        try:
            await _pour(body.content, offset - _first(answer, offset, end, tag, size), length, sink)
        finally:
            body.close()  # its socket as well, unless the body has come to its end

    async def close(self) -> None:
        self._closed = True
        await self._opened.aclose()

    async def _ask_why(self, key: str) -> None:
        """Raise the fault behind a HEAD, which has no body to tell it: a GET tells it, and renews credentials by the way."""
        try:
            answer = await self._ask("get_object", Key=key, Range="bytes=0-0")
        except Fault as fault:
            if fault.kind is not Kind.CHANGED:  # an empty object has no such range
                raise
        else:
            answer["Body"].close()

    async def _ask(self, operation: str, **arguments: Any) -> Any:
        """Send one request, and once again when credentials had ended and there are new ones."""
        if self._closed:
            raise Fault(Kind.REFUSED, "the connection is closed")
        send = partial(getattr(self._client, operation), **self._always, **arguments)
        used = None
        try:
            used = await self._credentials.get_frozen_credentials()
            return await send()
        except Exception as error:
            fault = _fault(error)
            if used is None or _code(error) not in _RENEW:
                raise fault from error
        if not await self._renewed(used):
            raise Fault(fault.kind, f"{fault.args[0]}; {_SAME}", status=fault.status, request=fault.request) from fault
        try:
            return await send()
        except Exception as error:
            raise _fault(error) from error

    async def _renewed(self, used: Any) -> bool:
        try:
            return await self._credentials.renew(used)
        except Exception as error:  # a file that is just being written, a service that is down
            raise Fault(Kind.TRANSIENT, f"the credentials have ended, and there are no new ones yet: {_reason(error)}") from error


class _Pages:
    """Pages of a listing. One that failed may be asked for again."""

    def __init__(self, ask: Callable[..., Any], prefix: str) -> None:
        self._ask, self._prefix = ask, prefix
        self._next: dict[str, str] | None = {}
        self._tokens = {""}  # of pages so far: one that comes again leads round and round

    def __aiter__(self) -> "_Pages":
        return self

    async def __anext__(self) -> Sequence[Object]:
        if self._next is None:
            raise StopAsyncIteration
        answer = await self._ask(Prefix=self._prefix, **self._next)
        entries = answer.get("Contents", ())
        if not answer.keys() & {"IsTruncated", "KeyCount", "Name"} or not all({"Key", "Size"} <= each.keys() for each in entries):
            raise Fault(Kind.TRANSIENT, "the answer is no listing", status=_status(answer))
        following = {"ContinuationToken": answer.get("NextContinuationToken", "")} if answer.get("IsTruncated") else None
        if following is not None:
            if following["ContinuationToken"] in self._tokens:
                raise Fault(Kind.REFUSED, "the listing says that there is more, and not where it goes on")
            self._tokens.add(following["ContinuationToken"])
        self._next = following
        found = (Object(each["Key"], each["Size"], each.get("ETag", "")) for each in entries)
        return [each for each in found if each.size or not each.key.endswith("/")]


class _Credentials(AioCredentials):  # type: ignore[misc]
    """Credentials that can be renewed behind a client's back; for botocore, also where it has them from."""

    def __init__(self, settings: Settings, signs: bool) -> None:
        super().__init__("", "")
        self._settings, self._signs = settings, signs
        self._found: Any = None
        self._one_at_a_time = asyncio.Lock()

    async def load_credentials(self) -> "_Credentials":
        return self

    async def get_frozen_credentials(self) -> Any:
        """What requests are signed with now; None for requests that are not signed."""
        if not self._signs:
            return None
        if self._found is None:
            async with self._one_at_a_time:
                self._found = self._found or await self._resolved()
        return await self._found.get_frozen_credentials()

    async def renew(self, used: Any) -> bool:
        """Whether there are now others than were used. Looks for them, unless somebody else has found them already."""
        async with self._one_at_a_time:
            if await self._found.get_frozen_credentials() == used:
                self._found = await self._resolved()
            return bool(await self._found.get_frozen_credentials() != used)

    async def _resolved(self) -> Any:
        session = AioSession(profile=self._settings.profile)  # it keeps what it has found, so it is a new one
        if self._settings.key is not None:
            session.set_credentials(self._settings.key, self._settings.secret, self._settings.token)
        found = await session.get_credentials()
        if found is None:
            raise exceptions.NoCredentialsError
        return found


class _Session(AIOHTTPSession):  # type: ignore[misc]
    """aiohttp for botocore, which gets to see redirects."""

    async def _get_session(self, proxy_url: str | None) -> SimpleNamespace:
        session = await super()._get_session(proxy_url)
        return SimpleNamespace(request=partial(session.request, allow_redirects=False))


async def _pour(content: Any, skip: int, length: int, sink: Callable[[bytes], object]) -> None:
    """Give `length` bytes of a body to the sink, after `skip` bytes."""
    left, lost = length, None
    while left:
        try:
            piece = await content.readany()
        except _LOST as error:
            lost = error
            piece = b"".join(getattr(content, "_buffer", ()))  # what came before that; the stream itself would not give it any more
        kept = piece[skip:][:left]
        skip = max(0, skip - len(piece))
        left -= len(kept)
        if kept:
            sink(kept)
        if left and (lost is not None or not piece):
            why = _reason(lost) if lost is not None else "the body ended"
            raise Fault(Kind.TRANSIENT, f"{length - left:,} of {length:,} bytes came: {why}") from lost


def _first(answer: Mapping[str, Any], offset: int, end: int, tag: str, listed: int | None) -> int:
    """The place in the object at which the body of an answer begins, not behind `offset`.

    Raises a fault where it is not clear what the body is, or where it does not hold what was asked for.
    """
    status, found = _status(answer), answer.get("ETag", "")
    if tag and found and tag.strip('"') != found.strip('"'):
        raise Fault(Kind.CHANGED, f"its tag was {tag} and is {found}", status=status)
    size = answer.get("ContentLength")
    if status != 206:  # the whole object
        start, stop, whole = 0, size, size
    elif match := _RANGE.fullmatch(answer.get("ContentRange", "")):
        start, stop = int(match[1]), int(match[2]) + 1
        whole = None if match[3] == "*" else int(match[3])
        if size is not None and size != stop - start:
            raise Fault(Kind.TRANSIENT, f"the body has {size:,} bytes, and is said to be {match[0]!r}", status=status)
    else:
        raise Fault(Kind.TRANSIENT, f"the part of an object is said to be {answer.get('ContentRange', '')!r}", status=status)
    if whole is not None and whole < end:
        raise Fault(Kind.CHANGED, f"it has {whole:,} bytes, {end:,} were asked for", status=status)
    if whole is not None and listed not in (None, whole):
        raise Fault(Kind.CHANGED, f"it has {whole:,} bytes, and was listed with {listed:,}", status=status)
    if start > offset or (stop is not None and stop < end):
        raise Fault(Kind.TRANSIENT, f"bytes {start:,} to {stop:,} came, {offset:,} to {end:,} were asked for", status=status)
    return start


def _status(answer: Mapping[str, Any]) -> int:
    return int(answer["ResponseMetadata"]["HTTPStatusCode"])


def _not_followed(context: dict[str, Any], **_: Any) -> None:
    """Keep botocore from following the request by which it asks where a bucket is: it would ask again, as deep as Python goes."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _code(error: Exception) -> str:
    return str(error.response.get("Error", {}).get("Code")) if isinstance(error, exceptions.ClientError) else ""


def _fault(error: Exception) -> Fault:
    """The fault that an exception of the libraries stands for."""
    if isinstance(error, exceptions.ClientError):
        return fault_of(error.response)
    kind = Kind.REFUSED
    if isinstance(error, _NO_CREDENTIALS):
        kind = Kind.FORBIDDEN
    elif isinstance(error, _AGAIN) and not isinstance(_cause(error), aiohttp.ClientConnectorCertificateError):
        kind = Kind.TRANSIENT
    hint = "; for a public bucket give storage_options={'anon': True}" if isinstance(error, exceptions.NoCredentialsError) else ""
    return Fault(kind, _reason(error) + hint)


def _cause(error: Exception) -> object:
    return getattr(error, "kwargs", {}).get("error")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
