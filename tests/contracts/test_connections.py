"""What every `Connection` keeps, whatever it is connected to.

A case is a context manager that gives a `Place`: a folder of a storage, and how to put objects there. Another storage takes part by
one line in `CASES`.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.fake_storage import FakeScheme, Storage
from tests.system.azurite import PROGRAM, azurite
from tests.system.fake_hub import fake_hub
from tests.system.fake_s3 import FakeS3
from tests.system.http_server import http_server
from zephon_async.errors import RecipeError
from zephon_async.io.stores import Connection, Fault, Kind, Object, Scheme, scheme_of

BODY = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(3_125))  # 100,000 bytes that do not repeat
# fmt: off
ODD_NAMES = [
    "plain.jsonl", "a space", "plus+sign", "hash#tag", "question?mark", "100%", "%41", "%2F", "a&b=c;d,e", "it's", 'say "so"',
    "tilde~", "at@sign", "dots...", ".hidden", "[0-9]", "{braces}", "(round)", "star*", "back\\slash", "a:b", "pipe|", "caret^",
    "$dollar", "é", "e\u0301", "数据", "данные", "🎲", "folder/inside", "folder/deep er/ins#ide?",
]
# fmt: on


@dataclass
class Place:
    """A folder of a storage. url: of it, with "/" at the end. written: how a name is written in a URL. renames: names that the
    storage itself keeps as others."""

    url: str
    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]
    options: Mapping[str, Any] = field(default_factory=dict)
    scheme: Scheme | None = None
    written: Callable[[str], str] = str
    renames: frozenset[str] = frozenset()

    @property
    def odd_names(self) -> list[str]:
        return [name for name in ODD_NAMES if name not in self.renames]


Case = Callable[[], AbstractContextManager[Place]]


@contextmanager
def fake() -> Iterator[Place]:
    scheme = FakeScheme({"bucket": Storage(page=7, piece=999)})
    objects = scheme.buckets["bucket"].objects

    def put(name: str, body: bytes) -> None:
        objects[f"at/{name}"] = body

    yield Place("fake://bucket/at/", put, lambda name: objects.pop(f"at/{name}"), scheme=scheme)
    assert scheme.buckets["bucket"].open_connections == 0


@contextmanager
def memory() -> Iterator[Place]:
    files = MemoryFileSystem(skip_instance_cache=True)
    yield Place(
        "memory://contract/at/",
        lambda name, body: files.pipe_file(f"/contract/at/{name}", body),
        lambda name: files.rm_file(f"/contract/at/{name}"),
    )
    for name in [name for name in files.store if name.startswith("/contract/")]:
        del files.store[name]


@contextmanager
def http() -> Iterator[Place]:
    with http_server() as server:

        def put(name: str, body: bytes) -> None:
            server.files[f"/at/{quote(name)}"] = body

        yield Place(f"{server.url}at/", put, lambda name: server.files.pop(f"/at/{quote(name)}"), written=quote)


@contextmanager
def azure() -> Iterator[Place]:
    from azure.storage.blob import BlobServiceClient

    with azurite() as connection_string, BlobServiceClient.from_connection_string(connection_string) as service:
        box = service.create_container("box")
        yield Place(
            "az://box/at/",
            lambda name, body: box.upload_blob(f"at/{name}", body, overwrite=True),
            lambda name: box.delete_blob(f"at/{name}"),
            {"connection_string": connection_string},
            renames=frozenset({"back\\slash"}),
        )


@contextmanager
def s3() -> Iterator[Place]:
    with FakeS3() as server:
        yield Place(
            f"{server.root}at/",
            lambda name, body: server.put(f"at/{name}", body),
            lambda name: server.delete(f"at/{name}"),
            server.options,
        )


@contextmanager
def hub() -> Iterator[Place]:
    name = "datasets/org/name"
    with fake_hub(page=500) as server:

        def put(key: str, body: bytes) -> None:
            server.push(name, server.files(name) | {f"at/{key}": body})

        def delete(key: str) -> None:
            server.push(name, {path: body for path, body in server.files(name).items() if path != f"at/{key}"})

        yield Place(f"hf://{name}@main/at/", put, delete, server.options)


def cases(several: Mapping[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, case in several.items()]
    )


SLOW = {"azure"}
LISTING: dict[str, Case] = {"fake": fake, "memory": memory, "s3": s3, "hub": hub}
if PROGRAM is not None and find_spec("adlfs") is not None:
    LISTING["azure"] = azure
CASES: dict[str, Case] = {**LISTING, "http": http}
OF_OBJECTS = {fake, azure, s3}  # a folder and an object can have one name there
each_case, each_that_lists = cases(CASES), cases(LISTING)


class Opened(NamedTuple):
    connection: Connection
    folder: str
    """The key of the place's folder."""


@asynccontextmanager
async def opened(place: Place, most: int = 4) -> AsyncIterator[Opened]:
    scheme = place.scheme or scheme_of(place.url)
    root, folder = scheme.split(place.url)
    connection = await scheme.open(root, place.options, most)
    try:
        yield Opened(connection, folder)
    finally:
        await connection.close()


