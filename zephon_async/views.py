"""Bytes that rows refer to, and do not carry: columns of Arrow views.

A value of a `binary_view` (or `string_view`) column is 16 bytes: a length, and where in which buffer of the column the bytes lie;
up to 12 bytes lie in the view itself. A buffer is the memory that they were read into, and lives as long as an array has it. So
rows are taken, joined and held without their images being touched. Views may be in lists, lists of fixed size and structs.

pyarrow 26 cannot take views, joins them with all buffers of all parts, and counts a buffer whole in every slice. Here a view is
taken as what it is, 16 bytes of fixed size, and an array has each buffer once, and none that no row of it refers to any more.

Threads: nothing is kept, and no array is changed.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.errors import BadRecord

T = pa.types
_VIEW = np.dtype([("length", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("offset", "<i4")])
_BARE = pa.binary(_VIEW.itemsize)
_INLINE = 12  # bytes that lie in the view itself
_MOST = np.iinfo(np.int32).max  # bytes of a buffer that views reach
_Leaf: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]


def has_views(kind: pa.DataType) -> bool:
    """Whether there are views in a type."""
    if T.is_struct(kind):
        return any(has_views(field.type) for field in kind)
    return has_views(kind.value_type) if _is_list(kind) else _is_view(kind)


def take_views(column: pa.Array, rows: pa.Array) -> pa.Array:
    """Rows of a column with views, by their numbers."""
    return _made_of([column], lambda bare: bare[0].take(rows))


def concat_views(columns: Sequence[pa.Array]) -> pa.Array:
    """One column of several of one type (at least one) with views."""
    return _made_of(columns, pa.concat_arrays)


def used_bytes(column: pa.Array) -> int:
    """Bytes of a column, and those that its views refer to: each as often as a row does."""
    if not has_views(column.type):
        return int(column.nbytes)
    bare = _rebuilt(column, column.type, lambda views, kind: _array(_BARE, views, _read(views)[0]))
    return int(bare.nbytes) + _referred_bytes(column)


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same; what its rows refer to, and nothing else, in memory of its own."""
    if not any(map(has_views, batch.schema.types)):
        return batch
    return pa.RecordBatch.from_arrays(list(map(_compact, batch.columns)), schema=batch.schema)


def referred(kind: pa.DataType) -> pa.DataType | None:
    """What becomes of a type of bytes, or of lists of them, where they are referred to; None for others."""
    if T.is_binary(kind) or T.is_large_binary(kind) or T.is_binary_view(kind):
        return pa.binary_view()
    if not (T.is_list(kind) or T.is_large_list(kind)) or (value := referred(kind.value_type)) != pa.binary_view():
        return None
    field = kind.value_field.with_type(value)
    return pa.large_list(field) if T.is_large_list(kind) else pa.list_(field)


def refer(column: pa.Array) -> pa.Array:
    """A column of bytes, or of lists of bytes, as views of them. Raises `BadRecord` for 2 GiB of bytes or more in one value."""
    kind = referred(column.type)
    if kind is None:
        raise TypeError(f"a column of {column.type} has no bytes that could be referred to")
    if has_views(column.type):
        return column
    if kind == pa.binary_view():
        return _views_of(column.cast(pa.large_binary()), kind)
    offsets = column.offsets.to_numpy()
    values = refer(column.values.slice(offsets[0], offsets[-1] - offsets[0]))
    return pa.Array.from_buffers(kind, len(column), [_validity(column), pa.py_buffer(offsets - offsets[0])], children=[values])


