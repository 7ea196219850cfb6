"""What tests of S3 ask of a connection, with the right answers, and how they run."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import pytest

from tests.system.fake_s3 import FakeS3, Faults, Twist, tag_of
from tests.system.seaweed import Bucket
from zephon_async.io.stores.connection import Connection, Fault, Object
from zephon_async.io.stores.s3 import SCHEME

T = TypeVar("T")
Ask: TypeAlias = Callable[[Connection], Coroutine[Any, Any, object]]
BODY = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(256)) * 13  # 106,496 bytes


@asynccontextmanager
async def opened(server: FakeS3 | Bucket, most: int = 4, **options: Any) -> AsyncIterator[Connection]:
    given = {**server.options, **options}
    connection = await SCHEME.open(server.root, {name: value for name, value in given.items() if value is not None}, most)
    try:
        yield connection
    finally:
        await connection.close()


async def read(connection: Connection, key: str, offset: int = 0, length: int = len(BODY), tag: str = "") -> bytes:
    pieces: list[bytes] = []
    await connection.read(key, offset, length, tag, pieces.append)
    return b"".join(pieces)


async def listed(connection: Connection, prefix: str = "") -> list[Object]:
    return [each async for page in connection.pages(prefix) for each in page]


async def the_list(connection: Connection) -> object:
    return await listed(connection)


async def a_look(connection: Connection) -> object:
    return await connection.look("k")


async def a_read(connection: Connection) -> object:
    return await read(connection, "k")


each_request = pytest.mark.parametrize("ask", [the_list, a_look, a_read])
bodily = pytest.mark.parametrize("ask", [the_list, a_read])
RIGHT: dict[Any, object] = {
    the_list: [Object("k", len(BODY), tag_of(BODY))],
    a_look: Object("k", len(BODY), tag_of(BODY)),
    a_read: BODY,
}


def run(
    test: Callable[[Connection, FakeS3], Coroutine[Any, Any, T]], faults: Faults = lambda request: None, **options: Any
) -> tuple[T, FakeS3]:
    """What a test gives, and the server that it was run against, which holds BODY as `k`."""

    async def all_of_it(server: FakeS3) -> T:
        async with opened(server, **options) as connection:
            return await test(connection, server)

    with FakeS3(faults) as server:
        server.put("k", BODY)
        return asyncio.run(all_of_it(server)), server


def fault_of(ask: Ask, faults: Faults, **options: Any) -> tuple[Fault, FakeS3]:
    return run(lambda connection, _: failing(ask(connection)), faults, **options)


def always(twist: Twist) -> Faults:
    return lambda request: twist


def told(ask: Ask, twists: Iterable[Twist]) -> list[Fault]:
    """The fault that each of the answers stands for, on one connection."""

    async def all_of_them(connection: Connection, server: FakeS3) -> list[Fault]:
        found = []
        for twist in twists:
            server.faults = always(twist)
            found.append(await failing(ask(connection)))
        return found

    return run(all_of_them)[0]


async def failing(call: Coroutine[Any, Any, object]) -> Fault:
    with pytest.raises(Fault) as caught:
        await call
    return caught.value
