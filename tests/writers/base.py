"""What a writer of the contract suite says of its format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

Row: TypeAlias = dict[str, Any]
TYPES = pa.schema(
    {
        "id": pa.int64(),
        "text": pa.large_string(),
        "score": pa.float64(),
        "input_ids": pa.list_(pa.int64()),
        "flag": pa.bool_(),
    }
)


def as_it_is(row: Row) -> Row:
    return row


@dataclass(frozen=True)
class Writer:
    """Writes the rows of shards, by their names without suffix, below a folder, with whatever index the format wants.

    suffix: of the shards. given: a row as it is read. schema: what is found of the types. options: of `Dataset.from_path`.
    row_at: the number in the shard of row n, where that is not n, given the bytes of the shard.
    at: the name of the dataset below the folder, of a format with a store of its own: what happens to files is then not asked here.
    named: the names of its shards for those that were given.
    several: whether the units of the suite's shards have more than one row block. ends: whether a shard says itself where it ends,
    so that a cut one is an error; else its rows up to there are right. shows_cuts: also the last one, where a row says itself
    where it ends.
    """

    name: str
    suffix: str
    write: Callable[[Path, Mapping[str, list[Row]]], None]
    given: Callable[[Row], Row] = as_it_is
    schema: pa.Schema = TYPES
    by_bytes: bool = False
    several: bool = True
    ends: bool = True
    shows_cuts: bool = True
    at: str = ""
    named: Callable[[list[str]], list[str]] | None = None

    @property
    def own_store(self) -> bool:
        return bool(self.at)

    def names(self, shards: Mapping[str, list[Row]]) -> list[str]:
        return self.named(list(shards)) if self.named else [f"{name}{self.suffix}" for name in shards]

    def __str__(self) -> str:
        return self.name


def each(one: Callable[[Path, list[Row]], None], suffix: str) -> Callable[[Path, Mapping[str, list[Row]]], None]:
    """A writer of shards that do not know of one another."""

    def write(folder: Path, shards: Mapping[str, list[Row]]) -> None:
        for name, rows in shards.items():
            path = folder / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            one(path, rows)

    return write


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, TYPES)
