"""Connections to a real S3 server."""

import asyncio
from typing import Any

import pytest

from tests.io.s3_requests import (
    BODY,
    a_look,
    a_read,
    listed,
    opened,
    read,
    the_list,
)
from tests.system.fake_s3 import tag_of
from tests.system.seaweed import Bucket
from zephon_async.io.stores.connection import Fault, Kind, Object

pytestmark = [pytest.mark.usefixtures("no_credentials"), pytest.mark.slow]


def test_lists_ranges_and_tags_of_a_real_server(seaweed_bucket: Bucket) -> None:
    keys = {"a b", "a+b", "a%20b", "été/日本/🙂", "q?x=1#part&y", "~!$'()*,;:@=[]{}|^`\"<>", "f/g/h", "empty"}
    for key in keys:
        seaweed_bucket.put(key, b"" if key == "empty" else BODY)
    seaweed_bucket.put("folder/", b"")

    async def test() -> None:
        async with opened(seaweed_bucket) as connection:
            objects = {each.key: each for each in await listed(connection)}
            assert objects.keys() == keys
            assert [each.key for each in await listed(connection, "f/")] == ["f/g/h"]
            assert await listed(connection, "none/") == []
            for key in sorted(keys - {"empty"}):
                assert objects[key] == Object(key, len(BODY), tag_of(BODY)) == await connection.look(key)
                assert await read(connection, key, 61_710, 38_290, objects[key].tag) == BODY[61_710:100_000]
            with pytest.raises(Fault) as caught:
                await read(connection, "a b", 0, 10, '"00000000000000000000000000000000"')
            assert caught.value.kind is Kind.CHANGED
            with pytest.raises(Fault) as caught:
                await read(connection, "a b", len(BODY), 10, objects["a b"].tag)
            assert caught.value.kind is Kind.CHANGED
            for ask in (connection.look("none"), read(connection, "none")):
                with pytest.raises(Fault) as caught:
                    await ask
                assert caught.value.kind is Kind.MISSING

    asyncio.run(test())


def test_objects_that_were_uploaded_in_parts_to_a_real_server(seaweed_bucket: Bucket) -> None:
    parts = [bytes([1]) * (5 << 20), bytes([2]) * 1_000]
    seaweed_bucket.put_in_parts("parts", parts)

    async def test() -> None:
        async with opened(seaweed_bucket) as connection:
            found = await listed(connection)
            assert found == [await connection.look("parts")]
            assert found[0].size == (5 << 20) + 1_000
            assert found[0].tag.endswith('-2"')
            assert await read(connection, "parts", (5 << 20) - 1, 2, found[0].tag) == b"\1\2"
            await asyncio.to_thread(seaweed_bucket.put, "parts", b"3" * found[0].size)
            with pytest.raises(Fault) as caught:
                await read(connection, "parts", 0, 10, found[0].tag)
            assert caught.value.kind is Kind.CHANGED

    asyncio.run(test())


def test_many_pages_and_keys_of_a_real_server(seaweed_bucket: Bucket) -> None:
    seaweed_bucket.put_all({f"part/{number:05}": b"1" for number in range(1_001)})

    async def test() -> None:
        async with opened(seaweed_bucket) as connection:
            pages = [[each.key for each in page] async for page in connection.pages("part/")]
            assert [key for page in pages for key in page] == [f"part/{number:05}" for number in range(1_001)]
            assert len(pages) > 1

    asyncio.run(test())


@pytest.mark.parametrize("options", [{"key": "wrong"}, {"secret": "wrong"}, {"key": None, "secret": None, "anon": True}])
def test_wrong_credentials_for_a_real_server(seaweed_bucket: Bucket, options: dict[str, Any]) -> None:
    seaweed_bucket.put("k", BODY)

    async def test() -> None:
        async with opened(seaweed_bucket, **options) as connection:
            for ask in (the_list, a_look, a_read):
                with pytest.raises(Fault) as caught:
                    await ask(connection)
                assert (caught.value.kind, caught.value.status) == (Kind.FORBIDDEN, 403)

    asyncio.run(test())
