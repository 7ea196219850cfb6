"""Token files of Megatron (`IndexedDatasetBuilder`): `name.bin`, nothing but tokens, and `name.idx`, which says what they are.

A row is a document: the sequences that it has, one behind the other, in the column "input_ids", of the type that the index says.
Where sequences have modes (multimodal) there are two columns more, with a number for each sequence of the document: "lengths", in
tokens, and "modes".

The index may be large, so no more of it is read than is needed: its head when listing, and of each unit, a run of documents, the
part that says where they lie, which is kept in the pool. The tokens of any row blocks are then one range. Sequences must lie one
behind the other from the first byte to the last, as the writer lays them, so a file that was cut short cannot be taken for whole.

Layout of the index: magic, version 1, code of the type, how many sequences, how many documents and one more; then the length of
each sequence (int32), the first byte of each (int64), the first sequence of each document and the end (int64), and perhaps a mode
of each sequence (int8).
"""

import struct
from collections.abc import Collection, Sequence
from os.path import splitext
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.errors import ShardError
from zephon_async.io.conform import conform
from zephon_async.io.formats.base import (
    Decoded,
    Format,
    Measure,
    UnitSpan,
    check_columns,
    looked,
    rows_of,
    runs_of_rows,
    span_of,
)
from zephon_async.io.formats.remembered import Remembered
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source

_MAGIC = b"MMIDIDX\0\0"
_HEAD = struct.Struct("<9sQBQQ")
_TYPES = dict(enumerate(("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"), 1))
_SECTIONS = {"lengths": "<i4", "starts": "<i8", "documents": "<i8", "modes": "i1"}
"""Of sequences: tokens, first byte, mode; of documents: the first sequence."""
_Ints: TypeAlias = npt.NDArray[np.int64]


class _Head(NamedTuple):
    """What the head of an index says: of the tokens, and how many there are of what."""

    dtype: np.dtype[Any]
    sequences: int
    documents: int
    modes: bool

    def part(self, source: Source, section: str, first: int, count: int) -> npt.NDArray[Any]:
        """Some numbers of a section of the index."""
        behind = {"lengths": 0, "starts": 4 * self.sequences, "documents": 12 * self.sequences}
        at = behind.get(section, 12 * self.sequences + 8 * (self.documents + 1))
        dtype = np.dtype(_SECTIONS[section])
        return np.frombuffer(source.read(_HEAD.size + at + first * dtype.itemsize, count * dtype.itemsize), dtype)

    @property
    def schema(self) -> pa.Schema:
        tokens = pa.schema({"input_ids": pa.list_(pa.from_numpy_dtype(self.dtype))})
        if not self.modes:
            return tokens
        return tokens.append(pa.field("lengths", pa.list_(pa.int32()))).append(pa.field("modes", pa.list_(pa.int8())))


def _head(source: Source) -> _Head:
    head = source.read(0, min(_HEAD.size, source.size))
    if len(head) < _HEAD.size or head[:9] != _MAGIC:
        raise ShardError(f"{source.where}: does not begin as an index of Megatron does")
    _, version, code, sequences, documents = _HEAD.unpack(head)
    if version != 1 or code not in _TYPES or not documents:
        raise ShardError(
            f"{source.where}: is of version {version}, with tokens of type {code} and {documents} documents: it is broken"
        )
    size = _HEAD.size + 12 * sequences + 8 * documents
    if source.size not in (size, size + sequences):
        raise ShardError(
            f"{source.where}: has {source.size:,} bytes, and {size:,} are wanted for {sequences:,} sequences and "
            f"{documents - 1:,} documents: it was cut short, or is broken"
        )
    return _Head(np.dtype(_TYPES[code]), sequences, documents - 1, sequences > 0 and source.size > size)


_HEADS = Remembered(_head)


def _index(source: Source) -> tuple[Source, _Head]:
    """The index of a shard, and what its head says."""
    beside = source.beside(f"{splitext(source.name.rpartition('/')[2])[0]}.idx")
    return beside, _HEADS.of(beside)


def _misfit(source: Source, said: str) -> ShardError:
    return ShardError(f"{source.where}: {said}, by its .idx: one of the two was cut short, or is of other data")


