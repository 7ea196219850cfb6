"""The samples of an MDS shard as bytes, compared with what its index says.

A shard is `samples:u32, places:u32[samples + 1], a JSON header, samples`. A compressed one is decompressed as a whole, which must
give as many bytes as the index says. Hashes that an index states are compared where a shard is read as a whole, which is where it
is compressed; `check` does it for any shard.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from zephon_async.errors import ShardError
from zephon_async.io.catalog import MOST_RATIO
from zephon_async.io.formats.base import reading
from zephon_async.io.formats.inflate import Inflated, codec_of
from zephon_async.io.formats.mds_index import INDEX, Entry, Found, find, verify
from zephon_async.io.formats.mds_values import Places
from zephon_async.io.formats.remembered import Remembered
from zephon_async.io.stores import Source, view_of

COMPRESSIONS = ("br", "bz2", "gz", "snappy", "zstd")
_SHARDS = 1024  # of which the heads are remembered, and what indexes say
_PIECE = 1 << 20  # bytes that come out at once
_TWO_VERSIONS = "the shard or the index is of another version"
_Read: TypeAlias = Callable[[int, int], bytes | memoryview]


class _Columns(msgspec.Struct):
    """What the header of a shard has of its columns."""

    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]
    column_sizes: tuple[int | None, ...]


class _Head(NamedTuple):
    """What a shard says of itself. columns: None where other writers have left the header out."""

    samples: int
    columns: _Columns | None


class Samples(NamedTuple):
    """The samples of a raw shard of which the head has been compared with the index, read by (offset, length)."""

    where: str
    entry: Entry
    read: _Read

    def body(self, places: Places) -> memoryview:
        """The bytes of samples, by where they begin and the last of them ends."""
        return memoryview(self.read(int(places[0]), int(places[-1] - places[0])))

    def places(self, start: int, stop: int) -> Places:
        """Where samples begin in the shard, and where the last of them ends: int64[n + 1]."""
        places = np.frombuffer(self.read(4 + 4 * start, 4 * (stop - start + 1)), "<u4").astype(np.int64)
        size, is_last = self.entry.raw_data.bytes, stop == self.entry.samples
        if (np.diff(places) < 0).any() or places[-1] > size or (is_last and places[-1] != size) or places[0] < 8:
            raise ShardError(
                f"{self.where}: samples {start:,} to {stop:,} would lie at bytes {places[0]:,} to {places[-1]:,} of {size:,}; "
                "it is broken"
            )
        return places


def open_samples(source: Source, found: Found) -> Samples:
    """The samples of a shard; a compressed one is decompressed. Raises `ShardError` where its head is not what its index says."""
    read: _Read = partial(view_of, source)
    if found.is_compressed:
        body = memoryview(_inflated(source, found))
        read = lambda at, length: body[at : at + length]  # noqa: E731
        head = _head_of(source.where, len(body), read)
    else:
        head = _HEADS.of(source)
    _check_head(source.where, found.entry, head)
    return Samples(source.where, found.entry, read)


def _check_head(where: str, entry: Entry, head: _Head) -> None:
    if head.samples != entry.samples:
        raise ShardError(f"{where}: its {INDEX} says {entry.samples:,} samples, but it has {head.samples:,}; {_TWO_VERSIONS}")
    if any(getattr(head.columns, name) != getattr(entry, name) for name in (_Columns.__struct_fields__ if head.columns else ())):
        raise ShardError(f"{where}: its {INDEX} says other columns than its header; {_TWO_VERSIONS}")


def _head_of(where: str, size: int, read: _Read) -> _Head:
    samples, start = np.frombuffer(read(0, 8), "<u4").tolist() if size >= 8 else (0, 0)
    places = 4 + 4 * (samples + 1)
    if not places <= start <= size:
        raise ShardError(f"{where}: its {samples:,} samples would begin at byte {start:,} of {size:,}; it is broken, or no MDS")
    if not (header := read(places, start - places)):
        return _Head(samples, None)
    try:
        return _Head(samples, msgspec.json.decode(header, type=_Columns))
    except msgspec.MsgspecError as error:
        raise ShardError(f"{where}: its header cannot be read: {error}; it is broken, or no MDS") from error


FOUND = Remembered(find, _SHARDS)
"""What indexes say of shards; made anew where a dataset is listed."""
_HEADS = Remembered(lambda source: _head_of(source.where, source.size, source.read), _SHARDS)


def _inflated(source: Source, found: Found) -> bytes:
    """All that comes out of a compressed shard, which is as much as its index says."""
    raw, packed = found.entry.raw_data, found.file
    name = (found.entry.compression or "").partition(":")[0]
    if name not in COMPRESSIONS:
        raise ShardError(f"{source.where}: is compressed as {name!r}, which is not known; known: {', '.join(COMPRESSIONS)}")
    if packed.hashes:
        verify(source.where, packed, source.read(0, source.size))
    pieces, nbytes = [], 0
    for piece in _pieces(source, name):
        pieces.append(piece)
        nbytes += len(piece)
        if nbytes > raw.bytes:
            break
    if nbytes != raw.bytes:
        some = f"more than {raw.bytes:,}" if nbytes > raw.bytes else f"{nbytes:,}"
        raise ShardError(f"{source.where}: its {INDEX} says {raw.bytes:,} bytes, but {some} come out of it; {_TWO_VERSIONS}")
    body = b"".join(pieces)
    verify(source.where, raw, body)
    return body


def _pieces(source: Source, name: str) -> Iterator[bytes]:
    """What comes out of a compressed shard, piece by piece."""
    if (codec := codec_of(f".{name}")) is not None:
        stream = Inflated(source, codec)
        while piece := stream.read():
            yield piece
        return
    packed = source.read(0, source.size)
    with reading(source, "brotli" if name == "br" else name):
        if name == "br":
            with pa.input_stream(pa.py_buffer(packed), compression="brotli") as stream:
                while piece := stream.read(_PIECE):
                    yield piece
        else:
            yield pa.Codec("snappy").decompress(packed, _snappy_bytes(source, packed), asbytes=True)


def _snappy_bytes(source: Source, packed: bytes) -> int:
    """How many bytes come out, as a snappy block says first: seven bits a byte, the least first."""
    nbytes = 0
    for n, byte in enumerate(packed[:5]):
        nbytes |= (byte & 127) << (7 * n)
        if byte < 128 and nbytes <= MOST_RATIO * len(packed):
            return nbytes
    raise ShardError(f"{source.where}: does not begin as a snappy block does; it is broken")


class Opened:
    """A decompressed shard. It can be entered anywhere."""

    at = 0

    def __init__(self, source: Source, found: Found) -> None:
        self.samples, self.nbytes = open_samples(source, found), found.entry.raw_data.bytes


def check(source: Source) -> None:
    """Read a shard as a whole, and compare it with its index and the hashes that this states. Raises `ShardError`."""
    found = FOUND.of(source)
    samples = open_samples(source, found)
    if not found.is_compressed:
        verify(source.where, found.file, source.read(0, source.size))
    samples.places(0, found.entry.samples)
