"""Shared memory between the engine and one worker process, and the form in which rows lie in it.

An `Arena` is a memfd (elsewhere an unlinked file): it has no name, so it outlives nobody, meets no other job and does not count
against /dev/shm. Each side of a worker has one that only it writes, and the two take turns: what was laid down is read, and copied
out where it stays, before the next is.

Records lie in it as one Arrow IPC stream, the segments of their origins, and the offsets of these, each at a multiple of 64.
"""

import mmap
import os
import tempfile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.leftovers import owned
from zephon_async.records import ORIGIN, Origins, Records

_LEAST = 1 << 16
_KEPT = 1 << 24  # bytes; a larger arena is made smaller when much less is needed
_ALIGNED = 64
_STREAM_ENDS = 1 << 10  # bytes of an IPC stream around its schema and its batch


class Layout(NamedTuple):
    """How many bytes of each part lie in an arena; -1 where there is none."""

    columns: int = -1
    segments: int = -1
    offsets: int = -1
    extra: int = -1


class Arena:
    """A piece of shared memory that grows and shrinks with what is laid down. Threads: for one at a time."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory: mmap.mmap | None = None

    @classmethod
    def new(cls) -> "Arena":
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("zephon-arena", os.MFD_CLOEXEC))
        descriptor, path = tempfile.mkstemp(prefix=owned())
        os.unlink(path)
        return cls(descriptor)

    @property
    def nbytes(self) -> int:
        """Bytes of it that this side has mapped."""
        return 0 if self._memory is None else len(self._memory)

    def room(self, size: int) -> memoryview:
        """Writable memory of at least `size` bytes, for the side that writes; what was there is lost."""
        if size > self.nbytes or self.nbytes > max(_KEPT, 4 * size):
            wanted = max(_LEAST, 1 << (size - 1).bit_length() if size else 0)
            os.ftruncate(self.descriptor, wanted)
            self._memory = mmap.mmap(self.descriptor, wanted)
        assert self._memory is not None
        return memoryview(self._memory)

    def view(self, size: int) -> memoryview:
        """The first `size` bytes, for the side that reads."""
        there = os.fstat(self.descriptor).st_size
        if there != self.nbytes:
            self._memory = mmap.mmap(self.descriptor, there)
        assert self._memory is not None
        return memoryview(self._memory)[:size]

    def close(self) -> None:
        """Let go of it; views that are left keep the memory."""
        self._memory = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def put(arena: Arena, records: Records | None, extra: bytes = b"") -> Layout:
    """Lay records, and bytes besides, into an arena."""
    if records is None:
        if extra:
            arena.room(len(extra))[: len(extra)] = extra
        return Layout(extra=len(extra))
    segments, offsets = records.origins.segments, records.origins.offsets
    parts = [segments, *([] if offsets is None else [offsets])]
    behind = sum(_aligned(part.nbytes) for part in parts) + len(extra)
    memory, columns = _write(arena, records.columns, behind)
    at = _aligned(columns)
    for part in parts:
        np.frombuffer(memory, np.uint8, part.nbytes, at)[:] = part.view(np.uint8)
        at += _aligned(part.nbytes)
    memory[at : at + len(extra)] = extra
    return Layout(columns, segments.nbytes, -1 if offsets is None else offsets.nbytes, len(extra))


def get(arena: Arena, layout: Layout, copied: bool) -> tuple[Records | None, bytes]:
    """What lies in an arena; `copied` where it is to outlive the next that is laid down."""
    columns, segments, offsets, extra = (_aligned(max(size, 0)) for size in layout)
    size = columns + segments + offsets + extra
    memory: memoryview | npt.NDArray[np.uint8] = arena.view(size) if size else memoryview(b"")
    if copied and size:
        memory = np.frombuffer(memory, np.uint8).copy()
    at = columns + segments + offsets
    besides = bytes(memory[at : at + max(layout.extra, 0)])
    if layout.columns < 0:
        return None, besides
    with pa.ipc.open_stream(pa.py_buffer(memory[: layout.columns])) as stream:
        batch = stream.read_next_batch()
    of_rows = np.frombuffer(memory, ORIGIN, layout.segments // ORIGIN.itemsize, columns)
    bounds = None if layout.offsets < 0 else np.frombuffer(memory, np.int64, layout.offsets // 8, columns + segments)
    return Records(batch, Origins(of_rows, bounds)), besides


def _write(arena: Arena, columns: pa.RecordBatch, behind: int) -> tuple[memoryview, int]:
    """Write a batch to the beginning of an arena with room behind it; gives the memory and the bytes of the stream."""
    size = pa.ipc.get_record_batch_size(columns) + columns.schema.serialize().size + _STREAM_ENDS
    memory = arena.room(_aligned(size) + behind)
    try:
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
        with pa.ipc.new_stream(sink, columns.schema) as stream:
            stream.write_batch(columns)
        return memory, int(sink.tell())
    except (pa.ArrowInvalid, OSError):  # larger than foreseen, such as by dictionaries
        growing = pa.BufferOutputStream()
        with pa.ipc.new_stream(growing, columns.schema) as stream:
            stream.write_batch(columns)
        written = growing.getvalue()
        memory = arena.room(_aligned(written.size) + behind)
        memory[: written.size] = memoryview(written).cast("B")
        return memory, int(written.size)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
