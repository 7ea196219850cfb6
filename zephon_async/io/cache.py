"""Remote bytes kept on a local disk, for all ranks, jobs and runs of a host.

An entry is a whole unit, or a block of 8 MiB on a fixed grid of an object, never the range that was asked for: so other lanes,
ranks, sizes and epochs find it too. It is named by where the object is and by its tag, so one that has changed is another entry; an
object without a tag is not kept. An entry is a file: its bytes, and behind them a mark, the name and a checksum. It is written
elsewhere and gets its place by a rename, so it is there as a whole or not at all; and since a disk or a power cut may harm it
later, each process checks all of it when it first reads it, and whenever it has been written to since. One that is cut, longer or
changed is removed and counts as missing. The checksum is CRC-32, which runs at the speed of a disk. It finds any changed byte, any
burst of 32 bits, and of all else all but one in four thousand million; it guards against accidents, as whoever may write here could
put any checksum. A hit takes no lock but that of the counters. Which entries go, and when, is in `cache_folder`.

When the disk is full, or cannot be written to for any other reason, nothing more is put, one warning says so, and what is there
is still read.

Threads: any thread may call anything at any time; a lock guards the counters and what has been checked, and is not held over files.
"""

import contextlib
import hashlib
import json
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

from zephon_async.errors import InternalError, RecipeError
from zephon_async.forks import tell_of_forks
from zephon_async.io.cache_folder import CacheFolder, on_disk, unusable
from zephon_async.io.storage_options import CacheOptions

BLOCK = 8 << 20
_END = struct.Struct("<8s20sI")  # mark, name, checksum
_MARK = b"zephon1\n"
_PIECE = 1 << 20
_MOST_CHECKED = 1 << 17
_USED_AGAIN_S = 10
_TELLS_APART_S = 2
"""Times of files are as coarse as that; what was written to just now may be written to again and look the same."""
_Written: TypeAlias = tuple[int, int]  # inode and modification time: what changes when a file does
_log = logging.getLogger("zephon_async")


class Entry(NamedTuple):
    """`length` bytes from `offset` on of an object of `size` bytes. store: its root and endpoint, so that no two stores are one."""

    store: str
    key: str
    tag: str
    size: int
    offset: int
    length: int

    @property
    def name(self) -> str:
        """Of its file: 40 hex digits."""
        return hashlib.blake2b(json.dumps(self).encode(), digest_size=20).hexdigest()


