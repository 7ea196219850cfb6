"""Plain text: a row is a line, in the column `text`.

A line ends at LF; a CR before it, or at the end of the last line, is dropped; so is a byte order mark at the start. Blank lines
are rows, of an empty text, as for users of the "text" builder of HF datasets: there is no markup in which an empty line means
nothing, it is where a paragraph ends. (Lines of JSON differ: there a blank one is no row.) A line end ends a line and begins none.
Text that is not UTF-8 is a bad record.

Units, row blocks and numbers of rows are those of `line_format`. The texts of a row block are its bytes without the ends of lines;
no Python object is made of any.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.io.conform import conform
from zephon_async.io.formats.base import Decoded
from zephon_async.io.formats.inflate import with_compressed
from zephon_async.io.formats.line_format import LineDecoder, LineFormat
from zephon_async.io.formats.lines import Lines, text_stops
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source
from zephon_async.kinds import is_bytes

_COLUMN = "text"


class TextFormat(LineFormat):
    """The format. Stateless."""

    name = "text"
    suffixes = with_compressed(".txt")
    blank = True

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        return pa.schema({_COLUMN: pa.large_string()} if columns is None or _COLUMN in columns else {})

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "TextDecoder":
        return TextDecoder(self, schema, pool)


class TextDecoder(LineDecoder):
    """Gives lines as texts."""

    def __init__(self, form: LineFormat, schema: pa.Schema, pool: Pool) -> None:
        super().__init__(form, pool)
        self._schema = schema
        self._wanted: pa.Field | None = schema.field(_COLUMN) if _COLUMN in schema.names else None

    def decode(self, source: Source, block: int, lines: Lines, last: bool) -> Decoded:
        columns = {}
        if self._wanted is not None:
            column = _lines_as_bytes(lines)
            columns[_COLUMN] = column if is_bytes(self._wanted.type) else column.view(pa.large_string())
        made, bad = conform(columns, len(lines.starts), self._schema)
        return Decoded(block, made, lines.starts, bad, last)


def _lines_as_bytes(lines: Lines) -> pa.Array:
    if not len(lines.starts):
        return pa.array([], pa.large_binary())
    starts, stops = lines.starts - lines.base, lines.stops - lines.base
    stops = text_stops(lines.text, starts, stops)
    offsets = np.concatenate(([0], np.cumsum(stops - starts)))
    body = lines.text[starts[0] : stops[-1]]
    if offsets[-1] + len(starts) - 1 != len(body):  # some lines have a CR
        body = body.replace(b"\r\n", b"\n")
    body = body.replace(b"\n", b"")
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(body)])


FORMAT = TextFormat()
