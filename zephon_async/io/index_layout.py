"""The text of an index, and what it says: see `index`. A file of its own, as it needs a library that is loaded on first use."""

from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from zephon_async.errors import DatasetError
from zephon_async.io.formats import Edges, outer
from zephon_async.io.index import VERSION, Entry, Index, advice

_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class _Edges(msgspec.Struct):
    rows: list[_Size]
    offsets: list[_Size]


class _Extra(msgspec.Struct):
    raw_bytes: _Size | None = None
    edges: _Edges | None = None


class _Shard(msgspec.Struct):
    basename: str
    bytes: _Size
    num_rows: _Size
    hashes: dict[str, str] = {}
    extra: _Extra = msgspec.field(default_factory=_Extra)


class _Layout(msgspec.Struct):
    format_version: int
    shards: list[_Shard]


def index_of(name: str, text: bytes) -> Index:
    """What a file has. Raises `DatasetError` where it is broken."""
    try:
        layout = msgspec.json.decode(text, type=_Layout)
        if layout.format_version != VERSION:
            raise ValueError(f"it is of version {layout.format_version}, not {VERSION}")
        entries = {shard.basename: _entry(name, shard) for shard in layout.shards}
        if len(entries) < len(layout.shards):
            raise ValueError("it lists a shard twice")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DatasetError(f"{name!r} is broken: {error}; {advice('FORMAT')}") from error
    return Index(name, entries)


def _entry(index: str, shard: _Shard) -> Entry:
    edges, said = None, shard.extra.edges
    if said is not None:
        edges = Edges(np.array(said.rows, np.int64), np.array(said.offsets, np.int64))
        if not (
            len(said.rows) == len(said.offsets) > 0
            and said.rows[0] == 0
            and said.rows[-1] == shard.num_rows
            and (np.diff(edges.rows) >= 0).all()
            and (np.diff(edges.offsets) > 0).all()
        ):
            raise ValueError(f"the edges of its shard {shard.basename!r} are not those of {shard.num_rows:,} rows in their order")
    elif shard.extra.raw_bytes is not None:
        edges = outer(shard.num_rows, shard.extra.raw_bytes)
    return Entry(index, shard.basename, shard.bytes, shard.num_rows, shard.hashes, edges)
