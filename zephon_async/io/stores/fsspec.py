"""Every storage that fsspec has a file system for, but those with a connection of their own here: gs, az, hf, memory, sftp, ...

Takes URLs `scheme://bucket/key`, gives a `Connection` over the file system of the scheme: its coroutines where it has them, else
its blocking calls on threads. A file system is made for one connection alone, outside of fsspec's cache of instances and without a
cache of listings, so that no two share credentials and nothing that was seen before is taken for what is there. (What lies under
memory:// is one store for the whole process.)

Keys are what stands in the URL, as it is written. A key that the library would read as another one, as adlfs does with some "?" and
"#", is refused. Most file systems cannot read on a condition, so an object's tag is compared with the storage's before its first
read here, and again after each read that failed; gs:// reads the very generation that was listed, and Azure's reads are on the
condition of the tag. Libraries that try again by
themselves (gcsfs, azure) do so inside of an attempt.
"""

import asyncio
import inspect
import re
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.dircache import DirCache
from fsspec.registry import registry
from fsspec.spec import AbstractFileSystem

from zephon_async.errors import RecipeError
from zephon_async.io.stores.azure import blob_pieces
from zephon_async.io.stores.calls import Calls
from zephon_async.io.stores.connection import Connection, Fault, Kind, Object
from zephon_async.io.stores.faults import fault_of

Result = TypeVar("Result")
Info = Mapping[str, Any]

_EXTRAS = {"gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure", "hf": "hf", "http": "http", "https": "http"}
_NOT_STORAGE = {  # they read another file system, or files of this machine
    "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "data", "dir", "file", "filecache", "generic",
    "libarchive", "local", "reference", "simplecache", "tar", "zip",
}  # fmt: skip
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+._-]*)://(?P<rest>.*)", re.DOTALL | re.IGNORECASE)
_ROOTS = {  # what of the rest one connection is for; the others: all up to the first slash
    "hf": re.compile(r"(?:(?:datasets|spaces|models|buckets)/)?+[^/@]+/[^/@]+(?:@(?:refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/|$)"),
    "memory": re.compile(r"/*"),
    **dict.fromkeys(("abfs", "abfss", "az", "gcs", "gs"), re.compile(r"[^/]+(?:/|$)")),
}
_ANY_ROOT = re.compile(r"[^/]+(?:/|$)|/+")
_NEEDED = {"hf": "hf://datasets/user/name/"}
_TAGS = (
    "generation",  # of gs: its etag changes with the metadata too
    "ETag", "etag", "e_tag", "blob_id", "xet_hash", "sha", "sha256", "checksum", "md5", "md5Hash", "content_md5", "Content-MD5",
    "version_id", "version", "mtime", "modified", "last_modified", "Last-Modified", "LastModified", "updated", "created",
)  # fmt: skip
_PINS = {"gs": "generation", "gcs": "generation"}  # how `cat_file` is told of which version to read
_AZURE = {"az", "abfs", "abfss"}
_HERE = {"memory"}  # looking costs no request
_PAGE = 1_000


class FsspecScheme:
    """Opens connections for all schemes that fsspec knows."""

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
        calls = Calls(lambda: _make(scheme, root, options, loop), most, scheme)
        try:
            file_system = await calls.call(lambda made: made)
        except RecipeError:
            await calls.close()
            raise
        except Exception as error:
            await calls.close()
            fault = fault_of(error)
            if fault.kind in (Kind.MISSING, Kind.REFUSED):
                raise RecipeError(f"{scheme}:// cannot be opened with {_named(options)}: {fault}") from error
            raise fault from error
        except asyncio.CancelledError:
            await calls.close()
            raise
        if file_system.async_impl:
            await calls.close()
            connection = FsspecConnection(scheme, root, file_system, None, most)
            await connection.begin()
            return connection
        return FsspecConnection(scheme, root, file_system, calls, most)


SCHEME = FsspecScheme()


