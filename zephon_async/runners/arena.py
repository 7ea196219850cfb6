"""Shared memory between the engine and one worker process, and the form in which rows lie in it.

An `Arena` is a memfd (elsewhere an unlinked file): it has no name, so it outlives nobody, meets no other job and does not count
against /dev/shm. Only one side writes to it, and the two take turns: what was laid down is read before the next is. What is read is
a view of it, or a copy where it may have to stay.

Records lie in it as one Arrow IPC stream, the segments of their origins, and the offsets of these, each at a multiple of 64. What
their views refer to lies there too, and nothing else of those buffers.
"""

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from zephon_async.leftovers import owned
from zephon_async.records import ORIGIN, Origins, Records
from zephon_async.views import compact

_LEAST = 1 << 16
_KEPT = 4 << 20  # bytes, which an arena keeps whatever is laid down
_ALIGNED = 64
_STREAM_ENDS = 1 << 10  # room for what of an IPC stream is neither its schema nor its batch
_END = 8  # bytes of its end
_WITHOUT_DESCRIPTOR: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
"""A map otherwise keeps one of its own for as long as anybody has a view."""


class Layout(NamedTuple):
    """How many bytes of each part lie in an arena; -1 where there is none.

    schema: of the columns, those of the schema at their beginning; 0 where dictionaries follow it.
    """

    columns: int = -1
    schema: int = 0
    segments: int = -1
    offsets: int = -1
    extra: int = -1

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last."""
        return sum(aligned(max(size, 0)) for size in (self.columns, self.segments, self.offsets, self.extra))


class Arena:
    """A piece of shared memory that grows and shrinks with what is laid down. Threads: for one at a time, but for `nbytes`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory: mmap.mmap | None = None
        self._schema: tuple[bytes, pa.Schema] | None = None  # what was read last

    @classmethod
    def new(cls) -> "Arena":
        if hasattr(os, "memfd_create"):
            return cls(above_stdio(os.memfd_create("zephon-arena", os.MFD_CLOEXEC)))
        descriptor, path = tempfile.mkstemp(prefix=owned())
        os.unlink(path)
        return cls(above_stdio(descriptor))

    @property
    def nbytes(self) -> int:
        """Bytes of it that this side has mapped."""
        memory = self._memory
        return 0 if memory is None else len(memory)

    def room(self, size: int) -> memoryview:
        """Writable memory of at least `size` bytes, for the side that writes; what was there is lost."""
        if size > self.nbytes or self.nbytes > max(_KEPT, 4 * size):
            wanted = max(_LEAST, 1 << (size - 1).bit_length() if size else 0)
            os.ftruncate(self.descriptor, wanted)
            self._memory = _mapped(self.descriptor, wanted)
        assert self._memory is not None
        return memoryview(self._memory)

    def view(self, size: int) -> memoryview:
        """The first `size` bytes, for the side that reads."""
        there = os.fstat(self.descriptor).st_size
        if there != self.nbytes:
            self._memory = _mapped(self.descriptor, there)
        return memoryview(b"" if self._memory is None else self._memory)[:size]

    def columns(self, stream: pa.Buffer, schema: int) -> pa.RecordBatch:
        """The batch of a stream that lies here. Its schema is only read where it is not that of the batch before."""
        head = stream.slice(0, schema).to_pybytes()
        if schema and self._schema is not None and self._schema[0] == head:
            return pa.ipc.read_record_batch(stream.slice(schema), self._schema[1])
        with pa.ipc.open_stream(stream) as reader:
            if schema:
                self._schema = head, reader.schema
            return reader.read_next_batch()

    def close(self) -> None:
        """Let go of it; views that are left keep the memory."""
        self._memory = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def above_stdio(descriptor: int) -> int:
    """The same by a number above 2, in a program that has closed its stdin, stdout or stderr: a child has others of these."""
    if descriptor > 2:
        return descriptor
    import fcntl

    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, **_WITHOUT_DESCRIPTOR)


def lay_down(arena: Arena, records: Records | None, extra: bytes = b"") -> Layout:
    """Lay records, and bytes besides, into an arena."""
    if records is None:
        if extra:
            arena.room(len(extra))[: len(extra)] = extra
        return Layout(extra=len(extra))
    segments, offsets = records.origins.segments, records.origins.offsets
    parts = [segments, *([] if offsets is None else [offsets])]
    behind = sum(aligned(part.nbytes) for part in parts) + len(extra)
    memory, columns, schema = _write(arena, compact(records.columns), behind)
    at = aligned(columns)
    for part in parts:
        np.frombuffer(memory, np.uint8, part.nbytes, at)[:] = part.view(np.uint8)
        at += aligned(part.nbytes)
    memory[at : at + len(extra)] = extra
    return Layout(columns, schema, segments.nbytes, -1 if offsets is None else offsets.nbytes, len(extra))


def pick_up(
    arena: Arena, layout: Layout, copied: bool, released: Callable[[], object] = lambda: None
) -> tuple[Records | None, bytes]:
    """What lies in an arena, and the bytes besides; `released` is called when nobody has a view of it any more."""
    columns, segments, offsets, extra = (
        aligned(max(size, 0)) for size in (layout.columns, layout.segments, layout.offsets, layout.extra)
    )
    if not (size := columns + segments + offsets + extra):
        released()
        return None, b""
    memory = np.frombuffer(arena.view(size), np.uint8)
    weakref.finalize(memory, released)
    if copied:
        memory = memory.copy()
    at = columns + segments + offsets
    besides = memory[at : at + max(layout.extra, 0)].tobytes()
    if layout.columns < 0:
        return None, besides
    batch = arena.columns(pa.py_buffer(memory).slice(0, layout.columns), layout.schema)
    of_rows = np.frombuffer(memory, ORIGIN, layout.segments // ORIGIN.itemsize, columns)
    bounds = None if layout.offsets < 0 else np.frombuffer(memory, np.int64, layout.offsets // 8, columns + segments)
    return Records(batch, Origins(of_rows, bounds)), besides


def _write(arena: Arena, columns: pa.RecordBatch, behind: int) -> tuple[memoryview, int, int]:
    """Write a stream to the beginning of an arena with room behind it; gives the memory, the bytes of the stream, and those of the
    schema in it."""
    schema, batch = columns.schema.serialize().size, pa.ipc.get_record_batch_size(columns)
    memory = arena.room(aligned(schema + batch + _STREAM_ENDS) + behind)
    try:
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
        with pa.ipc.new_stream(sink, columns.schema) as stream:
            stream.write_batch(columns)
        written = int(sink.tell())
    except (pa.ArrowInvalid, OSError):  # larger than foreseen, such as by dictionaries
        growing = pa.BufferOutputStream()
        with pa.ipc.new_stream(growing, columns.schema) as stream:
            stream.write_batch(columns)
        whole = growing.getvalue()
        written = int(whole.size)
        memory = arena.room(aligned(written) + behind)
        memory[:written] = memoryview(whole).cast("B")
    return memory, written, schema if written == schema + batch + _END else 0


def aligned(size: int) -> int:
    """The next multiple of 64."""
    return -(-size // _ALIGNED) * _ALIGNED
