"""A dataset at hand, without a pipeline: some rows of a shard, all of it checked, and what it is in short.

Rows of a shard are counted from 0 here, also where the catalog measures bytes; then they are counted first, by one pass over the
shard, if no index knows where rows begin. What is bad or broken is told, never passed over. Everything blocks while it reads.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import hint
from zephon_async.errors import BadRecord, DatasetError, RecipeError, ShardError
from zephon_async.io.access import Access
from zephon_async.io.catalog import FROM_START, IN_ORDER, UNIT
from zephon_async.io.dataset import Dataset
from zephon_async.io.formats import Decoded, Decoder, find_format, reading, span_of
from zephon_async.io.pool import Pool
from zephon_async.io.schema import dataset_schema
from zephon_async.io.stores import Source

_OPEN_BYTES = 64 << 20
_AT_ONCE = 8  # row blocks


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a shard: with one row of it, as messages call it, or with the shard itself (row: "")."""

    shard: str
    row: str
    reason: str

    def __str__(self) -> str:
        return f"{self.shard}{', ' if self.row else ''}{self.row}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a shard was found to be: its rows, those that are bad, and what is wrong."""

    shard: str
    rows: int
    problems: Sequence[Problem]


class _Shard:
    """A shard that is read by itself."""

    def __init__(self, dataset: Dataset, shard: int, schema: pa.Schema, access: Access | None, by_index: bool = True) -> None:
        self.form, self.source = find_format(dataset.format), dataset.open(shard, access)
        edges = dataset.index[shard].edges if by_index and dataset.index else None
        with reading(self.source, self.form.name):
            if edges is None:
                spans = self.form.units(self.source, "rows", dataset.unit_bytes, dataset.block_bytes)
            else:
                spans = self.form.units_by(self.source, edges, dataset.block_bytes)
        self.units = np.array([(shard, *span) for span in spans if span.length], UNIT)
        self.decoder: Decoder = self.form.decoder(schema, (), Pool(_OPEN_BYTES))

    @property
    def rows(self) -> int:
        return int(self.units["length"].sum())

    def blocks(self, unit: Any, wanted: Collection[int] | None = None) -> Iterator[Decoded]:
        """The row blocks of a unit, or some of them, in their order."""
        count = -(-int(unit["length"]) // int(unit["block"]))
        numbers = sorted(range(count) if wanted is None else wanted)
        while numbers:
            run = range(numbers[0], numbers[0] + 1)
            while len(run) < min(len(numbers), _AT_ONCE) and numbers[len(run)] == run.stop:
                run = range(run.start, run.stop + 1)
            numbers = numbers[len(run) :]
            with reading(self.source, self.form.name):
                found = {each.block: each for each in self.decoder.read(self.source, unit, run)}
            for number in run:
                if len(found[number].rows) != span_of(unit, number)[1]:
                    raise ShardError(f"{self.source.where}: has not the rows that the index says; build it again, or remove it")
                yield found[number]

    def sound_blocks(self, unit: Any, broken: Callable[[DatasetError], None]) -> Iterator[Decoded]:
        """Those row blocks of a unit that can be read; `broken` is told of the others, one by one, or of the first of a rest."""
        last: DatasetError | None = None
        for number in range(-(-int(unit["length"]) // int(unit["block"]))):
            try:
                yield from self.blocks(unit, [number])
            except DatasetError as error:
                if str(error) != str(last):
                    broken(error)
                last = error
                if unit["entry"] in (IN_ORDER, FROM_START):  # all behind it is read by way of it
                    return


def _access(dataset: Dataset) -> AbstractContextManager[Access | None]:
    return Access() if dataset.store.remote else nullcontext()


def read(
    dataset: Dataset, shard: int, rows: Sequence[int] | range | None = None, columns: Collection[str] | None = None
) -> pa.Table:
    """Rows of a shard, by their numbers from 0, in the order in which they are asked for (None: all of them).

    columns: None: all that a look at the dataset finds. Raises `BadRecord` where one of the rows is bad, `ShardError` where they
    cannot be read, and `RecipeError` for a shard or a row that is not there.
    """
    if not -len(dataset.shards) <= shard < len(dataset.shards):
        raise RecipeError(f"dataset {dataset.name!r} has {len(dataset.shards):,} shards, and no shard {shard}")
    with _access(dataset) as access:
        schema = dataset_schema(dataset, None, {}, access=access)
        if columns is not None:
            if missing := sorted(set(columns).difference(schema.names)):
                raise RecipeError(f"dataset {dataset.name!r}: there is no column {missing[0]!r}{hint(missing[0], schema.names)}")
            schema = pa.schema([field for field in schema if field.name in columns])
        opened = _Shard(dataset, shard % len(dataset.shards), schema, access)
        wanted = np.arange(opened.rows) if rows is None else _numbers(rows)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < opened.rows):
            raise RecipeError(f"{opened.source.where}: has {opened.rows:,} rows, not all of rows {wanted.min()} to {wanted.max()}")
        return _picked(opened, schema, wanted)


def _numbers(rows: Sequence[int] | range) -> npt.NDArray[np.int64]:
    if isinstance(rows, int | str) or not (found := np.asarray(rows)).ndim == 1 or (len(found) and found.dtype.kind not in "iu"):
        raise RecipeError(f"rows are numbers, such as [5] or range(10), not {rows!r:.80}")
    return found.astype(np.int64)


def _picked(opened: _Shard, schema: pa.Schema, wanted: npt.NDArray[np.int64]) -> pa.Table:
    order = np.argsort(wanted, kind="stable")
    pieces = [pa.Table.from_batches([], schema)]  # an empty column cannot be made of every type
    first = 0
    for unit in opened.units:
        length, size = int(unit["length"]), int(unit["block"])
        mine = wanted[order[slice(*np.searchsorted(wanted[order], (first, first + length)))]] - first
        for decoded in opened.blocks(unit, set((mine // size).tolist())):
            rows = mine[mine // size == decoded.block] - decoded.block * size
            for row in rows.tolist():
                if row in decoded.bad:
                    name = opened.decoder.row_name(opened.source, int(decoded.rows[row]))
                    raise BadRecord(f"{opened.source.where}, {name}: {decoded.bad[row]}")
            pieces.append(pa.Table.from_batches([decoded.columns]).take(rows))
        first += length
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return pa.concat_tables(pieces).take(back)


def check(dataset: Dataset) -> Iterator[Checked]:
    """Read everything, a shard at a time, and tell what is wrong with each."""
    with _access(dataset) as access:
        schema = dataset_schema(dataset, None, {}, access=access, lenient=True)  # its problems come when all is read
        for number, shard in enumerate(dataset.shards):
            yield _checked(dataset, number, shard.name, schema, access)


def _checked(dataset: Dataset, number: int, name: str, schema: pa.Schema, access: Access | None) -> Checked:
    rows, problems = 0, list[Problem]()

    def broken(error: DatasetError) -> None:
        problems.append(Problem(name, "", str(error).removeprefix(f"dataset {dataset.name!r}, shard {name!r}: ")))

    try:
        opened = _Shard(dataset, number, schema, access, by_index=False)
    except DatasetError as error:
        broken(error)
        return Checked(name, 0, problems)
    try:
        with reading(opened.source, opened.form.name):
            opened.form.check(opened.source)
            if dataset.index:
                dataset.index[number].check_rows(dataset.format, opened.rows)
                dataset.index[number].check_hashes(opened.source)
    except DatasetError as error:
        broken(error)
    for unit in opened.units:
        for decoded in opened.sound_blocks(unit, broken):
            rows += len(decoded.rows)
            problems += _bad(name, opened.source, opened.decoder, decoded)
    return Checked(name, rows, problems)


def _bad(shard: str, source: Source, decoder: Decoder, decoded: Decoded) -> Iterator[Problem]:
    for row, reason in sorted(decoded.bad.items()):
        yield Problem(shard, decoder.row_name(source, int(decoded.rows[row])), reason)
