"""JSON values and Arrow types: what type a value has, and how the values of a type are decoded.

Nested values travel as JSON text, exactly as written, in a field marked `JSON`; lists of whole numbers are `list<int64>`.
"""

import datetime
import decimal
from collections.abc import Iterable
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa

from zephon_async.errors import RecipeError
from zephon_async.kinds import is_json, json_field

T = pa.types


def looked_type(values: Iterable[Any], name: str) -> pa.Field:
    """The field for the decoded values of a key: `null` where all are null, `list<null>` where all lists are empty."""
    field = pa.field(name, pa.null())
    for value in values:
        field = merge(field, _field_of(value, name))
        if is_json(field):
            break
    return field


def merge(first: pa.Field, other: pa.Field) -> pa.Field:
    """The field for the values of two: numbers widen, lists that differ become JSON text, else the first one stays."""
    a, b = first.type, other.type
    if T.is_null(b) or is_json(first) or first == other:
        return first
    if T.is_null(a):
        return other
    if T.is_integer(a) and T.is_floating(b):
        return other
    if T.is_list(a) and (T.is_list(b) or is_json(other)):
        if T.is_list(b) and T.is_null(b.value_type):
            return first
        return other if T.is_list(b) and T.is_null(a.value_type) else json_field(first.name)
    return first


def _field_of(value: Any, name: str) -> pa.Field:
    if value is None:
        return pa.field(name, pa.null())
    if isinstance(value, bool):
        return pa.field(name, pa.bool_())
    if isinstance(value, str):
        return pa.field(name, pa.large_string())
    if isinstance(value, int):
        return pa.field(name, pa.int64())
    if isinstance(value, float):
        return pa.field(name, pa.float64())
    if isinstance(value, list) and all(type(x) is int for x in value):
        return pa.field(name, pa.list_(pa.int64() if value else pa.null()))
    return json_field(name)


def python_type(kind: pa.DataType, column: str) -> Any:
    """The type by which msgspec decodes values of an Arrow type, without null. Raises `RecipeError` for types that JSON has not."""
    if T.is_large_string(kind):
        return str
    if T.is_boolean(kind):
        return bool
    if T.is_uint64(kind):
        return Annotated[int, msgspec.Meta(ge=0)]  # the upper bound is left to Arrow
    if T.is_integer(kind):
        return Annotated[int, msgspec.Meta(ge=_least(kind), le=_least(kind) + (1 << kind.bit_width) - 1)]
    if T.is_floating(kind):
        return float
    if T.is_large_binary(kind):
        return bytes
    if T.is_timestamp(kind):
        return Annotated[datetime.datetime, msgspec.Meta(tz=kind.tz is not None)]
    if T.is_date(kind):
        return datetime.date
    if T.is_decimal(kind):
        return decimal.Decimal
    if T.is_list(kind) or T.is_large_list(kind) or T.is_fixed_size_list(kind):
        value = python_type(kind.value_type, column)
        many: Any = list.__class_getitem__(value if T.is_integer(kind.value_type) else value | None)
        if T.is_fixed_size_list(kind):
            return Annotated[many, msgspec.Meta(min_length=kind.list_size, max_length=kind.list_size)]
        return many
    if T.is_struct(kind):
        fields = {field.name: python_type(field.type, column) | None for field in kind}
        return TypedDict("Struct", fields, total=False)  # type: ignore[operator]
    raise RecipeError(f"column {column!r} is pinned to {kind}, which values of JSON cannot be; pin it to another type")


def array_of(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Decoded values as an array, null where one does not fit, and the reasons by row."""
    try:
        return pa.array(values, kind), {}
    except (pa.ArrowException, OverflowError, ValueError):
        return _one_by_one(values, kind)


def _one_by_one(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    arrays, bad = [], {}
    for row, value in enumerate(values):
        try:
            arrays.append(pa.array([value], kind))
        except (pa.ArrowException, OverflowError, ValueError) as error:
            arrays.append(pa.nulls(1, kind))
            bad[row] = f"{kind} is wanted: {error}"
    return pa.concat_arrays(arrays), bad


def _least(kind: pa.DataType) -> int:
    return -(1 << (kind.bit_width - 1)) if T.is_signed_integer(kind) else 0
