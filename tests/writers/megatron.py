"""Token files of Megatron: tokens, and an index beside each."""

import struct
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.writers.base import TYPES, Row, Writer, each

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def index_of(lengths: list[int], documents: list[int], dtype: str = "int64", modes: list[int] | None = None) -> bytes:
    """documents: how many sequences each has."""
    width = np.dtype(dtype).itemsize
    starts = list(accumulate(lengths, initial=0))[:-1]
    return b"".join(
        [
            struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, CODES[dtype], len(lengths), len(documents) + 1),
            np.array(lengths, np.int32).tobytes(),
            np.array(starts, np.int64).tobytes() if width == 1 else (np.array(starts, np.int64) * width).tobytes(),
            np.array(list(accumulate(documents, initial=0)), np.int64).tobytes(),
            np.array(modes or [], np.int8).tobytes(),
        ]
    )


def write(path: Path, documents: list[list[list[int]]], dtype: str = "int64", modes: list[int] | None = None) -> None:
    """documents: sequences of each."""
    sequences = [sequence for document in documents for sequence in document]
    path.write_bytes(b"".join(np.array(sequence, dtype).tobytes() for sequence in sequences))
    index = index_of([len(sequence) for sequence in sequences], [len(document) for document in documents], dtype, modes)
    path.with_suffix(".idx").write_bytes(index)


def halves(path: Path, rows: list[Row]) -> None:
    """Documents of two sequences, of which one may be empty; and some of none."""
    write(path, [[row["input_ids"][:2], row["input_ids"][2:]] if row["input_ids"] else [] for row in rows])


def given(row: Row) -> Row:
    return {**dict.fromkeys(TYPES.names), "input_ids": row["input_ids"]}


SCHEMA = pa.schema({"input_ids": TYPES.field("input_ids").type})
WRITERS: list[Any] = [Writer("megatron", ".bin", each(halves, ".bin"), given, SCHEMA)]
