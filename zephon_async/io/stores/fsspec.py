"""Every storage that fsspec has a file system for, but those with a connection of their own here: gs, memory, sftp, hf buckets, ...

Takes URLs `scheme://bucket/key`, gives a `Connection` over the file system of the scheme: its coroutines where it has them, else
its blocking calls on threads. A file system is made for one connection alone, outside of fsspec's cache of instances and without a
cache of listings, so that no two share credentials and nothing that was seen before is taken for what is there. (What lies under
memory:// is one store for the whole process.)

Keys are what stands in the URL, as it is written. A key that the library would read as another one, as some do with "?" and "#",
is refused. Most file systems cannot read on a condition, so an object's tag is compared with the storage's before its first
read here, and again after each read that failed; gs:// then reads the very generation that was listed. Libraries that try again by
themselves (gcsfs, huggingface_hub) do so inside of an attempt.
"""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from zephon_async.errors import RecipeError
from zephon_async.io.stores.calls import Calls
from zephon_async.io.stores.connection import Connection, Fault, Kind, Object
from zephon_async.io.stores.faults import fault_of
from zephon_async.io.stores.file_systems import (
    exact_read,
    finds_all,
    finds_prefix,
    make_file_system,
    named,
    reads_generation,
)

if TYPE_CHECKING:
    from fsspec.spec import AbstractFileSystem

Result = TypeVar("Result")
Info = Mapping[str, Any]

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+._-]*)://(?P<rest>.*)", re.DOTALL | re.IGNORECASE)
_ROOTS = {  # what of the rest one connection is for; the others: all up to the first slash
    "hf": re.compile(r"buckets/[^/@]+/[^/@]+(?:/|$)"),
    "memory": re.compile(r"/*"),
    **dict.fromkeys(("abfs", "abfss", "az", "gcs", "gs"), re.compile(r"[^/]+(?:/|$)")),
}
_ANY_ROOT = re.compile(r"[^/]+(?:/|$)|/+")
_NEEDED = {"hf": "hf://buckets/user/name/"}
_TAGS = (
    "generation",  # of gs: its etag changes with the metadata too
    "ETag", "etag", "e_tag", "blob_id", "xet_hash", "sha", "sha256", "checksum", "md5", "md5Hash", "content_md5", "Content-MD5",
    "version_id", "version", "mtime", "modified", "last_modified", "Last-Modified", "LastModified", "updated", "created",
)  # fmt: skip
_HERE = {"memory"}  # looking costs no request
_PAGE = 1_000


