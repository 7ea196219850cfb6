"""What a failed attempt means: a `Fault` from a status of HTTP, or from an exception of whatever library.

Exceptions are told by what they carry (a status, a response, an errno), and else by their names, so no library is loaded to know
them. "There is no such file" and "it did not work" are believed only where nothing else lies behind: file systems of fsspec raise
`FileNotFoundError` for whatever happened while they looked, and a fault of the network must not end as a missing file.
"""

import errno
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from zephon_async.io.stores.connection import Fault, Kind

_MOST_TEXT = 500
_BY_STATUS = {
    401: Kind.FORBIDDEN,
    403: Kind.FORBIDDEN,
    404: Kind.MISSING,
    407: Kind.FORBIDDEN,
    408: Kind.TRANSIENT,
    410: Kind.MISSING,
    412: Kind.CHANGED,
    416: Kind.CHANGED,
    421: Kind.TRANSIENT,
    425: Kind.TRANSIENT,
    429: Kind.SLOW_DOWN,
    503: Kind.SLOW_DOWN,
}
_BY_NAME = {  # (library, class): looked up for each class that an exception is of, the nearest first
    ("aiohttp", "InvalidURL"): Kind.REFUSED,
    ("aiohttp", "NonHttpUrlClientError"): Kind.REFUSED,
    ("aiohttp", "TooManyRedirects"): Kind.REFUSED,
    ("aiohttp", "ClientConnectorCertificateError"): Kind.REFUSED,
    ("aiohttp", "ClientError"): Kind.TRANSIENT,
    ("azure", "ClientAuthenticationError"): Kind.FORBIDDEN,
    ("azure", "IncompleteReadError"): Kind.TRANSIENT,
    ("azure", "ServiceRequestError"): Kind.TRANSIENT,
    ("azure", "ServiceResponseError"): Kind.TRANSIENT,
    ("ftplib", "error_temp"): Kind.TRANSIENT,
    ("google", "TransportError"): Kind.TRANSIENT,
    ("google", "GoogleAuthError"): Kind.FORBIDDEN,
    ("http", "HTTPException"): Kind.TRANSIENT,
    ("httpx", "UnsupportedProtocol"): Kind.REFUSED,
    ("httpx", "TransportError"): Kind.TRANSIENT,
    ("paramiko", "AuthenticationException"): Kind.FORBIDDEN,
    ("paramiko", "SSHException"): Kind.TRANSIENT,
    ("requests", "SSLError"): Kind.REFUSED,
    ("requests", "ChunkedEncodingError"): Kind.TRANSIENT,
    ("requests", "ConnectionError"): Kind.TRANSIENT,
    ("requests", "ContentDecodingError"): Kind.TRANSIENT,
    ("requests", "Timeout"): Kind.TRANSIENT,
    ("socket", "gaierror"): Kind.TRANSIENT,
    ("ssl", "SSLCertVerificationError"): Kind.REFUSED,
    ("ssl", "SSLError"): Kind.TRANSIENT,
    ("urllib3", "HTTPError"): Kind.TRANSIENT,
    ("builtins", "FileNotFoundError"): Kind.MISSING,
    ("builtins", "NotADirectoryError"): Kind.MISSING,
    ("builtins", "IsADirectoryError"): Kind.MISSING,
    ("builtins", "PermissionError"): Kind.FORBIDDEN,
    ("builtins", "TimeoutError"): Kind.TRANSIENT,
    ("builtins", "ConnectionError"): Kind.TRANSIENT,
    ("builtins", "EOFError"): Kind.TRANSIENT,
}
_OF_THE_NETWORK = {
    getattr(errno, name)
    for name in ("EAGAIN", "EHOSTDOWN", "EHOSTUNREACH", "EIO", "ENETDOWN", "ENETRESET", "ENETUNREACH", "ENOTCONN")
    if hasattr(errno, name)
}
_REQUEST = ("x-amz-request-id", "x-ms-request-id", "x-guploader-uploadid", "x-request-id", "cf-ray")


