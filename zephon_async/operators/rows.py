"""Arrow columns to Python records, and back: what users' functions take and give.

`to_dicts` gives the rows of a batch as plain dicts; columns of JSON text are decoded.
`to_batch` types dicts by a schema, and `learn_schema` finds the schema of some.

Nothing is coerced: 5 is no string, 1.5 and True are no integers, and a record or a struct has no keys but its own; one that is
missing is null. Only what keeps the value is done: integers may go into floating columns where they are
exact there, numpy scalars and arrays count as numbers and lists of their type. pyarrow alone is more lenient (26.0 makes 1 of
1.5, and drops unknown keys), so classes are looked at first, a whole column at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, repeat
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from zephon_async.checks import hint, shown
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import FILL, is_bytes, is_json, is_list, is_text
from zephon_async.nesting import TOO_DEEP, is_too_deep, json_text

_Classes: TypeAlias = tuple[type, ...]
_MOST_TYPE_LEVELS = 64  # of a type that is learned: Arrow cannot read one of more than some 128 levels back from a checkpoint
_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)


def large(kind: pa.DataType) -> pa.DataType:
    """The one kind of text and of bytes that travels: large_string for every string, large_binary for every binary."""
    if is_text(kind):
        return pa.large_string()
    return pa.large_binary() if is_bytes(kind) else kind


# Arrow to Python


def to_python(column: pa.Array) -> list[Any]:
    """`column.to_pylist()`; text and bytes go through numpy, which is several times as fast where there are nulls."""
    if is_text(column.type) or is_bytes(column.type):
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return values
    return column.to_pylist()  # type: ignore[no-any-return]


def to_dicts(columns: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts, one at a time. A value that is no JSON where it should be raises `BadRecord` when its turn comes."""
    names = columns.schema.names
    if not names:
        return ({} for _ in range(columns.num_rows))
    values = [decoded(column, field) for column, field in zip(columns.columns, columns.schema, strict=True)]
    return map(dict, map(zip, repeat(names), zip(*values, strict=True)))  # without a step of Python for each


def decoded(column: pa.Array, field: pa.Field) -> Iterable[Any]:
    """The values of a column, JSON text decoded; what is none raises `BadRecord` when its turn comes."""
    values = to_python(column)
    if not is_json(field):
        return values
    import msgspec

    def decode(text: str | None) -> Any:
        if text is not None and is_too_deep(text):
            raise BadRecord(f"column {field.name!r}: a record is {TOO_DEEP}: {shown(text)}")
        try:
            return None if text is None else msgspec.json.decode(text)
        except msgspec.MsgspecError as error:
            raise BadRecord(f"column {field.name!r}: wanted JSON text, found {shown(text)} ({error})") from error

    return map(decode, values)


# Python to Arrow


class _Misfit(Exception):
    """`value` is nothing for a column of type `wanted`."""

    def __init__(self, wanted: pa.DataType, value: Any) -> None:
        super().__init__(wanted, value)
        self.wanted = wanted
        self.value = value


def as_schema(schema: Any, who: str) -> pa.Schema:
    """The `schema=` of an operator: a pa.Schema, or names with Arrow types. Text and bytes become their large kinds."""
    try:
        given = schema if isinstance(schema, pa.Schema) else pa.schema(dict(schema))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise RecipeError(
            f"{who}: schema= must be a pa.Schema or a mapping of names to Arrow types, not {schema!r} ({error})"
        ) from None
    if not given.names or len(set(given.names)) < len(given.names):
        raise RecipeError(f"{who}: schema= must name at least one column, and each once; it names {given.names}")
    return pa.schema([field.with_type(large(field.type)) for field in given])


def find_field(schema: pa.Schema | None, name: str, who: str) -> pa.Field | None:
    """The field of a column that an operator takes; None where the schema is unknown. `RecipeError` where there is none."""
    if schema is None:
        return None
    if name not in schema.names:
        raise RecipeError(f"{who}: there is no column {name!r} here, there are {schema.names}{hint(name, schema.names)}")
    return schema.field(name)


def schema_settings(schema: pa.Schema | None) -> list[list[Any]] | None:
    """A schema as plain values, for fingerprints."""
    if schema is None:
        return None
    fills = [[f.metadata[FILL].decode()] if FILL in (f.metadata or {}) else [] for f in schema]
    return [[f.name, str(f.type), f.nullable, is_json(f), *fill] for f, fill in zip(schema, fills, strict=True)]


def no_rows(schema: pa.Schema | None) -> pa.RecordBatch:
    """A batch of no rows; of no columns either where no schema is known."""
    return pa.RecordBatch.from_pylist([], schema=pa.schema([]) if schema is None else schema)


