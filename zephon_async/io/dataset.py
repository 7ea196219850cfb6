"""A dataset: named data of one format, as files of this machine or as in-memory tables.

`from_path` lists the files at once, so what is wrong with a path is said where it is written; footers and lines are read when the
catalog is first asked for. A dataset is a value: only the catalog and the row counts are made later, once.

Threads: values, but for `_Once`, which has a lock.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import checks_call, whole, writable
from zephon_async.errors import DatasetError, RecipeError, ShardError, StorageError
from zephon_async.forks import tell_of_forks
from zephon_async.io.access import Access
from zephon_async.io.at_once import at_once
from zephon_async.io.catalog import UNIT, Catalog, Shard
from zephon_async.io.conform import canonical_field
from zephon_async.io.formats import Measure, UnitSpan, find_format, reading
from zephon_async.io.in_memory import tables_of_arrow, tables_of_rows
from zephon_async.io.index import Entry
from zephon_async.io.listing import listed
from zephon_async.io.stores import MemoryStore, Source, Store
from zephon_async.kinds import type_name

Pins: TypeAlias = pa.Schema | Mapping[str, pa.DataType]
_Counts: TypeAlias = tuple[npt.NDArray[np.int64], Mapping[int, ShardError]]
UNIT_BYTES, BLOCK_BYTES = 16 << 20, 1 << 20


class _Once:
    """What is made from a dataset when it is first asked for; not copied along with it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: dict[str, Any] = {}
        tell_of_forks(self)

    def forked(self) -> None:
        """A thread that is not there any more may have held the lock."""
        self._lock = threading.RLock()

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]

    def __reduce__(self) -> tuple[type["_Once"], tuple[()]]:
        return _Once, ()


