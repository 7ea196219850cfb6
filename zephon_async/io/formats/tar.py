"""Tar: the headers in a run of its bytes, and the files that they are of.

ustar, GNU long names and pax headers (`path`, `size`, `hdrcharset`), base-256 sizes, and headers from before ustar. The checksum of
every header is compared, all of a run at once. Files (types 0, NUL and 7) are given; folders, links, devices and what is not known
are passed over. Sparse files, files that go on in another volume, and pax headers that name or size all files at once are refused.

Layout: https://www.gnu.org/software/tar/manual/html_node/Standard.html and POSIX.1-2017, pax, "pax Interchange Format".

Threads: functions of their arguments.
"""

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple, TypeAlias
from zlib import adler32

from zephon_async.errors import ShardError

BLOCK = 512
Member: TypeAlias = tuple[int, bytes, int, int]
"""A file: where its first header begins, its name, and where its content begins and ends, in the run of bytes that was walked.

Not a class: it is made very often.
"""
_fields = Struct("100s24x12s12x8sc188xc166x").unpack_from  # name, size, checksum, type, and the first byte of the prefix
_CHECKSUM, _MAGIC, _PREFIX = slice(148, 156), slice(257, 263), slice(345, 500)
_ZEROS = bytes(BLOCK)
_FILES, _WITHOUT_CONTENT = (b"0", b"\0", b"7"), (b"1", b"2", b"3", b"4", b"5", b"6")
_LONG_NAME, _LONG_LINK, _ALL, _PAX = b"L", b"K", b"g", (b"x", b"X")
_MOST_EXTENDED = 1 << 20  # bytes of a long name, or of a pax header
_CHARSETS = (b"", b"BINARY", b"ISO-IR 10646 2000 UTF-8")
_ADLER = 65_521  # what the sums in Adler-32 are taken by
_REFUSED = {b"S": "is a sparse file", b"M": "goes on from another volume"}


class Walked(NamedTuple):
    """What the headers in a run of bytes say.

    All places are in the run. members: files that lie in it whole. at: where the first header begins that is not done with; need:
    how many bytes must be there from it on to go on, 0 where the archive ends there. pending: the file that begins there, where
    only its content is not there whole. error: what is wrong there.
    """

    members: list[Member]
    at: int
    need: int
    pending: Member | None
    error: ShardError | None


class _Extended(NamedTuple):
    """What extended headers say of the file behind them."""

    name: bytes | None = None
    size: int | None = None


_NOTHING = _Extended()


def padded(size: int) -> int:
    """Bytes that a content of a size takes."""
    return size + BLOCK - 1 & -BLOCK


def walk(where: str, text: bytes | memoryview, base: int) -> Walked:
    """Go from header to header. The text is that of the archive from its byte `base` on, where a header begins."""
    members: list[Member] = []
    known: dict[bytes, int] = {}  # by checksums: see `_expected`
    end, at, start, said = len(text), 0, 0, _NOTHING
    need, pending, error = 0, None, None
    while True:
        if at + BLOCK > end:
            need = at + BLOCK - start
            break
        name, digits, check, kind, prefix = _fields(text, at)
        if kind == b"\0" and not name[0] and text[at : at + BLOCK] == _ZEROS:
            need, error = _trailer(where, text, base, at, start)
            break
        if (low := adler32(text[at : at + BLOCK]) & 0xFFFF) != known.get(check):
            known[check] = _expected(check)
            if low != known[check] and _is_wrong(text[at : at + BLOCK]):
                start, error = at, _broken(where, base + at)
                break
        try:
            size = int(digits.partition(b"\0")[0], 8)
        except ValueError:
            size = _number(digits)
        content = at + BLOCK
        if kind in _FILES:
            if said is _NOTHING:
                name = name.partition(b"\0")[0]
                if prefix != b"\0" and text[at:][_MAGIC] == b"ustar\0":
                    name = bytes(text[at:][_PREFIX]).partition(b"\0")[0] + b"/" + name
            else:
                name, size = said.name or name.partition(b"\0")[0], size if said.size is None else said.size
            behind = content + (size + BLOCK - 1 & -BLOCK)
            if size < 0:
                error = _refusal(where, base + at, name, "has a size that is no number")
                break
            if behind > end:
                need, pending = behind - start, (start, name, content, content + size)
                break
            members.append((start, name, content, content + size))
            at = start = behind
            said = _NOTHING
            continue
        if kind in _WITHOUT_CONTENT:
            size = 0
        elif said.size is not None:
            size = said.size
        behind = content + padded(size)
        extends = kind in _PAX or kind in (_LONG_NAME, _LONG_LINK, _ALL)
        if size < 0 or kind in _REFUSED or (extends and size > _MOST_EXTENDED):
            reason = "is too long for an extended header" if extends else "has a size that is no number"
            error = _refusal(where, base + at, name, _REFUSED.get(kind, reason))
            break
        if behind > end:
            need, pending = behind - start, None if extends else (start, b"", content, content + size)
            break
        at = behind
        if extends:
            try:
                said = _extended(kind, bytes(text[content : content + size]), said)
            except ValueError as broken:
                error = _refusal(where, base + content - BLOCK, name, str(broken))
                break
        else:
            start, said = behind, _NOTHING
    return Walked(members, start, need, pending, error)


