import gzip
from pathlib import Path

import msgspec

from tests.writers.base import Row, Writer, each


def text_of(rows: list[Row]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def plain(path: Path, rows: list[Row]) -> None:
    path.write_bytes(text_of(rows))


def compressed(path: Path, rows: list[Row]) -> None:
    path.write_bytes(gzip.compress(text_of(rows)))


WRITERS = [
    Writer("jsonl", ".jsonl", each(plain, ".jsonl"), by_bytes=True, several=False, ends=False),
    Writer("jsonl.gz", ".jsonl.gz", each(compressed, ".jsonl.gz"), by_bytes=True),
]