def _is_view(kind: pa.DataType) -> bool:
    return bool(T.is_binary_view(kind) or T.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(T.is_list(kind) or T.is_large_list(kind) or T.is_fixed_size_list(kind))


def _made_of(columns: Sequence[pa.Array], make: Callable[[list[pa.Array]], pa.Array]) -> pa.Array:
    """What is made of columns while their views are mere 16 bytes, which refer to buffers that all of them share."""
    numbers: dict[tuple[int, int], int] = {}  # of buffers, by address and size
    buffers: list[pa.Buffer] = []

    def number(buffer: pa.Buffer) -> int:
        found = numbers.setdefault((buffer.address, buffer.size), len(buffers))
        if found == len(buffers):
            buffers.append(buffer)
        return found

    def shared(views: pa.Array, kind: pa.DataType) -> pa.Array:
        return _array(_BARE, views, _renumbered(views, [number(buffer) for buffer in views.buffers()[2:]]))

    def alone(bare: pa.Array, kind: pa.DataType) -> pa.Array:
        views, far = _read(bare)
        used = np.unique(views["buffer"][far])
        new = np.zeros(len(buffers), np.int32)
        new[used] = np.arange(len(used))
        return _array(kind, bare, _renumbered(bare, new), [buffers[n] for n in used.tolist()])

    made = make([_rebuilt(column, column.type, shared) for column in columns])
    return _rebuilt(made, columns[0].type, alone)


def _rebuilt(column: pa.Array, kind: pa.DataType, leaf: _Leaf) -> pa.Array:
    """A column with `leaf` of each array of it that is one of views in a type."""
    if _is_view(kind):
        return leaf(column, kind)
    if not has_views(kind):
        return column
    if T.is_struct(kind):
        children = [_rebuilt(column.field(n), field.type, leaf) for n, field in enumerate(kind)]
        made = pa.struct([field.with_type(child.type) for field, child in zip(kind, children, strict=True)])
        return pa.Array.from_buffers(made, len(column), [_validity(column)], children=children)
    values = _rebuilt(column.values, kind.value_type, leaf)
    field = kind.value_field.with_type(values.type)
    if T.is_fixed_size_list(kind):
        made = pa.list_(field, kind.list_size)
    else:
        made = pa.large_list(field) if T.is_large_list(kind) else pa.list_(field)
    return pa.Array.from_buffers(made, len(column), column.buffers()[: kind.num_buffers], offset=column.offset, children=[values])


def _read(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Views, and which of them refer to a buffer: nulls and what lies in the view do not."""
    if not len(column):
        return np.empty(0, _VIEW), np.empty(0, np.bool_)
    views = np.frombuffer(column.buffers()[1], _VIEW, len(column), column.offset * _VIEW.itemsize)
    far = views["length"] > _INLINE
    if column.null_count:
        far &= column.is_valid().to_numpy(zero_copy_only=False)
    return views, far


def _renumbered(column: pa.Array, numbers: Sequence[int] | npt.NDArray[np.int32]) -> npt.NDArray[Any]:
    """Views that refer to buffers by new numbers, which are told by the old ones."""
    views, far = _read(column)
    if not np.array_equal(numbers, np.arange(len(numbers))):
        views = views.copy()
        views["buffer"][far] = np.asarray(numbers, np.int32)[views["buffer"][far]]
    return views


def _array(kind: pa.DataType, like: pa.Array, views: npt.NDArray[Any], buffers: Sequence[pa.Buffer] = ()) -> pa.Array:
    """Views with the nulls of a column."""
    return pa.Array.from_buffers(kind, len(like), [_validity(like), pa.py_buffer(views), *buffers])


def _validity(column: pa.Array) -> pa.Buffer | None:
    """The bits of what is no null, from the first row on."""
    if not column.null_count:
        return None
    return pa.py_buffer(np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


def _compact(column: pa.Array) -> pa.Array:
    if not has_views(column.type):
        return column
    alone = take_views(column, pa.array(np.arange(len(column))))  # for in a slice of lists there is more
    return _rebuilt(alone, column.type, _copied)


def _copied(views: pa.Array, kind: pa.DataType) -> pa.Array:
    return _views_of(views.cast(pa.large_string() if T.is_string_view(kind) else pa.large_binary()), kind)


def _referred_bytes(column: pa.Array) -> int:
    kind = column.type
    if _is_view(kind):
        views, far = _read(column)
        return int(views["length"][far].sum(dtype=np.int64))
    if T.is_struct(kind):
        return sum(map(_referred_bytes, column.flatten()))
    return _referred_bytes(column.flatten()) if has_views(kind) else 0


def _views_of(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Views of large bytes or text, which stay where they are."""
    n, data = len(column), column.buffers()[2]
    if not n or data is None:
        return column.cast(kind)
    offsets = np.frombuffer(column.buffers()[1], np.int64, n + 1, column.offset * 8)
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    if size > _MOST and n == 1:
        raise BadRecord(f"a value has {size:,} bytes, and {_MOST:,} can be referred to at most")
    if size > _MOST:
        return concat_views([_views_of(column.slice(0, n // 2), kind), _views_of(column.slice(n // 2), kind)])
    buffers = [_validity(column), pa.py_buffer(offsets - first), data.slice(first, size)]
    return pa.Array.from_buffers(column.type, n, buffers).cast(kind)