class FsspecConnection:
    """A file system of fsspec, to the loop that it was opened on."""

    def __init__(
        self, scheme: str, root: str, file_system: AbstractFileSystem, calls: Calls[AbstractFileSystem] | None, most: int
    ) -> None:
        self._file_system, self._calls, self._most = file_system, calls, most
        self._scheme = scheme
        home = str(file_system._strip_protocol(scheme + root[len(scheme) :]))
        self._home = home if home.endswith("/") else f"{home}/" if home else str(file_system.root_marker)
        self._pin = _PINS.get(scheme, "")
        self._always = scheme in _HERE
        self._right: dict[str, str] = {}
        kind = type(file_system)
        if calls is None:
            find, self._finds = kind._find, kind._find is not AsyncFileSystem._find
            self._read_options = {}
        else:
            find, self._finds = kind.find, kind.find is not AbstractFileSystem.find
            ahead = kind.cat_file is AbstractFileSystem.cat_file and _takes(kind._open, "cache_type")
            self._read_options = {"cache_type": "none"} if ahead else {}
        self._finds_prefix = _takes(find, "prefix", exactly=True)

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

    async def read(self, key: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object]) -> None:
        path = self._path(key)
        if self._scheme in _AZURE:
            try:
                await self._read_blob(path, offset, length, tag, sink)
            except Fault as fault:
                if fault.kind is Kind.CHANGED and tag:
                    await self._compare(key, tag)  # to a condition, a blob that is gone is another one
                raise
            return
        pinned = bool(tag and self._pin)
        if tag and not pinned and (self._always or self._right.get(key) != tag):
            await self._compare(key, tag)
        try:
            more = {self._pin: tag} if pinned else self._read_options
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

    async def _read_blob(self, path: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object]) -> None:
        given = 0
        async with aclosing(blob_pieces(self._file_system, path, offset, length, tag)) as pieces:
            while True:
                try:
                    piece = await anext(pieces)
                except StopAsyncIteration:
                    break
                except Exception as error:
                    raise fault_of(error) from error
                given += len(piece)
                sink(piece)
        if given < length:
            raise Fault(Kind.TRANSIENT, f"the body ended after {given:,} of {length:,} bytes")

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
        _forget(self._file_system)

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
        if self._scheme == "hf":  # it may write the revision in another way
            return SCHEME.split(f"hf://{name}")[1]
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


def known_schemes() -> set[str]:
    """All schemes that may be opened here, whether or not their libraries are installed."""
    return {*fsspec.available_protocols(), *registry, *_EXTRAS} - _NOT_STORAGE


def file_system_class(scheme: str) -> type[AbstractFileSystem]:
    """The file system of a scheme. Raises `RecipeError` with what to install where its library is missing."""
    try:
        return fsspec.get_filesystem_class(scheme)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(scheme)
        need = f"install it with `pip install 'zephon-async[{extra}]'`" if extra else str(error)
        reason = error.__cause__ or error
        raise RecipeError(f"{scheme}:// needs a library that is not there: {need} ({reason})") from error


def _make(scheme: str, root: str, options: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> AbstractFileSystem:
    """A file system of one's own."""
    kind = file_system_class(scheme)
    check_options(scheme, kind, options)
    own = {"asynchronous", "loop", "skip_instance_cache", "use_listings_cache"}
    given = {**kind._get_kwargs_from_urls(root), **{name: value for name, value in options.items() if name not in own}}
    if scheme == "hf":
        given.setdefault("max_workers", 1)  # of its own pool, whose threads nobody can end
    if kind.async_impl:
        given |= {"asynchronous": True, "loop": loop}
    made = kind(**given, skip_instance_cache=True)
    if isinstance(cache := getattr(made, "dircache", None), DirCache):
        cache.use_listings_cache = False
    return made


def check_options(scheme: str, kind: type[AbstractFileSystem], options: Mapping[str, Any], more: Iterable[str] = ()) -> None:
    """Raises `RecipeError` for options that are no names, or that are nearly a name that is known: most file systems take any."""
    known = {*more}
    for base in kind.__mro__[:-1]:
        parameters = inspect.signature(vars(base).get("__init__", lambda: None)).parameters.values()
        known |= {
            parameter.name
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
    for name in options:
        if not isinstance(name, str):
            raise RecipeError(f"storage_options of {scheme}:// are named by text, not by {name!r}")
        near = get_close_matches(name, known - {"self"}, 1, 0.8)
        if name not in known and near:
            raise RecipeError(f"{scheme}:// has no storage option {name!r}; did you mean {near[0]!r}?")


def _forget(file_system: AbstractFileSystem) -> None:
    """Take back what is to be done with a closed file system at the end: adlfs keeps itself alive so, and then fails aloud."""
    for last in list(getattr(weakref.finalize, "_registry", ())):
        if (kept := last.peek()) is not None and kept[0] is file_system:
            last.detach()


def _named(options: Mapping[str, Any]) -> str:
    """Options without their values, which may be secret."""
    return f"the storage_options {', '.join(sorted(options))}" if options else "no storage_options"


def _takes(function: Callable[..., object], name: str, exactly: bool = False) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or (not exactly and any(one.kind is one.VAR_KEYWORD for one in parameters.values()))


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
