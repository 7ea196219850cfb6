"""What a failed attempt means."""

import asyncio
import errno
import http.client
import socket
import ssl
from typing import Any

import aiohttp
import fsspec.exceptions
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from zephon_async.io.stores import Fault, Kind
from zephon_async.io.stores.faults import fault_of, fault_of_status, kind_of_status, retry_after_s


class Carrying(Exception):
    """An exception of some library, with what it carries."""

    def __init__(self, **carried: Any) -> None:
        super().__init__("text")
        self.__dict__.update(carried)


class Answer:
    def __init__(self, **carried: Any) -> None:
        self.__dict__.update(carried)


def of_library(module: str, name: str, *bases: type[BaseException]) -> Exception:
    """An exception as a library that need not be there would raise it."""
    error = type(name, bases or (Exception,), {"__module__": module})("text")
    assert isinstance(error, Exception)
    return error


def from_cause(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def in_context(error: Exception, context: BaseException, suppress: bool = False) -> Exception:
    error.__context__, error.__suppress_context__ = context, suppress
    return error


def answered(status: int) -> aiohttp.ClientResponseError:
    request = aiohttp.RequestInfo(URL("http://host/"), "GET", CIMultiDictProxy(CIMultiDict()), URL("http://host/"))
    return aiohttp.ClientResponseError(request, (), status=status)


TRANSIENT, SLOW_DOWN, MISSING = Kind.TRANSIENT, Kind.SLOW_DOWN, Kind.MISSING
FORBIDDEN, CHANGED, REFUSED = Kind.FORBIDDEN, Kind.CHANGED, Kind.REFUSED
NO_FILE = FileNotFoundError(errno.ENOENT, "No such file", "key")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NO_FILE, MISSING),
        (FileNotFoundError("key"), MISSING),
        (IsADirectoryError("key"), MISSING),
        (NotADirectoryError("key"), MISSING),
        (PermissionError("key"), FORBIDDEN),
        (OSError("Forbidden: https://storage.googleapis.com/b"), FORBIDDEN),
        (TimeoutError(), TRANSIENT),
        (fsspec.exceptions.FSTimeoutError(), TRANSIENT),
        (ConnectionResetError(errno.ECONNRESET, "reset"), TRANSIENT),
        (BrokenPipeError(), TRANSIENT),
        (OSError(errno.EHOSTUNREACH, "no route"), TRANSIENT),
        (OSError(errno.ENETUNREACH, "no network"), TRANSIENT),
        (OSError(errno.ENOSPC, "full"), REFUSED),
        (OSError("whatever"), REFUSED),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), TRANSIENT),
        (ssl.SSLError("handshake"), TRANSIENT),
        (ssl.SSLCertVerificationError("expired"), REFUSED),
        (EOFError(), TRANSIENT),
        (asyncio.IncompleteReadError(b"", 5), TRANSIENT),
        (http.client.IncompleteRead(b""), TRANSIENT),
        (http.client.RemoteDisconnected("closed"), TRANSIENT),
        (aiohttp.ServerDisconnectedError(), TRANSIENT),
        (aiohttp.ClientPayloadError("cut"), TRANSIENT),
        (aiohttp.ServerTimeoutError(), TRANSIENT),
        (aiohttp.ClientConnectionError(), TRANSIENT),
        (aiohttp.InvalidURL("http://"), REFUSED),
        (aiohttp.NonHttpUrlRedirectClientError("ftp://a/b"), REFUSED),
        (answered(503), SLOW_DOWN),
        (answered(500), TRANSIENT),
        (answered(404), MISSING),
        (Carrying(status=401), FORBIDDEN),
        (Carrying(status_code=403), FORBIDDEN),
        (Carrying(code=429), SLOW_DOWN),
        (Carrying(code="412"), CHANGED),
        (Carrying(response=Answer(status_code=416)), CHANGED),
        (Carrying(response=Answer(status=502)), TRANSIENT),
        (Carrying(response=None, code="AccessDenied"), REFUSED),
        (Carrying(status=7), REFUSED),
        (of_library("requests.exceptions", "ConnectTimeout", type(of_library("requests", "Timeout", OSError))), TRANSIENT),
        (of_library("requests.exceptions", "MissingSchema", OSError, ValueError), REFUSED),
        (of_library("httpx", "ReadTimeout", type(of_library("httpx", "TransportError"))), TRANSIENT),
        (of_library("azure.core.exceptions", "ServiceRequestError"), TRANSIENT),
        (of_library("azure.core.exceptions", "ClientAuthenticationError"), FORBIDDEN),
        (of_library("google.auth.exceptions", "RefreshError", type(of_library("google.auth", "GoogleAuthError"))), FORBIDDEN),
        (of_library("paramiko.ssh_exception", "SSHException"), TRANSIENT),
        (of_library("mine", "TransportError"), REFUSED),
        (ValueError("bad"), REFUSED),
        (NotImplementedError(), REFUSED),
        (StopIteration(), REFUSED),
        # what lies behind
        (from_cause(FileNotFoundError("key"), TimeoutError()), TRANSIENT),
        (from_cause(FileNotFoundError("key"), answered(500)), TRANSIENT),
        (from_cause(FileNotFoundError("key"), answered(403)), FORBIDDEN),
        (from_cause(FileNotFoundError("key"), answered(404)), MISSING),
        (from_cause(FileNotFoundError("key"), KeyError("key")), MISSING),
        (from_cause(FileNotFoundError("key"), from_cause(ValueError("x"), answered(429))), SLOW_DOWN),
        (in_context(FileNotFoundError("key"), aiohttp.ServerDisconnectedError()), TRANSIENT),
        (in_context(FileNotFoundError("key"), PermissionError("of the object, while the listing has no such")), MISSING),
        (in_context(FileNotFoundError("key"), TimeoutError(), suppress=True), MISSING),
        (from_cause(ValueError("unable to connect"), ConnectionRefusedError()), TRANSIENT),
        (from_cause(RuntimeError("it"), answered(412)), CHANGED),
        (from_cause(PermissionError("key"), TimeoutError()), FORBIDDEN),
        (from_cause(Carrying(status=404), TimeoutError()), MISSING),
        (from_cause(OSError("it"), Fault(SLOW_DOWN, "busy")), SLOW_DOWN),
    ],
)  # fmt: skip
def test_the_kind_of_an_exception(error: Exception, kind: Kind) -> None:
    assert fault_of(error).kind is kind


