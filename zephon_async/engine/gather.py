"""What a lane hands to a worker: a chunk of rows that were drawn, and how they are gathered from their row blocks.

Takes picks (rows of decoded blocks) and gives records in the order in which they were drawn. `Policy` says what is done about
bad records on the way.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.engine.deadly import Deadly
from zephon_async.errors import BadRecord
from zephon_async.operators import Tally
from zephon_async.records import ORIGIN, Block, End, Names, Origins, Parcel, Pick, Records, Skipped, concat, take

QUARANTINED = "records_quarantined"
"""The name under which bad records that were skipped are counted."""

NOWHERE = (-1, -1, -1, -1, -1)
"""The origin of a record that has none."""
_log = logging.getLogger("zephon_async")


@dataclass(frozen=True, slots=True)
class Policy:
    """What is done about bad records, and the names that errors speak of; `row_name` (such as the line) may read."""

    names: Names
    quarantine: bool = False
    row_name: Callable[[int, int, int], str] | None = None
    most_bad: int | float = 1000
    quiet: bool = False
    deadly: Deadly = field(default_factory=Deadly)

    def spared(self, operator: int, parcel: Parcel) -> Parcel:
        """Without the rows that killed worker processes and are not to reach that operator again."""
        if parcel.records is None or not (rows := self.deadly.among(operator, parcel.records)):
            return parcel
        tally: Tally = Counter(parcel.counts)
        error = BadRecord("worker processes have died of it")
        before = np.array([each.at for each in parcel.skipped], np.int64)
        skipped = [
            each._replace(at=int(at)) for each, at in zip(parcel.skipped, before - np.searchsorted(rows, before), strict=True)
        ]
        skipped += [self.skip(parcel.records, at, at - n, error, tally) for n, at in enumerate(rows)]
        keep = np.delete(np.arange(len(parcel)), rows)
        return parcel.made(parcel.records.take(keep), parcel.failure, tally, sorted(skipped, key=attrgetter("at")))

    def skip(self, records: Records, row: int, at: int, why: BaseException, tally: Tally) -> Skipped:
        """Leave out a bad record, behind `at` rows of what is made."""
        origin = records.origins.slice(row, row + 1).segments[:1]
        place = tuple(origin[0].tolist()[:5]) if len(origin) else NOWHERE
        return self.left_out(Skipped(at, place, reason_of(why)), tally)

    def left_out(self, skipped: Skipped, tally: Tally) -> Skipped:
        """Count bad records that are left out, and say so in the log, without reading anything to name them."""
        tally[QUARANTINED] += skipped.rows or 1
        if not self.quiet:
            many = "a bad record" if skipped.rows == 1 else f"{skipped.rows or 'an unknown number of'} bad records"
            called = replace(self, row_name=lambda d, s, row: f"row or byte {row:,}")._called(skipped.origin)
            _log.warning("skipped %s: %s: %s", many, called, skipped.reason)
        return skipped

    def place(self, records: Records, at: int) -> str:
        """Where a record comes from, in words."""
        origin = records.origins.slice(at, at + 1).segments[:1]
        return self._called(tuple(origin[0].tolist()[:5]) if len(origin) else NOWHERE)

    def _called(self, origin: tuple[int, ...]) -> str:
        if origin == NOWHERE:
            return "a row without an origin"
        d, s, row, epoch, part = origin
        called = (f"row {row:,}" if self.row_name is None else self.row_name(d, s, row)) + (f", part {part}" if part else "")
        return f"dataset {self.names.datasets[d]!r}, shard {self.names.shards[d][s]!r}, {called}, epoch {epoch}"


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows that a lane has drawn, not gathered yet; the rest as in a `Parcel`."""

    picks: Sequence[Pick]
    end: End = End.NOTHING
    failure: BaseException | None = None
    skipped: Sequence[Skipped] = ()
    drawn: tuple[int, ...] = ()


def gather(chunk: Chunk, policy: Policy) -> Parcel:
    """Make the records of a chunk: rows of several blocks, in the order in which they were drawn."""
    tally: Tally = Counter()
    skipped = [policy.left_out(each, tally) for each in chunk.skipped]
    empty = Parcel(None, chunk.end, drawn=chunk.drawn)
    if not chunk.picks:
        return empty.made(None, chunk.failure, tally, skipped)
    picks = chunk.picks
    blocks = {id(pick.block): pick.block for pick in picks}
    numbers = {key: n for n, key in enumerate(blocks)}
    lengths = [len(pick.rows) for pick in picks]
    of_block = np.repeat([numbers[id(pick.block)] for pick in picks], lengths)
    order = np.argsort(of_block, kind="stable")  # block by block
    stops = np.cumsum(np.bincount(of_block, minlength=len(blocks)))[:-1]
    rows = np.split(np.concatenate([pick.rows for pick in picks])[order], stops)
    pieces = list(zip(blocks.values(), rows, np.split(order, stops), strict=True))

    segments = np.zeros(len(order), ORIGIN)
    segments["dataset"] = np.repeat([pick.dataset for pick in picks], lengths)
    segments["epoch"] = np.repeat([pick.epoch for pick in picks], lengths)
    segments["shard"] = np.repeat([pick.block.shard for pick in picks], lengths)
    segments["row"][order] = np.concatenate([block.rows[index] for block, index, _ in pieces])
    segments["stop"] = -1
    columns = concat([_rows(block.columns, index) for block, index, _ in pieces])
    if (order[1:] < order[:-1]).any():
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        columns = take(columns, back)
    bad = sorted((each for piece in pieces for each in _bad(*piece)), key=itemgetter(0))
    records = Records(columns, Origins(segments))
    if not bad:
        return empty.made(records, chunk.failure, tally, skipped)
    return empty.made(records.slice(0, bad[0][0]), bad[0][1])


def reason_of(error: BaseException) -> str:
    """Why a record is bad, without its place."""
    return str(getattr(error, "reason", error))


def sound(block: Block, index: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.integer], list[tuple[int, int]]]:
    """Those rows of a block that are not bad, and of each bad one how many of these come before it, and its number in the block."""
    if not block.bad:
        return index, []
    bad = np.isin(index, list(block.bad))
    before = np.cumsum(~bad)[bad]
    return index[~bad], list(zip(before.tolist(), index[bad].tolist(), strict=True))


def _bad(block: Block, index: npt.NDArray[np.integer], places: npt.NDArray[np.int64]) -> list[tuple[int, Exception]]:
    """Which rows of a block are bad: where they are in the chunk, and why."""
    if not block.bad:
        return []
    return [(at, block.bad[row]) for row, at in zip(index.tolist(), places.tolist(), strict=True) if row in block.bad]


def _rows(columns: pa.RecordBatch, index: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows of a batch: a view where they stand one behind the other, else a copy."""
    first, n = int(index[0]), len(index)
    if int(index[-1]) == first + n - 1 and bool((np.diff(index) == 1).all()):
        return columns.slice(first, n)
    return take(columns, index)
