"""What columns are: families of Arrow types, lengths of lists, and the marks that a field may carry.

A field of JSON text says so in its metadata (`JSON`): its strings are nested values as they were written, which are decoded for
users' functions. `FILL` says what the value of filler rows is.
"""

from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

T = pa.types

# Without a GIL pyarrow 26 imports pandas and uuid, when it first needs them, inside of a lock in which other threads cannot be
# stopped: a garbage collection in there waits for ever. So it needs them here, where an import lets one thread in.
pa.nulls(1, pa.int64()).to_numpy(zero_copy_only=False)
pa.infer_type([UUID(int=0)])

JSON = {b"zephon": b"json"}
"""Metadata of a field whose strings are JSON text."""
FILL = b"zephon.fill"
"""Metadata of a field: the text of the value that its filler rows have."""
NO_TOKEN = -100
"""In the column next_token: no token of the same document follows the row."""


def json_field(name: str) -> pa.Field:
    """A field of JSON text."""
    return pa.field(name, pa.large_string(), metadata=JSON)


def is_json(field: pa.Field) -> bool:
    """Whether a field is JSON text."""
    return (field.metadata or {}).get(b"zephon") == b"json"


def type_name(field: pa.Field) -> str:
    """What messages and fingerprints call the type of a field."""
    return "JSON text" if is_json(field) else str(field.type)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's strings."""
    return bool(T.is_string(kind) or T.is_large_string(kind) or T.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's binaries of any length."""
    return bool(T.is_binary(kind) or T.is_large_binary(kind) or T.is_binary_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's lists."""
    views = T.is_list_view(kind) or T.is_large_list_view(kind)
    return bool(T.is_list(kind) or T.is_large_list(kind) or T.is_fixed_size_list(kind) or views)


def is_integers(kind: pa.DataType) -> bool:
    """Whether a type is a list of integers."""
    return is_list(kind) and bool(T.is_integer(kind.value_type))


def is_numbers(kind: pa.DataType) -> bool:
    """Whether a type is a list of numbers or booleans."""
    return is_list(kind) and any(is_it(kind.value_type) for is_it in (T.is_integer, T.is_floating, T.is_boolean))


def list_lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Values of each list, 0 where it is null: int64[n]."""
    lengths = pc.list_value_length(column)
    found: npt.NDArray[np.int64] = (lengths.fill_null(0) if lengths.null_count else lengths).to_numpy().astype(np.int64, copy=False)
    return found
