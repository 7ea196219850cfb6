import bz2
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.writers.base import Row, Writer, each


def text_of(rows: list[Row]) -> bytes:
    return b"".join(row["text"].encode() + b"\n" for row in rows)


def plain(path: Path, rows: list[Row]) -> None:
    path.write_bytes(text_of(rows))


def compressed(path: Path, rows: list[Row]) -> None:
    path.write_bytes(bz2.compress(text_of(rows)))


def given(row: Row) -> Row:
    return {"text": row["text"]}


KIND: dict[str, Any] = {"given": given, "schema": pa.schema({"text": pa.large_string()}), "by_bytes": True}
WRITERS = [
    Writer("text", ".txt", each(plain, ".txt"), several=False, ends=False, shows_cuts=False, **KIND),
    Writer("text.bz2", ".txt.bz2", each(compressed, ".txt.bz2"), **KIND),
]
