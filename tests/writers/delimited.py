import csv
import io
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.writers.base import TYPES, Row, Writer, each

FLAGS = {True: "true", False: "false", None: ""}


def text_of(rows: list[Row], **dialect: Any) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, **dialect)
    writer.writerow(TYPES.names)
    writer.writerows([*list(row.values())[:-1], FLAGS[row["flag"]]] for row in rows)
    return file.getvalue().encode()


def comma(path: Path, rows: list[Row]) -> None:
    path.write_bytes(text_of(rows))


def tabbed(path: Path, rows: list[Row]) -> None:
    path.write_bytes(text_of(rows, delimiter="\t", quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n"))


def compressed(path: Path, rows: list[Row]) -> None:
    path.write_bytes(lzma.compress(text_of(rows), preset=0))


def given(row: Row) -> Row:
    return row | {"input_ids": str(row["input_ids"])}


KIND: dict[str, Any] = {"given": given, "schema": TYPES.set(3, pa.field("input_ids", pa.large_string())), "by_bytes": True}
WRITERS = [
    Writer("csv", ".csv", each(comma, ".csv"), ends=False, shows_cuts=False, **KIND),
    Writer("tsv", ".tsv", each(tabbed, ".tsv"), ends=False, shows_cuts=False, **KIND),
    Writer("csv.xz", ".csv.xz", each(compressed, ".csv.xz"), **KIND),
]