async def listed(connection: Connection, prefix: str) -> dict[str, Object]:
    found = [one async for page in connection.pages(prefix) for one in page]
    assert len({one.key for one in found}) == len(found)
    return {one.key: one for one in found}


async def read(connection: Connection, key: str, offset: int, length: int, tag: str = "") -> bytes:
    pieces: list[bytes] = []
    await connection.read(key, offset, length, tag, pieces.append)
    return b"".join(pieces)


async def kind_of(connection: Connection, key: str, offset: int, length: int, tag: str = "") -> Kind:
    with pytest.raises(Fault) as caught:
        await read(connection, key, offset, length, tag)
    return caught.value.kind


@each_that_lists
@pytest.mark.parametrize("count", [0, 1, 3, 2_345])
def test_a_listing_has_each_object_once(case: Case, count: int) -> None:
    async def main() -> dict[str, Object]:
        async with opened(place) as (connection, folder):
            found = await listed(connection, folder)
            return {key.removeprefix(folder): one for key, one in found.items()}

    with case() as place:
        place.put("outside", b"")
        place.delete("outside")
        for n in range(count):
            place.put(f"part-{n}", bytes(n % 5))
        found = asyncio.run(main())
    assert {name: one.size for name, one in found.items()} == {f"part-{n}": n % 5 for n in range(count)}


@each_that_lists
def test_a_prefix_is_a_folder_an_object_or_a_part_of_a_name(case: Case) -> None:
    names = ["train", "train-2", "train/a", "train/b/c", "trainer/d", "tr", "other/train"]

    async def main() -> dict[str, set[str]]:
        async with opened(place) as (connection, folder):
            prefixes = ["", "t", "train", "train/", "train/b", "train-2", "train-2/", "none", "none/", "other/t"]
            return {prefix: {key.removeprefix(folder) for key in await listed(connection, folder + prefix)} for prefix in prefixes}

    with case() as place:
        for name in (
            names if case in OF_OBJECTS else names[1:]
        ):  # a folder of that name can be beside an object in object storage alone
            place.put(name, b"x")
        found = asyncio.run(main())
        there = names if case in OF_OBJECTS else names[1:]
    assert found == {prefix: {name for name in there if name.startswith(prefix)} for prefix in found}


@each_that_lists
def test_a_listing_tells_what_a_look_tells(case: Case) -> None:
    async def main() -> tuple[Object, Object]:
        async with opened(place) as (connection, folder):
            (one,) = (await listed(connection, folder)).values()
            return one, await connection.look(folder + "some/where")

    with case() as place:
        place.put("some/where", BODY)
        one, looked = asyncio.run(main())
    assert one == looked
    assert one.size == len(BODY)
    assert one.tag


@each_that_lists
def test_odd_names_are_listed_and_read_as_they_are(case: Case) -> None:
    async def main() -> dict[str, bytes]:
        async with opened(place) as (connection, folder):
            found = await listed(connection, folder)
            return {
                key.removeprefix(folder): await read(connection, key, 0, one.size, one.tag) for key, one in sorted(found.items())
            }

    with case() as place:
        for name in place.odd_names:
            place.put(name, name.encode())
        assert asyncio.run(main()) == {name: name.encode() for name in place.odd_names}


@each_case
def test_odd_names_are_found_and_read_by_their_urls(case: Case) -> None:
    async def main() -> dict[str, bytes]:
        async with opened(place) as (connection, folder):
            read_at = {}
            for name in place.odd_names:
                one = await connection.look(folder + place.written(name))
                assert one.key == folder + place.written(name)
                read_at[name] = await read(connection, one.key, 0, one.size, one.tag)
            return read_at

    with case() as place:
        for name in place.odd_names:
            place.put(name, name.encode())
        assert asyncio.run(main()) == {name: name.encode() for name in place.odd_names}


@each_case
def test_root_and_key_are_the_url(case: Case) -> None:
    with case() as place:
        scheme = place.scheme or scheme_of(place.url)
        root, folder = scheme.split(place.url)
        for name in ["", "x", *map(place.written, place.odd_names), "two//slashes", "%zz", "a/../b", "./c", "line\nbreak"]:
            assert scheme.split(place.url + name) == (root, folder + name)
        assert place.url.startswith(root)


@each_case
@pytest.mark.parametrize("rest", ["", "/nothing"])
def test_a_url_that_names_nothing_is_refused(case: Case, rest: str) -> None:
    with case() as place:
        scheme = place.scheme or scheme_of(place.url)
        if case is not memory:  # all of it is one bucket
            with pytest.raises(RecipeError, match="names no"):
                scheme.split(place.url.partition("//")[0] + "//" + rest)


@each_case
def test_what_is_not_there_is_missing(case: Case) -> None:
    async def main() -> list[Kind]:
        async with opened(place) as (connection, folder):
            kinds = []
            for key in (folder + "none", folder + "is/none"):
                with pytest.raises(Fault) as caught:
                    await connection.look(key)
                kinds += [caught.value.kind, await kind_of(connection, key, 0, 1), await kind_of(connection, key, 0, 1, "tag")]
            return kinds

    with case() as place:
        place.put("is", b"x")
        assert asyncio.run(main()) == [Kind.MISSING] * 6


