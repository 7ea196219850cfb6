"""Data: datasets, their catalogs and schemas, and the reading of row blocks.

A `Dataset` says what there is (`Catalog`), which an index may state (`build_index`); `dataset_schema` and `unify` say of which
types; a `Reader` decodes one row block on a worker; `Blocks` is the cache that the engine asks. Shards that lie elsewhere are read
through an `Access`; a `Fetcher` has them at hand before they are decoded. Stores and formats are found by name; a format's library
is loaded on first use.
"""

from zephon_async.io.access import Access
from zephon_async.io.at_hand import Checked, Problem, check
from zephon_async.io.blocks import READS_AHEAD, Blocks
from zephon_async.io.build_index import build_index
from zephon_async.io.cache_folder import CACHE, WRITING
from zephon_async.io.catalog import ANYWHERE, FROM_START, UNIT, WHOLE, Catalog, Shard, block_counts
from zephon_async.io.copies import copied
from zephon_async.io.dataset import Dataset
from zephon_async.io.fetcher import Fetcher
from zephon_async.io.in_memory import InMemoryShard
from zephon_async.io.reader import Reader
from zephon_async.io.schema import dataset_schema, unify
from zephon_async.io.sizes import logical_bytes, row_sizes
from zephon_async.io.spill import Spill
from zephon_async.io.storage_options import StorageOptions

__all__ = [
    "ANYWHERE",
    "CACHE",
    "FROM_START",
    "READS_AHEAD",
    "UNIT",
    "WHOLE",
    "WRITING",
    "Access",
    "Blocks",
    "Catalog",
    "Checked",
    "Dataset",
    "Fetcher",
    "InMemoryShard",
    "Problem",
    "Reader",
    "Shard",
    "Spill",
    "StorageOptions",
    "block_counts",
    "build_index",
    "check",
    "copied",
    "dataset_schema",
    "logical_bytes",
    "row_sizes",
    "unify",
]