class _Documents:
    """Where the documents of a unit lie: edges, in bytes, int64[n + 1]; sequences, the first of each, int64[n + 1]."""

    at = 0

    def __init__(self, source: Source, unit: Any) -> None:
        index, self.head = _index(source)
        first, count = int(unit["first"]), int(unit["length"])
        self.sequences: _Ints = self.head.part(index, "documents", first, count + 1)
        begin, end = int(self.sequences[0]), int(self.sequences[-1])
        if begin < 0 or end > self.head.sequences or (self.sequences[1:] < self.sequences[:-1]).any():  # differences could overflow
            raise _misfit(source, f"documents {first:,} to {first + count:,} do not lie in it one behind the other")
        before = min(begin, 1)  # the sequence before, so that none is missed between two units
        lengths = self.head.part(index, "lengths", begin - before, end - begin + before)
        starts: _Ints = self.head.part(index, "starts", begin - before, end - begin + before)
        stops = starts + lengths * np.int64(self.head.dtype.itemsize)
        ordered = (lengths >= 0).all() and (starts[1:] == stops[:-1]).all() and (before or not end or starts[0] == 0)
        if not ordered or (len(stops) and not 0 <= int(starts[0]) <= int(stops[-1]) <= source.size):
            raise _misfit(source, f"sequences {begin:,} to {end:,} do not lie in it one behind the other")
        bytes_of: _Ints = np.concatenate((starts[:1], stops)).astype(np.int64) if len(stops) else np.zeros(1, np.int64)
        self.edges: _Ints = bytes_of[self.sequences - begin + before]
        self.lengths = lengths[before:]
        self.modes = self.head.part(index, "modes", begin, end - begin) if self.head.modes else None
        self.nbytes = 16 * (count + 1) + 5 * len(self.lengths)

    def columns(self, body: bytes | None, start: int, begin: int, rows: int) -> dict[str, pa.Array]:
        """Some documents as columns. body: the bytes from `start` on; without it they have no tokens."""
        columns = {}
        if body is not None:
            edges = self.edges[begin : begin + rows + 1]
            tokens = np.frombuffer(body, np.uint8)[edges[0] - start : edges[-1] - start]
            if len(tokens) < len(body):  # so that the block does not hold those beside it
                tokens = tokens.copy()
            tokens = tokens.view(self.head.dtype)
            columns["input_ids"] = _lists(edges // self.head.dtype.itemsize, tokens)
        if self.modes is not None:
            own = self.sequences[begin : begin + rows + 1]
            within = slice(own[0] - self.sequences[0], own[-1] - self.sequences[0])
            columns |= {"lengths": _lists(own, self.lengths[within].copy()), "modes": _lists(own, self.modes[within].copy())}
        return columns


def _lists(edges: _Ints, values: npt.NDArray[Any]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(edges - edges[0], pa.int32()), pa.array(values))


class MegatronFormat(Format):
    """The format. Stateless."""

    name = "megatron"
    suffixes = (".bin",)
    typed = True
    beside = "{stem}.idx"

    def measure(self, total_bytes: int) -> Measure:
        return "rows"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        index, head = _index(source)
        sequences, documents = head.sequences, head.documents
        ends = head.part(index, "documents", documents, 1)
        if (named := int(ends[0])) != sequences:
            raise _misfit(source, f"{sequences:,} sequences are in it, and {named:,} of them in documents")
        tokens = 0
        if sequences:
            last = head.part(index, "starts", sequences - 1, 1)[0], head.part(index, "lengths", sequences - 1, 1)[0]
            tokens = int(last[0]) + int(last[1]) * head.dtype.itemsize
        if tokens != source.size:
            raise _misfit(source, f"has {source.size:,} bytes, and {tokens:,}")
        return runs_of_rows(documents, source.size, unit_bytes, block_bytes)

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        return looked(_index(source)[1].schema, columns)

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "MegatronDecoder":
        return MegatronDecoder(schema, required, pool)


class MegatronDecoder:
    """Reads row blocks of documents."""

    def __init__(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> None:
        self._schema, self._required, self._pool = schema, required, pool

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        documents = self._documents(source, unit)
        check_columns(source, documents.head.schema, self._schema.names, self._required)
        start, stop = self._bytes(documents, unit, blocks)
        body = source.read(start, stop - start) if "input_ids" in self._schema.names else None
        decoded = [self._block(documents, body, start, unit, block) for block in blocks]
        self._pool.put((source.where, int(unit["start"])), documents)
        return decoded

    def _documents(self, source: Source, unit: Any) -> _Documents:
        opened: _Documents | None = self._pool.take((source.where, int(unit["start"])), 0)
        return opened or _Documents(source, unit)

    def _bytes(self, documents: _Documents, unit: Any, blocks: range) -> tuple[int, int]:
        first, last = span_of(unit, blocks[0])[0], sum(span_of(unit, blocks[-1]))
        return int(documents.edges[first]), int(documents.edges[last])

    def _block(self, documents: _Documents, body: bytes | None, start: int, unit: Any, block: int) -> Decoded:
        begin, rows = span_of(unit, block)
        columns = documents.columns(body, start, begin, rows)
        made, bad = conform({name: columns[name] for name in self._schema.names if name in columns}, rows, self._schema)
        return Decoded(block, made, rows_of(unit, block), bad)

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        documents = self._documents(source, unit)
        self._pool.put((source.where, int(unit["start"])), documents)
        return [self._bytes(documents, unit, blocks)]

    def row_name(self, source: Source, row: int) -> str:
        return f"document {row:,}"


FORMAT = MegatronFormat()
