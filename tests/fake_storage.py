"""Storage in memory as a `Connection` of the first class: what the protocol promises, and faults in turn, as a test scripts them.

A `Storage` is what there is: objects by key, faults that the next calls take, one each (None: that call goes well), a list of the
calls. Any number of connections may look at one. `hold` lets a test stop reads where it likes.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zephon_async.errors import RecipeError
from zephon_async.io.stores import Connection, Fault, Kind, Object


class Call(NamedTuple):
    """One call of a connection. key: or prefix. offset, length: of a read, else 0."""

    what: str
    key: str
    offset: int = 0
    length: int = 0


class Cut(NamedTuple):
    """A read that gives `after` bytes and then fails."""

    after: int
    fault: Fault


@dataclass
class Storage:
    """What there is, behind all connections. page: objects a page. piece: bytes that a read gives at once."""

    objects: dict[str, bytes] = field(default_factory=dict)
    faults: deque[Fault | Cut | None] = field(default_factory=deque)
    fault: Callable[[Call], Fault | Cut | None] = lambda call: None
    hold: Callable[[Call], "asyncio.Future[None] | None"] = lambda call: None
    calls: list[Call] = field(default_factory=list)
    page: int = 1_000
    piece: int = 1 << 16
    opened: list[Connection] = field(default_factory=list)
    closed: list[Connection] = field(default_factory=list)

    @property
    def open_connections(self) -> int:
        """Connections of any thread that were not closed."""
        return len(self.opened) - len(self.closed)

    def next_fault(self, call: Call) -> Fault | Cut | None:
        self.calls.append(call)
        return self.faults.popleft() if self.faults else self.fault(call)

    def object(self, key: str) -> Object:
        return Object(key, len(self.objects[key]), hashlib.sha256(self.objects[key]).hexdigest()[:16])


class FakeConnection:
    streams = True

    def __init__(self, storage: Storage) -> None:
        self._storage, self._closed = storage, False
        storage.opened.append(self)

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Object]]:
        found = [self._storage.object(key) for key in self._storage.objects if key.startswith(prefix)]
        found = [one for one in found if one.size or not one.key.endswith("/")]
        for start in range(0, max(len(found), 1), self._storage.page):
            await self._enter(Call("pages", prefix))
            if found:
                yield found[start : start + self._storage.page]

    async def look(self, key: str) -> Object:
        await self._enter(Call("look", key))
        return self._found(key)

    async def read(
        self, key: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object], size: int | None = None
    ) -> None:
        cut = await self._enter(Call("read", key, offset, length))
        found = self._found(key)
        if tag not in ("", found.tag):
            raise Fault(Kind.CHANGED, f"its tag was {tag} and is {found.tag}")
        wanted = self._storage.objects[key][offset : offset + length]
        given = wanted if cut is None else wanted[: cut.after]
        for start in range(0, len(given), self._storage.piece):
            sink(given[start : start + self._storage.piece])
        if cut is not None:
            raise cut.fault
        if len(wanted) < length:
            raise Fault(Kind.CHANGED, f"it has {found.size:,} bytes, and byte {offset + length:,} was asked for")

    async def close(self) -> None:
        if not self._closed:
            self._storage.closed.append(self)
        self._closed = True

    async def _enter(self, call: Call) -> Cut | None:
        if self._closed:
            raise Fault(Kind.REFUSED, "the connection is closed")
        fault = self._storage.next_fault(call)
        if (held := self._storage.hold(call)) is not None:
            await held
        if isinstance(fault, Fault):
            raise fault
        return fault

    def _found(self, key: str) -> Object:
        if key not in self._storage.objects:
            raise Fault(Kind.MISSING, f"there is no {key!r}")
        return self._storage.object(key)


@dataclass
class FakeScheme:
    """Opens connections for fake://bucket/key, a storage for each bucket."""

    buckets: dict[str, Storage] = field(default_factory=dict)
    opened: list[tuple[str, Mapping[str, Any], int]] = field(default_factory=list)

    def split(self, url: str) -> tuple[str, str]:
        scheme, _, rest = url.partition("://")
        bucket, slash, key = rest.partition("/")
        if not bucket:
            raise RecipeError(f"{url!r} names no bucket")
        return f"{scheme}://{bucket}{slash}", key

    async def open(self, root: str, options: Mapping[str, Any], most: int) -> Connection:
        self.opened.append((root, options, most))
        return FakeConnection(self.buckets.setdefault(root.split("/")[2], Storage()))
