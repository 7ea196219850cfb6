"""Encoded media in a column, decoded: what `decode_image`, `decode_audio` and `decode_video` have in common.

Takes a column of bytes (of any of Arrow's kinds), of structs with a field `bytes` (as Hugging Face's datasets have them), or of
lists of these; gives a tensor for each value, in lists where there were lists, of a shape for all or of shapes of their own (see
`ragged`). All other columns stay as they are. What cannot be decoded is a `BadRecord` of its row.

Randomness is a hash of seed, operator, origin and epoch, and of the place in the row.

Threads: the names of the datasets are set before anything runs; else nothing is kept between calls.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import one_of, whole, whole_or_none
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import is_bytes, is_list, list_lengths
from zephon_async.operators.base import Columns, Operator, RecordFailed, Tally
from zephon_async.operators.rows import find_field
from zephon_async.ragged import ragged_type, tensor_column
from zephon_async.randomness import mix, seed_of
from zephon_async.records import Origins, Records

ON_NULL = ("error", "keep")
MAX_BYTES = 1 << 29  # 179 million pixels of RGB, where Pillow too speaks of a bomb


def find_payloads(schema: pa.Schema | None, name: str, who: str) -> pa.Field | None:
    """The field of a column of encoded media; None where the schema is unknown. `RecipeError` where it holds none."""
    field = find_field(schema, name, who)
    if field is None:
        return None
    inner = field.type.value_type if is_list(field.type) else field.type
    if pa.types.is_struct(inner) and inner.get_field_index("bytes") >= 0:
        inner = inner.field("bytes").type
    if not is_bytes(inner) and not pa.types.is_null(inner):
        raise RecipeError(f"{who}: column {name!r} is {field.type}, wanted bytes, structs with a field 'bytes', or lists of these")
    return field


def payloads(column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Encoded values, and for each row where its own begin among them and how many it has: int64[rows], none where it is null."""
    if is_list(column.type):
        flat, counts = column.flatten(), list_lengths(column)
        begins = np.cumsum(counts) - counts
    else:
        flat, counts = column, column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        begins = np.arange(len(column))
    if pa.types.is_struct(flat.type):
        flat = flat.flatten()[flat.type.get_field_index("bytes")]  # null where the struct is
    return flat, begins, counts


def payload(flat: pa.Array, at: int) -> pa.Buffer:
    """The bytes of one value. `BadRecord` where there are none."""
    found = flat[at].as_buffer() if flat[at].is_valid else None
    if found is None:
        raise BadRecord("a null in the place of bytes")
    if not len(found):
        raise BadRecord("0 bytes")
    return found


class DecodePayload(Operator):
    """Decode a column of media; each value is an array."""

    releases_gil = True
    gives_views = False
    keeps_columns = True
    _shape: tuple[int, ...] | None = None
    """Of every tensor; None: each has its own, of `_dimensions`. Where a row may be null, they are not of a fixed shape."""
    _dimensions: int
    _numbers: pa.DataType

    def _set(self, field: str, field_out: str | None, on_null: str, max_bytes: int, parallelism: int | None) -> None:
        if not isinstance(field, str) or not isinstance(field_out, str | None):
            raise RecipeError(f"{self.name}: field= and field_out= must be names of columns, not {field!r:.80}, {field_out!r:.80}")
        one_of(f"{self.name}: on_null", on_null, ON_NULL)
        self.field, self.field_out, self.on_null = field, field if field_out is None else field_out, on_null
        self.max_bytes = whole(f"{self.name}: max_bytes", max_bytes, 1)
        self.parallelism = whole_or_none(f"{self.name}: parallelism", parallelism)
        self._key = 0
        self._datasets: tuple[int, ...] = ()

    @abstractmethod
    def _decoded(self, payload: pa.Buffer, columns: pa.RecordBatch, row: int, key: int) -> npt.NDArray[Any]:
        """The tensor of one value, which is in this row of the columns. `BadRecord`."""

    def _inputs(self) -> Sequence[str]:
        return (self.field,)

    def _kind(self, kind: pa.DataType) -> pa.DataType:
        """The type of the output for an input of this type."""
        fixed = self._shape is not None and (self.on_null == "error" or is_list(kind))
        made = pa.fixed_shape_tensor(self._numbers, self._shape) if fixed else ragged_type(self._numbers, self._dimensions)
        return pa.list_(made) if is_list(kind) else made

    def settings(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in ("field", "field_out", "on_null", "max_bytes")}

    def told(self, datasets: Sequence[str]) -> None:
        self._datasets = tuple(seed_of(name) for name in datasets)

    def reads(self, wanted: Columns) -> Columns:
        return None if wanted is None else (wanted - {self.field_out}) | frozenset(self._inputs())

    def requires(self) -> Mapping[str, str]:
        return dict.fromkeys(self._inputs(), "any")

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        field = find_payloads(schema, self.field, self.name)
        if schema is None or field is None:
            return None
        made = pa.field(self.field_out, self._kind(field.type))
        at = schema.get_field_index(self.field_out)
        return schema.append(made) if at < 0 else schema.set(at, made)

    def row_bytes(self, row_bytes: int) -> int:
        if self._shape is None:
            return row_bytes
        return row_bytes + int(np.prod(self._shape)) * int(self._numbers.bit_width // 8)

    def apply(self, records: Records, tally: Tally) -> Records:
        column = records.columns.column(self.field)
        flat, begins, counts = payloads(column)
        present = column.is_valid().to_numpy(zero_copy_only=False)
        tensors: list[npt.NDArray[Any]] = []
        for row, (begin, count) in enumerate(zip(begins.tolist(), counts.tolist(), strict=True)):
            before = len(tensors)
            try:
                if self.on_null == "error" and not present[row]:
                    raise BadRecord("null; on_null='keep' lets nulls through")
                for number in range(count):
                    key = self._random(records.origins, row, number)
                    tensors.append(self._decoded(payload(flat, begin + number), records.columns, row, key))
            except BadRecord as error:
                where = f"value {len(tensors) - before} of column" if is_list(column.type) else "column"
                done = self._made(records.slice(0, row), tensors[:before], counts[:row])
                raise RecordFailed(row, done) from BadRecord(f"{self.name}: {where} {self.field!r}: {error}")
        return self._made(records, tensors, counts)

    def _random(self, origins: Origins, row: int, number: int) -> int:
        """A hash for a value of a row, of packed ones by what is first in the row."""
        if not self._key:
            return 0
        segments = origins.slice(row, row + 1).segments
        if not len(segments):
            return mix(self._key, number)
        dataset, shard, *rest, _ = segments[0].tolist()
        return mix(self._key, self._datasets[dataset] if self._datasets else dataset, shard, *rest, number)

    def _made(self, records: Records, tensors: Sequence[npt.NDArray[Any]], counts: npt.NDArray[np.int64]) -> Records:
        columns = records.columns
        column = columns.column(self.field)
        kind = self._kind(column.type)
        if is_list(column.type):
            inner = tensor_column(tensors, np.ones(len(tensors), bool), kind.value_type)
            offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
            mask = column.is_null() if column.null_count else None
            made = pa.ListArray.from_arrays(offsets, inner, type=kind, mask=mask)
        else:
            made = tensor_column(tensors, counts > 0, kind)
        field, at = pa.field(self.field_out, kind), columns.schema.get_field_index(self.field_out)
        return records.with_columns(columns.append_column(field, made) if at < 0 else columns.set_column(at, field, made))
