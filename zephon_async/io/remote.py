"""Objects of a storage over the network as the files of a dataset.

Takes a URL: of an object, of a folder (all objects whose keys begin with it and a slash), or a pattern. What an object or a folder
is named is always taken literally, so keys may hold any character; nothing is percent-decoded. In a pattern `*`, `?` and `[...]`
match inside one name and `**` any number of folders; a folder that matches stands for all that is below it. Hidden objects and
folders (`.` or `_` first) are ignored. Sizes and tags are those of the listing, and what is read must be of that tag.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from zephon_async.errors import DatasetError, MissingError, ShardError
from zephon_async.io.access import Access, is_forbidden
from zephon_async.io.catalog import Shard
from zephon_async.io.ranges import Place, Range
from zephon_async.io.stores import Object, is_pattern, named_beside, names_files, scheme_of, shown

LOCAL = ("file://", "local://")
"""What URLs of this machine begin with."""
WEB = ("http://", "https://")  # where nothing is listed, and "?" means something else


@dataclass(frozen=True, slots=True, eq=False)
class RemoteSource:
    """One object. access: how it is read; None: by a connection of its own, each time.

    listed: what is known of others, by name. looked: what was not listed and has been asked for, by key; None is not there.
    """

    where: str
    name: str
    place: Place
    found: Object
    access: Access | None
    listed: Mapping[str, Object] = field(default_factory=dict, repr=False)
    looked: dict[str, Object | None] = field(default_factory=dict, repr=False)
    remote = True

    @property
    def size(self) -> int:
        return self.found.size

    @property
    def key(self) -> str:
        return f"{self.place.name} {self.found.key}"

    @property
    def tag(self) -> str:
        return self.found.tag

    def beside(self, name: str) -> "RemoteSource":
        named = named_beside(self.name, name)
        where = self.where.replace(repr(self.name), repr(named))
        if (found := self.listed.get(named)) is None:
            key = named_beside(self.found.key, name)
            if key not in self.looked:
                self.looked.setdefault(key, self._look(where, key))
            if (found := self.looked[key]) is None:
                raise MissingError(f"{self.where}: there is no {key!r}, which must lie beside it")
        return RemoteSource(where, named, self.place, found, self.access, self.listed, self.looked)

    def _look(self, where: str, key: str) -> Object | None:
        if self.access is not None:
            return self.access.look(where, self.place, key)
        with Access() as access:
            return access.look(where, self.place, key)

    def read(self, offset: int, length: int) -> bytes:
        wanted = self.range(offset, length)
        if not length:
            return b""
        if self.access is not None:
            return self.access.read(wanted)
        with Access() as access:
            return access.read(wanted)

    def tail(self, length: int) -> bytes:
        """The last bytes: `length` of them, or what `keep` was told."""
        wanted = self.range(max(0, self.size - length), min(length, self.size))
        return self.read(wanted.offset, wanted.length) if self.access is None else self.access.tail(wanted)

    def keep(self, tail: bytes) -> None:
        """These last bytes are all that is needed of the end."""
        if self.access is not None:
            self.access.keep(self.range(self.size - len(tail), len(tail)), tail)

    def range(self, offset: int, length: int) -> Range:
        """Bytes of it, to be fetched."""
        if offset + length > self.size:
            raise ShardError(f"{self.where}: there are no bytes {offset:,} to {offset + length:,}, its size is {self.size:,}")
        return Range(self.where, self.place, self.found, offset, length)


@dataclass(frozen=True, slots=True, eq=False)
class RemoteStore:
    """The objects that a URL stands for, by their names below its root.

    Threads: a value, but for `looked`, to which any may add; what was first is kept.
    """

    place: Place
    objects: Mapping[str, Object] = field(repr=False)
    ignored: tuple[str, ...] = field(default=(), repr=False)
    explicit: bool = False
    commit: str = ""
    remote: bool = field(default=True, init=False)
    looked: dict[str, Object | None] = field(default_factory=dict, init=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.objects)

    def shard(self, name: str) -> Shard:
        if name not in self.objects:
            raise DatasetError(f"there is no {name!r} among what was listed")
        return Shard(name, self.objects[name].size, self.objects[name].tag)

    def open(self, dataset: str, shard: Shard, access: Access | None = None) -> RemoteSource:
        found = self.objects[shard.name]
        where = f"dataset {dataset!r}, shard {shard.name!r}"
        return RemoteSource(where, shard.name, self.place, found, access, self.objects, self.looked)

    def close(self) -> None:
        """Nothing stands open."""


def placed(url: str, options: Mapping[str, object]) -> tuple[Place, str]:
    """What is connected to for a URL, and the key there."""
    root, key = scheme_of(url).split(url)
    return Place(root if root.endswith("/") else f"{root}/", options), key


def list_url(url: str, options: Mapping[str, object], access: Access) -> RemoteStore:
    """List what a URL stands for. Raises `DatasetError` where there is nothing."""
    place, key = placed(url, options)
    said = shown(url)
    if key and not key.endswith("/") and (found := _looked(access, said, place, key)) is not None:
        return RemoteStore(place, {key.rpartition("/")[2]: found}, explicit=True)
    if url.startswith(WEB) and key and not key.endswith("/"):
        raise DatasetError(f"{said!r}: there is no such file; a web server lists none, so each must be named, and no pattern")
    before, parts = _split(key, patterns=not url.startswith(WEB))
    base, folder = "/".join([*before, ""]), key if key.endswith("/") else f"{key}/"
    listed = access.listing(said, place, base + _lead(parts))
    if parts and any(found.key.startswith(folder) for found in listed):  # what looks like a pattern is a folder
        base, parts = folder, []
    objects: dict[str, Object] = {}
    ignored: set[str] = set()
    for found in listed:
        if not found.key.startswith(base):
            continue
        name = found.key[len(base) :]
        if (hidden := _hidden(name)) is None:
            if name and _matches(parts, name.split("/")):
                objects[name] = found
        elif _matches(parts, hidden.removesuffix("/").split("/"), reached=True):
            ignored.add(hidden)
    if not objects and not ignored:
        nothing = "the pattern matches nothing" if parts else "there is no such object, and no object below it"
        raise DatasetError(f"{said!r}: {nothing}")
    explicit = bool(parts) and names_files(parts[-1], objects)
    return RemoteStore(place, objects, tuple(sorted(ignored, key=str.encode)), explicit)


def _looked(access: Access, said: str, place: Place, key: str) -> Object | None:
    """An object, if there is one; where that may not be asked, a listing will tell."""
    try:
        return access.look(said, place, key)
    except ShardError as error:
        if not is_forbidden(error) or said.startswith(WEB):
            raise
    return None


def _split(key: str, patterns: bool) -> tuple[list[str], list[str]]:
    """The folders before a pattern, and the pattern; without one, the folder itself, which may end in a slash, and nothing."""
    parts = key.split("/")
    first = next((n for n, part in enumerate(parts) if patterns and is_pattern(part)), None)
    if first is None:
        return (parts[:-1] if parts[-1] == "" else parts), []
    return parts[:first], [part for part in parts[first:] if part]


def _lead(parts: Sequence[str]) -> str:
    """What every name begins with that a pattern matches."""
    if not parts:
        return ""
    signs = [at for sign in "*?[" if (at := parts[0].find(sign)) >= 0]
    return parts[0][: min(signs)] if signs else parts[0]


def _matches(pattern: Sequence[str], names: Sequence[str], reached: bool = False) -> bool:
    """Whether a pattern matches a name, or a folder that it is in; both split at the slashes.

    reached: whether it matches as much of the pattern as the name is long: whoever looks for it folder by folder comes by the name.
    """
    if not pattern or (reached and not names):
        return True
    head, *rest = pattern
    if head == "**":
        return reached or any(_matches(rest or ["*"], names[n:]) for n in range(len(names)))
    return bool(names) and fnmatchcase(names[0], head) and _matches(rest, names[1:], reached)


def _hidden(name: str) -> str | None:
    """The hidden folder, with a slash, or the hidden name that an object is or lies in."""
    parts = name.split("/")
    for n, part in enumerate(parts):
        if part.startswith((".", "_")) and part not in (".", ".."):
            return "/".join([*parts[: n + 1], *([""] if n + 1 < len(parts) else [])])
    return None
