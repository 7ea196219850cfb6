"""Data: datasets, their catalogs and schemas, and the reading of row blocks.

A `Dataset` says what there is (`Catalog`); `dataset_schema` and `unify` say of which types; a `Reader` decodes one row block on a
worker; `Blocks` is the cache that the engine asks, `DiskCache` one of remote bytes on a local disk. Stores and formats are found by
name; a format's library is loaded on first use.
"""

from zephon_async.io.blocks import READS_AHEAD, Blocks
from zephon_async.io.cache import CacheStatistics, DiskCache
from zephon_async.io.catalog import UNIT, Catalog, Shard
from zephon_async.io.dataset import Dataset
from zephon_async.io.in_memory import InMemoryShard
from zephon_async.io.reader import Reader
from zephon_async.io.schema import dataset_schema, unify
from zephon_async.io.sizes import logical_bytes, row_sizes
from zephon_async.io.storage_options import CacheOptions, StorageOptions

__all__ = [
    "READS_AHEAD",
    "UNIT",
    "Blocks",
    "CacheOptions",
    "CacheStatistics",
    "Catalog",
    "Dataset",
    "DiskCache",
    "InMemoryShard",
    "Reader",
    "Shard",
    "StorageOptions",
    "dataset_schema",
    "logical_bytes",
    "row_sizes",
    "unify",
]