class FsspecConnection:
    """A file system of fsspec, to the loop that it was opened on."""

    streams = False

    def __init__(
        self, scheme: str, root: str, file_system: "AbstractFileSystem", calls: "Calls[AbstractFileSystem] | None", most: int
    ) -> None:
        self._file_system, self._calls, self._most = file_system, calls, most
        self._scheme = scheme
        home = str(file_system._strip_protocol(scheme + root[len(scheme) :]))
        self._home = home if home.endswith("/") else f"{home}/" if home else str(file_system.root_marker)
        self._pins = reads_generation(file_system)
        self._always = scheme in _HERE
        self._right: dict[str, str] = {}
        self._finds, self._finds_prefix = finds_all(file_system), finds_prefix(file_system)
        self._read_options = exact_read(file_system)

    def __repr__(self) -> str:
        return f"<{type(self._file_system).__name__} {self._home!r} {'coroutines' if self._calls is None else 'threads'}>"

    async def begin(self) -> None:
        """Make the session, of a file system that has one."""
        if hasattr(self._file_system, "set_session"):
            try:
                await self._file_system.set_session()
            except Exception as error:
                await self.close()
                raise fault_of(error) from error

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Object]]:
        async for infos in self._below(prefix):
            objects = [found for info in infos if (found := await self._listed(info, prefix)) is not None]
            for start in range(0, len(objects), _PAGE):
                yield objects[start : start + _PAGE]

    async def look(self, key: str) -> Object:
        if not key or key.endswith("/"):
            raise Fault(Kind.MISSING, f"{key!r} is a folder")
        more = {"refresh": True, "expand_info": True} if self._scheme == "hf" else {}
        info = await self._run("info", self._path(key), **more)
        if info.get("type") == "directory":
            raise Fault(Kind.MISSING, f"{key!r} is a folder")
        return Object(key, _size(info, key), _tag(info))

    async def read(
        self, key: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object], size: int | None = None
    ) -> None:
        path = self._path(key)
        pinned = self._pins and tag.isdecimal()
        if tag and (self._always or self._right.get(key) != tag):
            await self._compare(key, tag)
        try:
            more = {"generation": tag} if pinned else self._read_options
            piece = bytes(await self._run("cat_file", path, start=offset, end=offset + length, **more))
        except Fault as fault:
            self._right.pop(key, None)
            if pinned and fault.kind is Kind.MISSING:
                await self._compare(key, tag)
            raise
        if len(piece) > length and offset:
            raise Fault(Kind.REFUSED, f"{len(piece):,} bytes came where {length:,} were asked for")
        if piece:
            sink(piece[:length])
        if len(piece) < length:
            self._right.pop(key, None)
            raise Fault(Kind.TRANSIENT, f"the body ended after {len(piece):,} of {length:,} bytes")

    async def close(self) -> None:
        if self._calls is not None:
            await self._calls.close()
            return
        for name in ("_session", "service_client", "credential"):
            close = getattr(getattr(self._file_system, name, None), "close", None)
            if close is not None:
                with suppress(Exception):  # it is given up in any case
                    closing = close()
                    if inspect.isawaitable(closing):
                        await closing

    async def _compare(self, key: str, tag: str) -> None:
        found = await self.look(key)
        if found.tag and found.tag != tag:
            raise Fault(Kind.CHANGED, f"its tag was {tag} and is {found.tag}")
        self._right[key] = tag

    async def _below(self, prefix: str) -> AsyncIterator[Iterable[Info]]:
        """What there is below a prefix, and perhaps more, in parts. Folders are listed one by one where the file system's own way
        of finding all would lose those that could not be listed."""
        folder = prefix[: prefix.rfind("/") + 1]
        if self._finds and (folder == prefix or self._finds_prefix):
            yield await self._find(folder, prefix[len(folder) :])
            return
        ahead, seen = [folder], {folder}
        while ahead:
            turn, ahead = ahead[: self._most], ahead[self._most :]
            find_all = self._finds and turn != [folder]
            for infos in await _together([self._find(inner, "") if find_all else self._folder("ls", inner) for inner in turn]):
                yield infos
                for info in infos if not find_all else ():
                    inner = self._key(info).rstrip("/") + "/"
                    if info.get("type") == "directory" and inner.startswith(prefix) and inner not in seen:
                        seen.add(inner)
                        ahead.append(inner)

    async def _find(self, folder: str, partial: str) -> list[Info]:
        found = await self._folder("find", folder, **({"prefix": partial} if partial else {}))
        if isinstance(found, Mapping):
            return [info or {"name": name, "type": "link"} for name, info in found.items()]
        return [{"name": name, "type": "link"} for name in found]

    async def _folder(self, method: str, folder: str, **options: Any) -> Any:
        """List a folder: one that is not there holds nothing, but a bucket that is not there is a fault."""
        more = {"refresh": True} if self._scheme == "hf" else {}
        try:
            return await self._run(method, (self._home + folder).rstrip("/") or self._home, detail=True, **options, **more)
        except Fault as fault:
            if fault.kind is not Kind.MISSING or not folder:
                raise
        return []

    async def _listed(self, info: Info, prefix: str) -> Object | None:
        """The object that an entry of a listing is, if it is one below the prefix."""
        key, kind = self._key(info), info.get("type", "file")
        if kind == "directory" or not key.startswith(prefix) or (key.endswith("/") and not info.get("size")) or not key:
            return None
        if kind == "file":
            return Object(key, _size(info, key), _tag(info))
        try:
            return await self.look(key)
        except Fault as fault:
            if fault.kind is not Kind.MISSING:
                raise
        return None

    def _key(self, info: Info) -> str:
        name = str(info["name"])
        if name.startswith(self._home):
            return name[len(self._home) :]
        if self._home == f"{name}/":
            return ""
        if self._home in ("", "/"):
            return name.lstrip("/")
        raise Fault(Kind.REFUSED, f"{self._home!r} lists {name!r}, which is not in it")

    def _path(self, key: str) -> str:
        path = self._home + key
        if self._file_system._strip_protocol(path) != path:
            raise Fault(
                Kind.REFUSED, f"{type(self._file_system).__name__} takes the key {key!r} for another one: rename the object"
            )
        return path

    async def _run(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            if self._calls is None:
                return await getattr(self._file_system, f"_{method}")(*arguments, **options)
            return await self._calls.call(lambda file_system: getattr(file_system, method)(*arguments, **options))
        except Exception as error:
            raise fault_of(error) from error


class FsspecScheme:
    """Opens connections for all schemes that fsspec knows."""

    connection = FsspecConnection

    def split(self, url: str) -> tuple[str, str]:
        match = _URL.fullmatch(url)
        scheme = match["scheme"].lower() if match else ""
        root = match and _ROOTS.get(scheme, _ANY_ROOT).match(match["rest"])
        if not match or not root:
            raise RecipeError(
                f"{url!r} names nothing to read: give a URL such as {_NEEDED.get(scheme, f'{scheme}://bucket/folder/')!r}"
            )
        stop = match.start("rest") + root.end()
        return url[:stop], url[stop:]

    async def open(self, root: str, options: Mapping[str, Any], most: int) -> Connection:
        scheme = root.partition("://")[0].lower()
        loop = asyncio.get_running_loop()
        calls = Calls(lambda: make_file_system(scheme, root, options, loop), most, scheme)
        try:
            file_system = await calls.call(lambda made: made)
        except RecipeError:
            await calls.close()
            raise
        except Exception as error:
            await calls.close()
            fault = fault_of(error)
            if fault.kind in (Kind.MISSING, Kind.REFUSED):
                raise RecipeError(f"{scheme}:// cannot be opened with {named(options)}: {fault}") from error
            raise fault from error
        except asyncio.CancelledError:
            await calls.close()
            raise
        if file_system.async_impl:
            await calls.close()
            connection = self.connection(scheme, root, file_system, None, most)
            await connection.begin()
            return connection
        return self.connection(scheme, root, file_system, calls, most)


SCHEME = FsspecScheme()


async def _together(calls: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Wait for several at once. The first that fails ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as several:
        first = several.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]


def _size(info: Info, key: str) -> int:
    size = info.get("size")
    if size is None:
        raise Fault(Kind.REFUSED, f"the storage does not tell the size of {key!r}")
    return int(size)


def _tag(info: Info) -> str:
    """What changes when the object does, as text: the first of `_TAGS` that is there."""
    for name in _TAGS:
        found = info.get(name)
        if isinstance(found, datetime):
            return str((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
        if isinstance(found, bytes | bytearray):
            return found.hex()
        if found is not None and found != "":
            return str(found)
    return ""
