"""What travels between the stages: Arrow record batches with the origins of their rows.

`Records` is a chunk of rows; a `Parcel` is records with what control there is (the end of a segment, a failure) as fields;
a `Block` is one decoded row block of a dataset; `Origins` says where every row comes from. All are immutable once made and
may be shared between threads. Nothing here makes a Python object for a row or a token.

Bytes are counted where a thing is made, on a worker: Arrow lets go of the GIL to count them. Those that rows refer to (`views`)
count as theirs.

Threads: values, never changed after they are made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.views import compact, concat_views, has_views, take_views, used_bytes

ORIGIN = np.dtype(
    [
        ("dataset", "<i4"),  # position among the datasets, sorted by name
        ("shard", "<i4"),  # position in the dataset's catalog
        ("row", "<i8"),  # row in the shard; the byte offset of the line start in JSONL
        ("epoch", "<i4"),
        ("part", "<i8"),  # numbers the children of flat_map and of split
        ("start", "<i8"),  # first token of the document in this row
        ("stop", "<i8"),  # behind its last token; -1: the whole record, not counted in tokens
    ]
)
CHILD_BITS = 20  # a child of part p with number j has part (p << CHILD_BITS) | j


@dataclass(frozen=True, slots=True, eq=False)
class Origins:
    """Where rows come from: `segments` (ORIGIN[m]) in order, row i owning `segments[offsets[i]:offsets[i + 1]]`.

    `offsets` is int64[n + 1], or None where every row has exactly one segment (all rows before packing).
    """

    segments: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.segments) if self.offsets is None else len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        return self.segments.nbytes + (0 if self.offsets is None else self.offsets.nbytes)

    def bounds(self) -> npt.NDArray[np.int64]:
        """The offsets, made where every row has one segment: int64[n + 1]."""
        return np.arange(len(self.segments) + 1) if self.offsets is None else self.offsets

    def slice(self, start: int, stop: int) -> "Origins":
        if self.offsets is None:
            return Origins(self.segments[start:stop])
        offsets = self.offsets[start : stop + 1]
        return Origins(self.segments[offsets[0] : offsets[-1]], offsets - offsets[0])

    def take(self, rows: npt.NDArray[np.integer]) -> "Origins":
        if self.offsets is None:
            return Origins(self.segments.take(rows))
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        inner = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[rows], lengths)
        return Origins(self.segments.take(inner), offsets)

    @staticmethod
    def concat(several: Sequence["Origins"]) -> "Origins":
        segments = np.concatenate([o.segments for o in several], dtype=ORIGIN) if several else np.empty(0, ORIGIN)
        if all(o.offsets is None for o in several):
            return Origins(segments)
        lengths = np.concatenate([np.diff(o.bounds()) for o in several])
        return Origins(segments, np.concatenate(([0], np.cumsum(lengths))))

    def children(self, counts: npt.NDArray[np.integer]) -> "Origins":
        """Origins for rows that each became `counts[i]` rows: `part` gains the number of the child."""
        if self.offsets is not None:
            return self.take(np.repeat(np.arange(len(self)), counts))  # rows of packed documents have no parts of their own
        if len(counts) and counts.max() > 1 << CHILD_BITS:
            raise ValueError(f"a record became {counts.max():,} records, more than {1 << CHILD_BITS:,}")
        if len(self.segments) and self.segments["part"].max() >= 1 << (62 - CHILD_BITS):
            raise ValueError("flat_map and split are nested too deep: their records can no longer be numbered in 62 bits")
        segments = np.repeat(self.segments, counts)
        ends = np.cumsum(counts)
        number = np.arange(len(segments)) - np.repeat(ends - counts, counts)
        segments["part"] = (segments["part"] << CHILD_BITS) | number
        return Origins(segments)


def take(batch: pa.RecordBatch, rows: npt.NDArray[np.integer]) -> pa.RecordBatch:
    """`batch.take(rows)`; fixed-size lists of numbers go through numpy, where it is some forty times as fast."""
    index = pa.array(rows)
    if not batch.num_columns:  # its rows are counted nowhere else
        return batch.take(index)
    return pa.RecordBatch.from_arrays([_take(column, rows, index) for column in batch.columns], schema=batch.schema)


def _take(column: pa.Array, rows: npt.NDArray[np.integer], index: pa.Array) -> pa.Array:
    kind = column.type
    if has_views(kind):
        return take_views(column, index)
    if not pa.types.is_fixed_size_list(kind) or not pa.types.is_primitive(kind.value_type) or column.null_count:
        return column.take(index)
    values = column.flatten()
    if values.null_count or pa.types.is_boolean(kind.value_type):
        return column.take(index)
    taken = values.to_numpy(zero_copy_only=True).reshape(-1, kind.list_size)[rows]
    return pa.FixedSizeListArray.from_arrays(pa.array(taken.reshape(-1), kind.value_type), type=kind)


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of several of one schema (at least one); its buffers, but for what views refer to, are its own where there are two
    or more."""
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].schema
    if not any(map(has_views, schema.types)):
        return pa.concat_batches(batches)
    pa.concat_batches([batch.slice(0, 0) for batch in batches])  # refuses other columns
    columns = [concat_views(parts) for parts in zip(*(batch.columns for batch in batches), strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def nbytes(batch: pa.RecordBatch) -> int:
    """Bytes of the rows of a batch, and those that they refer to."""
    return int(batch.nbytes) if not any(map(has_views, batch.schema.types)) else sum(map(used_bytes, batch.columns))


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Rows: an Arrow record batch, and the origin of each of its rows."""

    columns: pa.RecordBatch
    origins: Origins

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @property
    def nbytes(self) -> int:
        return nbytes(self.columns) + self.origins.nbytes

    def slice(self, start: int, stop: int) -> "Records":
        """Rows `start:stop`, without a copy."""
        return Records(self.columns.slice(start, stop - start), self.origins.slice(start, stop))

    def take(self, rows: npt.NDArray[np.integer]) -> "Records":
        return Records(take(self.columns, rows), self.origins.take(rows))

    def copied(self) -> "Records":
        """The same in memory of its own."""
        offsets = self.origins.offsets
        origins = Origins(self.origins.segments.copy(), None if offsets is None else offsets.copy())
        return Records(compact(pa.concat_batches([self.columns, self.columns.slice(0, 0)])), origins)

    def with_columns(self, columns: pa.RecordBatch) -> "Records":
        """The same rows with other columns."""
        return Records(columns, self.origins)

    @staticmethod
    def concat(several: Sequence["Records"]) -> "Records":
        """One of several of one schema (at least one)."""
        if len(several) == 1:
            return several[0]
        return Records(concat([r.columns for r in several]), Origins.concat([r.origins for r in several]))


class Names(NamedTuple):
    """The names that `dataset` and `shard` of an origin stand for: `datasets[d]`, `shards[d][s]`."""

    datasets: tuple[str, ...]
    shards: tuple[tuple[str, ...], ...]


class End(IntEnum):
    """What ends behind the last row of a parcel."""

    NOTHING = 0
    SEGMENT = 1
    RUN = 2


class Skipped(NamedTuple):
    """A bad record that was left out, behind the first `at` rows of what it was left out of.

    origin: (dataset, shard, row, epoch, part). rows: how many it stands for, where they cannot be told apart; 0: nobody knows.
    start: the first bytes of it, where its reader has them. drawn: whether it was, before it was found bad. counted: among those
    that a cursor says of its stage.
    """

    at: int
    origin: tuple[int, int, int, int, int]
    reason: str
    rows: int = 1
    start: bytes = b""
    drawn: bool = True
    counted: bool = False


def between(records: Records | None, skipped: Sequence[Skipped]) -> Iterator[tuple[Sequence[Skipped], Records | None]]:
    """Records in the pieces that bad ones were left out between, each with those before it; a piece may be without rows."""
    if not skipped:
        yield skipped, records
        return
    before: dict[int, list[Skipped]] = {0: []}
    for each in skipped:
        before.setdefault(each.at, []).append(each)
    for at, stop in zip(before, [*list(before)[1:], len(records or ())], strict=True):
        yield before[at], records.slice(at, stop) if records is not None and stop > at else None


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """What a stage hands to the next: records, and behind them, in this order, a failure or an end.

    `records` is None where there is no row and no schema is known. `counts` are what was left out or made up on the way
    (documents dropped, tokens cut, ...), by name, to be added up. `skipped`: bad records that were left out on the way, by `at`.
    `drawn`: of a parcel with an end, rows of each dataset that the lane has drawn so far.
    """

    records: Records | None
    end: End = End.NOTHING
    failure: BaseException | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    skipped: Sequence[Skipped] = ()
    drawn: tuple[int, ...] = ()
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", 0 if self.records is None else self.records.nbytes)

    def __len__(self) -> int:
        return 0 if self.records is None else len(self.records)

    def made(
        self,
        records: Records | None,
        failure: BaseException | None = None,
        counts: Mapping[str, int] | None = None,
        skipped: Sequence[Skipped] = (),
    ) -> "Parcel":
        """What a stage has made of it: what ends behind it stays."""
        return replace(self, records=records, failure=failure, counts=counts or {}, skipped=skipped)


class Part(NamedTuple):
    """The piece of a row block that a lane owns: `start:stop` of the unit, in the unit's measure (rows or bytes).

    Of a unit of which the number of row blocks is not known it is all that the lane owns of the unit, whichever row block.
    """

    unit: int
    block: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One decoded row block.

    rows: int64[n], the row of each in its shard (JSONL: the byte offset of its line).
    places: int64[n], where each is in its unit, in the unit's measure (rows, or bytes from the unit's start).
    sizes: int64[n], at least 1: the size of each in the plan's unit (1 for samples, logical bytes otherwise).
    bad: what is wrong with a row of this block, by its number in it.
    last: no row block of its unit behind it has a row; told where their number is not known.
    lost: why it cannot be decoded at all, where it has no rows for that.
    """

    columns: pa.RecordBatch
    shard: int
    rows: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    bad: Mapping[int, Exception] = field(default_factory=dict)
    last: bool = False
    lost: str = ""
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        # pyarrow makes the schema of a batch when it is first asked for, without a lock (26.0.1): where two workers did so at
        # once, one of them lost it while it was in use, and the memory of free-threaded Python was broken.
        _ = self.columns.schema
        arrays = (self.columns, self.rows, self.places, self.sizes)
        object.__setattr__(self, "nbytes", sum(int(array.nbytes) for array in arrays))


class Pick(NamedTuple):
    """Rows `rows` (whole numbers[k], counted within the block) for a lane's chunk, in order."""

    dataset: int
    epoch: int
    block: Block
    rows: npt.NDArray[np.integer]


class Marks(NamedTuple):
    """Places from which an accumulator can be restarted empty: three sequences of k whole numbers, ascending in `outputs`.

    A new accumulator told `outputs[j]` and fed from input row `rows[j]` on (counted from this accumulator's first), the first
    `skips[j]` tokens of that row left out, gives the same outputs from number `outputs[j]` on.
    """

    outputs: Sequence[int]
    rows: Sequence[int]
    skips: Sequence[int]
