"""Shards as what comes out of them: of compressed ones by gzip, zstd, bzip2 and xz, each of any number of members in a row.

Nothing is taken for whole that is not: a shard that ends inside a member, a wrong checksum, and bytes behind the last member that
belong to none are errors. Zeros behind members are padding, and skippable frames of zstd are skipped.

A stream can be copied, so that what was passed can be entered again, and not by way of the start. Of gzip a decompressor's state
is copied. The others have none that can be: a copy begins at the member (frame, stream) that the place is in, and drops what it
passes. Blocks inside a member of xz or bzip2 are not used, as the standard library's decompressors do not tell of them, nor are the
tables of frames that some write behind zstd: what such a table says is only known to be true when all before it has been read.

Threads: a `Stream` has one owner.
"""

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, Protocol, Self

from zephon_async.errors import ShardError
from zephon_async.io.catalog import MOST_RATIO
from zephon_async.io.stores import Source

_TAKEN, _TAKEN_FAR = 1 << 20, 4 << 20  # bytes that are read at once, and of what is far away
_FED, _GIVEN = 1 << 18, 1 << 20  # bytes that a decompressor is given at once, and that come out at once
_PADDED = 512  # bytes that are looked at for padding at once
_HEAD = 64  # bytes of a member that say how much memory it wants, at most
_STATE = 1 << 19  # bytes that a decompressor holds beside its window
_MOST_MEMORY = 1 << 28  # bytes, of a decompressor of xz: a shard says how much it wants
_ZSTD_MAGIC, _XZ_MAGIC, _LZMA2 = b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", 0x21


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

    def copy(self) -> "_Gunzip":
        twin = _Gunzip()
        twin._of, twin._full = self._of.copy(), self._full
        return twin

    @property
    def eof(self) -> bool:
        return self._of.eof

    @property
    def needs_input(self) -> bool:
        return not self.tail_bytes and not self._full

    @property
    def tail_bytes(self) -> int:
        """Bytes that it was given and has not used."""
        return len(self._of.unconsumed_tail)

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


def _zstd_bytes(head: bytes) -> int:
    """Bytes that a decompressor holds of a frame that begins so: its window, which it says, and some.

    Layout: RFC 8878, 3.1.1.1.
    """
    if len(head) < 6 or head[:4] != _ZSTD_MAGIC:  # one that is skipped, or is cut short
        return _STATE
    described, window = head[4], (8 + (head[5] & 7)) << (7 + (head[5] >> 3))
    if described & 32:  # there is no window but all that comes out, of which the size is told
        begin, flag = 5 + (0, 1, 2, 4)[described & 3], described >> 6
        window = int.from_bytes(head[begin : begin + (1 << flag)], "little") + 256 * (flag == 1)
    return min(window, _MOST_MEMORY) + _STATE


