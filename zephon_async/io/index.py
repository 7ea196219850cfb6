"""The index of a dataset, `index.json` or `_index.json` at its root: what its shards are.

With it what is missing, cut or changed is seen before a run, and rows are known without a count. It is never required;
`build_index` makes one.

    {"format_version": 1, "shards": [{"basename", "bytes", "num_rows", "hashes", "extra"}, ...]}

basename: the name of a shard, seen from the root. hashes: of all its bytes, in hexadecimal digits, by algorithm; there may be none.
extra: {"num_row_groups", "row_groups": [{"num_rows", "total_byte_size"}]} of Parquet; {"raw_bytes"} of compressed lines, how many
bytes come out; {"edges": {"rows", "offsets"}} of lines and tars: in about every MiB the number of a row and the byte where it
begins, and last how many rows there are and where they end (of a compressed tar no more than the first and the last).

The layout is told by its first key, so that the index.json of MDS and LitData, or any other, is left to whom it belongs. An index
does not change in which order data is read, except that large tars can be entered where it says that rows begin. One that is not
of the shards that are there is an error. Where a pattern leaves it out, or the path is one file, there is none.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from zephon_async.errors import DatasetError, ShardError
from zephon_async.io.catalog import Shard
from zephon_async.io.formats import Edges, Format
from zephon_async.io.hashes import hashed
from zephon_async.io.stores import Source

NAMES = ("index.json", "_index.json")
VERSION = 1
HEAD = 64  # bytes by which the layout is told
_is_ours = re.compile(rb'\s*\{\s*"format_version"').match
_AT_ONCE = 4 << 20  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """What an index says of a shard. index: its name."""

    index: str
    name: str
    bytes: int
    rows: int
    hashes: dict[str, str]
    edges: Edges | None

    def check_rows(self, form: str, rows: int) -> None:
        """Raise `DatasetError` where a shard has not as many rows."""
        if rows != self.rows:
            _stale(self.index, form, f"says that the shard {self.name!r} has {self.rows:,} rows, and it has {rows:,}")

    def check_hashes(self, source: Source) -> None:
        """Raise `ShardError` where the bytes of a shard are others. Reads all of it."""
        for algorithm, stated in sorted(self.hashes.items()):
            found = hashed(algorithm, pieces(source))
            if found is not None and found != stated.lower():
                raise ShardError(
                    f"{source.where}: has the {algorithm} {found}, but {self.index} says {stated}; it is damaged, or was written "
                    "anew: copy it again, or build the index again"
                )


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """What an index has, by the names of shards."""

    name: str
    entries: dict[str, Entry]

    def of(self, form: Format, shards: Sequence[Shard]) -> tuple[Entry, ...]:
        """What it says of each shard; nothing where it is of shards of other formats. Raises `DatasetError` where it is stale."""
        there = {shard.name for shard in shards}
        suffixes = (*form.suffixes, *form.loose_suffixes)
        mine = {name for name in self.entries if name in there or name.lower().endswith(suffixes)}
        if self.entries and not mine:
            return ()
        for shard in shards:
            if shard.name not in mine:
                _stale(self.name, form.name, f"does not list the shard {shard.name!r}, which is there")
        for name in sorted(mine - there, key=str.encode):
            _stale(self.name, form.name, f"lists the shard {name!r}, which is not among those that are there")
        for shard in shards:
            if (stated := self.entries[shard.name].bytes) != shard.size:
                _stale(self.name, form.name, f"says that the shard {shard.name!r} has {stated:,} bytes, and it has {shard.size:,}")
        return tuple(self.entries[shard.name] for shard in shards)


def is_index(head: bytes) -> bool:
    """Whether a file that begins with these bytes is of this layout."""
    return _is_ours(head) is not None


def _stale(index: str, form: str, what: str) -> NoReturn:
    raise DatasetError(f"{index!r} {what}; {advice(form)}")


def advice(form: str) -> str:
    """What to do about an index that cannot be used."""
    return f"put the data right, build the index again with `zephon-async index {form} DIR`, or remove it"


def pieces(source: Source) -> Iterator[bytes]:
    """All bytes of a shard."""
    for at in range(0, source.size, _AT_ONCE):
        yield source.read(at, min(_AT_ONCE, source.size - at))
