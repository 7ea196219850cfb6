"""URLs and options of S3, and when its library is loaded."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.io.s3_requests import (
    BODY,
    read,
)
from tests.system.fake_s3 import FakeS3
from zephon_async.errors import RecipeError
from zephon_async.io.stores.s3 import SCHEME

pytestmark = pytest.mark.usefixtures("no_credentials")


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
        ({"config_kwargs": {"read_timeout": "60"}}, "read_timeout in config_kwargs of S3 is '60': it must be a number of seconds"),
        ({"config_kwargs": {"s3": "path"}}, "cannot be opened"),
        ({"config_kwargs": {"http_session_cls": int}}, "config_kwargs of S3 know no 'http_session_cls'"),
        ({"verify": "/none/such.pem"}, "verify in storage_options of S3 is '/none/such.pem': there is no such file"),
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
