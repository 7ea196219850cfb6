"""The folder of the disk cache: which files are its own, how much they take, and which go when there is no room.

    <root>/zephon-cache-v1/CACHEDIR.TAG                  says what this is, to people and to backup programs
                           taken                         bytes that are taken or promised; locked while that is changed
                           temporary/zephon-...          being written, named after the owner (see `leftovers`)
                           3f/3f09...                    entries, named by 40 hex digits

Nothing else is ever looked into, counted or removed, neither in the root nor here. A new entry first gets room: under the lock a
temporary file of its full size is made and its bytes are added to those that are taken, so that entries and what is being written
stay within the limit whatever the number of processes. Where that would go above it, the folder is counted anew, what dead
processes have left is removed, and the entries that were used longest ago go, until a 32nd of the limit is free. Where a
crash makes the number wrong, it is too large, and the next count puts it right. The system takes the lock from a process that ends.

When an entry was used last is its access time, which readers set; that it was written to shows in its modification time.

Threads: a folder is a value; all that changes is on the disk, behind a file lock. Where a system has none, two may make room at
once and the limit can be passed by what was put in between two counts.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from zephon_async.errors import RecipeError
from zephon_async.leftovers import OWNED, leftovers, owned

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

CACHE, WRITING = "zephon-cache-v1", "temporary"
_MARKER = "CACHEDIR.TAG"
_SAYS = """Signature: 8a477f597d28d172789f06886806bc55
# Copies of remote data that zephon_async has read, see https://bford.info/cachedir/. All of this folder may be deleted at any time.
"""
_FAN = re.compile(r"[0-9a-f]{2}")
_ENTRY = re.compile(r"[0-9a-f]{40}")
_CLUSTER = 4096
"""Files take whole clusters of a disk."""
_FREED = 32
"""The part of the limit that is free after room was made, so that it is not made for every entry."""
_ABANDONED_S = 3600.0
"""A temporary file that nobody has written to for so long is nobody's; its process may have been of a container that is gone."""


class Room(NamedTuple):
    """What came of asking for room. path: the file to write; None: there is no room, even without all that may go."""

    path: Path | None
    evicted: int
    evicted_bytes: int


class _Found(NamedTuple):
    used_ns: int
    nbytes: int
    path: str


def unusable(root: Path, error: Exception) -> RecipeError:
    """What to say of a root that the system refuses."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return RecipeError(f"the cache cannot use the folder {str(root)!r}: {reason}; give another root")


def on_disk(nbytes: int) -> int:
    """What a file of so many bytes takes on the disk."""
    return -(-nbytes // _CLUSTER) * _CLUSTER


class CacheFolder:
    """The own folder of the cache below a root.

    Raises `RecipeError` where the root is no folder, cannot be written to, or has a folder of this name that is somebody else's.
    """

    def __init__(self, root: Path) -> None:
        self.path = Path(os.path.abspath(root)) / CACHE
        self._temporary = self.path / WRITING
        self._taken = self.path / "taken"
        try:
            self.make()
            with self._locked():
                pass
            self._try()
        except RecipeError:
            raise
        except (OSError, ValueError) as error:
            raise unusable(root, error) from None

    def _try(self) -> None:
        """Whether files can be made here. On a full disk they cannot, and what is here can still be read."""
        try:
            self._new(0).unlink()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def make(self) -> None:
        """Make the folder, or what is not there of it any more."""
        self.path.mkdir(parents=True, exist_ok=True)
        marker = self.path / _MARKER
        if os.listdir(self.path) and not marker.exists():  # the marker is made before all else
            raise RecipeError(
                f"{str(self.path)!r} is there and is not of this package ({_MARKER} is missing); move it away, or give another root"
            )
        with contextlib.suppress(FileExistsError), open(marker, "x", encoding="ascii") as file:
            file.write(_SAYS)
        self._temporary.mkdir(exist_ok=True)

    def entry(self, name: str) -> Path:
        """Where an entry lies, or would."""
        return self.path / name[:2] / name

    def space(self) -> tuple[int, int]:
        """Bytes that are free on the disk, and bytes that the cache takes of it."""
        with self._locked() as taken:
            found, pending = self._count()
            held = pending + sum(each.nbytes for each in found)
            _write(taken, held)
        return shutil.disk_usage(self.path).free, held

    def room(self, nbytes: int, limit: int) -> Room:
        """Make room for a file of so many bytes, and make that file; of none, only see that what there is keeps to the limit."""
        evicted = evicted_bytes = 0
        need = on_disk(nbytes)
        with self._locked() as taken:
            held = _read(taken)
            if held is None or held + need > limit:
                found, pending = self._count()
                held = pending + sum(each.nbytes for each in found)
                if held + need > limit:
                    for each in sorted(found):
                        if held + need <= limit - limit // _FREED:
                            break
                        if _removed(each.path):
                            held -= each.nbytes
                            evicted += 1
                            evicted_bytes += each.nbytes
            path = self._new(nbytes) if nbytes and held + need <= limit else None
            _write(taken, held + need if path else held)
        return Room(path, evicted, evicted_bytes)

    def publish(self, temporary: Path, name: str) -> None:
        """Give a temporary file its place as an entry."""
        path = self.entry(name)
        path.parent.mkdir(exist_ok=True)
        os.replace(temporary, path)

    def _new(self, nbytes: int) -> Path:
        """Make a temporary file of so many bytes."""
        path = self._temporary / (owned() + secrets.token_hex(4))
        with open(path, "xb") as file:
            try:
                file.truncate(nbytes)
            except OSError:
                path.unlink()
                raise
        return path

    def _count(self) -> tuple[list[_Found], int]:
        """The entries, and the bytes that those who are writing have been promised. Removes what dead processes have left.

        Temporary files come first: one that becomes an entry meanwhile is counted twice rather than not at all.
        """
        with contextlib.suppress(FileNotFoundError):  # somebody else removes them too
            for each in leftovers(self._temporary):
                with contextlib.suppress(OSError):
                    each.remove()
        pending, abandoned = 0, time.time() - _ABANDONED_S
        for path, status in _files(self._temporary, OWNED):
            if status.st_mtime < abandoned and _removed(path):
                continue
            pending += on_disk(status.st_size)
        found = []
        with os.scandir(self.path) as fans:
            folders = sorted(fan.path for fan in fans if _FAN.fullmatch(fan.name) and fan.is_dir(follow_symlinks=False))
        for folder in folders:
            found += [_Found(at.st_atime_ns, on_disk(at.st_size), path) for path, at in _files(folder, _ENTRY)]
        return found, pending

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """The file with the bytes that are taken, while nobody else changes them."""
        with os.fdopen(os.open(self._taken, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as file:
            if fcntl is None:
                yield file
                return
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield file
            finally:
                with contextlib.suppress(OSError):  # not by closing alone: a forked child may have the descriptor too
                    fcntl.flock(file, fcntl.LOCK_UN)


def _read(taken: BinaryIO) -> int | None:
    number = taken.read(9)
    return int.from_bytes(number, "little") if len(number) == 8 else None


def _write(taken: BinaryIO, nbytes: int) -> None:
    taken.seek(0)
    taken.write(nbytes.to_bytes(8, "little"))


def _files(folder: str | Path, named: re.Pattern[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Files of a folder whose names are such. What vanishes meanwhile is left out."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            if named.fullmatch(file.name):
                with contextlib.suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield file.path, status


def _removed(path: str) -> bool:
    """Remove a file; whether it is gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:  # somebody else's, in a folder where only owners may remove
        return False
    return True
