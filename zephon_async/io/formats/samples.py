"""Samples of a tar: the files that lie one behind the other under one key. See `webdataset` for the rules.

Threads: a `Samples` has one owner.
"""

import re
from collections.abc import Callable
from typing import TypeAlias

from zephon_async.io.formats.tar_scan import Run

KEY = "__key__"
ANY = 1 << 100  # as a limit: none
_Column: TypeAlias = tuple[list[int], list[memoryview] | None]  # the rows that have it, and their contents, if these are wanted
_is_meta = re.compile(rb"__[^/]*__($|/)").match


def split(name: bytes) -> tuple[bytes, bytes]:
    """Key and extension of a file; of one that is passed over nothing."""
    slash = name.rfind(b"/") + 1
    dot = name.find(b".", slash)
    if dot <= slash or _is_meta(name):
        return b"", b""
    return name[:dot], name[dot + 1 :]


def column_name(extension: bytes) -> str:
    """The column of an extension. Bytes in it that are no UTF-8 are surrogates."""
    return extension.decode("utf-8", "surrogateescape").lower()


class Samples:
    """Rows that are being gathered.

    wanted: whether the contents of a column are. keys, starts: of each row, with the byte of its first header. bad: reasons by row.
    """

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self.keys: list[bytes] = []
        self.starts: list[int] = []
        self.bad: dict[int, str] = {}
        self._wanted = wanted
        self._columns: dict[str, _Column] = {}
        self._written: dict[bytes, _Column] = {}  # by extensions as they are written

    @property
    def columns(self) -> list[str]:
        """The columns that were seen, in the order in which they were."""
        return list(self._columns)

    def rows(self, column: str) -> list[int]:
        """Which rows have a column."""
        return self._columns[column][0] if column in self._columns else []

    def values(self, column: str) -> list[memoryview]:
        """The contents of a column that is wanted, of the rows that have it."""
        return self._columns[column][1] or [] if column in self._columns else []

    def take(self, run: Run, stop: int = ANY, most: int = ANY) -> bool:
        """Take files until a row begins at byte `stop` or behind it, or behind `most` rows; whether one did."""
        keys, starts, written = self.keys, self.starts, self._written
        view, base = memoryview(run.text), run.base
        current, row = keys[-1] if keys else None, len(keys) - 1
        for n, (start, name, begin, end) in enumerate(run.members):
            if b"/" in name or name[:2] == b"__":
                key, extension = split(name)
            else:  # the same, in a third of the time
                key, _, extension = name.partition(b".")
                if not _:
                    continue
            if key != current:
                if not key:
                    continue
                if base + start >= stop or row + 1 >= most:
                    run.members = run.members[n:]
                    return True
                current = key
                row += 1
                keys.append(key)
                starts.append(base + start)
            rows, values = written.get(extension) or self._new(extension)
            if rows and rows[-1] == row:
                self.bad.setdefault(row, f"has two files {column_name(extension)!r}")
                continue
            rows.append(row)
            if values is not None:
                values.append(view[begin:end])
        run.members = []
        return False

    def _new(self, extension: bytes) -> _Column:
        """The column of an extension that was not written like that before."""
        name = column_name(extension)
        if name not in self._columns:
            self._columns[name] = ([], [] if self._wanted(name) else None)
        self._written[extension] = self._columns[name]
        return self._columns[name]
