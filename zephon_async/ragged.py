"""Tensors of differing shapes in a column: how they lie in Arrow, and what the trainer gets of them.

A tensor is a struct of its numbers end to end and its shape, as in Arrow's canonical variable-shape tensor; a column has one a
row, or a list of them. Lists of tensors of one shape (`fixed_shape_tensor`) are shown the same way.

Threads: values, never changed after they are made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.kinds import is_list, list_lengths


def ragged_type(numbers: pa.DataType, dimensions: int) -> pa.DataType:
    """The type of a tensor of so many dimensions and of any shape."""
    return pa.struct([("data", pa.large_list(numbers)), ("shape", pa.list_(pa.int32(), dimensions))])


def is_ragged(kind: pa.DataType) -> bool:
    """Whether a column of this type has tensors that `Ragged` can show."""
    if is_list(kind):
        return isinstance(kind.value_type, pa.FixedShapeTensorType) or is_ragged(kind.value_type)
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["data", "shape"]:
        return False
    numbers, shape = (field.type for field in kind)
    plain = is_list(numbers) and (pa.types.is_integer(numbers.value_type) or pa.types.is_floating(numbers.value_type))
    return bool(plain and pa.types.is_fixed_size_list(shape) and pa.types.is_integer(shape.value_type))


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """n tensors of d dimensions in B rows; tensor i is `values[offsets[i]:offsets[i + 1]].reshape(shapes[i])`.

    values: the numbers of all, end to end, a view where possible. offsets: int64[n + 1]. shapes: int32[n, d].
    row_offsets: int64[B + 1]: row r has the tensors `row_offsets[r]:row_offsets[r + 1]`; none where it is null or a filler.
    """

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    shapes: npt.NDArray[np.int32]
    row_offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, number: int) -> npt.NDArray[Any]:
        """Tensor `number`, a view."""
        number = range(len(self))[number]
        return self.values[self.offsets[number] : self.offsets[number + 1]].reshape(self.shapes[number])

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return map(self.__getitem__, range(len(self)))

    def padded(self) -> npt.NDArray[Any]:
        """All as one array [n, ...], each behind its own numbers filled with 0 up to the longest of the batch."""
        made = np.zeros((len(self), *self.shapes.max(axis=0, initial=0)), self.values.dtype)
        for number, shape in enumerate(self.shapes.tolist()):
            made[number][tuple(slice(side) for side in shape)] = self[number]
        return made


def ragged(column: pa.Array) -> Ragged:
    """What is in a column for which `is_ragged` holds."""
    if is_list(column.type):
        tensors, counts = column.flatten(), list_lengths(column)
    else:
        tensors, counts = column.drop_null(), column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    rows = np.concatenate(([0], np.cumsum(counts)))
    if isinstance(tensors.type, pa.FixedShapeTensorType):
        shape, numbers = tensors.type.shape, tensors.storage.flatten()
        shapes = np.tile(np.array(shape, np.int32), (len(tensors), 1))
        return Ragged(_numbers(numbers), np.arange(len(tensors) + 1) * int(np.prod(shape)), shapes, rows)
    lists, shape_lists = tensors.field("data"), tensors.field("shape")
    offsets = np.concatenate(([0], np.cumsum(list_lengths(lists))))
    shapes = _numbers(shape_lists.flatten()).reshape(-1, shape_lists.type.list_size)
    return Ragged(_numbers(lists.flatten()), offsets, shapes, rows)


def tensor_column(tensors: Sequence[npt.NDArray[Any]], present: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """Tensors as a column of `kind`: `fixed_shape_tensor`, or `ragged_type`, null where not `present`: bool[rows]."""
    fixed = isinstance(kind, pa.FixedShapeTensorType)
    numbers = kind.value_type if fixed else kind.field("data").type.value_type
    values = np.concatenate([tensor.reshape(-1) for tensor in tensors]) if tensors else np.empty(0, numbers.to_pandas_dtype())
    if fixed:
        storage = pa.FixedSizeListArray.from_arrays(pa.array(values, numbers), type=kind.storage_type)
        return pa.ExtensionArray.from_storage(kind, storage)
    lengths, shapes = np.zeros(len(present), np.int64), np.zeros((len(present), kind.field("shape").type.list_size), np.int32)
    lengths[present] = [tensor.size for tensor in tensors]
    if tensors:
        shapes[present] = [tensor.shape for tensor in tensors]
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))))
    lists = pa.LargeListArray.from_arrays(offsets, pa.array(values, numbers), type=kind.field("data").type)
    of_shapes = pa.FixedSizeListArray.from_arrays(pa.array(shapes.reshape(-1)), type=kind.field("shape").type)
    return pa.StructArray.from_arrays([lists, of_shapes], fields=list(kind), mask=pa.array(~present))


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found