def kind_of_status(status: int) -> Kind:
    """What a status that is not what was asked for means."""
    return _BY_STATUS.get(status, Kind.TRANSIENT if status >= 500 else Kind.REFUSED)


def fault_of_status(status: int, text: str, headers: Mapping[str, str]) -> Fault:
    """The fault of an answer. headers: in which names are found in lower case."""
    request = next((headers[name] for name in _REQUEST if name in headers), "")
    return Fault(kind_of_status(status), text[:_MOST_TEXT], status=status, request=request, retry_after_s=retry_after_s(headers))


def fault_of(error: BaseException) -> Fault:
    """The fault that an exception of a library is. A `Fault` stays what it is."""
    kind, speaker = _kind(error), error
    if kind in (Kind.MISSING, Kind.REFUSED) and _status(error) is None and not isinstance(error, Fault):
        for link, is_cause in _behind(error):
            found = _kind(link)
            if found in (Kind.TRANSIENT, Kind.SLOW_DOWN) or (is_cause and found in (Kind.FORBIDDEN, Kind.CHANGED)):
                kind, speaker = found, link
                break
    if isinstance(speaker, Fault):
        return speaker
    text = " ".join(str(speaker).split())[:_MOST_TEXT]
    headers = _headers(speaker)
    request = next((headers[name] for name in _REQUEST if name in headers), "")
    text = f"{type(speaker).__name__}: {text}" if text else type(speaker).__name__
    return Fault(kind, text, status=_status(speaker), request=request, retry_after_s=retry_after_s(headers))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """What `Retry-After` asks for, in seconds (None: nothing). It is a number or a date, which is seen from the server's `Date`."""
    text = str(headers.get("retry-after", "")).strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = _seconds_until(text, str(headers.get("date", "")))
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _seconds_until(date: str, now: str) -> float:
    try:
        until = parsedate_to_datetime(date)
        begin = parsedate_to_datetime(now) if now else datetime.now(UTC)
        return (until - begin).total_seconds()
    except (TypeError, ValueError):  # no dates, or one with a zone and one without
        return math.nan


def _behind(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """What lies behind an exception, the nearest first, each with whether it is named as the cause all the way."""
    seen = {id(error)}
    link, is_cause = error, True
    while True:
        if link.__cause__ is None:
            is_cause = False
        behind = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        if behind is None or id(behind) in seen:
            return
        seen.add(id(behind))
        yield behind, is_cause
        link = behind


def _kind(error: BaseException) -> Kind:
    if isinstance(error, Fault):
        return error.kind
    status = _status(error)
    if status is not None:
        return kind_of_status(status)
    for known in type(error).__mro__:
        name = (known.__module__.partition(".")[0], known.__name__)
        if name in _BY_NAME:
            return _BY_NAME[name]
    if isinstance(error, OSError):
        if error.errno in _OF_THE_NETWORK:
            return Kind.TRANSIENT
        if str(error).startswith("Forbidden"):  # how gcsfs says 403
            return Kind.FORBIDDEN
    return Kind.REFUSED


def _status(error: BaseException) -> int | None:
    """The status of HTTP that an exception carries, itself or in its response."""
    for carrier in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            found = getattr(carrier, name, None)
            if isinstance(found, str) and found.isdecimal():
                found = int(found)
            if isinstance(found, int):  # the first one decides: some of the others warn when they are asked
                return int(found) if 300 <= found < 600 else None
    return None


def _headers(error: BaseException) -> Mapping[str, str]:
    """Of an answer that an exception carries, the names in lower case."""
    for carrier in (error, getattr(error, "response", None)):
        headers: Any = getattr(carrier, "headers", None)
        if isinstance(headers, Mapping):
            return {str(name).lower(): str(value) for name, value in headers.items()}
    return {}
