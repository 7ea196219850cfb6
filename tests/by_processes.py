"""Functions for worker processes, found there by their names, and pipelines of them."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.numbered import numbers, source
from zephon_async import Pipeline

Record = dict[str, Any]


lasting: set[int] = set()
"""Processes that stay until the tests end, such as a server that several of them ask."""


def children() -> set[int]:
    """The processes that this one has started and that have not ended, without those that are to stay."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            found.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
    return found - lasting


def with_pid(record: Record) -> Record:
    return {"n": record["n"], "pid": os.getpid()}


def once(folder: str, what: str) -> bool:
    """Whether this is the first call of all processes for something."""
    try:
        Path(folder, what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Dies:
    """Kills its process at record `at`, the first `times` times."""

    def __init__(self, folder: Path, at: int, times: int = 1, by: int = signal.SIGKILL) -> None:
        self.folder, self.at, self.times, self.by = str(folder), at, times, by

    def __call__(self, record: Record) -> Record:
        if record["n"] == self.at and any(once(self.folder, str(n)) for n in range(self.times)):
            os.kill(os.getpid(), self.by)
            time.sleep(30)  # until a signal that can be waited for has come
        return record


class Kills:
    """Records 7 and 60 kill the process that works them; `by` which signal, each time another where there are several."""

    def __init__(self, folder: Path, *by: int) -> None:
        self.folder, self.by = str(folder), by

    def __call__(self, record: Record) -> Record:
        if record["n"] in (7, 60):
            number = next(n for n in range(1000) if once(self.folder, f"{record['n']}-{n}"))
            os.kill(os.getpid(), self.by[number % len(self.by)])
        return record


class Unpicklable(Exception):
    """Keeps what cannot travel, and wants other arguments than it keeps."""

    def __init__(self, number: int, lock: Any) -> None:
        super().__init__(f"number {number}")
        self.number, self.lock = number, lock


def pipeline(fn: Any, rows: int = 200, **options: Any) -> Pipeline:
    settings: dict[str, Any] = {"runner": "processes", "workers": 2, "chunk_rows": 8, **options}
    return Pipeline(source(numbers(rows))).options(**settings).map(fn, schema=None).batch(1)
