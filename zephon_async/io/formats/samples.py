"""Samples of a tar: the files that lie one behind the other under one key. See `webdataset` for the rules.

Threads: a `Samples` has one owner.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from zephon_async.io.formats.tar_scan import Run

KEY = "__key__"
ANY = 1 << 100  # as a limit: none
_is_meta = re.compile(r"__[^/]*__($|/)").match


def split(name: str) -> tuple[str, str]:
    """Key and column of a file; of one that is passed over two empty texts."""
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    if dot <= slash or (name.startswith("__") and _is_meta(name)):
        return "", ""
    return name[:dot], name[dot + 1 :].lower()


@dataclass(slots=True)
class _Column:
    """The files of a column. last: the row of the last one. kept: whether contents are."""

    kept: bool
    last: int = -1
    rows: list[int] = field(default_factory=list)
    values: list[memoryview] = field(default_factory=list)


class Samples:
    """Rows that are being gathered.

    wanted: whether the contents of a column are. keys, starts: of each row, with the byte of its first header. bad: reasons by row.
    """

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self.keys: list[str] = []
        self.starts: list[int] = []
        self.bad: dict[int, str] = {}
        self._wanted = wanted
        self._columns: dict[str, _Column] = {}
        self._written: dict[str, _Column] = {}  # by extensions as they are written

    @property
    def columns(self) -> list[str]:
        """The columns that were seen, in the order in which they were."""
        return list(self._columns)

    def rows(self, column: str) -> list[int]:
        """Which rows have a column."""
        return self._columns[column].rows if column in self._columns else []

    def values(self, column: str) -> list[memoryview]:
        """The contents of a column, of the rows that have it."""
        return self._columns[column].values if column in self._columns else []

    def take(self, run: Run, stop: int = ANY, most: int = ANY) -> bool:
        """Take files until a row begins at byte `stop` or behind it, or there are `most` rows and one more begins; whether one did."""
        keys, starts, written = self.keys, self.starts, self._written
        view, base, members = memoryview(run.text), run.base, run.members
        current, row = keys[-1] if keys else None, len(keys) - 1
        for n in range(run.next, len(members)):
            start, name, begin, end = members[n]
            slash = name.rfind("/") + 1
            dot = name.find(".", slash)
            if dot <= slash or (name[:2] == "__" and _is_meta(name)):  # as in `split`, which would cost a third more
                continue
            if (key := name[:dot]) != current:
                if start >= stop or row + 1 >= most:
                    run.next = n
                    return True
                current = key
                row += 1
                keys.append(key)
                starts.append(start)
            extension = name[dot + 1 :]
            column = written.get(extension) or self._new(extension)
            if column.last == row:
                self.bad.setdefault(row, f"has two files {extension.lower()!r}")
            column.last = row
            if column.kept:
                column.rows.append(row)
                column.values.append(view[begin - base : end - base])
        run.next = len(members)
        return False

    def _new(self, extension: str) -> _Column:
        """The column of an extension that was not written like that before."""
        name = extension.lower()
        if name not in self._columns:
            self._columns[name] = _Column(self._wanted(name))
        self._written[extension] = self._columns[name]
        return self._columns[name]
