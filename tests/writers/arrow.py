from pathlib import Path

import pyarrow as pa
import pyarrow.ipc

from tests.writers.base import TYPES, Row, Writer, each, table


def file(path: Path, rows: list[Row]) -> None:
    with pa.ipc.new_file(path, TYPES) as writer:
        writer.write_table(table(rows), max_chunksize=50)


def stream(path: Path, rows: list[Row]) -> None:
    """Compressed, with a dictionary that grows on the way."""
    spelled = TYPES.set(1, pa.field("text", pa.dictionary(pa.int32(), pa.string())))
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True, compression="zstd")
    with pa.ipc.new_stream(path, spelled, options=options) as writer:
        for first in range(0, len(rows), 50):
            writer.write_table(table(rows[first : first + 50]).cast(spelled))


WRITERS = [
    Writer("arrow", ".arrow", each(file, ".arrow")),
    Writer("arrow stream", ".ipc", each(stream, ".ipc"), ends=False),
]
