"""The file in which a rank tells of the bad records that were skipped: a line of JSON each, written once.

A run that was stopped skips some records again, and ranks may be others then; so what any file of the folder tells is not told
again. A folder that cannot be written to is said once, and costs no run: what could not be written goes along with what comes next,
and at the end of the run once more; of more than `MOST_WAITING` the first are let go, and counted.

Threads: any, one after the other by a lock. The thread that iterates writes, which waits for the disk: a line or two, seldom.
"""

import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from os import SEEK_END, PathLike
from pathlib import Path
from typing import Any

from zephon_async.records import Names, Skipped

_FILE, _FILES = "bad-records-{:05}.jsonl", "bad-records-*.jsonl"
MOST_WAITING = 10_000
_KEY = ("dataset", "shard", "row", "epoch", "part", "reason")
_log = logging.getLogger("zephon_async")


class BadRecords:
    """The file of one rank in a folder."""

    def __init__(self, folder: str | PathLike[str], rank: int, names: Names) -> None:
        self._path, self._names = Path(folder) / _FILE.format(rank), names
        self._known: set[tuple[Any, ...]] | None = None  # None: the files have not been read
        self._waiting: list[Skipped] = []
        self._fails, self._let_go = False, 0
        self._lock = threading.Lock()

    def write(self, skipped: Sequence[Skipped] = ()) -> None:
        """Append those that no file tells of yet, and what could not be written before."""
        with self._lock:
            self._waiting += skipped
            if not self._waiting:
                return
            try:
                self._append()
            except (OSError, ValueError) as error:  # what was taken is taken, whatever comes of this
                self._known = None  # some of it may have been written
                if not self._fails:
                    _log.warning("bad records cannot be told in %s: %s; it is tried again later", self._path, error)
                self._fails = True
                self._let_some_go()
            else:
                if self._let_go:
                    _log.warning("%d bad records are told nowhere: %s could not be written to", self._let_go, self._path)
                self._waiting.clear()
                self._fails, self._let_go = False, 0

    def _let_some_go(self) -> None:
        if (many := len(self._waiting) - MOST_WAITING) > 0:
            if not self._let_go:
                _log.warning("more than %d bad records wait to be told in %s: the first are let go", MOST_WAITING, self._path)
            self._let_go += many
            del self._waiting[:many]

    def _append(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._known is None:
            self._known = {key for path in sorted(self._path.parent.glob(_FILES)) for key in _keys(path)}
        lines = [json.dumps(line) + "\n" for line in self._new(self._waiting)]
        with self._path.open("a+b") as file:
            if file.tell() and (file.seek(-1, SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")  # behind a line that a crash has cut
            file.write("".join(lines).encode())

    def write_lost(self, lost: Sequence[Mapping[int, Exception]]) -> None:
        """Tell of the shards of each dataset that are broken as a whole, by their numbers; one rank does."""
        skipped = [Skipped(0, (d, shard, 0, 0, 0), str(error), rows=0) for d, of in enumerate(lost) for shard, error in of.items()]
        if skipped:
            self.write(skipped)

    def _new(self, skipped: Iterable[Skipped]) -> Iterable[dict[str, Any]]:
        assert self._known is not None
        for each in skipped:
            d, s, row, epoch, part = each.origin
            dataset, shard = (self._names.datasets[d], self._names.shards[d][s]) if d >= 0 else (None, None)
            line: dict[str, Any] = {"dataset": dataset, "shard": shard, "row": row, "epoch": epoch, "part": part}
            line |= {"reason": each.reason, "rows": each.rows or None, "start": each.start.decode("utf-8", "backslashreplace")}
            if (key := tuple(line[name] for name in _KEY)) not in self._known:
                self._known.add(key)
                yield line


def _keys(path: Path) -> Iterable[tuple[Any, ...]]:
    """What a file tells of; a line that was cut by a crash is none."""
    for text in path.read_text("utf-8", "replace").split("\n"):
        try:
            line = json.loads(text)
            yield tuple(line[name] for name in _KEY)
        except (ValueError, KeyError, TypeError):
            continue
