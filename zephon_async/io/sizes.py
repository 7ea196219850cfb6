"""Logical sizes: how many bytes of content a value has, whatever Arrow lays around it.

Strings and binary count their length, numbers their width, booleans 1, lists and structs the sum of what is in them, nulls 0.
Never buffer sizes: a slice, padding, or garbage under a null must not change the plan.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zephon_async.kinds import is_bytes, is_list, is_text, list_lengths

Sizes = npt.NDArray[np.int64]


def logical_bytes(array: pa.Array) -> Sizes:
    """The logical size of each value of an array: int64[n]."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return logical_bytes(array.storage)
    if pa.types.is_dictionary(kind):
        return _of_dictionary(array)
    if pa.types.is_run_end_encoded(kind):
        return logical_bytes(pc.run_end_decode(array))
    if pa.types.is_union(kind):
        raise TypeError(f"values of type {kind} have no logical size")
    return np.where(_valid(array), _ignoring_nulls(array), 0)


def row_sizes(batch: pa.RecordBatch, columns: Iterable[str]) -> Sizes:
    """The logical size of each row over some of its columns (those that are there), at least 1: int64[n]."""
    total = np.zeros(batch.num_rows, np.int64)
    for name in columns:
        if (at := batch.schema.get_field_index(name)) >= 0:
            total += logical_bytes(batch.column(at))
    return np.maximum(total, 1)


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _ignoring_nulls(array: pa.Array) -> Sizes | int:
    """Sizes as if no value were null; where one is, anything."""
    kind = array.type
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_boolean(kind):
        return 1
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return logical_bytes(array.cast(pa.large_binary()))  # which has a length; views have none
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    if is_text(kind) or is_bytes(kind):
        lengths: Sizes = pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64)
        return lengths
    if pa.types.is_struct(kind):
        return sum((logical_bytes(field) for field in array.flatten()), np.zeros(len(array), np.int64))
    if pa.types.is_fixed_size_list(kind):
        return _of_fixed_lists(array)
    if is_list(kind):
        return _of_lists(logical_bytes(array.flatten()), list_lengths(array))
    if pa.types.is_map(kind):
        offsets = array.offsets.to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        inner = sum(logical_bytes(part.slice(first, last - first)) for part in (array.keys, array.items))
        return _between(np.asarray(inner, np.int64), offsets - first)
    return int(kind.bit_width) // 8


def _of_lists(inner: Sizes, lengths: npt.NDArray[np.integer]) -> Sizes:
    """Sums over lists of `lengths` values, laid end to end in `inner` (those of null lists left out)."""
    return _between(inner, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))


def _of_fixed_lists(array: pa.FixedSizeListArray) -> Sizes:
    size = array.type.list_size
    inner = logical_bytes(array.values.slice(array.offset * size, len(array) * size))
    sums: Sizes = inner.reshape(len(array), size).sum(axis=1)
    return sums


def _of_dictionary(array: pa.DictionaryArray) -> Sizes:
    valid = _valid(array.indices)
    indices = array.indices.fill_null(0).to_numpy()
    sizes = logical_bytes(array.dictionary)
    return np.where(valid, sizes[indices], 0) if len(sizes) else np.zeros(len(array), np.int64)


def _between(inner: Sizes, offsets: npt.NDArray[np.integer]) -> Sizes:
    total = np.concatenate(([0], np.cumsum(inner)))
    sums: Sizes = total[offsets[1:]] - total[offsets[:-1]]
    return sums
