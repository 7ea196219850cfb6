"""Where shards lie. A store lists names and gives each shard as a `Source` of bytes; formats read through that alone."""

from zephon_async.io.stores.base import Source, SourceFile, Store
from zephon_async.io.stores.local import LocalStore
from zephon_async.io.stores.memory import MemoryStore, TableSource

__all__ = ["LocalStore", "MemoryStore", "Source", "SourceFile", "Store", "TableSource"]