@each_case
def test_a_listing_of_one_object_that_is_not_there_is_empty(case: Case) -> None:
    async def main() -> dict[str, Object]:
        async with opened(place) as (connection, folder):
            return await listed(connection, folder + "none")

    with case() as place:
        place.put("is", b"x")
        assert asyncio.run(main()) == {}


@each_case
def test_ranges_are_right_at_every_edge(case: Case) -> None:
    size = len(BODY)
    ranges = [(0, 1), (0, size), (size - 1, 1), (1, size - 1), (0, size - 1), (size // 2, 1), (size // 3, 65_537), (4_095, 2)]

    async def main() -> None:
        async with opened(place) as (connection, folder):
            one = await connection.look(folder + "body")
            for tag in ("", one.tag):
                for offset, length in ranges:
                    assert await read(connection, one.key, offset, length, tag) == BODY[offset : offset + length]
            several = [read(connection, one.key, offset, length, one.tag) for offset, length in ranges * 4]
            assert await asyncio.gather(*several) == [BODY[offset : offset + length] for offset, length in ranges * 4]

    with case() as place:
        place.put("body", BODY)
        asyncio.run(main())


@each_case
def test_a_range_that_is_not_there_is_a_fault_behind_what_is(case: Case) -> None:
    async def main() -> None:
        async with opened(place) as (connection, folder):
            one = await connection.look(folder + "body")
            for offset in (90, 100, 200):
                pieces: list[bytes] = []
                with pytest.raises(Fault) as caught:
                    await connection.read(one.key, offset, 11, one.tag, pieces.append)
                assert caught.value.kind in (Kind.CHANGED, Kind.TRANSIENT)
                assert BODY[offset:100].startswith(b"".join(pieces))

    with case() as place:
        place.put("body", BODY[:100])
        asyncio.run(main())


@each_case
def test_an_empty_object_is_there(case: Case) -> None:
    async def main() -> int:
        async with opened(place) as (connection, folder):
            return (await connection.look(folder + "empty")).size

    with case() as place:
        place.put("empty", b"")
        assert asyncio.run(main()) == 0


@each_case
@pytest.mark.parametrize(
    "change", [BODY[::-1], BODY + b"x", BODY[:-1], b"", None], ids=["other", "longer", "shorter", "empty", "gone"]
)
def test_a_changed_object_is_not_read_under_the_old_tag(case: Case, change: bytes | None) -> None:
    async def main() -> tuple[Kind, Kind, Kind]:
        async with opened(place) as (connection, folder):
            one = await connection.look(folder + "body")
            assert await read(connection, one.key, 10, 10, one.tag) == BODY[10:20]
            if change is None:
                place.delete("body")
            else:
                place.put("body", change)
            kinds = [await kind_of(connection, one.key, offset, 10, one.tag) for offset in (0, 10, len(BODY) - 10)]
            if change:
                again = await connection.look(one.key)
                assert await read(connection, one.key, 0, len(change), again.tag) == change
            return kinds[0], kinds[1], kinds[2]

    with case() as place:
        place.put("body", BODY)
        place.put("other", b"")
        assert asyncio.run(main()) == (Kind.MISSING if change is None else Kind.CHANGED,) * 3


@each_case
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 40])
def test_a_cancelled_read_leaves_nothing_and_disturbs_nobody(case: Case, steps: int) -> None:
    async def main() -> None:
        async with opened(place, most=2) as (connection, folder):
            one = await connection.look(folder + "body")
            reads = [asyncio.create_task(read(connection, one.key, 0, one.size, one.tag)) for _ in range(5)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for task in reads[1:]:
                task.cancel()
            ends = await asyncio.gather(*reads, return_exceptions=True)
            assert ends[0] == BODY
            assert all(end == BODY or isinstance(end, asyncio.CancelledError) for end in ends)
            assert await read(connection, one.key, 5, 5, one.tag) == BODY[5:10]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with case() as place:
        place.put("body", BODY)
        asyncio.run(main())


@each_case
def test_a_sink_that_raises_is_heard_as_it_is(case: Case) -> None:
    class Full(Exception):
        pass

    def sink(piece: bytes) -> None:
        raise Full

    async def main() -> None:
        async with opened(place) as (connection, folder):
            with pytest.raises(Full):
                await connection.read(folder + "body", 0, len(BODY), "", sink)
            assert await read(connection, folder + "body", 1, 2) == BODY[1:3]

    with case() as place:
        place.put("body", BODY)
        asyncio.run(main())


@each_case
def test_closed_is_closed(case: Case) -> None:
    async def main() -> Kind:
        async with opened(place) as (connection, folder):
            await connection.look(folder + "body")
            await connection.close()
            await connection.close()
            return await kind_of(connection, folder + "body", 0, 1)

    with case() as place:
        place.put("body", BODY)
        assert asyncio.run(main()) is Kind.REFUSED