def test_a_fault_stays_what_it_is() -> None:
    fault = Fault(Kind.CHANGED, "it", status=412)
    assert fault_of(fault) is fault
    assert fault_of(from_cause(FileNotFoundError("key"), busy := Fault(Kind.SLOW_DOWN, "busy"))) is busy


def test_exceptions_that_lie_behind_one_another_in_a_ring() -> None:
    one, other = FileNotFoundError("one"), KeyError("other")
    one.__context__, other.__context__ = other, one
    assert fault_of(one).kind is Kind.MISSING


def test_a_fault_says_what_the_storage_said() -> None:
    error = Carrying(status=503, headers={"retry-after": "2", "X-MS-Request-ID": "id"})
    fault = fault_of(error)
    assert (fault.kind, fault.status, fault.request, fault.retry_after_s) == (Kind.SLOW_DOWN, 503, "id", 2.0)
    assert str(fault) == "HTTP 503: Carrying: text (request id)"
    assert str(fault_of(TimeoutError())) == "TimeoutError"
    assert str(fault_of(OSError("a\n  b"))) == "OSError: a b"
    assert len(str(fault_of(ValueError("x" * 10_000)))) < 1_000
    assert len(str(fault_of_status(500, "x" * 10_000, {}))) < 1_000


@pytest.mark.parametrize("status", [*range(300, 600)])
def test_every_status_that_is_none_of_success_means_something(status: int) -> None:
    assert (kind_of_status(status) in (Kind.TRANSIENT, Kind.SLOW_DOWN)) == (status >= 500 or status in (408, 421, 425, 429))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT", "date": "Thu, 01 Jan 2026 00:00:10 GMT"}, 20.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT", "date": "Thu, 01 Jan 2026 00:01:10 GMT"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT", "date": "today"}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds
