"""What the trainer receives: a microbatch, its digest, and the filler rows that make up a short one.

A `Batch` has columns (numpy where numbers and shapes are fixed, Arrow otherwise), the origins of every row (which documents,
and which tokens of them), and its place in the run: step, lane, and number within the step. `to_training` makes tensors of it.

A digest says what a batch *means*: the same rows have the same digest however they were sliced, chunked, encoded or stored. It
is the SHA-256 of the columns by name, each as its name, canonical type, shape, validity (one byte a row), lengths (never
offsets) and values (little-endian, nulls zeroed, those inside a null list left out; dictionaries, run ends and views decoded);
then of the origins, with the names of datasets and shards in a table in order of first use. Where the batch was made (step,
lane, number, rank) is no part of it. Every piece is written behind its length, so that no two batches are written alike.

Threads: values, never changed after they are made.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zephon_async.checks import checks_call
from zephon_async.errors import RecipeError
from zephon_async.kinds import FILL, is_bytes, is_list, is_text, list_lengths
from zephon_async.ragged import Ragged, is_ragged, ragged
from zephon_async.records import ORIGIN, Names, Origins, Records
from zephon_async.training import to_training
from zephon_async.views import compact

Write: TypeAlias = Callable[[bytes | memoryview], None]


class Document(NamedTuple):
    """Which tokens of which document are in a row; `stop` is -1 where the record is there as a whole, not counted in tokens."""

    dataset: str
    shard: str
    row: int
    epoch: int
    part: int
    start: int
    stop: int


class _Columns(dict[str, Any]):
    """Columns by name, which say of another name what there is."""

    def __missing__(self, name: object) -> NoReturn:
        raise KeyError(
            f"there is no column {name!r}, there are {list(self)}; tokenize(keep_columns=[...]) keeps others of the dataset"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Batch:
    """A microbatch.

    columns: by name, read-only: numbers, and lists of fixed size of them, as numpy, (rows,) or (rows, n, ...), a view of
    the Arrow buffer where possible; text, bytes, lists, structs and what has nulls as `pyarrow.Array`, as `binary_view` the bytes
    that are referred to (see `refer`). `ragged(name)` shows tensors of differing shapes, such as decoded images, as numpy.
    mask: bool[rows], False for filler rows. step, lane, number: the global batch it is part of, where it comes from, and its
    place in the global batch. last_of_step: whether it is the last that this rank yields of the step: behind it the optimizer
    steps, and a checkpoint restores on any number of ranks.
    """

    records: Records
    names: Names
    step: int = field(kw_only=True)
    lane: int = field(kw_only=True)
    number: int = field(kw_only=True)
    filled: int = field(default=0, kw_only=True)
    last_of_step: bool = field(default=False, kw_only=True)
    columns: Mapping[str, npt.NDArray[Any] | pa.Array] = field(init=False)
    mask: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        batch = self.records.columns
        columns = {name: _face(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        mask = np.arange(len(self)) < len(self) - self.filled
        mask.flags.writeable = False
        object.__setattr__(self, "columns", MappingProxyType(_Columns(columns)))
        object.__setattr__(self, "mask", mask)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: object) -> NoReturn:
        there = list(self.columns)
        name, row = (key, "") if isinstance(key, str) else (there[0] if there else "input_ids", ", and of that a row")
        raise RecipeError(f"a batch has its arrays in its columns: take batch.columns[{name!r}]{row}; there are {there}")

    def __repr__(self) -> str:
        return f"Batch({len(self)} rows of {', '.join(self.columns)}; step {self.step}, lane {self.lane}, number {self.number})"

    def __reduce__(self) -> tuple[Any, ...]:
        records = self.records.with_columns(compact(self.records.columns))
        return _batch, (records, self.names, self.step, self.lane, self.number, self.filled, self.last_of_step)

    @property
    def origins(self) -> Origins:
        """Where the rows come from, as arrays; `documents()` for people."""
        return self.records.origins

    def to_pylist(self, name: str) -> list[Any]:
        """A column as Python values, one a row."""
        self.columns[name]  # says which there are, where this is none
        return list(self.records.columns.column(name).to_pylist())

    def ragged(self, name: str) -> Ragged:
        """A column of tensors of differing shapes, or of lists of tensors, as numbers, offsets and shapes."""
        self.columns[name]
        kind = self.records.columns.column(name).type
        if not is_ragged(kind):
            raise RecipeError(
                f"batch.ragged({name!r}): the column is {kind}, no tensors of differing shapes: take batch.columns[{name!r}]"
            )
        return ragged(self.records.columns.column(name))

    def documents(self) -> list[list[Document]]:
        """What is in each row, in order; nothing in filler rows."""
        segments, bounds = self.origins.segments.tolist(), self.origins.bounds().tolist()
        named = [Document(self.names.datasets[d], self.names.shards[d][s], *rest) for d, s, *rest in segments]
        return [named[start:stop] for start, stop in pairwise(bounds)]

    def digest(self) -> str:
        """SHA-256, hex, of what the batch means (see the head of this module)."""
        sha = hashlib.sha256()
        batch = self.records.columns
        _write_numbers(sha.update, len(self), batch.num_columns)
        for name, column in sorted(zip(batch.schema.names, batch.columns, strict=True), key=_name):
            _write_bytes(sha.update, name.encode())
            _write_bytes(sha.update, _type_name(column.type).encode())
            _write_column(sha.update, column)
        _write_origins(sha.update, self.origins, self.names)
        return sha.hexdigest()

    to_training = to_training


@checks_call
def global_digest(batches: Iterable[Batch]) -> str:
    """SHA-256, hex, of the digests of a step's microbatches in the order of their numbers."""
    listed = list(batches) if isinstance(batches, Iterable) else [batches]
    if not isinstance(batches, Iterable) or not all(isinstance(batch, Batch) for batch in listed):
        raise RecipeError(f"global_digest() takes the batches of a step in a list, not {batches!r:.80}")
    several = sorted(listed, key=lambda batch: batch.number)
    numbers, steps = [batch.number for batch in several], {batch.step for batch in several}
    if len(steps) > 1 or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"a global batch is of one step and has each number once; here are steps {sorted(steps)}, numbers {numbers}"
        )
    return hashlib.sha256(b"".join(bytes.fromhex(batch.digest()) for batch in several)).hexdigest()


def fill_rows(schema: pa.Schema, n: int) -> Records:
    """Make n filler rows: each value as the field's metadata says (`FILL`), else 0, empty or null; no origin."""
    columns = [_filler(column.type, (column.metadata or {}).get(FILL, b"").decode(), n) for column in schema]
    origins = Origins(np.empty(0, ORIGIN), np.zeros(n + 1, np.int64))
    return Records(pa.RecordBatch.from_arrays(columns, schema=schema), origins)


def _filler(kind: pa.DataType, text: str, n: int) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(_filler(kind.value_type, text, n * kind.list_size), type=kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _filler(kind.storage_type, text, n))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return pa.repeat(pa.scalar(text or "0").cast(kind), n)
    if is_text(kind) or is_bytes(kind):
        return pa.repeat(pa.scalar(text).cast(kind), n)
    if is_list(kind):
        return pa.array([[]] * n, kind)
    return pa.nulls(n, kind)


def _batch(records: Records, names: Names, step: int, lane: int, number: int, filled: int, last_of_step: bool) -> Batch:
    return Batch(records, names, step=step, lane=lane, number=number, filled=filled, last_of_step=last_of_step)


def _face(column: pa.Array) -> npt.NDArray[Any] | pa.Array:
    """A column as the trainer sees it."""
    shape, values = [len(column)], column
    if isinstance(column, pa.FixedShapeTensorArray) and not column.null_count:
        return column.to_numpy_ndarray()
    while pa.types.is_fixed_size_list(values.type) and not values.null_count:
        shape.append(values.type.list_size)
        values = values.flatten()
    kind = values.type
    if values.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return column
    array = values.to_numpy(zero_copy_only=False).reshape(shape)
    array.flags.writeable = False
    return array


# -- digest ------------------------------------------------------------------------------------------------------------------


def _name(named: tuple[str, pa.Array]) -> bytes:
    return named[0].encode()


def _type_name(kind: pa.DataType) -> str:
    """One name for all encodings of a type."""
    if is_text(kind):
        return "string"
    if is_bytes(kind):
        return "binary"
    if pa.types.is_fixed_size_list(kind):
        return f"fixed_size_list<{_type_name(kind.value_type)}>[{kind.list_size}]"
    if is_list(kind):
        return f"list<{_type_name(kind.value_type)}>"
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _type_name(kind.value_type)
    if pa.types.is_map(kind):
        return f"map<{_type_name(kind.key_type)}, {_type_name(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{child.name!r}: {_type_name(child.type)}' for child in kind)}>"
    if isinstance(kind, pa.BaseExtensionType):
        shape = [getattr(kind, "shape", None), getattr(kind, "permutation", None)]
        return f"{kind.extension_name}<{_type_name(kind.storage_type)}>{shape}"
    return str(kind)


def _plain(column: pa.Array) -> pa.Array:
    """Without what encodes the values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(column))
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(column.storage)
    if pa.types.is_map(kind):
        return column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    if is_text(kind):
        return column.cast(pa.large_string()).cast(pa.large_binary())
    if is_bytes(kind):
        return column.cast(pa.large_binary())
    return column.cast(pa.uint8()) if pa.types.is_boolean(kind) else column


def _write_column(write: Write, column: pa.Array) -> None:
    column = _plain(column)
    kind = column.type
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    _write_numbers(write, len(column))
    _write_bytes(write, valid)
    if pa.types.is_struct(kind):
        for child in column.flatten():  # null where the struct is
            _write_column(write, child)
    elif pa.types.is_fixed_size_list(kind):
        _write_column(write, column.flatten())
    elif is_list(kind):
        _write_bytes(write, list_lengths(column))
        _write_column(write, column.flatten())
    elif pa.types.is_large_binary(kind):
        _write_bytes(write, pc.binary_length(column).fill_null(0).to_numpy().astype("<i8", copy=False))
        _write_bytes(write, _text_bytes(column.drop_null()))
    elif not pa.types.is_null(kind):
        _write_bytes(write, _value_bytes(column, valid))


def _text_bytes(column: pa.Array) -> npt.NDArray[np.uint8]:
    _, offsets, values = column.buffers()
    if not len(column) or values is None:
        return np.empty(0, np.uint8)
    start, *_, stop = np.frombuffer(offsets, np.int64, len(column) + 1, column.offset * 8)
    return np.frombuffer(values, np.uint8)[start:stop]


def _value_bytes(column: pa.Array, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """The values of a type of fixed width, those of nulls zeroed: uint8[rows, width]."""
    n, width = len(column), column.type.bit_width // 8
    if not n * width:
        return np.empty((n, width), np.uint8)
    values = np.frombuffer(column.buffers()[1], np.uint8, n * width, column.offset * width).reshape(n, width)
    return values if valid.all() else values * valid[:, None]


def _write_origins(write: Write, origins: Origins, names: Names) -> None:
    segments, table = origins.segments, dict[str, int]()
    pairs, first, which = np.unique(
        segments["dataset"].astype(np.int64) << 32 | segments["shard"], return_index=True, return_inverse=True
    )
    numbers = np.empty((len(pairs), 2), np.int64)
    for pair in np.argsort(first):
        dataset, shard = segments[["dataset", "shard"]][first[pair]].tolist()
        for column, name in enumerate((names.datasets[dataset], names.shards[dataset][shard])):
            numbers[pair, column] = table.setdefault(name, len(table))
    _write_numbers(write, len(table))
    for name in table:
        _write_bytes(write, name.encode())
    rest = [segments[field].astype(np.int64) for field in ORIGIN.names[2:]]  # type: ignore[index]
    _write_bytes(write, np.column_stack((numbers[which], *rest)).astype("<i8"))
    _write_bytes(write, np.diff(origins.bounds()).astype("<i8"))


def _write_numbers(write: Write, *numbers: int) -> None:
    write(np.array(numbers, "<i8").tobytes())


def _write_bytes(write: Write, text: bytes | npt.NDArray[Any]) -> None:
    """Bytes behind their number."""
    view = text if isinstance(text, bytes) else np.ascontiguousarray(text).reshape(-1).view(np.uint8).data
    _write_numbers(write, len(view))
    write(view)
