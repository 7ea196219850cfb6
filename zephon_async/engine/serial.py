"""What runs on workers, one call at a time for a lane: its accumulators, and the cut into microbatches.

Takes the parcels of a stateless stage in their order and gives what comes of them, with the edges and marks that say from where it
can be had again. A failure stands behind the rows that came before it; where rows are missing because of it, no edge is told.

Threads: a `Serial` belongs to one lane and is run by one worker at a time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zephon_async.engine.blame import blamed
from zephon_async.engine.gather import QUARANTINED, Policy, what_is_wrong
from zephon_async.errors import BadRecord, DatasetError
from zephon_async.lanes import Cursor, Edge, Mark
from zephon_async.operators import Accumulator, Operator, RecordFailed, Tally
from zephon_async.records import End, Marks, Parcel, Records
from zephon_async.runners import deliverable


class Fed(NamedTuple):
    """What a stateless stage made of one piece of work, and the position (see `Edge`) behind that piece."""

    parcel: Parcel
    behind: Any


class Microbatch(NamedTuple):
    """Rows `number * size:(number + 1) * size` of a lane; the last `filled` of them are still to be made up."""

    number: int
    records: Records
    filled: int
    nbytes: int


@dataclass(slots=True, eq=False)
class Given:
    """What a serial half gives back: for the trail, for the next link or the consumer, and for the books."""

    edges: list[tuple[int, Edge[Any]]] = field(default_factory=list)
    marks: list[tuple[int, list[Mark]]] = field(default_factory=list)
    out: list[Fed] = field(default_factory=list)
    microbatches: list[Microbatch] = field(default_factory=list)
    tally: Tally = field(default_factory=Counter)
    end: End = End.NOTHING
    failure: BaseException | None = None
    held_rows: int = 0
    held_bytes: int = 0


class _Bad:
    """The bad records that a lane has skipped since it was started."""

    def __init__(self, lane: int, most: int) -> None:
        self.lane, self.most, self.count = lane, most, 0

    def too_many(self) -> DatasetError | None:
        if self.count <= self.most:
            return None
        return DatasetError(
            f"lane {self.lane}: {self.count:,} bad records were skipped since the start, more than "
            f"options(max_bad_records={self.most}) allows; the log names them"
        )


class _Slot:
    """One accumulator of a lane with its numbers."""

    def __init__(self, i: int, operator: Operator, lane: int, cursor: Cursor, policy: Policy, bad: _Bad) -> None:
        self.bad = bad
        self.i, self.operator, self.lane, self.policy = i, operator, lane, policy
        self.accumulator: Accumulator = operator.accumulator(lane, cursor.first[i])
        self.base = self.count = cursor.taken[i]  # its input rows are counted from here
        self.skip = cursor.skips[i]  # tokens of the next row to leave out
        self.left, self.drop = cursor.rows[i], cursor.outputs[i]  # rows to drop before it, outputs to drop after it

    def push(self, records: Records | None, behind: Any, end: End, given: Given) -> tuple[Records | None, Any]:
        """Take rows; gives what comes out of it and the output number behind that."""
        records, self.left = _drop(records, self.left)
        self.count += 0 if records is None else len(records)
        if given.failure is None:  # else rows are missing that must be made again
            given.edges.append((self.i, Edge(self.count, behind, self.left)))
        pieces: list[Records | None] = []
        while records is not None:
            records = self._try(records, pieces, given)
        if given.failure is None and (end is End.RUN or (end is End.SEGMENT and self.operator.needs_flush)):
            self._flush(pieces, given)
        full = [piece for piece in pieces if piece is not None and len(piece)]
        out, self.drop = _drop(Records.concat(full) if full else None, self.drop)
        return out, self.accumulator.given + self.drop  # while outputs are dropped it stays where the cursor stands

    def _try(self, records: Records, pieces: list[Records | None], given: Given) -> Records | None:
        """Push rows; gives those that are still to be pushed, behind a bad one that is skipped."""
        skip, self.skip = self.skip, 0
        try:
            out, marks = self.accumulator.push(records, skip, given.tally)
            self._check("push", out)
        except RecordFailed as failed:
            behind = failed.at + 1
            pieces.append(failed.done)
            if self._skips(failed, failed.failed or records.slice(failed.at, behind), given):
                self._mark(failed.marks, given)  # else the failure must come again where the run is resumed
                return records.slice(behind, len(records)) if behind < len(records) else None
        except BaseException as error:
            self._fail(error, f"lane {self.lane}", given)
        else:
            pieces.append(out)
            self._mark(marks, given)
        return None

    def _flush(self, pieces: list[Records | None], given: Given) -> None:
        try:
            out = self.accumulator.flush(given.tally)
            self._check("flush", out)
            pieces.append(out)
        except RecordFailed as failed:
            pieces.append(failed.done)
            if not self._skips(failed, failed.failed, given):
                return None
        except BaseException as error:
            return self._fail(error, f"lane {self.lane}", given)
        given.marks.append((self.i, [Mark(self.accumulator.given, self.count, 0)]))
        return None

    def _check(self, method: str, out: Records | None) -> None:
        if out is not None and (wrong := what_is_wrong(out)):
            raise TypeError(f"{self.operator.name}: {method} gave {wrong}")

    def _mark(self, marks: Marks, given: Given) -> None:
        rows = [row + self.base for row in marks.rows]
        given.marks.append((self.i, [Mark(*mark) for mark in zip(marks.outputs, rows, marks.skips, strict=True)]))

    def _skips(self, failure: RecordFailed, records: Records | None, given: Given) -> bool:
        """Whether the records that failed are bad ones that are left out; else the run ends there."""
        cause = failure.__cause__ or failure
        if records is None or not (isinstance(cause, BadRecord) and self.policy.quarantine and self.operator.survives):
            self._fail(cause, f"lane {self.lane}" if records is None else self.policy.place(records, 0), given)
            return False
        for row in range(len(records)):
            self.policy.skip(records, row, cause, given.tally)
        self.bad.count += len(records)
        given.failure = (error := self.bad.too_many()) or given.failure
        return error is None

    def _fail(self, cause: BaseException, place: str, given: Given) -> None:
        given.failure = blamed(cause, self.operator.name, place)


class Serial:
    """The serial half of a link: accumulators with nothing stateless between them, and in the last link the cut."""

    def __init__(
        self,
        lane: int,
        accumulators: Sequence[tuple[int, Operator]],
        cursor: Cursor,
        policy: Policy,
        cut: "Cut | None",
        piece_rows: int,
    ) -> None:
        self._bad = _Bad(lane, policy.most_bad)
        self._slots = [_Slot(i, operator, lane, cursor, policy, self._bad) for i, operator in accumulators]
        self._cut = cut
        self._piece_rows = piece_rows

    def run(self, fed: Sequence[Fed]) -> Given:
        """Take parcels in their order."""
        given = Given()
        for parcel, behind in fed:
            given.tally.update(parcel.counts)
            self._bad.count += parcel.counts.get(QUARANTINED, 0)
            given.failure, given.end = parcel.failure or self._bad.too_many(), parcel.end
            try:
                self._push(parcel.records if len(parcel) else None, behind, given)
            except BaseException as error:
                given.failure = deliverable(error)
                given.out += [] if self._cut is not None else [Fed(Parcel(None, given.end, given.failure), None)]
            if given.failure is not None or given.end is End.RUN:
                break
        given.held_rows = sum(slot.accumulator.held_rows for slot in self._slots if slot.operator.holds_rows())
        given.held_bytes = sum(slot.accumulator.held_bytes for slot in self._slots) + (
            0 if self._cut is None else self._cut.held_bytes
        )
        return given

    def _push(self, records: Records | None, behind: Any, given: Given) -> None:
        for slot in self._slots:
            records, behind = slot.push(records, behind, given.end, given)
        if self._cut is not None:
            self._cut.push(records, behind, given)
        else:
            self._pass_on(records, behind, given)

    def _pass_on(self, records: Records | None, behind: int, given: Given) -> None:
        """Cut what comes out into pieces for the workers; the end goes with the last."""
        n = 0 if records is None else len(records)
        for start in range(0, n - self._piece_rows, self._piece_rows):
            assert records is not None
            stop = start + self._piece_rows
            given.out.append(Fed(Parcel(records.slice(start, stop)), behind - n + stop))
        rest = None if records is None else records.slice((n - 1) // self._piece_rows * self._piece_rows, n)
        if rest is not None or given.end is not End.NOTHING or given.failure is not None:
            given.out.append(Fed(Parcel(rest, given.end, given.failure), behind))


class Cut:
    """Counts the rows that come out of a lane into microbatches of `size`. copies: they may lie in memory that others share."""

    def __init__(self, i: int, cursor: Cursor, size: int, pads: bool, copies: bool) -> None:
        self._i, self._size, self._pads, self._copies = i, size, pads, copies
        self._count, self._left = cursor.out, cursor.rows[i]
        self._number = cursor.out // size
        self._pending: list[Records] = []
        self._rows = 0

    @property
    def held_bytes(self) -> int:
        return sum(records.nbytes for records in self._pending)

    def push(self, records: Records | None, behind: Any, given: Given) -> None:
        """Take rows; whole microbatches go into `given`, and at the end of the run what is left, or its count."""
        records, self._left = _drop(records, self._left)
        if records is not None:
            self._count += len(records)
            self._pending.append(records)
            self._rows += len(records)
        if given.failure is None:
            given.edges.append((self._i, Edge(self._count, behind, self._left)))
        if self._rows >= self._size:
            rows = self._joined()
            whole = self._rows // self._size * self._size
            for start in range(0, whole, self._size):
                records = rows.slice(start, start + self._size)
                given.microbatches.append(Microbatch(self._number, records, 0, records.nbytes))
                self._number += 1
            self._rows -= whole
            self._pending = [rows.slice(whole, len(rows))] if self._rows else []
        if given.end is End.RUN and given.failure is None and self._rows:
            if self._pads:
                records = self._joined()
                given.microbatches.append(Microbatch(self._number, records, self._size - self._rows, records.nbytes))
            else:
                given.tally["rows_left"] += self._rows
            self._pending, self._rows = [], 0

    def _joined(self) -> Records:
        rows = Records.concat(self._pending)
        return rows.copied() if self._copies and len(self._pending) == 1 else rows


def _drop(records: Records | None, left: int) -> tuple[Records | None, int]:
    """Without its first `left` rows, and how many are still to be dropped."""
    if records is None or not left:
        return records, left
    n = min(left, len(records))
    return (records.slice(n, len(records)) if n < len(records) else None), left - n