def blocks(store: str, key: str, tag: str, size: int, offset: int, length: int) -> Iterator[Entry]:
    """The blocks of an object's grid that hold `length` bytes from `offset` on. The last one of an object may be shorter."""
    for start in range(offset // BLOCK * BLOCK, min(offset + length, size) if length else 0, BLOCK):
        yield Entry(store, key, tag, size, start, min(BLOCK, size - start))


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a cache has done in this process. broken: entries that were not as they were written. off: nothing more is put."""

    hits: int = 0
    misses: int = 0
    read_bytes: int = 0
    put: int = 0
    put_bytes: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    broken: int = 0
    off: bool = False


class DiskCache:
    """A cache below `root` that takes at most `limit_bytes` of the disk.

    None: a tenth of what is free or already the cache's, but at least 1 GiB, or half of it where there are no 2 GiB.

    Caches of one root share their entries. With different limits, each makes room by its own when it puts something.
    validate: check entries when this process first reads them; else only that they are as long as they should be, and the right
        ones.
    Raises `RecipeError` for a root that cannot be used and for a limit that the disk has no room for.
    """

    def __init__(self, root: Path, limit_bytes: int | None = None, *, validate: bool = True) -> None:
        self._folder = CacheFolder(root)
        self._validate = validate
        self._statistics = CacheStatistics()
        self._checked: dict[str, _Written] = {}
        self.forked()
        tell_of_forks(self)
        try:
            free, held = self._folder.space()
            self.limit_bytes = _limit(root, limit_bytes, free, held)
            self._make_room(0)
        except OSError as error:
            raise unusable(root, error) from None

    def __repr__(self) -> str:
        now = self._statistics
        return f"<DiskCache {str(self._folder.path)!r}: {now.hits} hits, {now.misses} misses{', off' if now.off else ''}>"

    def forked(self) -> None:
        self._lock = threading.Lock()

    def statistics(self) -> CacheStatistics:
        """The counters as they are now."""
        return self._statistics

    def get(self, entry: Entry, offset: int = 0, length: int | None = None) -> bytes | None:
        """`length` bytes of an entry (None: to its end) from its byte `offset` on; None where it is not here, or is broken."""
        length = entry.length - offset if length is None else length
        if not 0 <= offset <= offset + length <= entry.length:
            raise InternalError(f"{length} bytes from {offset} on of a cache entry that has {entry.length}")
        found = self._read(entry, offset, length) if entry.tag else None
        if found is None:
            self._count(misses=1)
        else:
            self._count(hits=1, read_bytes=length)
        return found

    def put(self, entry: Entry, body: bytes | memoryview) -> None:
        """Keep an entry. What has no tag, is larger than the limit, or comes when the cache is off, is not kept."""
        if len(body) != entry.length:
            raise InternalError(f"a body of {len(body)} bytes for a cache entry of {entry.length}")
        if not entry.tag or self._statistics.off or on_disk(entry.length + _END.size) > self.limit_bytes:
            return
        try:
            try:
                kept = self._write(entry.name, body)
            except FileNotFoundError:  # somebody has removed the folder
                self._folder.make()
                kept = self._write(entry.name, body)
        except (OSError, RecipeError) as error:
            self._turn_off(error)
            return
        if kept:
            self._count(put=1, put_bytes=entry.length)

    def _write(self, name: str, body: bytes | memoryview) -> bool:
        temporary = self._make_room(len(body) + _END.size)
        if temporary is None:  # others are writing that much
            return False
        end = _END.pack(_MARK, bytes.fromhex(name), zlib.crc32(body))
        try:
            with open(temporary, "r+b", buffering=0) as file:
                for part in (memoryview(body), memoryview(end)):
                    while part:
                        part = part[file.write(part) :]
            self._folder.publish(temporary, name)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return True

    def _make_room(self, nbytes: int) -> Path | None:
        room = self._folder.room(nbytes, self.limit_bytes)
        if room.evicted:
            self._count(evicted=room.evicted, evicted_bytes=room.evicted_bytes)
        return room.path

    def _turn_off(self, error: Exception) -> None:
        with self._lock:
            first = not self._statistics.off
            self._statistics = replace(self._statistics, off=True)
        if first:
            _log.warning("nothing more is put into the cache %s, the run goes on without: %s", self._folder.path, error)

    def _read(self, entry: Entry, offset: int, length: int) -> bytes | None:
        name = entry.name
        path = self._folder.entry(name)
        try:
            file = open(path, "rb", buffering=0)  # noqa: SIM115
        except OSError:  # not here, or may not be read now
            return None
        with file:
            try:
                found = self._read_file(file, name, entry.length, offset, length)
                _use(path, os.fstat(file.fileno()))
            except OSError:  # the disk has failed
                found = None
        if found is None:
            self._count(broken=1)
            with contextlib.suppress(OSError):
                path.unlink()
        return found

    def _read_file(self, file: BinaryIO, name: str, size: int, offset: int, length: int) -> bytes | None:
        status = os.fstat(file.fileno())
        if status.st_size != size + _END.size:
            return None
        written = (status.st_ino, status.st_mtime_ns)
        with self._lock:
            checked = not self._validate or self._checked.get(name) == written
        file.seek(offset if checked else 0)
        found, checksum = (_exactly(file, length), None) if checked else _summed(file, size, offset, length)
        file.seek(size)
        end = file.read(_END.size)
        if len(found) < length or end[:-4] != _MARK + bytes.fromhex(name):
            return None
        if checksum is not None:
            if checksum != _END.unpack(end)[2]:
                return None
            if time.time_ns() - status.st_mtime_ns > _TELLS_APART_S * 10**9:
                self._remember(name, written)
        return found

    def _remember(self, name: str, written: _Written) -> None:
        with self._lock:
            if len(self._checked) >= _MOST_CHECKED:
                del self._checked[next(iter(self._checked))]
            self._checked[name] = written

    def _count(self, **more: int) -> None:
        with self._lock:
            now = self._statistics
            self._statistics = replace(now, **{name: getattr(now, name) + number for name, number in more.items()})


def opened(options: CacheOptions) -> DiskCache | None:
    """The cache that the options ask for, if any."""
    return DiskCache(options.root, options.limit_bytes, validate=options.validates) if options.enabled else None


def _limit(root: Path, asked: int | None, free: int, held: int) -> int:
    there_is = free + held
    if asked is None:
        return max(there_is // 10, min(1 << 30, there_is // 2))
    if asked > there_is:
        raise RecipeError(
            f"the cache's limit is {asked:,} bytes and the disk of {str(root)!r} has room for {there_is:,}: "
            f"{free:,} that are free and {held:,} that the cache has; give a limit below that, or a root on another disk"
        )
    return asked


def _use(path: Path, status: os.stat_result) -> None:
    """Set an entry's access time, which tells when it was used last; not its modification time."""
    now = time.time_ns()
    if now - status.st_atime_ns > _USED_AGAIN_S * 10**9:
        with contextlib.suppress(OSError):  # another user's, or just evicted
            os.utime(path, ns=(now, status.st_mtime_ns))


def _exactly(file: BinaryIO, length: int) -> bytes:
    """The next `length` bytes, or as many as there are."""
    piece = file.read(length)
    if len(piece) == length:
        return piece
    pieces = [piece]  # a system call gives 2 GiB at most
    while piece and (length := length - len(piece)):
        pieces.append(piece := file.read(length))
    return b"".join(pieces)


def _summed(file: BinaryIO, size: int, offset: int, length: int) -> tuple[bytes, int]:
    """Bytes of the next `size`, and the checksum of all of them."""
    if length == size:  # without putting pieces together
        whole = _exactly(file, size)
        return whole, zlib.crc32(whole)
    pieces, checksum, at = [], 0, 0
    while at < size and (piece := _exactly(file, min(_PIECE, size - at))):
        checksum = zlib.crc32(piece, checksum)
        pieces.append(piece[max(offset - at, 0) : max(offset + length - at, 0)])
        at += len(piece)
    return b"".join(pieces), checksum
