"""LitData as it lies on disk: headers and places of uint32, and an index beside the chunks of each folder."""

import io
import json
import struct
import sys
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from tests.writers.base import Row, Writer, table

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMATS = {"id": "int", "text": "str", "score": "float", "input_ids": "no_header_numpy:3", "flag": "bool"}
Chunk = Callable[[list[Row]], bytes]


def given(row: Row) -> Row:
    """A number is never null here."""
    return {**row, "score": row["score"] or 0.0}


def sample(row: Row) -> bytes:
    values = [
        struct.pack("<q", row["id"]),
        row["text"].encode(),
        struct.pack("<d", row["score"] or 0.0),
        np.array(row["input_ids"], np.int64).tobytes(),
        bytes([row["flag"]]),
    ]
    return struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


def places(samples: list[bytes], start: int) -> bytes:
    return struct.pack(f"<{len(samples) + 1}I", *accumulate(map(len, samples), initial=start))


def chunk_of(samples: list[bytes]) -> bytes:
    return struct.pack("<I", len(samples)) + places(samples, 4 * (len(samples) + 2)) + b"".join(samples)


def plain(rows: list[Row]) -> bytes:
    return chunk_of([sample(row) for row in rows])


def each_compressed(rows: list[Row]) -> bytes:
    return chunk_of([zstd.compress(sample(row)) for row in rows])


def batches(rows: list[Row], run: int = 8) -> bytes:
    samples = [sample(row) for row in rows]
    firsts = range(0, len(rows), run)
    inflated = [b"".join(samples[first : first + run]) for first in firsts]
    parts = [zstd.compress(each) for each in inflated]
    starts = accumulate(map(len, parts), initial=24 + 4 * (len(rows) + 1) + 24 * len(firsts))
    directory = [
        struct.pack("<IIQII", first, min(run, len(rows) - first), start, len(part), len(whole))
        for first, start, part, whole in zip(firsts, starts, parts, inflated, strict=False)
    ]
    head = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, len(rows), run, len(firsts))
    return b"".join([head, places(samples, 0), *directory, *parts])


def with_arrow(rows: list[Row]) -> bytes:
    sink = io.BytesIO()
    made = table(rows)
    with pa.ipc.new_file(sink, made.schema) as writer:
        writer.write_table(made, max_chunksize=50)
    ipc = sink.getvalue()
    return chunk_of([b""] * len(rows)) + ipc + struct.pack("<I", len(ipc)) + b"LDARW01\0"


def leaf() -> dict[str, Any]:
    return {"type": None, "context": None, "children_spec": []}


def index_of(chunks: Mapping[str, tuple[int, int]], formats: Mapping[str, str] = FORMATS, **config: Any) -> str:
    """An index of chunks, each with its samples and bytes."""
    spec = {"type": "builtins.dict", "context": json.dumps(list(formats)), "children_spec": [leaf() for _ in formats]}
    plain = {"compression": None, "encryption": None, "item_loader": "PyTreeLoader", "data_spec": json.dumps([1, spec])}
    listed = [{"filename": name, "chunk_size": rows, "chunk_bytes": size, "dim": None} for name, (rows, size) in chunks.items()]
    return json.dumps({"chunks": listed, "config": {**plain, "data_format": list(formats.values()), **config}})


def folder_of(chunk: Chunk, suffix: str = ".bin", **config: Any) -> Callable[[Path, Mapping[str, list[Row]]], None]:
    def write(folder: Path, shards: Mapping[str, list[Row]]) -> None:
        named: dict[Path, dict[str, tuple[int, int]]] = {}
        for name, rows in shards.items():
            path = folder / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            body = chunk(rows)
            path.write_bytes(zstd.compress(body) if suffix != ".bin" else body)
            named.setdefault(path.parent, {})[path.name] = (len(rows), len(body))
        for parent, chunks in named.items():
            (parent / "index.json").write_text(index_of(chunks, **config))

    return write


WRITERS = [
    Writer("litdata", ".bin", folder_of(plain), given),
    Writer("litdata batches", ".bin", folder_of(batches, compression="zstd", compression_level="batch"), given),
    Writer("litdata samples", ".bin", folder_of(each_compressed, compression="zstd:3", compression_level="sample"), given),
    Writer("litdata whole", ".zstd.bin", folder_of(plain, ".zstd.bin", compression="zstd"), given),
    Writer("litdata arrow", ".bin", folder_of(with_arrow)),
]
