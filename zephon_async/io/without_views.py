"""Arrow's views, of texts and bytes and of lists, as the arrays that point nowhere but at their own values.

Few of Arrow's functions know them, and its casts read what null ones point at, which may be anywhere: such a read ends the process.
What null views say is not defined, so it need not even be a broken shard.

Threads: functions of their arguments.
"""

import numpy as np
import pyarrow as pa

from zephon_async.kinds import list_lengths

T = pa.types
_VIEW = 16  # bytes


def is_view(kind: pa.DataType) -> bool:
    """Whether values are views of texts or bytes."""
    return bool(T.is_string_view(kind) or T.is_binary_view(kind))


def without_views(array: pa.Array) -> pa.Array:
    """The same values without views, at any depth; of texts it is not looked at whether they are UTF-8.

    Raises `pa.ArrowInvalid` where a view of bytes points at what is not there.
    """
    kind = array.type
    if "_view" not in str(kind):
        return array
    if is_view(kind):
        return _joined(array)
    if T.is_run_end_encoded(kind):
        whole = pa.RunEndEncodedArray.from_arrays(array.run_ends, without_views(array.values))
        return whole.slice(array.offset, len(array))
    null = array.is_null()
    if T.is_list_view(kind) or T.is_large_list_view(kind):
        offsets = np.concatenate(([0], np.cumsum(list_lengths(array), dtype=np.int64)))
        return pa.LargeListArray.from_arrays(offsets, without_views(array.flatten()), mask=null)
    if T.is_list(kind) or T.is_large_list(kind):
        return type(array).from_arrays(_moved(array.offsets), without_views(array.values), mask=null)
    if T.is_fixed_size_list(kind):
        own = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(without_views(own), kind.list_size, mask=null)
    if T.is_map(kind):
        parts = without_views(array.keys), without_views(array.items)
        return pa.MapArray.from_arrays(_moved(array.offsets), *parts, mask=null)
    if T.is_struct(kind):
        fields = [without_views(array.field(n)) for n in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=null)
    if T.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, without_views(array.dictionary))
    return array


def _joined(array: pa.Array) -> pa.Array:
    """Views of bytes as large_binary, those of texts as large_string."""
    valid, buffers = np.asarray(array.is_valid()), array.buffers()
    views = np.frombuffer(buffers[1] or b"", np.uint8)[_VIEW * array.offset :][: _VIEW * len(array)].reshape(-1, _VIEW).copy()
    views[~valid] = 0
    own = [pa.array(valid).buffers()[1], pa.py_buffer(views), *buffers[2:]]
    made = pa.Array.from_buffers(pa.binary_view(), len(array), own)
    made.validate(full=True)
    made = made.cast(pa.large_binary())
    return made.view(pa.large_string()) if T.is_string_view(array.type) else made


def _moved(offsets: pa.Array) -> pa.Array:
    """Offsets of a slice, which do not go with a mask, as an array of their own."""
    return pa.array(np.array(offsets))
