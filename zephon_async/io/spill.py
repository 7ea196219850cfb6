"""Bytes that must wait where there is no memory for them: in an unlinked file of the temporary folder, which outlives nobody.

Threads: a lock guards which places are free; reads and writes are positional. The descriptor is closed when nobody reads or writes
by it any more, whoever closes the spill meanwhile: its number may be another file's then.
"""

import os
import shutil
import tempfile
import threading
import weakref
from contextlib import suppress

from zephon_async.forks import tell_of_forks
from zephon_async.leftovers import owned

_SHARE = 10  # one part in so many of the free disk may be used


class _File:
    """An open descriptor, until nobody has it."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)


class Spill:
    """A file of at most `limit_bytes` (None: a tenth of the disk that is free when it is first written to)."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._lock = threading.Lock()
        self._limit = limit_bytes
        self._file: _File | None = None
        self._free: list[tuple[int, int]] = []  # (offset, length), in the order of the file
        self._end = 0
        tell_of_forks(self)

    def __repr__(self) -> str:
        return f"<Spill {self._end:,} bytes, {sum(length for _, length in self._free):,} of them free>"

    def forked(self) -> None:
        self._lock = threading.Lock()

    @property
    def limit_bytes(self) -> int:
        if self._limit is None:
            try:
                self._limit = shutil.disk_usage(tempfile.gettempdir()).free // _SHARE
            except OSError:
                self._limit = 0
        return self._limit

    def put(self, piece: bytes | bytearray) -> int | None:
        """Write bytes; gives where they are, or None where there is no room for them."""
        with self._lock:
            at, file = self._place(len(piece)), self._file
        if at is None or file is None:
            return None
        left, offset = memoryview(piece), at
        try:
            while left:
                written = os.pwrite(file.number, left, offset)
                left, offset = left[written:], offset + written
        except OSError:  # the disk is full, or it broke
            self.free(at, len(piece))
            return None
        return at

    def get(self, at: int, length: int) -> bytes:
        """Bytes that were put, or a part of them. Raises `OSError` where they are not there."""
        file, found = self._file, b""
        while len(found) < length:
            more = b"" if file is None else os.pread(file.number, length - len(found), at + len(found))
            if not more:
                raise OSError(f"a file in {tempfile.gettempdir()!r} has lost bytes that were written to it")
            found = more if not found else found + more
        return found

    def free(self, at: int, length: int) -> None:
        """Let others have the place of bytes that were put."""
        with self._lock:
            places = sorted([*self._free, (at, length)])
            joined: list[tuple[int, int]] = []
            for begin, size in places:
                if joined and joined[-1][0] + joined[-1][1] == begin:
                    begin, size = joined[-1][0], joined.pop()[1] + size
                joined.append((begin, size))
            if joined and sum(joined[-1]) == self._end:
                self._end = joined.pop()[0]
                if self._file is not None:
                    with suppress(OSError):
                        os.ftruncate(self._file.number, self._end)
            self._free = joined

    def close(self) -> None:
        """Give the disk back; what was put is lost, and there is room for nothing more."""
        with self._lock:
            self._file, self._limit, self._end, self._free = None, 0, 0, []

    def _place(self, length: int) -> int | None:
        """Where `length` bytes have room: the first place that is free, or the end."""
        for n, (at, size) in enumerate(self._free):
            if size >= length:
                self._free[n : n + 1] = [(at + length, size - length)] if size > length else []
                return at
        if self._end + length > self.limit_bytes:
            return None
        if self._file is None:
            try:
                descriptor, path = tempfile.mkstemp(prefix=owned())
            except OSError:
                return None
            self._file = _File(descriptor)
            os.unlink(path)
        at, self._end = self._end, self._end + length
        return at
