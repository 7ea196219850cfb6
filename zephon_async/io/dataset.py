"""A dataset: named data of one format, as files of this machine or as in-memory tables.

`from_path` lists the files at once, so what is wrong with a path is said where it is written; footers and lines are read when the
catalog is first asked for. A dataset is a value: only the catalog and the row counts are made later, once.

Threads: values, but for `_Once`, which has a lock.
"""

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
from zephon_async.io.formats import Measure, UnitSpan, beside_name, ending_of, find_format, pick_shards, reading, shards_among
from zephon_async.io.hub import is_of_hub, list_hub
from zephon_async.io.in_memory import tables_of_arrow, tables_of_rows
from zephon_async.io.remote import LOCAL, list_url
from zephon_async.io.stores import LocalStore, MemoryStore, Source, Store
from zephon_async.kinds import type_name

Pins: TypeAlias = pa.Schema | Mapping[str, pa.DataType]
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
    """

    name: str
    format: str
    store: Store = field(repr=False)
    shards: tuple[Shard, ...] = field(repr=False)
    ignored: tuple[str, ...] = field(default=(), repr=False)
    schema: pa.Schema | None = field(default=None, repr=False)
    unit_bytes: int = UNIT_BYTES
    block_bytes: int = BLOCK_BYTES
    _once: _Once = field(default_factory=_Once, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise RecipeError(f"the name of a dataset is a text, not {self.name!r}")
        writable("the name of a dataset", self.name)
        for setting in ("unit_bytes", "block_bytes"):
            object.__setattr__(self, setting, whole(f"dataset {self.name!r}: {setting}", getattr(self, setting), 1))

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
    ) -> "Dataset":
        """The files that a path or URL stands for: a file, a folder (all that is below it), or a glob where no such path exists.

        A Lance dataset, a folder that ends in .lance, is one thing and not its files; storage_options may say its version= then.

        storage_options: of a URL, as users of fsspec know them, such as endpoint_url= or anon= of s3://.
        format: the name of the format; needed where a folder holds two, or where a file's suffix does not tell it.
        schema: types of columns; what does not fit them is a bad record. Others are found by a look at the data.
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
            picked, store, names, indexes = _listed(name, text, options, format)
            shards = tuple(store.shard(shard) for shard in sorted(names, key=_in_bytes))
        except (DatasetError, RecipeError) as error:
            raise type(error)(f"dataset {name!r}: {error}") from error.__cause__
        ignored = {*store.ignored, *store.names}.difference(names, indexes)
        listed = tuple(sorted((_in_bytes(other).decode("utf-8", "backslashreplace") for other in ignored), key=str.encode))
        return Dataset(name, picked, store, shards, listed, _pins(name, schema), unit_bytes, block_bytes)

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
        if catalog.lost and not lenient:
            raise next(iter(catalog.lost.values()))
        return catalog

    def ids(self) -> npt.NDArray[np.int64]:
        """The numbers of the shards: int64[shards]."""
        return np.arange(len(self.shards))

    def counts(self) -> npt.NDArray[np.int64]:
        """Rows of each shard: int64[shards]. Reads all of it where rows are not known otherwise."""
        self.catalog()
        return self._counts().copy()

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
        counts = self._counts().tolist() if catalog.measure == "rows" else [None] * len(self.shards)
        commit = {"commit": self.store.commit} if self.store.commit else {}
        return commit | {
            "name": self.name,
            "format": self.format,
            "shards": [[shard.name, shard.size, rows] for shard, rows in zip(self.shards, counts, strict=True)],
            "unit_bytes": self.unit_bytes,
            "block_bytes": self.block_bytes,
            "schema": {f.name: type_name(f) for f in sorted(self.schema or (), key=lambda f: str(f.name))},
        }

    def guard(self) -> dict[str, str]:
        """What changes when a shard does, by name: for a warning, not for the fingerprint."""
        return {shard.name: f"{shard.size}/{shard.tag}" for shard in self.shards}

    def _make_catalog(self, access: Access | None) -> Catalog:
        measure = find_format(self.format).measure(sum(shard.size for shard in self.shards))
        units, lost = self._units(measure, access)
        return Catalog(self.name, self.format, self.shards, units, measure, self.ignored, lost)

    def _counts(self) -> npt.NDArray[np.int64]:
        counts: npt.NDArray[np.int64] = self._once.get("counts", self._make_counts)
        return counts

    def _make_counts(self) -> npt.NDArray[np.int64]:
        catalog = self.catalog(lenient=True)
        units = catalog.units
        if catalog.measure != "rows":
            units, lost = self._units("rows", None)
            for error in lost.values():
                raise error
        return np.bincount(units["shard"], units["length"], len(self.shards)).astype(np.int64)

    def _units(self, measure: Measure, access: Access | None) -> tuple[npt.NDArray[Any], dict[int, ShardError]]:
        """The units of all shards, and what is said of those that are broken."""
        numbers = range(len(self.shards))
        if not self.store.remote:
            spans = [self._units_of(shard, measure, None) for shard in numbers]
        elif access is None:
            with Access() as own:
                return self._units(measure, own)
        else:
            spans = at_once(lambda shard: self._units_of(shard, measure, access), numbers)
        found = dict(zip(numbers, spans, strict=True))
        lost = {shard: error for shard, error in found.items() if isinstance(error, ShardError)}
        sound = {shard: several for shard, several in found.items() if not isinstance(several, ShardError)}
        units = [(shard, *span) for shard, several in sound.items() for span in several if span.length]
        return np.array(units, UNIT), lost

    def _units_of(self, shard: int, measure: Measure, access: Access | None) -> Sequence[UnitSpan] | ShardError:
        source = self.open(shard, access)
        try:
            with reading(source, self.format):
                return find_format(self.format).units(source, measure, self.unit_bytes, self.block_bytes)
        except StorageError:
            raise
        except ShardError as error:
            return error.with_traceback(None)