@checks_call
@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Named data: `from_path`, `from_dict`, `from_arrow`.

    shards: in the byte order of their names. ignored: what was seen beside them. schema: types that were pinned, by column.
    unit_bytes, block_bytes: about how large units and row blocks are made; part of the recipe.
    expect_rows: how many rows it must have. index: what an index says of each shard, if there is one. told: of a path, what was
    given to `from_path` to find it.
    """

    name: str
    format: str
    store: Store = field(repr=False)
    shards: tuple[Shard, ...] = field(repr=False)
    ignored: tuple[str, ...] = field(default=(), repr=False)
    schema: pa.Schema | None = field(default=None, repr=False)
    unit_bytes: int = UNIT_BYTES
    block_bytes: int = BLOCK_BYTES
    expect_rows: int | None = field(default=None, repr=False)
    index: tuple[Entry, ...] = field(default=(), repr=False)
    told: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _once: _Once = field(default_factory=_Once, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise RecipeError(f"the name of a dataset is a text, not {self.name!r}")
        writable("the name of a dataset", self.name)
        for setting in ("unit_bytes", "block_bytes"):
            object.__setattr__(self, setting, whole(f"dataset {self.name!r}: {setting}", getattr(self, setting), 1))
        if self.expect_rows is not None:
            object.__setattr__(self, "expect_rows", whole(f"dataset {self.name!r}: expect_rows", self.expect_rows, 0))

    @staticmethod
    @checks_call
    def from_path(
        name: str,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,
        schema: Pins | None = None,
        storage_options: Mapping[str, Any] | None = None,
        unit_bytes: int = UNIT_BYTES,
        block_bytes: int = BLOCK_BYTES,
        expect_rows: int | None = None,
    ) -> "Dataset":
        """The files that a path or URL stands for: a file, a folder (all that is below it), or a glob where no such path exists.

        A Lance dataset, a folder that ends in .lance, is one thing and not its files; storage_options may say its version= then.

        storage_options: of a URL, as users of fsspec know them, such as endpoint_url= or anon= of s3://.
        format: the name of the format; needed where a folder holds two, or where suffixes do not tell it. Below a folder only files
            with its suffixes are shards; files that are named, one or by a pattern, may have others, if all of them have.
        schema: types of columns; what does not fit them is a bad record. Others are found by a look at the data.
        expect_rows: how many rows there must be, bad ones too: anything else is a `DatasetError` before the first batch. Where rows
        are not known without (large data of lines or tars that has no index), they are counted for it: that reads all of it.
        An `index.json` in the folder (see `build_index`) is held against what is there; MDS and LitData have their own.
        Raises `DatasetError` where there is nothing to read, `RecipeError` for settings that cannot be meant.
        """
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(text, str) or "\0" in text:
            raise RecipeError(f"dataset {name!r}: the path is a text or a pathlib.Path, not {path!r:.80}")
        if format is not None and not isinstance(format, str):
            raise RecipeError(f"dataset {name!r}: format is {format!r:.80}: it must be the name of a format, such as 'jsonl'")
        options = {} if storage_options is None else storage_options
        if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
            raise RecipeError(f"dataset {name!r}: storage_options is a dict of settings by name, not {type(options).__name__}")
        try:
            found = listed(name, text, options, format)
        except (DatasetError, RecipeError) as error:
            raise type(error)(f"dataset {name!r}: {error}") from error.__cause__
        files = (found.format, found.store, found.shards, found.ignored)
        told: dict[str, Any] = {"path": text} | ({"format": format} if format is not None else {})
        told |= {"storage_options": dict(options)} if options else {}
        return Dataset(name, *files, _pins(name, schema), unit_bytes, block_bytes, expect_rows, found.entries, told)

    @staticmethod
    @checks_call
    def from_dict(
        name: str,
        rows: Mapping[Any, Any] | Sequence[Any],
        *,
        schema: Pins | None = None,
    ) -> "Dataset":
        """In-memory rows: values by the name of a column, or dicts, or dicts by the number of a shard (`InMemoryShard` or list).

        Nested values are kept as JSON text, but for lists of whole numbers.
        """
        pins = _pins(name, schema)
        return _in_memory(name, tables_of_rows(name, rows, pins), pins)

    @staticmethod
    @checks_call
    def from_arrow(
        name: str,
        table: pa.Table | pa.RecordBatch | Mapping[str, pa.Table | pa.RecordBatch],
        *,
        schema: Pins | None = None,
    ) -> "Dataset":
        """An Arrow table or record batch; or several, by the name of a shard."""
        return _in_memory(name, tables_of_arrow(name, table), _pins(name, schema))

    @checks_call
    def with_sizes(self, *, unit_bytes: int = UNIT_BYTES, block_bytes: int = BLOCK_BYTES) -> "Dataset":
        """The same data in units and row blocks of other sizes."""
        return replace(self, unit_bytes=unit_bytes, block_bytes=block_bytes, _once=_Once())

    def open(self, shard: int, access: Access | None = None) -> Source:
        """A shard as bytes. access: how remote ones are read; None: each time by a connection of its own."""
        return self.store.open(self.name, self.shards[shard], access)

    def catalog(self, access: Access | None = None, lenient: bool = False) -> Catalog:
        """Its shards and their units. Reads footers, or counts small data, when first called.

        lenient: shards that are broken as a whole are left out and told, not raised.
        """
        catalog: Catalog = self._once.get("catalog", lambda: self._make_catalog(access))
        lost = catalog.lost if self.expect_rows is None else self._once.get("as expected", lambda: self._check_rows(access))
        if lost and not lenient:
            raise next(iter(lost.values()))
        return catalog

    def ids(self) -> npt.NDArray[np.int64]:
        """The numbers of the shards: int64[shards]."""
        return np.arange(len(self.shards))

    def counts(self) -> npt.NDArray[np.int64]:
        """Rows of each shard: int64[shards]. Reads all of it where rows are not known otherwise."""
        self.catalog()
        counts, lost = self._counts()
        for error in lost.values():
            raise error
        return counts.copy()

    def read(self, shard: int, rows: Sequence[int] | range | None = None, columns: Collection[str] | None = None) -> pa.Table:
        """Rows of a shard, by their numbers from 0, in the order in which they are asked for (None: all of them).

        columns: None: all that a look at the dataset finds. Raises `BadRecord` where one of the rows is bad, `ShardError` where
        they cannot be read, and `RecipeError` for a shard or a row that is not there.
        """
        from zephon_async.io.at_hand import read  # it is made of datasets

        return read(self, shard, rows, columns)

    def max_count(self) -> int:
        """Rows of the shard that has the most."""
        return int(self.counts().max(initial=0))

    def total(self) -> int:
        """All rows."""
        return int(self.counts().sum())

    def __len__(self) -> int:
        return self.total()

    def __bool__(self) -> bool:
        return True  # a dataset is there even where it has no rows; asking must not count them

    def shard_count(self) -> int:
        """How many shards there are."""
        return len(self.shards)

    def raw_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of each shard: int64[shards]."""
        return np.array([shard.size for shard in self.shards], np.int64)

    def settings(self) -> dict[str, Any]:
        """What of it decides the data, as plain values: for the fingerprint. No roots and no times."""
        catalog = self.catalog(lenient=True)
        counts = self._counts()[0].tolist() if catalog.measure == "rows" else [None] * len(self.shards)
        commit = {"commit": self.store.commit} if self.store.commit else {}
        by_index = catalog.measure != self._measure
        index = {"index": hashlib.blake2b(catalog.units.tobytes(), digest_size=8).hexdigest()} if by_index else {}
        settings = {
            "name": self.name,
            "format": self.format,
            "shards": [[shard.name, shard.size, rows] for shard, rows in zip(self.shards, counts, strict=True)],
            "unit_bytes": self.unit_bytes,
            "block_bytes": self.block_bytes,
            "schema": {f.name: type_name(f) for f in sorted(self.schema or (), key=lambda f: str(f.name))},
        }
        return commit | index | settings

    def guard(self) -> dict[str, str]:
        """What changes when a shard does, by name: for a warning, not for the fingerprint."""
        return {shard.name: f"{shard.size}/{shard.tag}" for shard in self.shards}

    def _make_catalog(self, access: Access | None) -> Catalog:
        known = bool(self.index) and all(entry.edges is not None for entry in self.index)
        by_index = known and self._measure == "bytes" and find_format(self.format).entered_by_index
        measure: Measure = "rows" if by_index else self._measure
        units, lost = self._units(measure, access, by_index)
        return Catalog(self.name, self.format, self.shards, units, measure, self.ignored, lost)

    @property
    def _measure(self) -> Measure:
        """Of its units, where no index makes them."""
        return find_format(self.format).measure(sum(shard.size for shard in self.shards))

    def _check_rows(self, access: Access | None) -> Mapping[int, ShardError]:
        """Raise where there are not as many rows as expected; gives the shards that are broken, whose rows nobody knows."""
        counts, lost = self._counts(access)
        rows = int(counts.sum())
        if rows != self.expect_rows and not (lost and rows < (self.expect_rows or 0)):
            raise DatasetError(
                f"dataset {self.name!r}: has {rows:,} rows in {len(self.shards):,} shards, and expect_rows says "
                f"{self.expect_rows:,}: look for shards that are missing, cut short or too many; if all is as it should be, say "
                f"expect_rows={rows}"
            )
        return lost

    def _counts(self, access: Access | None = None) -> "_Counts":
        counts: _Counts = self._once.get("counts", lambda: self._make_counts(access))
        return counts

    def _make_counts(self, access: Access | None) -> "_Counts":
        """Rows of each shard, and what is said of those that are broken."""
        catalog: Catalog = self._once.get("catalog", lambda: self._make_catalog(access))
        if catalog.measure != "rows" and self.index:
            return np.array([entry.rows for entry in self.index], np.int64), catalog.lost
        units, lost = (catalog.units, catalog.lost) if catalog.measure == "rows" else self._units("rows", access)
        return np.bincount(units["shard"], units["length"], len(self.shards)).astype(np.int64), lost

    def _units(
        self, measure: Measure, access: Access | None, by_index: bool = False
    ) -> tuple[npt.NDArray[Any], dict[int, ShardError]]:
        """The units of all shards, and what is said of those that are broken. by_index: whether an index makes them."""
        numbers = range(len(self.shards))
        if not self.store.remote:
            spans = [self._units_of(shard, measure, None, by_index) for shard in numbers]
        elif access is None:
            with Access() as own:
                return self._units(measure, own, by_index)
        else:
            spans = at_once(lambda shard: self._units_of(shard, measure, access, by_index), numbers)
        found = dict(zip(numbers, spans, strict=True))
        lost = {shard: error for shard, error in found.items() if isinstance(error, ShardError)}
        sound = {shard: several for shard, several in found.items() if not isinstance(several, ShardError)}
        units = [(shard, *span) for shard, several in sound.items() for span in several if span.length]
        return np.array(units, UNIT), lost

    def _units_of(self, shard: int, measure: Measure, access: Access | None, by_index: bool) -> Sequence[UnitSpan] | ShardError:
        source, form = self.open(shard, access), find_format(self.format)
        try:
            with reading(source, self.format):
                if by_index and (edges := self.index[shard].edges) is not None:
                    return form.units_by(source, edges, self.block_bytes)
                spans = form.units(source, measure, self.unit_bytes, self.block_bytes)
        except StorageError:
            raise
        except ShardError as error:
            return error.with_traceback(None)
        if self.index and measure == "rows":
            self._as_indexed(shard, sum(span.length for span in spans))
        return spans

    def _as_indexed(self, shard: int, rows: int) -> None:
        try:
            self.index[shard].check_rows(self.format, rows)
        except DatasetError as error:
            raise type(error)(f"dataset {self.name!r}: {error}") from None


def _in_memory(name: str, tables: Mapping[str, pa.Table], pins: pa.Schema | None) -> Dataset:
    store = MemoryStore(tables)
    return Dataset(name, "memory", store, tuple(map(store.shard, sorted(tables, key=str.encode))), schema=pins)


def _pins(name: str, schema: Pins | None) -> pa.Schema | None:
    if schema is None:
        return None
    try:
        pinned = schema if isinstance(schema, pa.Schema) else pa.schema(list(schema.items()))
    except (TypeError, ValueError, AttributeError) as error:
        raise RecipeError(f"dataset {name!r}: schema= is a pyarrow.Schema or pyarrow types by column name ({error})") from error
    if twice := [column for column in pinned.names if pinned.names.count(column) > 1]:
        raise RecipeError(f"dataset {name!r}: schema= names the column {twice[0]!r} twice")
    return pa.schema(list(map(canonical_field, pinned)))