def to_batch(records: Sequence[dict[str, Any]], schema: pa.Schema, given: bool = False) -> pa.RecordBatch:
    """Type records by a schema; what does not fit is a `BadRecord` that says column, wanted and found (not: which record).

    given: by the user, not learned; for what messages advise.
    """
    names, change = set(schema.names), "change schema=" if given else "pass schema="
    whole = True
    for record in records:
        if record.keys() != names:
            if surplus := [key for key in record if key not in names]:
                raise BadRecord(f"the result has {surplus} too many; wanted are {schema.names}: {change}")
            if absent := [field.name for field in schema if not field.nullable and field.name not in record]:
                raise BadRecord(f"the result lacks the columns {absent}, which the schema does not let be null: {change}")
            whole = False
    if not whole:
        records = [dict.fromkeys(schema.names) | record for record in records]
    columns = [to_column([record[field.name] for record in records], field, given) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_column(values: Sequence[Any], field: pa.Field, given: bool = False) -> pa.Array:
    """Type values by a field, which was given or learned; `BadRecord` where one does not fit."""
    if is_json(field):
        return pa.array(_encoded(values, field.name), field.type)
    values = _flat_arrays(values)
    try:
        _check(values, field.type)
        column = pa.array(values, field.type)
    except _Misfit as misfit:
        advice = f"{'change' if given else 'pass'} schema= if that is right"
        raise _bad(field.name, misfit.wanted, misfit.value, advice) from None
    except _REFUSALS as error:
        raise _bad(field.name, field.type, _refused(values, field.type), str(error)) from error
    if column.null_count and not field.nullable:
        raise _bad(field.name, field.type, None, "the schema forbids it")
    return column


def first_misfit(groups: Sequence[Sequence[dict[str, Any]]], schema: pa.Schema, given: bool = False) -> tuple[int, BadRecord]:
    """The number of the first group with a record that `to_batch` refuses, and the refusal."""
    for at, group in enumerate(groups):
        try:
            to_batch(group, schema, given)
        except BadRecord as error:
            return at, error
    raise ValueError("every record fits")


def _encoded(values: Sequence[Any], name: str) -> list[str | None]:
    """JSON texts that give the values back; NaN, tuples and keys that are no strings would not."""
    import msgspec

    texts: list[str | None] = []
    for value in values:
        try:
            text = json_text(value)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise _bad(name, "a JSON value", value, str(error)) from error
        texts.append(None if value is None else text)
    return texts


def _refused(values: Sequence[Any], kind: pa.DataType) -> Any:
    """The first value that pyarrow refuses."""
    for value in values:
        try:
            pa.array([value], kind)
        except _REFUSALS:
            return value
    return values


def _bad(name: str, wanted: Any, found: Any, why: str) -> BadRecord:
    return BadRecord(f"column {name!r} of the result: wanted {wanted}, found {type(found).__name__} {shown(found)} ({why})")


def _flat_arrays(values: Sequence[Any]) -> Sequence[Any]:
    """numpy arrays of two and more dimensions as lists of arrays of one, which is what pyarrow takes."""
    if np.ndarray not in set(map(type, values)):
        return values
    return [_flat_array(value) if isinstance(value, np.ndarray) else value for value in values]


def _flat_array(value: Any) -> Any:
    if value.ndim == 0:
        return value[()]
    return value if value.ndim == 1 else [_flat_array(inner) for inner in value]


_ACCEPTED: tuple[tuple[Callable[[pa.DataType], bool], _Classes, _Classes], ...] = (
    (kinds.is_null, (), ()),
    (kinds.is_boolean, (bool, np.bool_), ()),
    (kinds.is_integer, (int, np.integer), (bool,)),
    (kinds.is_floating, (float, np.floating, int, np.integer), (bool,)),
    (kinds.is_decimal, (Decimal, int), (bool,)),
    (is_text, (str,), ()),
    (is_bytes, (bytes, bytearray, memoryview), ()),
    (kinds.is_fixed_size_binary, (bytes, bytearray, memoryview), ()),
    (kinds.is_date, (date,), (datetime,)),
    (kinds.is_timestamp, (datetime,), ()),
    (kinds.is_time, (time,), ()),
    (kinds.is_duration, (timedelta,), ()),
    (is_list, (list, tuple, np.ndarray), ()),
    (kinds.is_struct, (dict,), ()),
    (kinds.is_map, (dict, list, tuple), ()),
)
"""For a kind of column: the classes of values that fit, and those among them that do not. Kinds not named are left to pyarrow."""


def _every(classes: Iterable[type], wanted: _Classes, unwanted: _Classes = ()) -> bool:
    return all(issubclass(c, wanted) and not issubclass(c, unwanted) for c in classes)


def _check(values: Sequence[Any], kind: pa.DataType) -> None:
    """Raise `_Misfit` for a value whose class is wrong for the kind, at any depth."""
    if kinds.is_dictionary(kind):
        return _check(values, kind.value_type)
    for is_kind, wanted, unwanted in _ACCEPTED:
        if is_kind(kind):
            for found in set(map(type, values)) - {NoneType}:
                if not _every((found,), wanted, unwanted):
                    raise _Misfit(kind, next(value for value in values if type(value) is found))
            break
    if kinds.is_timestamp(kind):
        for value in values:
            if value is not None and (value.tzinfo is None) is not (kind.tz is None):
                raise _Misfit(kind, value)
    if is_list(kind):
        _check(_elements(values), kind.value_type)
    elif kinds.is_struct(kind):
        names, required = {field.name for field in kind}, {field.name for field in kind if not field.nullable}
        present = [value for value in values if value is not None]
        for value in present:
            if not required <= value.keys() <= names:
                raise _Misfit(kind, value)
        for field in kind:
            _check([value.get(field.name) for value in present], field.type)
    elif kinds.is_map(kind):
        pairs = [pair for value in values if value is not None for pair in (value.items() if isinstance(value, dict) else value)]
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise _Misfit(kind, pair)
        _check([key for key, _ in pairs], kind.key_type)
        _check([item for _, item in pairs], kind.item_type)
    return None


def _elements(lists: Iterable[Any]) -> list[Any]:
    """What is in the lists; one value stands for a numpy array, all of whose values are of one type."""
    return list(
        chain.from_iterable(_sample(inner) if isinstance(inner, np.ndarray) else inner for inner in lists if inner is not None)
    )


def _sample(array: Any) -> Any:
    if array.dtype == object:
        return array.tolist()
    return array[:1] if len(array) else np.zeros(1, array.dtype)


# Learning a schema


def learn_schema(records: Sequence[dict[str, Any]], taken: pa.Schema, who: str) -> pa.Schema:
    """The schema of what a function gave for some records whose own schema was `taken`.

    Integers and floats in one column make it double; nested values become lists and structs. A missing key is null. A column
    without a value has the type of the input column of its name, else that of text. One that came in as JSON text goes out as
    JSON text if it holds dicts or lists.
    Everything irregular is a RecipeError that asks for `schema=`.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    if not names or not all(isinstance(name, str) for name in names):
        raise RecipeError(f"{who}: the records of the trial have the columns {names}: give at least one, named by strings")
    return pa.schema([_learn_field(name, [record.get(name) for record in records], taken, who) for name in names])


def _learn_field(name: str, values: list[Any], taken: pa.Schema, who: str) -> pa.Field:
    before = taken.field(name) if name in taken.names else None
    if before is not None:
        if all(value is None for value in values):
            return before.with_nullable(True)
        if is_json(before) and any(isinstance(value, dict | list) for value in values):
            return before
    try:
        kind = infer(values)
    except TypeError as error:
        raise RecipeError(f"{who}: column {name!r} of the results has no one type ({error}); pass schema=") from None
    if pa.types.is_null(kind):
        return pa.field(name, pa.large_string())
    if _is_untyped(kind):
        raise RecipeError(f"{who}: column {name!r} has no value in any of the {len(values)} results of the trial; pass schema=")
    return pa.field(name, kind)


def infer(values: Sequence[Any], level: int = 1) -> pa.DataType:
    """The one Arrow type of some Python values at a level of nesting; TypeError where there is none."""
    if level > _MOST_TYPE_LEVELS:
        raise TypeError(f"nested more than {_MOST_TYPE_LEVELS} levels deep")
    present = [value for value in _flat_arrays(values) if value is not None]
    classes = set(map(type, present))
    if not present:
        return pa.null()
    if _every(classes, (bool, np.bool_)):
        return pa.bool_()
    if _every(classes, (int, np.integer, float, np.floating), (bool,)):
        if len(classes) == 1 and issubclass(min(classes, key=str), np.generic):
            return pa.from_numpy_dtype(type(present[0]))
        return pa.int64() if _every(classes, (int, np.integer)) else pa.float64()
    if _every(classes, (str,)):
        return pa.large_string()
    if _every(classes, (bytes, bytearray, memoryview)):
        return pa.large_binary()
    if _every(classes, (list, tuple, np.ndarray)):
        return pa.list_(infer(_elements(present), level + 1))
    if _every(classes, (dict,)):
        names = list(present[0])
        if not names or any(value.keys() != set(names) for value in present):
            raise TypeError("dicts with different keys, or with none")
        return pa.struct([(name, infer([value[name] for value in present], level + 1)) for name in names])
    if len(classes) > 1:
        raise TypeError(" and ".join(sorted(found.__name__ for found in classes)))
    try:
        return pa.infer_type(present)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TypeError(f"{type(present[0]).__name__}: {error}") from None


def _is_untyped(kind: pa.DataType) -> bool:
    if is_list(kind):
        return _is_untyped(kind.value_type)
    return any(_is_untyped(field.type) for field in kind) if kinds.is_struct(kind) else bool(kinds.is_null(kind))
