"""What an answer of S3 that is no success means.

Takes the status, the headers and the error code and message that were in the body, as far as there were any (a HEAD has no body,
and a gateway answers with HTML), and gives the fault. Codes count for more than the status, since ended credentials are a 400
here and a 403 there, and a request that timed out is a 400.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from zephon_async.io.stores.connection import Fault, Kind

ENDED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken", "TokenRefreshRequired"})
"""Codes of credentials that have ended: new ones may be lying in their file."""

_SLOW_DOWN = frozenset({"SlowDown", "ServiceUnavailable", "RequestLimitExceeded", "BandwidthLimitExceeded"})
_CODES = {
    **dict.fromkeys(
        ("RequestTimeout", "RequestTimeoutException", "InternalError", "InternalFailure", "OperationAborted"), Kind.TRANSIENT
    ),
    **dict.fromkeys(("NoSuchKey", "NoSuchBucket", "NoSuchVersion", "NotFound"), Kind.MISSING),
    **dict.fromkeys(("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled"), Kind.FORBIDDEN),
    **dict.fromkeys(("RequestTimeTooSkewed", *ENDED), Kind.FORBIDDEN),
    **dict.fromkeys(("PreconditionFailed", "InvalidRange"), Kind.CHANGED),
}
_STATUSES = {
    401: Kind.FORBIDDEN,
    403: Kind.FORBIDDEN,
    404: Kind.MISSING,
    408: Kind.TRANSIENT,
    410: Kind.MISSING,
    412: Kind.CHANGED,
    416: Kind.CHANGED,
    425: Kind.TRANSIENT,
    429: Kind.SLOW_DOWN,
    503: Kind.SLOW_DOWN,
}
_MOVED = frozenset({"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})


def fault_of(answer: Mapping[str, Any]) -> Fault:
    """The fault that an answer stands for, as botocore gives answers: {"Error": ..., "ResponseMetadata": ...}."""
    about, error = answer.get("ResponseMetadata") or {}, answer.get("Error") or {}
    headers, status = about.get("HTTPHeaders") or {}, about.get("HTTPStatusCode")
    code, message = str(error.get("Code") or ""), str(error.get("Message") or "")
    kind = _kind(status, code)
    said = [code if code != str(status) else "", message if message != code else ""]
    text = ": ".join(filter(None, said)) or "the storage does not say why"
    if kind is Kind.REFUSED and (where := _region(code, status, error, headers)):
        text = f"{text}: {where}"
    elif code in ENDED:
        text = f"the credentials have ended ({text})"
    return Fault(kind, text, status=status, request=_request(about, headers), retry_after_s=retry_after_s(headers))


def _kind(status: int | None, code: str) -> Kind:
    if code in _SLOW_DOWN or "throttl" in code.lower() or code.startswith("TooManyRequests"):
        return Kind.SLOW_DOWN
    if code in _CODES:
        return _CODES[code]
    if status in _STATUSES:
        return _STATUSES[status]
    return Kind.TRANSIENT if status is not None and status >= 500 else Kind.REFUSED


def _region(code: str, status: int | None, error: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """Where the bucket is, in words, when it was asked for elsewhere; "" when that is not what the answer says."""
    if status not in {301, 302, 307, 308} and code not in _MOVED:
        return ""
    if region := headers.get("x-amz-bucket-region") or error.get("Region"):
        return f"the bucket is in the region {region!r}: give storage_options={{'region_name': {region!r}}}"
    if endpoint := error.get("Endpoint") or headers.get("location"):
        return f"it is at {endpoint!r}: give storage_options={{'endpoint_url': ...}}"
    return "the bucket is in another region: give storage_options={'region_name': ...}"


def _request(about: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    return str(about.get("RequestId") or headers.get("x-amz-request-id") or headers.get("x-request-id") or "")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """What the storage asked to wait, said in seconds or as a date; None where it asked for nothing that can be understood."""
    said = headers.get("retry-after", "").strip()
    if said.replace(".", "", 1).isdecimal():
        return float(said)
    try:
        until = parsedate_to_datetime(said)
    except ValueError:
        return None
    if until.tzinfo is None:  # "-0000": of no known zone, which HTTP does not have
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())
