"""Arrow columns of a file, made into the columns of the dataset's schema. Nothing is guessed: what does not fit is a bad row.

`canonical` and `promote` are the rules of types: strings of every Arrow kind are one type, so are binaries; numbers widen.
`conform` applies them to a batch. No number becomes a string, no string a number, no boolean either, no value is cut.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zephon_async.io.without_views import is_view, without_views
from zephon_async.kinds import is_bytes, is_integers, is_json, is_list, is_text, json_field, list_lengths

T = pa.types
LEAVE_OUT = "leave the column out: map(fn, columns=[...]), or map_batches, reads only those that it names"
"""What messages advise about a column that cannot be read."""


def canonical(kind: pa.DataType) -> pa.DataType:
    """The one type that stands for all spellings of a type."""
    if T.is_dictionary(kind) or T.is_run_end_encoded(kind):
        return canonical(kind.value_type)
    if isinstance(kind, pa.ExtensionType):  # of Python: it is only there where its library has been loaded
        return canonical(kind.storage_type)
    if is_text(kind):
        return pa.large_string()
    if is_bytes(kind):
        return pa.large_binary()
    if T.is_fixed_size_list(kind):
        return pa.list_(canonical(kind.value_type), kind.list_size)
    if T.is_large_list(kind) or T.is_large_list_view(kind):
        return pa.large_list(canonical(kind.value_type))
    if is_list(kind):
        return pa.list_(canonical(kind.value_type))
    if T.is_struct(kind):
        return pa.struct([pa.field(field.name, canonical(field.type)) for field in kind])
    if T.is_map(kind):
        return pa.map_(canonical(kind.key_type), canonical(kind.item_type))
    return kind


def canonical_field(field: pa.Field) -> pa.Field:
    """A field of a file as one of a dataset: canonical type, no metadata but the mark of JSON text (Arrow's JSON type gets it)."""
    if is_json(field) or str(field.type).startswith("extension<arrow.json"):
        return json_field(field.name)
    return pa.field(field.name, canonical(field.type))


def promote(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of two canonical types; None where there is none."""
    if a == b or T.is_null(b):
        return a
    if T.is_null(a):
        return b
    if T.is_integer(a) and T.is_integer(b):
        return _wider(a, b)
    if (T.is_integer(a) or T.is_floating(a)) and (T.is_integer(b) or T.is_floating(b)):
        return max(a, b, key=lambda kind: kind.bit_width) if T.is_floating(a) and T.is_floating(b) else pa.float64()
    if is_list(a) and is_list(b):
        value = promote(a.value_type, b.value_type)
        if value is None:
            return None
        return pa.large_list(value) if T.is_large_list(a) or T.is_large_list(b) else pa.list_(value)
    if T.is_struct(a) and T.is_struct(b):
        return _promote_structs(a, b)
    return None


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if T.is_signed_integer(a) == T.is_signed_integer(b):
        return max(a, b, key=lambda kind: kind.bit_width)
    signed, unsigned = (a, b) if T.is_signed_integer(a) else (b, a)
    width = min(max(signed.bit_width, unsigned.bit_width * 2), 64)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[width]


def _promote_structs(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    fields = {field.name: field.type for field in a}
    for field in b:
        kind = promote(fields.get(field.name, pa.null()), field.type)
        if kind is None:
            return None
        fields[field.name] = kind
    return pa.struct(list(fields.items()))


def conform(columns: Mapping[str, pa.Array], rows: int, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """A batch of exactly `schema` from columns of `rows` rows, and what is bad in it: the reason by row.

    Columns that are not there are null, and so is a value that does not fit. Raises `pa.ArrowInvalid` for a broken column.
    """
    arrays: list[pa.Array] = []
    bad: dict[int, str] = {}
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            arrays.append(pa.nulls(rows, field.type))
            continue
        array, misfits = fit(column, field.type)
        arrays.append(array)
        for row, reason in misfits.items():
            bad.setdefault(row, f"column {field.name!r}: {reason}")
    return batch_of(arrays, rows, schema), bad


def batch_of(arrays: list[pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of `rows` rows, which `RecordBatch.from_arrays` forgets where there is no column."""
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def fit(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """The array as type `target`, null where a value does not fit, and the reasons by row. Raises `pa.ArrowInvalid` if broken."""
    array, bad = _sound(without_views(array) if is_view(array.type) else array)
    array = _plain(array, target)
    if array.type != target and not _same_family(array.type, target):
        for row in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
            bad.setdefault(row, f"{target} is wanted, not {array.type}")
        return pa.nulls(len(array), target), bad
    if array.type != target:
        array = cast_rows(array, target, bad)
    if is_integers(target):
        array = _without_null_numbers(array, bad)
    return array, bad


def _sound(array: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Find strings that are not UTF-8; anything else that is wrong is raised."""
    try:
        array.validate(full=True)
        return array, {}
    except pa.ArrowInvalid:
        if not (T.is_string(array.type) or T.is_large_string(array.type)):
            raise
    array.view(pa.binary() if T.is_string(array.type) else pa.large_binary()).validate(full=True)
    bad: dict[int, str] = {}

    def search(start: int, stop: int) -> None:
        try:
            array.slice(start, stop - start).validate(full=True)
        except pa.ArrowInvalid:
            if stop - start == 1:
                bad[start] = "the text is not UTF-8"
            else:
                search(start, (start + stop) // 2)
                search((start + stop) // 2, stop)

    search(0, len(array))
    return nulled(array, np.array(list(bad))), bad


def nulled(array: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    """The array with nulls in some rows."""
    keep = np.ones(len(array), np.bool_)
    keep[rows] = False
    return pc.if_else(pa.array(keep), array, pa.scalar(None, array.type))


def _plain(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Without what stands between an array and its values: extensions, dictionaries, runs, views."""
    while array.type != target:
        kind = array.type
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif T.is_dictionary(kind):
            values = _plain(array.dictionary, canonical(kind.value_type))
            array = pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
        elif T.is_run_end_encoded(kind):
            array = pc.run_end_decode(without_views(array))
        else:
            return without_views(array)
    return array


def _is_binary(kind: pa.DataType) -> bool:
    return is_bytes(kind) or bool(T.is_fixed_size_binary(kind))


def _same_family(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether values of type `a` can be values of type `b`, each by itself."""
    if a == b or T.is_null(a):
        return True
    if T.is_dictionary(a):
        return _same_family(a.value_type, b)
    if isinstance(a, pa.ExtensionType):
        return _same_family(a.storage_type, b)
    for family in (is_text, _is_binary, T.is_date, T.is_time, T.is_duration, T.is_decimal):
        if family(a) or family(b):
            return bool(family(a) and family(b))
    if T.is_timestamp(a) and T.is_timestamp(b):
        return (a.tz is None) == (b.tz is None)
    if T.is_integer(a) or T.is_floating(a):
        return bool(T.is_integer(b) or T.is_floating(b))
    if is_list(a) and is_list(b):
        return _same_family(a.value_type, b.value_type)
    if T.is_struct(a) and T.is_struct(b):
        return all(_same_family(a.field(a.get_field_index(f.name)).type, f.type) for f in b if a.get_field_index(f.name) >= 0)
    if T.is_map(a) and T.is_map(b):
        return _same_family(a.key_type, b.key_type) and _same_family(a.item_type, b.item_type)
    return False


def cast_rows(array: pa.Array, target: pa.DataType, bad: dict[int, str], first: int = 0) -> pa.Array:
    """Cast without loss; where that fails, halve until the rows that do not fit stand alone: these are null, and added to `bad`."""
    try:
        made = array.cast(target)
        made.validate()
        return made
    except pa.ArrowInvalid as error:
        if len(array) == 1:
            if array[0].is_valid:
                bad[first] = f"{target} is wanted: {error}"
            return pa.nulls(1, target)
    middle = len(array) // 2
    # `take`, not `slice`: a cast looks at all values under a sliced list
    halves = (array.take(pa.array(np.arange(middle))), array.take(pa.array(np.arange(middle, len(array)))))
    return pa.concat_arrays([cast_rows(half, target, bad, first + n * middle) for n, half in enumerate(halves)])


def _without_null_numbers(array: pa.Array, bad: dict[int, str]) -> pa.Array:
    """A list of integers with a null in it is not one."""
    flat = array.flatten()
    if not flat.null_count:
        return array
    lengths = list_lengths(array)
    owners = np.repeat(np.arange(len(array)), lengths)
    rows = np.unique(owners[flat.is_null().to_numpy(zero_copy_only=False)])
    for row in rows.tolist():
        bad.setdefault(row, "a number of the list is null")
    return nulled(array, rows)
