"""Lance, read with its own library. A shard is a fragment; a unit is a run of its rows that are not deleted, in their order.

Any row block is read by itself, by the numbers of its rows ("take"). That is as quick as the library's own scan, and quicker than a
scan of a range, which takes some 10 ms to open and holds 4 to 25 MB; so nothing stands open between reads. A read holds its row
block and, in the library, the pages that it lies in; beside that the library keeps at most 32 MiB of metadata for each dataset.
See `stores/lance.py` for the version that is read, and for threads.

Blobs are read whole, as bytes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from zephon_async.errors import DatasetError, ShardError
from zephon_async.io.foreign import calling
from zephon_async.io.formats.base import (
    Decoded,
    Format,
    Measure,
    UnitSpan,
    check_columns,
    decoded_block,
    looked,
    runs_of_rows,
    span_of,
)
from zephon_async.io.pool import Pool
from zephon_async.io.stores import LanceSource, Source, Store, lance_store

_BLOB = "lance.blob"
_BLOB_MARK = b"lance-encoding:blob"


class LanceFormat(Format):
    """The format. Stateless."""

    name = "lance"
    suffixes = (".lance",)
    typed = True

    def store(self, path: str, options: Mapping[str, Any]) -> Store | None:
        return lance_store(path, options)

    def shards(self, names: Sequence[str], read: Callable[[str], bytes]) -> Sequence[str]:
        """Files are none: what ends as datasets do lies inside of one, or is one of several."""
        raise DatasetError(
            f"{min(names)!r} is a file of a Lance dataset, which is read as a whole: give the path of its folder, the one that has "
            "the folder _versions in it, and format='lance' where its name does not end in .lance"
        )

    def measure(self, total_bytes: int) -> Measure:
        return "rows"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        with calling(source.where, "Lance"):
            fragment = cast(LanceSource, source).fragment()
            rows = int(fragment.count_rows())
            live = source.size * rows // max(int(fragment.physical_rows), 1)
        return runs_of_rows(rows, live, unit_bytes, block_bytes)

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        return looked(_schema(source), columns)

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "LanceDecoder":
        return LanceDecoder(schema, required)


class LanceDecoder:
    """Reads runs of rows of fragments."""

    def __init__(self, schema: pa.Schema, required: Collection[str]) -> None:
        self._schema, self._required = schema, required

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        return [self._block(source, unit, block) for block in blocks]

    def _block(self, source: Source, unit: Any, block: int) -> Decoded:
        begin, rows = span_of(unit, block)
        return decoded_block(self._rows(source, int(unit["start"]) + begin, rows), self._schema, unit, block)

    def _rows(self, source: Source, first: int, rows: int) -> dict[str, pa.Array]:
        """The columns that there are, of rows that are not deleted."""
        with calling(source.where, "Lance"):
            schema = _schema(source)
            names = check_columns(source, schema, self._schema.names, self._required)
            if not names:
                return {}
            fragment = cast(LanceSource, source).fragment()
            if any(_is_blob(schema.field(name)) for name in names):
                scan = fragment.scanner(columns=names, offset=first, limit=rows, batch_size=rows, blob_handling="all_binary")
                table = scan.to_table()
            else:
                table = fragment.take(range(first, first + rows), columns=names)
            if table.num_rows != rows:
                raise ShardError(
                    f"{source.where}: gives {table.num_rows} rows from row {first} on, not {rows} as its manifest says"
                )
            whole = table.combine_chunks()
            return {name: whole.column(name).chunk(0) for name in names}

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        """None: the library reads."""
        return ()

    def row_name(self, source: Source, row: int) -> str:
        return f"row {row:,}"


def _schema(source: Source) -> pa.Schema:
    """Of the dataset; blobs as the bytes that they are read as."""
    with calling(source.where, "Lance"):
        schema = cast(LanceSource, source).store.dataset().schema
    return pa.schema([pa.field(f.name, pa.large_binary(), metadata={_BLOB_MARK: b"true"}) if _is_blob(f) else f for f in schema])


def _is_blob(field: pa.Field) -> bool:
    return _BLOB_MARK in (field.metadata or {}) or getattr(field.type, "extension_name", "").startswith(_BLOB)


FORMAT = LanceFormat()