def _trailer(where: str, text: bytes | memoryview, base: int, at: int, start: int) -> tuple[int, ShardError | None]:
    """How many bytes are needed to see the end of an archive, and what is wrong there."""
    if at > start:
        return 0, ShardError(f"{where}: there is no file behind the extended header at byte {base + start:,}; the shard is broken")
    second = text[at + BLOCK : at + 2 * BLOCK]
    if len(second) < BLOCK:
        return 2 * BLOCK, None
    if second != _ZEROS:
        return 0, ShardError(f"{where}: there is one block of zeros at byte {base + at:,}, and two end a tar; the shard is broken")
    return 0, None


def _number(digits: bytes) -> int:
    """A size that is not written in the usual way; -1 where it is no number."""
    if digits[0] == 0x80:
        return int.from_bytes(digits[1:], "big")
    try:
        return int(digits.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _extended(kind: bytes, content: bytes, said: _Extended) -> _Extended:
    """What is said with one extended header more. Raises `ValueError` where it cannot be understood."""
    if kind == _LONG_NAME:
        return said._replace(name=content.partition(b"\0")[0]) if said.name is None else said
    if kind == _LONG_LINK:
        return said
    records = _records(content)
    if sparse := next((key for key in records if key.startswith(b"GNU.sparse.")), None):
        raise ValueError(f"says {sparse.decode('ascii', 'backslashreplace')}, and sparse files are not read")
    if (charset := records.get(b"hdrcharset", b"")) not in _CHARSETS:
        raise ValueError(f"is written in the character set {charset!r}, and UTF-8 and BINARY are read")
    if kind == _ALL:
        if both := [key.decode() for key in (b"path", b"size") if key in records]:
            raise ValueError(f"says {both[0]} of all files at once")
        return said
    size = records.get(b"size")
    if size is not None and not size.isdigit():
        raise ValueError(f"says that the size is {size!r}")
    return _Extended(records.get(b"path", said.name), said.size if size is None else int(size))


def _records(content: bytes) -> Mapping[bytes, bytes]:
    """The records `length key=value` of a pax header; of a key that is there twice the last one counts."""
    records = {}
    at = 0
    while at < len(content) and content[at]:
        digits = content[at : at + 8].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        key, equals, value = content[at + len(digits) + 1 : at + length].partition(b"=")
        if at + length > len(content) or not equals or not value.endswith(b"\n"):
            raise ValueError(f"is a pax header of which the record at byte {at} is broken")
        records[key] = value[:-1]
        at += length
    return records


def _expected(check: bytes) -> int:
    """The lower half of Adler-32 of a header with a checksum, which is the sum of its bytes; -1 where it is no number.

    A checksum is the sum of all bytes, its own being spaces. Nothing else in Python is as quick at a sum of bytes.
    """
    try:
        stated = int(check.partition(b"\0")[0], 8)
    except ValueError:
        return -1
    return (1 + stated - len(check) * ord(" ") + sum(check)) % _ADLER


def _is_wrong(header: bytes | memoryview) -> bool:
    """Whether a header has a wrong checksum. Some writers summed signed bytes."""
    negative = sum(byte > 127 for byte in header)
    return _expected(bytes(header[_CHECKSUM])) != ((adler32(header) & 0xFFFF) - 256 * negative) % _ADLER


def _broken(where: str, at: int) -> ShardError:
    if not at:
        return ShardError(f"{where}: does not begin with a header of a tar: it is none, or is compressed and not named so")
    return ShardError(f"{where}: the header at byte {at:,} has a wrong checksum; the shard is broken there")


def _refusal(where: str, at: int, name: bytes, reason: str) -> ShardError:
    shown = name.partition(b"\0")[0].decode("utf-8", "backslashreplace")
    return ShardError(f"{where}: {shown!r}, at byte {at:,}, {reason}; make the shard anew without it")
