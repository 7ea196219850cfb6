"""JSON lines by pyarrow's reader, where it can be trusted.

It is the quicker one, above all where there is a GIL, and gives wrong data in silence where lines are not what they should be. So
it is given whole blocks of which every line begins with `{` and ends with `}`, and a schema of plain columns that it may not
widen; it must give as many rows as there are lines, and what it gives must be UTF-8. Then every line is one object by itself: what
is open at the end of a line cannot go on with a `{`. Lines with other keys are a second try, in which what it does not keep must
be looked at before: that it is UTF-8, how deep it is nested, and that there is no NaN and no Infinity, which are no JSON. Anything
else, a record that is bad included, is for the strict decoder.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj

from zephon_async.kinds import is_integers, is_json

_MOST_BYTES = (1 << 31) - 2  # of one block of pyarrow's reader
_BEFORE_A_VALUE = (b":", b",", b"[", b"")


def trusts(schema: pa.Schema) -> bool:
    """Whether columns are such that pyarrow reads them as they are written."""
    plain = (pa.large_string(), pa.int64(), pa.bool_())
    return len(schema) > 0 and all(not is_json(field) and (field.type in plain or is_integers(field.type)) for field in schema)


def read_plain(
    text: bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], schema: pa.Schema, is_sound: Callable[[], bool]
) -> list[pa.Array] | None:
    """The columns of the lines `text[starts[i]:stops[i]]`; None where another decoder must look.

    is_sound: says whether the lines are UTF-8 all of them, and none is nested deeper than a record may be.
    """
    if not len(starts) or stops[-1] - starts[0] > _MOST_BYTES or not _one_object_each(text, starts, stops):
        return None
    block = memoryview(text)[int(starts[0]) : int(stops[-1])]
    columns = _read(block, schema, len(starts), "error")
    if columns is None and is_sound() and not _has_no_number(text):
        columns = _read(block, schema, len(starts), "ignore")
    return columns


def _read(block: memoryview, schema: pa.Schema, rows: int, unexpected: str) -> list[pa.Array] | None:
    read = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
    parse = pj.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior=unexpected)
    try:
        table = pj.read_json(pa.BufferReader(pa.py_buffer(block)), read_options=read, parse_options=parse).combine_chunks()
        if table.num_rows != rows or table.schema.types != schema.types:
            return None
        columns = [table.column(name).chunk(0) for name in schema.names]
        for column in columns:
            column.validate(full=True)
    except pa.ArrowException:
        return None
    return None if any(is_integers(column.type) and column.flatten().null_count for column in columns) else columns


def _one_object_each(text: bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> bool:
    at = np.frombuffer(text, np.uint8)
    last = stops - 1
    last = last - (at[last] == ord("\r"))
    return bool((at[starts] == ord("{")).all() and (at[last] == ord("}")).all() and (last > starts).all())


def _has_no_number(text: bytes) -> bool:
    """Whether NaN or an infinity may stand as a value somewhere. Each line is looked at once a word, however often it has it."""
    for word in (b"NaN", b"Inf"):
        at = text.find(word)
        while at >= 0:
            behind = at + 1
            if text[max(at - 64, 0) : at].rstrip(b" \t\r-")[-1:] in _BEFORE_A_VALUE:
                behind = text.find(b"\n", at) + 1 or len(text)
                if word in _outside_strings(text[text.rfind(b"\n", 0, at) + 1 : behind]):
                    return True
            at = text.find(word, behind)
    return False


def _outside_strings(line: bytes) -> bytes:
    return b" ".join(line.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
