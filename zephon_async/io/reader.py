"""Reads row blocks of several datasets as blocks of one schema.

Takes the numbers of a dataset, a unit of its catalog and a row block; gives a `Block`: its columns conform to the schema exactly,
and what did not fit is null and named in `bad`. It waits for storage and computes, so it runs on workers.

Threads: any number at once. Datasets and decoders are values; what stays open between reads is in a `Pool`, which has a lock.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.errors import BadRecord, ColumnError, ShardError, StorageError, ZephonError
from zephon_async.io.access import Access
from zephon_async.io.catalog import ANYWHERE, FROM_START, IN_ORDER
from zephon_async.io.conform import batch_of
from zephon_async.io.dataset import Dataset
from zephon_async.io.formats import Decoded, Decoder, find_format, reading
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source
from zephon_async.records import Block

OPEN_BYTES = 64 << 20
QUARANTINE = "; options(on_bad_record='quarantine') skips bad records"


class Reader:
    """Row blocks of datasets.

    schema: what every block has, see `schema.unify`. size_of: the size of each row of a batch in the plan's unit, at least 1.
    required: columns that no shard of a format with columns may lack. open_bytes: bound of what stays open between reads.
    spill_bytes: of the disk, for compressed units that many read; None: a tenth of what is free.
    access: how remote shards are read. lenient: what is broken and cannot be read becomes a row block that says so.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        schema: pa.Schema,
        size_of: Callable[[pa.RecordBatch], npt.NDArray[np.int64]],
        *,
        required: Collection[str] = (),
        open_bytes: int = OPEN_BYTES,
        spill_bytes: int | None = None,
        access: Access | None = None,
        lenient: bool = False,
    ) -> None:
        self.datasets, self._access, self._lenient = tuple(datasets), access, lenient
        self._broken: dict[tuple[int, int], dict[int, str]] = {}  # of units, the row blocks that cannot be read, and why
        self._lock = threading.Lock()  # of that
        self.schema = schema
        self._size_of = size_of
        self._pool = Pool(open_bytes, spill_bytes)
        self._decoders: dict[str, Decoder] = {
            name: find_format(name).decoder(schema, required, self._pool) for name in sorted({d.format for d in self.datasets})
        }

    def read(self, dataset: int, unit: int, block: int) -> Block:
        """One row block. Raises `ShardError` where the shard cannot be read, has changed, or lacks a required column."""
        return self.read_several(dataset, unit, range(block, block + 1))[block]

    def open(self, dataset: int, unit: int) -> Source:
        """The shard that a unit lies in."""
        of = self.datasets[dataset]
        return of.open(int(of.catalog(lenient=True).units["shard"][unit]), self._access)

    def ranges(self, dataset: int, unit: int, blocks: range) -> Sequence[tuple[int, int]]:
        """Where the bytes lie, (begin, end), that row blocks of a unit are decoded from. It may read."""
        of = self.datasets[dataset]
        return self._decoders[of.format].ranges(self.open(dataset, unit), of.catalog(lenient=True).units[unit], blocks)

    def read_several(self, dataset: int, unit: int, blocks: range, source: Source | None = None) -> dict[int, Block]:
        """Neighbouring row blocks, with others of their unit that were decoded on the way to them, by number.

        source: the shard, with what has been fetched of it.
        """
        of = self.datasets[dataset]
        catalog = of.catalog(lenient=True)
        place = catalog.units[unit]
        source = source or self.open(dataset, unit)
        decoder = self._decoders[of.format]
        lost = {block: self._lost(dataset, unit, why) for block in blocks if (why := self._why_lost(dataset, unit, block))}
        if len(lost) == len(blocks):
            return lost
        try:
            with reading(source, of.format):
                decoded = decoder.read(source, place, blocks)
        except (StorageError, ColumnError):
            raise
        except ShardError as error:
            if not self._lenient or len(blocks) > 1:  # each of several is tried by itself then
                raise
            with self._lock:
                broken = self._broken.setdefault((dataset, unit), {})
                broken[blocks.start] = str(error).removeprefix(f"{source.where}: ")
            return self.read_several(dataset, unit, blocks, source)
        return {one.block: self._block(one, place, catalog.measure == "bytes", source, decoder) for one in decoded}

    def _why_lost(self, dataset: int, unit: int, block: int) -> str:
        """Why a row block cannot be read, where that was found out of it, or of one that is on the way to it."""
        by_way = self.datasets[dataset].catalog(lenient=True).units["entry"][unit] in (IN_ORDER, FROM_START)
        with self._lock:
            broken = self._broken.get((dataset, unit), {})
            on_the_way = [number for number in broken if number == block or (by_way and number < block)]
            return broken[min(on_the_way)] if on_the_way else ""

    def _lost(self, dataset: int, unit: int, why: str) -> Block:
        """In the place of a row block that cannot be read."""
        place, none = self.datasets[dataset].catalog(lenient=True).units[unit], np.empty(0, np.int64)
        empty = batch_of([pa.nulls(0, field.type) for field in self.schema], 0, self.schema)
        return Block(empty, int(place["shard"]), none, none, none, last=bool(place["entry"] == FROM_START), lost=why)

    def row_name(self, dataset: int, shard: int, row: int) -> str:
        """What messages call a row of a shard. It may read."""
        of = self.datasets[dataset]
        return _row_name(of.open(shard, self._access), self._decoders[of.format], row)

    def in_order(self, dataset: int, unit: int) -> bool:
        """Whether a block of a unit should be read after the one before it, not at the same time."""
        return bool(self.datasets[dataset].catalog(lenient=True).units["entry"][unit] != ANYWHERE)

    @property
    def opened_bytes(self) -> int:
        """Bytes of the largest unit that has stood open between two reads."""
        return self._pool.largest

    def close(self) -> None:
        """Let go of what stands open."""
        self._pool.clear()
        for dataset in self.datasets:
            dataset.store.close()

    def _block(self, decoded: Decoded, unit: Any, in_bytes: bool, source: Source, decoder: Decoder) -> Block:
        rows = decoded.rows
        begin = decoded.block * int(unit["block"])
        places = rows - int(unit["start"]) if in_bytes else np.arange(begin, begin + len(rows))
        starts = decoded.starts
        bad = {row: _BadRow(source, decoder, int(rows[row]), reason, starts.get(row, b"")) for row, reason in decoded.bad.items()}
        return Block(decoded.columns, int(unit["shard"]), rows, places, self._size_of(decoded.columns), bad, decoded.last)


def _row_name(source: Source, decoder: Decoder, row: int) -> str:
    try:
        return decoder.row_name(source, row)
    except ZephonError:
        return f"row {row:,}"  # the shard is gone by now


class _BadRow(BadRecord):
    """A bad record that finds out the number of its line when it is asked what it has to say."""

    def __init__(self, source: Source, decoder: Decoder, row: int, reason: str, start: bytes) -> None:
        super().__init__(reason)
        self._source, self._decoder, self._row, self.reason, self.start = source, decoder, row, reason, start

    def __str__(self) -> str:
        return f"{self._source.where}, {_row_name(self._source, self._decoder, self._row)}: {self.reason}{QUARANTINE}"

    def __reduce__(self) -> tuple[type[BadRecord], tuple[str]]:
        return BadRecord, (str(self),)


_BadRow.__name__ = _BadRow.__qualname__ = BadRecord.__name__  # what users see, in a traceback too
_BadRow.__module__ = BadRecord.__module__
