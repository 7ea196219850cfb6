"""Files of this machine.

Takes a path: a file, a directory (all that is below it) or a glob. A path that exists is always taken literally, so names may
hold any character; nothing is ever percent-decoded. In a glob `*`, `?` and `[...]` match inside one name and `**` any number
of folders; a folder that matches stands for all that is below it. Hidden files and folders (`.` or `_` first) are ignored, and
so is a symbolic link to a folder that it lies in.

A file is open only while it is being read, so there is no descriptor to run out of or to leak, and every read first compares
size and modification time with the catalog; of what lies beside a shard, with what they were when it was first asked for. Reads are
positional, not mapped: a file that is cut short while it is being read must be an error, not a dead process.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from zephon_async.errors import DatasetError, MissingError, StorageError
from zephon_async.io.catalog import Shard
from zephon_async.io.stores.base import named_beside, names_files

_Folders = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class LocalSource:
    """One local file. known: size and tag of files beside it, by path, as they were when they were first asked for."""

    where: str
    name: str
    path: str
    size: int
    tag: str
    known: dict[str, tuple[int, str]] = field(default_factory=dict, repr=False)
    remote = False

    def read(self, offset: int, length: int) -> bytes:
        try:
            with open(self.path, "rb", buffering=0) as file:
                self._check(os.fstat(file.fileno()))
                file.seek(offset)
                piece = file.read(length)
                if len(piece) < length:  # a system call gives 2 GiB at most
                    pieces = [piece]
                    while piece and (length := length - len(piece)):
                        pieces.append(piece := file.read(length))
                    piece = b"".join(pieces)
                    if length:
                        raise StorageError(f"{self.where}: ends at byte {offset + len(piece):,}, its size was {self.size:,} bytes")
        except OSError as error:
            raise StorageError(f"{self.where}: {self.path!r} cannot be read: {error.strerror or error}") from error
        return piece

    @property
    def key(self) -> str:
        return os.path.abspath(self.path)

    def beside(self, name: str) -> "LocalSource":
        named = named_beside(self.name, name)
        path = self.path[: len(self.path) - len(self.name)] + named
        if path not in self.known:
            try:
                status = os.stat(path)
            except OSError as error:
                kind = MissingError if isinstance(error, FileNotFoundError) else StorageError
                raise kind(f"{self.where}: {path!r}, which must lie beside it, cannot be read: {error.strerror}") from error
            self.known.setdefault(path, (status.st_size, str(status.st_mtime_ns)))
        where = self.where.replace(repr(self.name), repr(named))
        return LocalSource(where, named, path, *self.known[path], self.known)

    def _check(self, status: os.stat_result) -> None:
        if status.st_size != self.size:
            change = f"it had {self.size:,} bytes and has {status.st_size:,}"
        elif str(status.st_mtime_ns) != self.tag:
            change = "it was written to"
        else:
            return
        raise StorageError(f"{self.where}: has changed since the catalog was made ({change}); start again, or put the file back")


class LocalStore:
    """The files that a path stands for. They are listed when it is made."""

    remote, commit = False, ""

    def __init__(self, path: str) -> None:
        """Raises `DatasetError` where there is nothing, or where a folder cannot be listed."""
        self._names: set[str] = set()
        self._ignored: set[str] = set()
        self._known: dict[str, tuple[int, str]] = {}
        self.path = path
        self.explicit = False
        try:
            self._list(path)
        except OSError as error:
            raise DatasetError(f"{error.filename!r} cannot be listed: {error.strerror}") from error

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(self._ignored)

    def shard(self, name: str) -> Shard:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DatasetError(f"the name of {os.path.join(self.root, name)!r} is not UTF-8: rename the file") from None
        try:
            status = os.stat(self._path(name))
        except OSError as error:
            raise DatasetError(f"{error.filename!r} cannot be read: {error.strerror}") from error
        return Shard(name, status.st_size, str(status.st_mtime_ns))

    def open(self, dataset: str, shard: Shard, access: object = None) -> LocalSource:
        where, path = f"dataset {dataset!r}, shard {shard.name!r}", self._path(shard.name)
        return LocalSource(where, shard.name, path, shard.size, shard.tag, self._known)

    def close(self) -> None:
        """Nothing stands open."""

    def _path(self, name: str) -> str:
        return os.path.join(self.root, *name.split("/"))

    def _list(self, path: str) -> None:
        if os.path.isdir(path):
            self.root = path
            self._walk(path, "", frozenset())
        elif os.path.lexists(path):
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise DatasetError(f"{path!r} is neither a file nor a folder")
            self.explicit = True
            self.root, name = os.path.split(path)
            self._names.add(name)
        elif is_pattern(path):
            parts = path.split(os.sep)
            first = next(i for i, part in enumerate(parts) if is_pattern(part))
            self.root = os.sep.join(parts[:first]) or (os.sep if first else "")
            if not os.path.isdir(self.root or os.curdir):
                raise DatasetError(f"the pattern {path!r} matches nothing: there is no folder {self.root!r}{_seen_from(path)}")
            parts = [part for part in parts[first:] if part]
            self._match(self.root or os.curdir, "", parts, frozenset())
            self.explicit = names_files(parts[-1], self._names)
            if not self._names and not self._ignored:
                raise DatasetError(f"the pattern {path!r} matches nothing{_seen_from(path)}")
        else:
            raise DatasetError(f"{path!r} does not exist{_seen_from(path)}{_with_suffix(path)}")

    def _walk(self, folder: str, prefix: str, above: _Folders) -> None:
        """Add all files below a folder; `above` are the folders that it lies in."""
        for entry, name, inner in self._entries(folder, prefix, above):
            if inner is None:
                self._add(entry, name)
            else:
                self._walk(entry.path, f"{name}/", inner)

    def _match(self, folder: str, prefix: str, parts: list[str], above: _Folders) -> None:
        """Add what a pattern, split at the separators, matches below a folder."""
        head, *rest = parts
        if head == "**":
            self._match(folder, prefix, rest or ["*"], above)
        for entry, name, inner in self._entries(folder, prefix, above, head):
            if head == "**":
                if inner is not None:
                    self._match(entry.path, f"{name}/", parts, inner)
            elif rest:
                if inner is not None:
                    self._match(entry.path, f"{name}/", rest, inner)
            elif inner is None:
                self._add(entry, name)
            else:
                self._walk(entry.path, f"{name}/", inner)

    def _entries(
        self, folder: str, prefix: str, above: _Folders, pattern: str = "*"
    ) -> Iterator[tuple["os.DirEntry[str]", str, _Folders | None]]:
        """What is in a folder and matches, not hidden: (entry, name, and for a folder the folders that its files lie in)."""
        status = os.stat(folder)
        above |= {(status.st_dev, status.st_ino)}
        with os.scandir(folder) as entries:
            for entry in entries:
                if pattern != "**" and not fnmatchcase(entry.name, pattern):
                    continue
                name = prefix + entry.name
                is_folder = entry.is_dir()
                if entry.name.startswith((".", "_")):
                    self._ignored.add(f"{name}/" if is_folder else name)
                elif not is_folder:
                    yield entry, name, None
                elif entry.is_symlink() and (target := os.stat(entry.path)) and (target.st_dev, target.st_ino) in above:
                    self._ignored.add(f"{name}/")
                else:
                    yield entry, name, above

    def _add(self, entry: "os.DirEntry[str]", name: str) -> None:
        """A file; a link that leads nowhere too, so that it is missed. No pipes, sockets and devices."""
        regular = entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))
        (self._names if regular else self._ignored).add(name)


def _seen_from(path: str) -> str:
    """Where a relative path was looked for, in words."""
    return "" if os.path.isabs(path) else f" (seen from {os.getcwd()})"


def _with_suffix(path: str) -> str:
    """What there is that is called as a path and a suffix more, in words."""
    folder, name = os.path.split(path)
    listed = os.listdir(folder or os.curdir) if name and os.path.isdir(folder or os.curdir) else []
    found = sorted(repr(other) for other in listed if other.startswith(f"{name}."))
    shown = ", ".join(found[:5]) + (f" and {len(found) - 5:,} more" if len(found) > 5 else "")
    return f"; there {'is' if len(found) == 1 else 'are'} {shown}: a file is named with its suffix" if found else ""


def is_pattern(text: str) -> bool:
    """Whether a name may stand for others."""
    return any(sign in text for sign in "*?[")
