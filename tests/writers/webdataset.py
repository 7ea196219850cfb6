import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa

from tests.writers.base import Row, Writer, each

TYPES = pa.schema(
    {
        "__key__": pa.large_string(),
        "id": pa.int64(),
        "text": pa.large_string(),
        "score": pa.large_binary(),
        "input_ids": pa.large_binary(),
        "flag": pa.large_binary(),
    }
)


def key_of(row: Row) -> str:
    return f"{'long/' * ((row['id'] % 7 == 1) * 40)}{row['id']:06}"


def packed(rows: list[Row]) -> bytes:
    """Each value a file, and nothing behind the end; names are long in some."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for row in rows:
            for column, value in row.items():
                if value is not None:
                    content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
                    file = tarfile.TarInfo(f"{key_of(row)}.{column}")
                    file.size = len(content)
                    tar.addfile(file, io.BytesIO(content))
    return body.getvalue().rstrip(b"\0").ljust(-(-tar.offset // 512) * 512, b"\0")


def plain(path: Path, rows: list[Row]) -> None:
    path.write_bytes(packed(rows))


def given(row: Row) -> Row:
    encoded = {key: None if row[key] is None else json.dumps(row[key]).encode() for key in ("score", "input_ids", "flag")}
    return {"__key__": key_of(row), **row, **encoded}


WRITERS = [
    Writer("webdataset", ".tar", each(plain, ".tar"), given, TYPES, by_bytes=True, several=False),
]
