"""Entries of a disk cache, and where they lie; processes that use one."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

from zephon_async.io.cache import Entry
from zephon_async.io.cache_folder import CACHE


def entry(key: str = "a.parquet", length: int = 40, tag: str = "t1") -> Entry:
    return Entry("s3://bucket|https://host", key, tag, length, 0, length)


def body(length: int = 40, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


def file_of(root: Path, of: Entry) -> Path:
    return root / CACHE / of.name[:2] / of.name


def temporary(root: Path) -> list[Path]:
    return sorted((root / CACHE / "temporary").iterdir())


def files(root: Path) -> list[Path]:
    return [path for path in (root / CACHE).glob("??/*") if path.is_file()]


def age(path: Path, used_s: float = 100) -> None:
    """As if it had been written and used so long ago."""
    then = time.time() - used_s
    os.utime(path, (then, then))


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", dedent(script), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