def _xz_bytes(head: bytes) -> int:
    """The same of a stream of xz: its dictionary, of which the first block says how large it is.

    Layout: the .xz file format 1.2.1, 3.1 and 5.3.1.
    """
    if head[:6] != _XZ_MAGIC or not any(head[12:13]):  # none, or one without a block
        return _STATE
    at = 14
    try:
        for _ in range((head[13] >> 6).bit_count()):  # lengths, seven bits a byte
            at += next(n for n, byte in enumerate(head[at:], 1) if byte < 128)
        while head[at] != _LZMA2:  # filters before it: name, bytes of their settings, these
            at += 2 + head[at + 1]
        code = head[at + 2]
    except (IndexError, StopIteration):
        return _STATE  # it is cut short
    return min((2 | code & 1) << (code // 2 + 11), _MOST_MEMORY) + _STATE


class Codec(NamedTuple):
    """A way of compression. nbytes: about what a decompressor holds, by how a member begins. padded: zeros may lie behind one."""

    name: str
    open: Callable[[], Any]
    nbytes: Callable[[bytes], int]
    padded: bool


_GZIP = Codec("gzip", _Gunzip, lambda head: 1 << 16, True)
_ZSTD = Codec("zstd", lambda: _zstd().ZstdDecompressor(), _zstd_bytes, False)
_CODECS = {
    ".gz": _GZIP,
    ".zst": _ZSTD,
    ".zstd": _ZSTD,
    ".bz2": Codec("bzip2", bz2.BZ2Decompressor, lambda head: 4 << 20, False),
    ".xz": Codec("xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _MOST_MEMORY), _xz_bytes, True),
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

    @property
    def nbytes(self) -> int: ...

    @property
    def restart(self) -> int:
        """From which byte of what comes out on a copy reads."""

    def copy(self) -> Self:
        """Another one at the same place."""

    def turn_to(self, source: Source) -> None:
        """Read on from another source of the same bytes."""

    def read(self) -> bytes:
        """The next piece; an empty one at the end. Raises `ShardError`."""


def stream_of(source: Source) -> Stream:
    """What comes out of a shard: of one whose name does not say that it is compressed, its bytes."""
    codec = codec_of(source.name)
    return Plain(source) if codec is None else Inflated(source, codec)


class _Input:
    """The bytes of a shard one behind the other."""

    def __init__(self, source: Source) -> None:
        self._held, self._used, self._end = b"", 0, 0  # bytes, how many of them are used, and where in the shard they end
        self.turn_to(source)

    def turn_to(self, source: Source) -> None:
        self._source = source
        self._step = _TAKEN_FAR if source.remote else _TAKEN

    @property
    def nbytes(self) -> int:
        return len(self._held)

    @property
    def at(self) -> int:
        """Where in the shard the next byte is."""
        return self._end - len(self._held) + self._used

    def copy_at(self, at: int) -> "_Input":
        """Another one, which stands elsewhere."""
        twin = _Input(self._source)
        twin._end = at
        return twin

    def take(self, most: int) -> bytes:
        """The next bytes; none at the end."""
        if self._used == len(self._held):
            length = min(self._step - self._end % self._step, self._source.size - self._end)
            self._held, self._used = bytes(self._source.read(self._end, length)) if length else b"", 0
            self._end += length
        piece = self._held[self._used : self._used + most]
        self._used += len(piece)
        return piece

    def peek(self, most: int) -> bytes:
        """The next bytes, which stay the next."""
        piece = self.take(most)
        while len(piece) < most and (more := self.take(most - len(piece))):
            piece += more
        self.give_back(len(piece))
        return piece

    def give_back(self, nbytes: int) -> None:
        """The last bytes that were taken, by this one or by that of which it is a copy, are the next again."""
        if nbytes > self._used:
            self._held, self._used, self._end = b"", 0, self.at - nbytes
        else:
            self._used -= nbytes


class Plain:
    """The bytes of a shard, from its start on."""

    def __init__(self, source: Source) -> None:
        self.where, self._input = source.where, _Input(source)

    @property
    def nbytes(self) -> int:
        return self._input.nbytes

    @property
    def restart(self) -> int:
        return self._input.at

    def copy(self) -> Self:
        twin = copy(self)
        twin._input = self._input.copy_at(self._input.at)
        return twin

    def turn_to(self, source: Source) -> None:
        self._input.turn_to(source)

    def read(self) -> bytes:
        return self._input.take(_GIVEN)


class Inflated:
    """What comes out of a compressed shard, from its start on."""

    def __init__(self, source: Source, codec: Codec) -> None:
        self.where, self._input, self._codec = source.where, _Input(source), codec
        self._member: _Decompressor | None = None
        self._member_bytes = 0
        self._begun = (0, 0)  # where the member begins, in the shard and in what comes out
        self._came_out = self._passed = 0  # bytes, and how many of the next ones are dropped
        self._broken: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError)
        if codec is _ZSTD:
            self._broken = (*self._broken, _zstd().ZstdError)

    @property
    def nbytes(self) -> int:
        of = self._member
        if of is None:
            return self._input.nbytes
        unused = of.tail_bytes if isinstance(of, _Gunzip) else 0 if of.needs_input else _FED
        return self._input.nbytes + self._member_bytes + unused

    @property
    def restart(self) -> int:
        inside = self._member is not None and not isinstance(self._member, _Gunzip)
        return self._begun[1] if inside else self._came_out

    def copy(self) -> Self:
        twin = copy(self)
        twin._input = self._input.copy_at(self._input.at)
        if isinstance(self._member, _Gunzip):
            twin._member = self._member.copy()
        elif self._member is not None:
            at, twin._came_out = self._begun
            twin._member, twin._input = None, self._input.copy_at(at)
            twin._passed = self._passed + self._came_out - twin._came_out
        return twin

    def turn_to(self, source: Source) -> None:
        self._input.turn_to(source)

    def read(self) -> bytes:
        while True:
            if self._member is None and not self._next_member():
                return b""
            piece = self._piece()
            dropped = min(self._passed, len(piece))
            self._passed -= dropped
            if piece := piece[dropped:]:
                return piece

    def _piece(self) -> bytes:
        """What comes out of the member next; it may be nothing. Raises `ShardError` where it is broken, or is cut short."""
        assert self._member is not None
        fed = b""
        if self._member.needs_input and not (fed := self._input.take(_FED)):
            raise ShardError(f"{self.where}: ends inside a {self._codec.name} member, at byte {self._input.at:,}: it was cut short")
        try:
            piece = self._member.decompress(fed, _GIVEN)
        except self._broken as error:
            raise ShardError(f"{self.where}: cannot be decompressed as {self._codec.name}: {error}") from error
        if self._member.eof:
            self._input.give_back(len(self._member.unused_data))
            self._member = None
        self._came_out += len(piece)
        if self._came_out > MOST_RATIO * self._input.at:
            raise ShardError(f"{self.where}: more than {MOST_RATIO:,} bytes come out of a byte of it: it is not what it seems")
        return piece

    def _next_member(self) -> bool:
        """Begin the next member, if there is one."""
        while self._input.at:  # behind the first
            piece = self._input.take(_PADDED)
            there = len(piece.lstrip(b"\0") if self._codec.padded else piece)
            self._input.give_back(there)
            if there:
                break
            if not piece:
                return False
        self._begun = self._input.at, self._came_out
        self._member, self._member_bytes = self._codec.open(), self._codec.nbytes(self._input.peek(_HEAD))
        return True
