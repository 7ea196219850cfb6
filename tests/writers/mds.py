"""MDS as streaming's MDSWriter lays it out, with what it has no encoding for as JSON; the real one wrote tests/written/mds."""

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.writers.base import Row, Writer

COLUMNS = {"id": "int", "text": "str", "score": "json", "input_ids": "json", "flag": "json"}


def encoded(encoding: str, value: Any) -> bytes:
    if encoding == "int":
        return struct.pack("<q", value)
    if encoding == "str":
        return str(value).encode()
    return json.dumps(value).encode() if encoding == "json" else bytes(value)


def sample(columns: Mapping[str, str], row: Mapping[str, Any]) -> bytes:
    values = {name: encoded(encoding, row[name]) for name, encoding in columns.items()}
    lengths = [len(value) for name, value in values.items() if columns[name] != "int"]
    return struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(values.values())


def config(columns: Mapping[str, str], compression: str | None = None) -> dict[str, Any]:
    return {
        "column_encodings": list(columns.values()),
        "column_names": list(columns),
        "column_sizes": [8 if encoding == "int" else None for encoding in columns.values()],
        "compression": compression,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }


def raw(columns: Mapping[str, str], samples: list[bytes]) -> bytes:
    header = json.dumps(config(columns), sort_keys=True).encode()
    places = np.cumsum([8 + 4 * len(samples) + len(header), *map(len, samples)]).astype("<u4")
    return struct.pack("<I", len(samples)) + places.tobytes() + header + b"".join(samples)


def shard(
    folder: Path,
    name: str,
    columns: Mapping[str, str],
    samples: list[bytes],
    ending: str = "",
    pack: Callable[[bytes], bytes] = bytes,
) -> dict[str, Any]:
    """Write a shard, and give what its index says."""
    path, body = folder / f"{name}.mds{ending}", raw(columns, samples)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(body))
    packed = {"basename": f"{name}.mds{ending}", "bytes": path.stat().st_size, "hashes": {}}
    files = {"raw_data": {"basename": f"{name}.mds", "bytes": len(body), "hashes": {}}, "zip_data": packed if ending else None}
    return {**config(columns, ending[1:] or None), "samples": len(samples), **files}


def index(folder: Path, shards: list[dict[str, Any]]) -> None:
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def mds(ending: str, pack: Callable[[bytes], bytes]) -> Callable[[Path, Mapping[str, list[Row]]], None]:
    def write(folder: Path, shards: Mapping[str, list[Row]]) -> None:
        index(
            folder,
            [shard(folder, name, COLUMNS, [sample(COLUMNS, row) for row in rows], ending, pack) for name, rows in shards.items()],
        )

    return write


WRITERS = [
    Writer("mds", ".mds", mds("", bytes)),
    Writer("mds.gz", ".mds.gz", mds(".gz", lambda body: zlib.compress(body, wbits=31))),
]
