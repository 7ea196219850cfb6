"""Tar: the headers in a run of its bytes, and the files that they are of.

ustar, GNU long names and pax headers (`path`, `size`, `hdrcharset`), base-256 sizes, and headers from before ustar. The checksum of
every header is compared, all of a run at once. Files (types 0, NUL and 7) are given; folders, links, devices and what is not known
are passed over. Sparse files, files that go on in another volume, and pax headers that name or size all files at once are refused.

Layout: https://www.gnu.org/software/tar/manual/html_node/Standard.html and POSIX.1-2017, pax, "pax Interchange Format".

Threads: functions of their arguments.
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_async.errors import ShardError

BLOCK = 512
Member: TypeAlias = tuple[int, str, int, int]
"""A file: the byte of its first header, its name, and where its content begins and ends. Not a class: it is made very often.

Bytes of a name that are no UTF-8 are surrogates in it.
"""
_fields = Struct("100s24x12s12x8sc100x6s82x155s12x").unpack_from  # name, size, checksum, type, magic, prefix
_CHECKSUM = slice(148, 156)
_ZEROS = bytes(BLOCK)
_FILES, _WITHOUT_CONTENT = (b"0", b"\0", b"7"), (b"1", b"2", b"3", b"4", b"5", b"6")
_LONG_NAME, _LONG_LINK, _ALL, _PAX = b"L", b"K", b"g", (b"x", b"X")
_MOST_EXTENDED = 1 << 20  # bytes of a long name, or of a pax header
_CHARSETS = (b"", b"BINARY", b"ISO-IR 10646 2000 UTF-8")
_REFUSED = {b"S": "is a sparse file", b"M": "goes on from another volume"}
_NO_NUMBER = -(1 << 40)  # in the place of a checksum, where no header has it
_BYTES, _PAIRS, _WORDS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF), np.uint64(0xFFFFFFFF)


class Walked(NamedTuple):
    """What the headers in a run of bytes say.

    members: files that lie in it whole. at: where the first header begins that is not done with; need: how many bytes must be there
    from it on to go on, 0 where the archive ends there. pending: the file that begins there, where only its content is not there
    whole. error: what is wrong there.
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
    return -(-size // BLOCK) * BLOCK


def walk(where: str, text: bytes | memoryview, base: int) -> Walked:
    """Go from header to header. The text is that of the archive from its byte `base` on, where a header begins."""
    members: list[Member] = []
    headers: list[int] = []
    stated: list[int] = []
    end, at, start, said = len(text), 0, 0, _NOTHING
    need, pending, error = 0, None, None
    while True:
        if at + BLOCK > end:
            need = at + BLOCK - start
            break
        name, digits, check, kind, magic, prefix = _fields(text, at)
        if kind == b"\0" and not name[0] and text[at : at + BLOCK] == _ZEROS:
            need, error = _trailer(where, text, base, at, start)
            break
        headers.append(at)
        try:
            stated.append(int(check.partition(b"\0")[0], 8))
        except ValueError:
            stated.append(_NO_NUMBER)
            break
        try:
            size = int(digits.partition(b"\0")[0], 8)
        except ValueError:
            size = _number(digits)
        if said is not _NOTHING and said.size is not None:
            size = said.size
        if kind in _WITHOUT_CONTENT:
            size = 0
        content = at + BLOCK
        behind = content + -(-size // BLOCK) * BLOCK
        if size < 0 or kind in _REFUSED:
            error = _refusal(where, base + at, name, _REFUSED.get(kind, "has a size that is no number"))
            break
        if kind in _FILES:
            if said.name is not None:
                name = said.name
            else:
                name = name.partition(b"\0")[0]
                if prefix[0] and magic == b"ustar\0":
                    name = prefix.partition(b"\0")[0] + b"/" + name
            member = (base + start, name.decode("utf-8", "surrogateescape"), base + content, base + content + size)
            if behind > end:
                need, pending = behind - start, member
                break
            members.append(member)
        elif kind in _PAX or kind in (_LONG_NAME, _LONG_LINK, _ALL):
            if size > _MOST_EXTENDED:
                error = _refusal(where, base + at, name, f"is an extended header of {size:,} bytes, and {_MOST_EXTENDED:,} is the most")
                break
            if behind > end:
                need = behind - start
                break
            try:
                said = _extended(kind, bytes(text[content : content + size]), said)
            except ValueError as broken:
                error = _refusal(where, base + at, name, str(broken))
                break
            at = behind
            continue
        elif behind > end:
            need, pending = behind - start, (base + start, "", base + content, base + content + size)
            break
        at = start = behind
        said = _NOTHING
    if (wrong := _first_wrong(text, headers, stated)) is not None:
        place = base + headers[wrong[0]]
        sound = [member for member in members if member[3] <= place]
        return Walked(sound, place, 0, None, _broken(where, place, *wrong[1:]))
    return Walked(members, base + start, need, pending, error)


def _trailer(where: str, text: bytes | memoryview, base: int, at: int, start: int) -> tuple[int, ShardError | None]:
    """How many bytes are needed to see the end of an archive, and what is wrong there."""
    if at > start:
        return 0, ShardError(f"{where}: there is no file behind the extended header at byte {base + start:,}; the shard is broken")
    second = text[at + BLOCK : at + 2 * BLOCK]
    if len(second) < BLOCK:
        return 2 * BLOCK, None
    if second != _ZEROS:
        return 0, ShardError(
            f"{where}: there is one block of zeros at byte {base + at:,}, and two end a tar; the shard is broken, or was overwritten"
        )
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


def _first_wrong(text: bytes | memoryview, headers: Sequence[int], stated: Sequence[int]) -> tuple[int, int, int] | None:
    """Number, checksum and stated checksum of the first header in which these differ. Some writers summed signed bytes."""
    if not headers:
        return None
    blocks = np.frombuffer(text, np.uint8, len(text) // BLOCK * BLOCK).reshape(-1, BLOCK)[np.array(headers) // BLOCK]
    blocks[:, _CHECKSUM] = ord(" ")
    sums, wanted = _sums(blocks), np.array(stated)
    wrong = np.flatnonzero(sums != wanted)
    wrong = wrong[blocks[wrong].view(np.int8).sum(axis=1, dtype=np.int64) != wanted[wrong]]
    return (int(wrong[0]), int(sums[wrong[0]]), int(wanted[wrong[0]])) if len(wrong) else None


def _sums(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The sums of the bytes of each block, eight at a time: a plain sum of bytes takes several times as long."""
    eights = blocks.view(np.uint64)
    fours = ((eights & _BYTES) + (eights >> np.uint64(8) & _BYTES)).sum(axis=1, dtype=np.uint64)  # of 64 words: no part runs over
    twos = (fours & _PAIRS) + (fours >> np.uint64(16) & _PAIRS)
    return ((twos & _WORDS) + (twos >> np.uint64(32))).astype(np.int64)


def _broken(where: str, at: int, found: int, stated: int) -> ShardError:
    if not at:
        return ShardError(f"{where}: does not begin with a header of a tar: it is none, or is compressed and not named so")
    said = "none that is a number" if stated < 0 else f"{stated:,}"
    return ShardError(f"{where}: the header at byte {at:,} has the checksum {found:,} and says {said}; the shard is broken there")


def _refusal(where: str, at: int, name: bytes, reason: str) -> ShardError:
    shown = name.partition(b"\0")[0].decode("utf-8", "backslashreplace")
    return ShardError(f"{where}: {shown!r}, at byte {at:,}, {reason}; make the shard anew without it")
