"""Shards as what comes out of them: of compressed ones by gzip, zstd, bzip2 and xz, each of any number of members in a row.

Nothing is taken for whole that is not: a shard that ends inside a member, a wrong checksum, and bytes behind the last member that
belong to none are errors. Zeros behind members are padding, and skippable frames of zstd are skipped.

Threads: a `Stream` has one owner.
"""

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from zephon_async.errors import ShardError
from zephon_async.io.catalog import MOST_RATIO
from zephon_async.io.stores import Source

_TAKEN, _GIVEN = 1 << 22, 1 << 20  # bytes that are read at once, and that come out at once
_MOST_MEMORY = 1 << 28  # bytes, of a decompressor of xz: a shard says how much it wants


class _Decompressor(Protocol):
    """As those of the standard library."""

    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gunzip:
    """zlib's as the others are."""

    def __init__(self) -> None:
        self._of, self._full = zlib.decompressobj(wbits=31), False

    def decompress(self, data: bytes, most: int) -> bytes:
        piece = self._of.decompress(self._of.unconsumed_tail + data, most)
        self._full = len(piece) == most  # it may have more without more input
        return piece

    @property
    def eof(self) -> bool:
        return self._of.eof

    @property
    def needs_input(self) -> bool:
        return not self._of.unconsumed_tail and not self._full

    @property
    def unused_data(self) -> bytes:
        return self._of.unused_data


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def unpack_zstd(piece: bytes | memoryview, most: int) -> bytes:
    """What comes out of one frame, of at most so many bytes. Raises `ValueError`."""
    zstd = _zstd()
    frame = zstd.ZstdDecompressor()
    try:
        out = frame.decompress(piece, most + 1)
    except zstd.ZstdError as error:
        raise ValueError(f"cannot be decompressed as zstd: {error}") from error
    if len(out) > most or not frame.eof or frame.unused_data:
        raise ValueError(f"is not one frame of zstd, of at most {most:,} bytes")
    return bytes(out)


class Codec(NamedTuple):
    """A way of compression. nbytes: about what a decompressor holds. padded: zeros may lie behind a member."""

    name: str
    open: Callable[[], Any]
    nbytes: int
    padded: bool


_GZIP = Codec("gzip", _Gunzip, 1 << 16, True)
_ZSTD = Codec("zstd", lambda: _zstd().ZstdDecompressor(), 8 << 20, False)
_CODECS = {
    ".gz": _GZIP,
    ".zst": _ZSTD,
    ".zstd": _ZSTD,
    ".bz2": Codec("bzip2", bz2.BZ2Decompressor, 4 << 20, False),
    ".xz": Codec("xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _MOST_MEMORY), 8 << 20, True),
}


COMPRESSED = tuple(_CODECS)


def with_compressed(*suffixes: str) -> tuple[str, ...]:
    """Suffixes, and those that the same has when it is compressed."""
    return tuple(suffix + compressed for suffix in suffixes for compressed in ("", *_CODECS))


def codec_of(name: str) -> Codec | None:
    """How a shard of a name is compressed."""
    return next((codec for suffix, codec in _CODECS.items() if name.lower().endswith(suffix)), None)


class Stream(Protocol):
    """What comes out of a shard, from its start on. nbytes: what it holds."""

    where: str
    nbytes: int

    def turn_to(self, source: Source) -> None:
        """Read on from another source of the same bytes."""

    def read(self) -> bytes:
        """The next piece; an empty one at the end. Raises `ShardError`."""


def stream_of(source: Source) -> Stream:
    """What comes out of a shard: of one whose name does not say that it is compressed, its bytes."""
    codec = codec_of(source.name)
    return Plain(source) if codec is None else Inflated(source, codec)


class Plain:
    """The bytes of a shard, from its start on."""

    def __init__(self, source: Source) -> None:
        self.where, self.nbytes = source.where, _TAKEN
        self._at, self._rest = 0, memoryview(b"")
        self.turn_to(source)

    def turn_to(self, source: Source) -> None:
        self._source = source

    def read(self) -> bytes:
        if not self._rest and self._at < self._source.size:
            self._rest = memoryview(self._source.read(self._at, min(_TAKEN, self._source.size - self._at)))
            self._at += len(self._rest)
        piece, self._rest = bytes(self._rest[:_GIVEN]), self._rest[_GIVEN:]
        return piece


class Inflated:
    """What comes out of a compressed shard, from its start on."""

    def __init__(self, source: Source, codec: Codec) -> None:
        self.where, self.nbytes = source.where, codec.nbytes + _TAKEN
        self._source, self._codec = source, codec
        self._member: _Decompressor | None = None
        self._input = b""
        self._at = self._came_out = 0
        self._broken: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError)
        if codec is _ZSTD:
            self._broken = (*self._broken, _zstd().ZstdError)

    def turn_to(self, source: Source) -> None:
        """Read on from another source of the same bytes."""
        self._source = source

    def read(self) -> bytes:
        """The next piece; an empty one at the end. Raises `ShardError` where it is broken, or is cut short."""
        while True:
            if self._member is None and not self._next_member():
                return b""
            assert self._member is not None
            if self._member.needs_input and not self._input and not self._take():
                raise ShardError(f"{self.where}: ends inside a {self._codec.name} member, at byte {self._at:,}: it was cut short")
            try:
                piece = self._member.decompress(self._input, _GIVEN)
            except self._broken as error:
                raise ShardError(f"{self.where}: cannot be decompressed as {self._codec.name}: {error}") from error
            self._input = b""
            if self._member.eof:
                self._input, self._member = self._member.unused_data, None
            self._came_out += len(piece)
            if self._came_out > MOST_RATIO * self._at:
                raise ShardError(f"{self.where}: more than {MOST_RATIO:,} bytes come out of a byte of it: it is not what it seems")
            if piece:
                return piece

    def _next_member(self) -> bool:
        """Begin the next member, if there is one."""
        while self._at:  # behind the first
            if self._codec.padded:
                self._input = self._input.lstrip(b"\0")
            if self._input:
                break
            if not self._take():
                return False
        self._member = self._codec.open()
        return True

    def _take(self) -> bool:
        length = min(_TAKEN, self._source.size - self._at)
        self._input = bytes(self._source.read(self._at, length)) if length else b""
        self._at += length
        return bool(length)
