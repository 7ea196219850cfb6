"""Tar: the headers in a run of its bytes, and the files that they are of.

ustar, GNU long names and pax headers (`path`, `size`, `hdrcharset`), base-256 sizes, and headers from before ustar. The checksum of
every header is compared. Files (types 0, NUL and 7) are given; folders, links, devices and what is not known are passed over.
Sparse files, files that go on in another volume, and pax headers that name or size all files at once are refused.

Layout: https://www.gnu.org/software/tar/manual/html_node/Standard.html and POSIX.1-2017, pax, "pax Interchange Format".

Threads: functions of their arguments.
"""

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from zephon_async.errors import ShardError
from zephon_async.io.formats.tar_usual import BLOCK, Member, usual_files

_fields = Struct("100s24x12s20xc100x6s82x155s12x").unpack  # name, size, type, magic, prefix
_CHECKSUM = slice(148, 156)
_ZEROS = bytes(BLOCK)
_FILES, _WITHOUT_CONTENT = (b"0", b"\0", b"7"), (b"1", b"2", b"3", b"4", b"5", b"6")
_LONG_NAME, _LONG_LINK, _ALL = b"L", b"K", b"g"
_EXTENDED = (_LONG_NAME, _LONG_LINK, _ALL, b"x", b"X")
_MOST_EXTENDED = 1 << 20  # bytes of a long name, or of a pax header
_CHARSETS = (b"", b"BINARY", b"ISO-IR 10646 2000 UTF-8")
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


def padded(size: int) -> int:
    """Bytes that a content of a size takes."""
    return size + BLOCK - 1 & -BLOCK


def walk(where: str, text: bytes | memoryview, base: int) -> Walked:
    """Go from header to header. The text is that of the archive from its byte `base` on, where a header begins."""
    members: list[Member] = []
    usual, at = usual_files(text), 0
    while True:
        while (member := usual.get(at)) is not None:
            members.append(member)
            at = padded(member[3])
        try:
            found, behind = _next(where, text, base, at)
        except ShardError as error:
            return Walked(members, at, 0, None, error)
        if found is None or behind > len(text):
            return Walked(members, at, behind - at, found, None)
        members.append(found)
        at = behind


def _next(where: str, text: bytes | memoryview, base: int, start: int) -> tuple[Member | None, int]:
    """The file that begins at a header, and where the next one does; of what is passed over one without a name.

    None: how far the text must reach to tell; where the archive ends, no further than to `start`.
    """
    at, said = start, _Extended()
    while at + BLOCK <= len(text):
        header = bytes(text[at : at + BLOCK])
        if header == _ZEROS:
            return None, _end(where, text, base, at, start)
        if not _is_sound(header):
            raise _broken(where, base + at)
        name, digits, kind, magic, prefix = _fields(header)
        name, extends = name.partition(b"\0")[0], kind in _EXTENDED
        if magic == b"ustar\0" and prefix[0]:
            name = prefix.partition(b"\0")[0] + b"/" + name
        if not extends:
            name = said.name or name
        size = 0 if kind in _WITHOUT_CONTENT else _number(digits) if extends or said.size is None else said.size
        if size < 0 or kind in _REFUSED or (extends and size > _MOST_EXTENDED):
            reason = "is too long for an extended header" if extends else "has a size that is no number"
            raise _refusal(where, base + at, name, _REFUSED.get(kind, reason))
        content, behind = at + BLOCK, at + BLOCK + padded(size)
        if not extends:
            return (start, name if kind in _FILES else b"", content, content + size), behind
        if behind > len(text):
            return None, behind
        try:
            said = _extended(kind, bytes(text[content : content + size]), said)
        except ValueError as broken:
            raise _refusal(where, base + at, name, str(broken)) from broken
        at = behind
    return None, at + BLOCK


def _end(where: str, text: bytes | memoryview, base: int, at: int, start: int) -> int:
    """How far the text must reach to see the end of an archive, which begins with a block of zeros at `at`: see `_next`."""
    if at > start:
        raise ShardError(f"{where}: there is no file behind the extended header at byte {base + start:,}; the shard is broken")
    second = text[at + BLOCK : at + 2 * BLOCK]
    if len(second) == BLOCK and second != _ZEROS:
        raise ShardError(f"{where}: there is one block of zeros at byte {base + at:,}, and two end a tar; the shard is broken")
    return start if len(second) == BLOCK else at + 2 * BLOCK


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


def _is_sound(header: bytes) -> bool:
    """Whether a header has the right checksum: the sum of all bytes, its own being spaces. Some writers summed signed bytes."""
    stated, rest = _number(header[_CHECKSUM]), header[: _CHECKSUM.start] + b" " * 8 + header[_CHECKSUM.stop :]
    total = sum(rest)
    return stated == total or stated == total - 256 * sum(byte > 127 for byte in rest)


def _broken(where: str, at: int) -> ShardError:
    if not at:
        return ShardError(f"{where}: does not begin with a header of a tar: it is none, or is compressed and not named so")
    return ShardError(f"{where}: the header at byte {at:,} has a wrong checksum; the shard is broken there")


def _refusal(where: str, at: int, name: bytes, reason: str) -> ShardError:
    shown = name.partition(b"\0")[0].decode("utf-8", "backslashreplace")
    return ShardError(f"{where}: {shown!r}, at byte {at:,}, {reason}; make the shard anew without it")
