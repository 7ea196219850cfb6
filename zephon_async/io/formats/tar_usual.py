"""The files of a tar as nearly all writers lay them, all of a run of its bytes at once.

Of these the header is one of ustar or of GNU tar with a right checksum, and before it is nothing but perhaps a pax header that says
the time, as `tarfile` writes them. Whatever differs is left to `tar`, which goes from header to header.

Threads: functions of their arguments.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

BLOCK = 512
Member: TypeAlias = tuple[int, bytes, int, int]
"""A file: where its first header begins, its name, and where its content begins and ends, in the run of bytes that was walked.

Not a class: it is made very often.
"""
_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Ints: TypeAlias = npt.NDArray[np.int64]
_SIZE, _CHECKSUM, _STATED, _KIND = slice(124, 135), slice(148, 156), slice(148, 154), 156
_MAGIC, _MARK, _PREFIX = slice(257, 262), 262, slice(345, 500)
_POWERS = 8 ** np.arange(10, -1, -1)
_IS_FILE = np.isin(np.arange(256), list(b"0\0007"))


def usual_files(text: bytes | memoryview) -> dict[int, Member]:
    """Files that lie whole in a run of bytes, by where they begin. What looks like one in the content of another is among them."""
    blocks: _Bytes = np.frombuffer(text, np.uint8)[: len(text) // BLOCK * BLOCK].reshape(-1, BLOCK)
    at = np.flatnonzero(blocks[:, _MAGIC.start] == ord("u"))  # of all blocks no more is looked at
    heads = blocks[at]
    sizes, stated, kinds = _octal(heads[:, _SIZE]), _octal(heads[:, _STATED]), heads[:, _KIND]
    sums = heads.sum(1, dtype=np.uint32) - heads[:, _CHECKSUM].sum(1, dtype=np.uint32) + 8 * ord(" ")
    sound = (sizes >= 0) & (stated == sums) & _are(heads, _MAGIC, b"ustar")
    for behind in (_SIZE.stop, _STATED.stop):
        sound &= (heads[:, behind] == 0) | (heads[:, behind] == ord(" "))
    says_time = np.zeros(len(blocks) + 2, np.bool_)  # two more, as the first two of `at` may ask for those behind the last
    says_time[at[_say_time(blocks, at, sizes, sound & (kinds == ord("x")))]] = True
    whole = np.flatnonzero(sound & _IS_FILE[kinds] & (at + 1 - (-sizes // BLOCK) <= len(blocks)))
    at, ends = at[whole], (at[whole] + 1) * BLOCK + sizes[whole]
    starts = ((at - 2 * says_time[at - 2]) * BLOCK).tolist()
    return dict(
        zip(starts, zip(starts, _names(heads[whole]), ((at + 1) * BLOCK).tolist(), ends.tolist(), strict=True), strict=True)
    )


def _are(rows: _Bytes, part: slice, wanted: bytes) -> npt.NDArray[np.bool_]:
    """Of which rows a part is some bytes."""
    same: npt.NDArray[np.bool_] = (rows[:, part] == np.frombuffer(wanted, np.uint8)).all(1)
    return same


def _octal(fields: _Bytes) -> _Ints:
    """Numbers of up to eleven octal digits; -1 where there is something else."""
    digits = fields - np.uint8(ord("0"))  # other signs turn over, and are large
    numbers: _Ints = np.where((digits < 8).all(1), digits @ _POWERS[-fields.shape[1] :], -1)
    return numbers


def _say_time(blocks: _Bytes, at: _Ints, sizes: _Ints, pax: npt.NDArray[np.bool_]) -> _Ints:
    """Which headers are those of one pax record `length mtime=value`, of ten bytes to 99."""
    rows: _Ints = np.flatnonzero(pax & (sizes >= 10) & (sizes < 100) & (at + 2 < len(blocks)))
    content, size = blocks[at[rows] + 1, :100], sizes[rows]
    right = (content[:, 0] == size // 10 + ord("0")) & (content[:, 1] == size % 10 + ord("0"))
    right &= _are(content, slice(2, 9), b" mtime=") & (content[np.arange(len(rows)), size - 1] == ord("\n"))
    right_rows: _Ints = rows[right]
    return right_rows


def _names(heads: _Bytes) -> list[bytes]:
    names: list[bytes] = [name.partition(b"\0")[0] for name in _texts(heads[:, :100])]
    prefixed = np.flatnonzero((heads[:, _PREFIX.start] != 0) & (heads[:, _MARK] == 0))  # of ustar; GNU tar has times there
    for row, prefix in zip(prefixed.tolist(), _texts(heads[prefixed, _PREFIX]), strict=True):
        names[row] = prefix.partition(b"\0")[0] + b"/" + names[row]
    return names


def _texts(fields: _Bytes) -> Any:
    """Fields as bytes, without zeros at their ends."""
    return np.ascontiguousarray(fields).view(f"S{fields.shape[1]}").ravel().tolist()
