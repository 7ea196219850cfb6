"""Reading a whole dataset through a `Reader`, for the tests of io."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.errors import ShardError
from zephon_async.io import FROM_START, Access, Catalog, Dataset, Reader, dataset_schema, unify
from zephon_async.records import Block

LEAVE_OUT = "leave the column out: map(fn, columns=[...]), or map_batches, reads only those that it names"
QUARANTINE = "; options(on_bad_record='quarantine') skips bad records"


def ones(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The size of every row, for plans in samples."""
    return np.ones(batch.num_rows, np.int64)


def block_numbers(catalog: Catalog) -> list[tuple[int, int]]:
    """(unit, row block) of all row blocks, in the order of the catalog."""
    return [(u, b) for u, unit in enumerate(catalog.units) for b in range(-(-int(unit["length"]) // int(unit["block"])))]


def schema_of(*datasets: Dataset, needed: Iterable[str] | None = None, required: Mapping[str, str] = {}) -> pa.Schema:
    """The one schema of datasets."""
    columns = None if needed is None else frozenset(needed)
    return unify({dataset.name: dataset_schema(dataset, columns, required) for dataset in datasets})


class BytesSource:
    """A shard in memory that notes how many bytes are read of it."""

    tag, remote = "", False

    @property
    def key(self) -> str:
        return self.name

    def __init__(self, name: str, body: bytes) -> None:
        self.where, self.name, self.body, self.size, self.taken = f"dataset 'd', shard {name!r}", name, body, len(body), 0

    def read(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= self.size
        self.taken += length
        return self.body[offset : offset + length]

    def beside(self, name: str) -> "BytesSource":
        raise ShardError(f"{self.where}: there is no {name!r} beside it")


class Whole(NamedTuple):
    """All rows of a dataset in catalog order: as dicts, where each is (shard, row), and what is said of the bad ones."""

    rows: list[dict[str, Any]]
    places: list[tuple[str, int]]
    bad: list[str]

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]


def whole(
    dataset: Dataset,
    needed: Iterable[str] | None = None,
    required: Mapping[str, str] = {},
    access: Access | None = None,
) -> Whole:
    """Read a dataset in the order of its catalog."""
    schema = schema_of(dataset, needed=needed, required=required)
    reader = Reader([dataset], schema, ones, required=set(required), access=access)
    catalog = dataset.catalog()
    blocks = list(_blocks(reader, catalog))
    assert all(block.columns.schema.equals(reader.schema, check_metadata=True) for block in blocks)
    reader.close()
    return Whole(
        [row for block in blocks for row in block.columns.to_pylist()],
        [(catalog.shards[block.shard].name, row) for block in blocks for row in block.rows.tolist()],
        [said for block in blocks for said in bad_of(block)],
    )


def all_blocks(reader: Reader) -> list[Block]:
    """All row blocks of the first unit of a reader's first dataset, which is read from its start."""
    blocks = [reader.read(0, 0, 0)]
    while not blocks[-1].last:
        blocks.append(reader.read(0, 0, len(blocks)))
    return blocks


def _blocks(reader: Reader, catalog: Catalog) -> Iterator[Block]:
    for n, unit in enumerate(catalog.units):
        for number in count() if unit["entry"] == FROM_START else range(-(-int(unit["length"]) // int(unit["block"]))):
            yield (block := reader.read(0, n, number))
            if block.last:
                break


def bad_of(block: Block) -> list[str]:
    """What is said of the bad rows of a block, in their order."""
    said = [str(block.bad[row]) for row in sorted(block.bad)]
    assert all(each.endswith(QUARANTINE) for each in said)
    return [each.removesuffix(QUARANTINE) for each in said]
