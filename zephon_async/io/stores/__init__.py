"""Where shards lie. A store lists names and gives each shard as a `Source` of bytes; formats read through that alone.

What is reached over the network is found by the scheme of its URL. A scheme of another package takes part through an entry point of
the group `zephon_async.stores` that names a `Scheme`. A library is loaded when its scheme is first used.
"""

from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from zephon_async.io.stores.base import Source, SourceFile, Store
from zephon_async.io.stores.connection import Connection, Fault, Kind, Object, Scheme
from zephon_async.io.stores.local import LocalStore, is_pattern
from zephon_async.io.stores.memory import MemoryStore, TableSource

__all__ = [
    "Connection",
    "Fault",
    "Kind",
    "LocalStore",
    "MemoryStore",
    "Object",
    "Scheme",
    "Source",
    "SourceFile",
    "Store",
    "TableSource",
    "is_pattern",
    "scheme_of",
]

_TABLE = {"s3": "zephon_async.io.stores.s3", "s3a": "zephon_async.io.stores.s3"}  # scheme: module, in which it is SCHEME
_ALL_ELSE = "zephon_async.io.stores.fsspec"


@lru_cache(maxsize=1)
def _foreign() -> dict[str, Scheme]:
    return {point.name: cast(Scheme, point.load()) for point in entry_points(group="zephon_async.stores")}


def scheme_of(url: str) -> Scheme:
    """What opens connections for a URL."""
    name = url.partition("://")[0]
    if name in _foreign():
        return _foreign()[name]
    return cast(Scheme, import_module(_TABLE.get(name, _ALL_ELSE)).SCHEME)
