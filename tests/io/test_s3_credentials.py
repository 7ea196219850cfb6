"""Credentials of S3 that end (C03), and buckets in other regions (C04)."""

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.io.s3_requests import (
    BODY,
    RIGHT,
    Ask,
    a_read,
    always,
    each_request,
    fault_of,
    read,
    run,
)
from tests.system.fake_s3 import FakeS3, Request, Twist, expires, lies_in
from zephon_async.io.stores.connection import Connection, Fault, Kind

pytestmark = pytest.mark.usefixtures("no_credentials")


def write_key(path: Path, key: str, profile: str = "default") -> None:
    path.write_text(f"[{profile}]\naws_access_key_id = {key}\naws_secret_access_key = s\n")


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
def test_every_kind_of_request_finds_new_credentials(ask: Ask, status: int, tmp_path: Path) -> None:
    write_key(tmp_path / "credentials", "old", "mine")

    async def test(connection: Connection, server: FakeS3) -> object:
        assert await ask(connection) == RIGHT[ask]
        write_key(tmp_path / "credentials", "new", "mine")
        return await ask(connection)

    assert run(test, expires(1, "new", status), key=None, secret=None, profile="mine")[0] == RIGHT[ask]


@each_request
@pytest.mark.parametrize("status", [400, 403])
@pytest.mark.parametrize("where", ["file", "options"])
def test_credentials_that_have_ended_and_stay_so(ask: Ask, status: int, where: str, tmp_path: Path) -> None:
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


def test_credentials_from_a_provider(tmp_path: Path) -> None:
    def hand_out(key: str) -> None:
        (tmp_path / "given").write_text(json.dumps({"Version": 1, "AccessKeyId": key, "SecretAccessKey": "s", "SessionToken": "t"}))

    async def test(connection: Connection, server: FakeS3) -> bytes:
        before = await read(connection, "k", 0, 10)
        hand_out("new")
        return before + await read(connection, "k", 10, 10)

    hand_out("old")
    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {tmp_path / 'given'}\n")
    got, server = run(test, expires(1, "new"), key=None, secret=None)
    assert got == BODY[:20]
    assert [request.signed_by for request in server.requests] == ["old", "old", "new"]


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
def test_no_credentials_at_all(ask: Ask) -> None:
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


@each_request
@pytest.mark.parametrize("status", [301, 307, 400])
def test_a_bucket_in_another_region_is_asked_for_there_and_remembered(ask: Ask, status: int) -> None:
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
def test_a_redirect_that_does_not_say_where(ask: Ask, status: int) -> None:
    fault, server = fault_of(ask, always(Twist(status, body=b"moved")))
    assert (fault.kind, fault.status) == (Kind.REFUSED, status)
    assert len(server.requests) <= 2