def _in_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _listed(
    dataset: str, path: str, options: Mapping[str, Any], form: str | None
) -> tuple[str, Store, Sequence[str], Collection[str]]:
    """The format of what a path or URL stands for, its store, the names in it that are shards, and those of indexes."""
    told = ending_of(path) if form is None else form
    if told is not None and (own := find_format(told).store(path, options)) is not None:
        return told, own, own.names, ()
    store = _store(path, options, form)
    picked, found = pick_shards(path, store.names, form, store.explicit)
    chosen = find_format(picked)
    indexes = {file for file in store.names if chosen.index and file.rpartition("/")[2] == chosen.index}
    names = chosen.shards([*found, *indexes.difference(found)], lambda file: _whole(dataset, store, file))
    if chosen.beside:
        indexes |= {
            beside_name(name, suffix, chosen.beside) for name in names for suffix in chosen.suffixes if name.endswith(suffix)
        }
    return picked, store, names, indexes


def _store(path: str, options: Mapping[str, Any], form: str | None) -> Store:
    """The files that a path or URL stands for."""
    is_url = "://" in path and not os.path.lexists(path)
    if is_url and not path.startswith(LOCAL):
        with Access() as access:
            if is_of_hub(path):
                return list_hub(path, options, access, lambda names: shards_among(names, form))
            return list_url(path, options, access)
    if options:
        raise RecipeError(f"storage_options ({', '.join(options)}) are for URLs, and {path!r} is a path of this machine")
    return LocalStore(path.partition("://")[2] if is_url else path)


def _whole(dataset: str, store: Store, name: str) -> bytes:
    """A small file below the root, such as an index; one that a pattern left out too. Raises `DatasetError`."""
    listed = name if name in store.names else min(store.names)
    try:
        source = store.open(dataset, store.shard(listed))
        if listed != name:
            source = source.beside("../" * listed.count("/") + name)
        return source.read(0, source.size)
    except ShardError as error:
        raise type(error)(str(error).removeprefix(f"dataset {dataset!r}, ")) from error.__cause__


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
