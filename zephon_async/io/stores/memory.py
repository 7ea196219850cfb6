"""In-memory tables as a store. A shard is an Arrow table that the dataset holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from zephon_async.io.catalog import Shard
from zephon_async.io.sizes import logical_bytes


@dataclass(frozen=True, slots=True, eq=False)
class TableSource:
    """One in-memory shard."""

    where: str
    name: str
    size: int
    table: pa.Table
    tag = ""
    remote = False

    @property
    def key(self) -> str:
        return self.where

    def beside(self, name: str) -> "TableSource":
        raise TypeError(f"{self.where}: nothing lies beside an in-memory table, and no {name!r}")

    def read(self, offset: int, length: int) -> bytes:
        raise TypeError(f"{self.where}: an in-memory table has no bytes to read at {offset}:{offset + length}")


@dataclass(frozen=True, slots=True, eq=False)
class MemoryStore:
    """Tables by shard name."""

    tables: Mapping[str, pa.Table]
    remote: bool = field(default=False, init=False)
    ignored: tuple[str, ...] = field(default=(), init=False)
    explicit: bool = field(default=True, init=False)
    commit: str = field(default="", init=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tables)

    def shard(self, name: str) -> Shard:
        columns = self.tables[name].columns
        return Shard(name, sum(int(logical_bytes(chunk).sum()) for column in columns for chunk in column.chunks), "")

    def open(self, dataset: str, shard: Shard, access: object = None) -> TableSource:
        return TableSource(f"dataset {dataset!r}, shard {shard.name!r}", shard.name, shard.size, self.tables[shard.name])

    def close(self) -> None:
        """Nothing stands open."""
