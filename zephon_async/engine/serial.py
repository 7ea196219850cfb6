"""What runs on workers, one call at a time for a lane: its accumulators, and the cut into microbatches.

Takes the parcels of a stateless stage in their order and gives what comes of them, with the edges and marks that say from where it
can be had again. A failure stands behind the rows that came before it; where rows are missing because of it, no edge is told.

Threads: a `Serial` belongs to one lane and is run by one worker at a time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from zephon_async.engine.blame import blamed
from zephon_async.engine.gather import Policy
from zephon_async.engine.limit import Limit, brought, counted, told
from zephon_async.errors import BadRecord
from zephon_async.lanes import Cursor, Edge, Mark
from zephon_async.operators import Accumulator, Carrying, Operator, RecordFailed, Tally, what_is_wrong
from zephon_async.records import End, Marks, Parcel, Records, Skipped, between
from zephon_async.runners import deliverable


class Fed(NamedTuple):
    """What a stateless stage made of one piece of work, and the position (see `Edge`) behind that piece."""

    parcel: Parcel
    behind: Any


class Microbatch(NamedTuple):
    """Rows `number * size:(number + 1) * size` of a lane; the last `filled` of them are still to be made up.

    skipped: bad records that were left out before the last of them, and behind the microbatch before.
    """

    number: int
    records: Records
    filled: int
    nbytes: int
    skipped: Sequence[Skipped]


@dataclass(slots=True, eq=False)
class Given:
    """What a serial half gives back: for the trail, for the next link or the consumer, and for the books."""

    edges: list[tuple[int, Edge[Any]]] = field(default_factory=list)
    marks: list[tuple[int, list[Mark]]] = field(default_factory=list)
    out: list[Fed] = field(default_factory=list)
    microbatches: list[Microbatch] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)  # behind the last microbatch of a run
    tally: Tally = field(default_factory=Counter)
    end: End = End.NOTHING
    failure: BaseException | None = None
    held_rows: int = 0
    held_bytes: int = 0


class _Out:
    """What comes out of an accumulator, and the bad records that were left out, where they stand in it."""

    def __init__(self) -> None:
        self.pieces: list[Records] = []
        self.rows = 0
        self.skipped: list[Skipped] = []

    def add(self, records: Records | None) -> None:
        if records is not None and len(records):
            self.pieces.append(records)
            self.rows += len(records)

    def without(self, first: int) -> tuple[Records | None, list[Skipped], int]:
        """All of it but for the first rows; and how many are still to be dropped."""
        records, left = _drop(Records.concat(self.pieces) if self.pieces else None, first)
        dropped = first - left
        return records, [each._replace(at=max(0, each.at - dropped)) for each in self.skipped], left


class _Slot:
    """One accumulator of a lane with its numbers."""

    def __init__(self, i: int, operator: Operator, lane: int, cursor: Cursor, policy: Policy) -> None:
        self.i, self.operator, self.lane, self.policy = i, operator, lane, policy
        self.accumulator: Accumulator = operator.accumulator(lane, cursor.first[i])
        if operator.carries:
            cast(Carrying, self.accumulator).carry(cursor.carried[i])
        self.base = self.count = cursor.taken[i]  # its input rows are counted from here
        self.skip = cursor.skips[i]  # tokens of the next row to leave out
        self.left, self.drop = cursor.rows[i], cursor.outputs[i]  # rows to drop before it, outputs to drop after it
        self.bad = brought(cursor.bad[i])

    def push(self, parcel: Parcel, behind: Any, given: Given) -> tuple[Parcel, Any]:
        """Take rows; gives what comes out of it and the output number behind that."""
        out, end = _Out(), parcel.end
        for skipped, piece in between(parcel.records, parcel.skipped):
            self._leave_out(skipped, out)
            records, self.left = _drop(piece, self.left)
            self.count += 0 if records is None else len(records)
            while records is not None:
                records = self._try(records, out, given)
            if given.failure is not parcel.failure:
                break
        if parcel.failure is None:  # else rows are missing that must be made again
            given.edges.append((self.i, Edge(self.count, behind, self.left, told(self.bad))))
        if given.failure is None and (end is End.RUN or (end is End.SEGMENT and self.operator.needs_flush)):
            self._flush(out, given)
        records, skipped, self.drop = out.without(self.drop)
        passed = parcel.made(records, given.failure, skipped=skipped)
        return passed, self.accumulator.given + self.drop  # while outputs are dropped it stays where the cursor stands

    def _leave_out(self, skipped: Iterable[Skipped], out: _Out) -> None:
        for each in skipped:
            out.skipped.append(counted(each, self.bad)._replace(at=out.rows))

    def _try(self, records: Records, out: _Out, given: Given) -> Records | None:
        """Push rows; gives those that are still to be pushed, behind a bad one that is skipped."""
        skip, self.skip = self.skip, 0
        try:
            made, marks = self.accumulator.push(records, skip, given.tally)
            self._check("push", made)
        except RecordFailed as failed:
            behind = failed.at + 1
            out.add(failed.done)
            if self._skips(failed, failed.failed or records.slice(failed.at, behind), out, given):
                self._mark(failed.marks, given)  # else the failure must come again where the run is resumed
                return records.slice(behind, len(records)) if behind < len(records) else None
        except BaseException as error:
            self._fail(error, f"lane {self.lane}", given)
        else:
            out.add(made)
            self._mark(marks, given)
        return None

    def _flush(self, out: _Out, given: Given) -> None:
        try:
            made = self.accumulator.flush(given.tally)
            self._check("flush", made)
            out.add(made)
        except RecordFailed as failed:
            out.add(failed.done)
            if not self._skips(failed, failed.failed, out, given):
                return None
        except BaseException as error:
            return self._fail(error, f"lane {self.lane}", given)
        carried = cast(Carrying, self.accumulator).carried if self.operator.carries else ()
        given.marks.append((self.i, [Mark(self.accumulator.given, self.count, 0, carried)]))
        return None

    def _check(self, method: str, out: Records | None) -> None:
        if out is not None and (wrong := what_is_wrong(out)):
            raise TypeError(f"{self.operator.name}: {method} gave {wrong}")

    def _mark(self, marks: Marks, given: Given) -> None:
        rows = [row + self.base for row in marks.rows]
        given.marks.append((self.i, [Mark(*mark) for mark in zip(marks.outputs, rows, marks.skips, strict=True)]))

    def _skips(self, failure: RecordFailed, records: Records | None, out: _Out, given: Given) -> bool:
        """Whether the records that failed are bad ones that are left out; else the run ends there."""
        cause = failure.__cause__ or failure
        if records is None or not (isinstance(cause, BadRecord) and self.policy.quarantine and self.operator.survives):
            self._fail(cause, f"lane {self.lane}" if records is None else self.policy.place(records, 0), given)
            return False
        self._leave_out([self.policy.skip(records, row, 0, cause, given.tally) for row in range(len(records))], out)
        return True

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
        self._slots = [_Slot(i, operator, lane, cursor, policy) for i, operator in accumulators]
        self._cut = cut
        self._piece_rows = piece_rows

    def run(self, fed: Sequence[Fed]) -> Given:
        """Take parcels in their order."""
        given = Given()
        for parcel, behind in fed:
            given.tally.update(parcel.counts)
            given.failure, given.end = parcel.failure, parcel.end
            try:
                self._push(parcel, behind, given)
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

    def _push(self, parcel: Parcel, behind: Any, given: Given) -> None:
        for slot in self._slots:
            parcel, behind = slot.push(parcel, behind, given)
        if self._cut is not None:
            self._cut.push(parcel, behind, given)
        else:
            self._pass_on(parcel, behind, given)

    def _pass_on(self, parcel: Parcel, behind: int, given: Given) -> None:
        """Cut what comes out into pieces for the workers; the end, and what stands behind the last row, go with the last."""
        n = len(parcel)
        for start in range(0, n - self._piece_rows, self._piece_rows):
            assert parcel.records is not None
            stop = start + self._piece_rows
            skipped = [each._replace(at=each.at - start) for each in parcel.skipped if start <= each.at < stop]
            given.out.append(Fed(Parcel(parcel.records.slice(start, stop), skipped=skipped), behind - n + stop))
        start = (n - 1) // self._piece_rows * self._piece_rows if n else 0
        rest = parcel.records.slice(start, n) if parcel.records is not None and n else None
        skipped = [each._replace(at=each.at - start) for each in parcel.skipped if each.at >= start]
        if rest is not None or skipped or given.end is not End.NOTHING or given.failure is not None:
            given.out.append(Fed(parcel.made(rest, given.failure, skipped=skipped), behind))


class Cut:
    """Counts the rows that come out of a lane into microbatches of `size`, and the bad records that were left out before them.

    copies: rows may lie in memory that others share.
    """

    def __init__(self, i: int, cursor: Cursor, size: int, pads: bool, copies: bool, limit: Limit) -> None:
        self._i, self._size, self._pads, self._copies, self._limit = i, size, pads, copies, limit
        self._bad = brought(cursor.bad[i])
        self._count, self._left = cursor.out, cursor.rows[i]
        self._number = cursor.out // size
        self._pending: list[Records] = []
        self._rows = 0
        self._skipped: list[Skipped] = []  # behind the last microbatch; `at` counts the lane's rows

    @property
    def held_bytes(self) -> int:
        return sum(records.nbytes for records in self._pending)

    def push(self, parcel: Parcel, behind: Any, given: Given) -> None:
        """Take rows; whole microbatches go into `given`, and at the end of the run what is left, or its count."""
        self._take(parcel, given)
        if given.failure is None:
            given.edges.append((self._i, Edge(self._count, behind, self._left, told(self._bad))))
        if self._rows >= self._size:
            rows = self._joined()
            whole = self._rows // self._size * self._size
            for start in range(0, whole, self._size):
                records = rows.slice(start, start + self._size)
                given.microbatches.append(self._microbatch(records, 0))
            self._rows -= whole
            self._pending = [rows.slice(whole, len(rows))] if self._rows else []
        if given.end is End.RUN and given.failure is None and self._rows:
            if self._pads:
                records = self._joined()
                given.microbatches.append(self._microbatch(records, self._size - self._rows))
            else:
                given.tally["rows_left"] += self._rows
            self._pending, self._rows = [], 0
        if given.end is End.RUN or given.failure is not None:
            given.skipped, self._skipped = self._skipped, []

    def _microbatch(self, records: Records, filled: int) -> Microbatch:
        self._number += 1
        before = [each for each in self._skipped if each.at < self._number * self._size]
        self._skipped = self._skipped[len(before) :]
        return Microbatch(self._number - 1, records, filled, records.nbytes, before)

    def _take(self, parcel: Parcel, given: Given) -> None:
        """Rows, up to the bad record that is one too many."""
        for skipped, piece in between(parcel.records, parcel.skipped):
            for each in skipped:
                counted(each, self._bad)
                self._skipped.append(each._replace(at=self._count))
                if (error := self._limit.reached(each)) is not None:
                    given.failure = error
                    return
            records, self._left = _drop(piece, self._left)
            if records is not None:
                self._count += len(records)
                self._pending.append(records)
                self._rows += len(records)
        if parcel.end is not End.NOTHING and given.failure is None:
            given.failure = self._limit.judged(parcel.drawn)

    def _joined(self) -> Records:
        rows = Records.concat(self._pending)
        return rows.copied() if self._copies and len(self._pending) == 1 else rows


def _drop(records: Records | None, left: int) -> tuple[Records | None, int]:
    """Without its first `left` rows, and how many are still to be dropped."""
    if records is None or not left:
        return records, left
    n = min(left, len(records))
    return (records.slice(n, len(records)) if n < len(records) else None), left - n
