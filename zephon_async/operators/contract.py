"""What an operator promises, tried on some records.

Takes an operator that has learned what it learns, and records; gives a `Finding` for each promise of `base` that does not hold. The
contract suite of the tests tries the package's own operators with the same functions.

Records on which a stateless operator fails are left out. An accumulator that fails is tried no further.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa

from zephon_async.loops import LoopThread
from zephon_async.operators.base import Accumulator, Carrying, Operator, RecordFailed
from zephon_async.operators.functions import is_interrupt
from zephon_async.records import Records

Rows: TypeAlias = list[tuple[str, Any]]
"""Rows as text, in which NaN equals NaN, with their origins."""

LANE, FIRST = 3, 7  # of the accumulators that are tried: not 0, so that it is seen who takes them for that


class Finding(NamedTuple):
    """Something that an operator does and should not.

    name: of the kind of thing. severity: "error" where it was seen to happen, "warning" where it may. change: what to do about it.
    """

    operator: str
    name: str
    severity: Literal["error", "warning"]
    message: str
    change: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.name}: {self.message}; {self.change}"


def what_is_wrong(records: object) -> str:
    """What makes something that an operator gave no records; "" where nothing does."""
    if not isinstance(records, Records):
        wrapped = isinstance(records, pa.RecordBatch | pa.Table)
        instead = ": give records.with_columns(...) for other columns of the same rows, records.take(...) for some of the rows"
        return f"{type(records).__name__}, not Records{instead if wrapped else ''}"
    if len(records.origins) != records.columns.num_rows:
        return f"{records.columns.num_rows} rows and {len(records.origins)} origins; take or slice Records as a whole"
    return ""


def rows_of(records: Records | None) -> Rows:
    """Rows as values that can be compared."""
    if records is None:
        return []
    segments, bounds = records.origins.segments.tolist(), records.origins.bounds().tolist()
    owned = [tuple(segments[start:stop]) for start, stop in pairwise(bounds)]
    return list(zip(map(repr, records.columns.to_pylist()), owned, strict=True))


def applied(operator: Operator, records: Records, users: LoopThread) -> Records:
    """What the stateless half makes of records; coroutines are run on the loop of `users`."""
    if operator.concurrency is None:
        return operator.apply(records, Counter())
    return users.submit(operator.apply_async(records, Counter())).result()


def learned(operator: Operator, records: Records, users: LoopThread) -> Any:
    """What it learns of records, likewise."""
    return operator.learn(records) if operator.concurrency is None else users.submit(operator.learn_async(records)).result()


# Stateless halves


def try_stateless(operator: Operator, records: Records, users: LoopThread) -> Iterator[Finding]:
    """Two runs, and another cut: every row alone."""
    alone = [_tried(operator, records.slice(row, row + 1), users) for row in range(len(records))]
    sound = np.flatnonzero([not isinstance(each, Exception) for each in alone])
    if not len(sound):
        yield _fails(operator, next((each for each in alone if isinstance(each, Exception)), None), "every record")
        return
    whole = _tried(operator, records.take(sound), users)
    if wrong := next((found for each in (*(alone[row] for row in sound), whole) if (found := _wrong(each))), ""):
        yield Finding(operator.name, "no_records", "error", f"apply gave {wrong}", "give Records")
        return
    if isinstance(whole, Exception):
        message = f"it takes each of {len(sound)} records alone, and fails on all together: {_named(whole)}"
        yield Finding(operator.name, "cut_matters", "error", message, "treat each row by itself")
        return
    given = cast(Sequence[Records], [alone[row] for row in sound])
    if rows_of(whole) != [row for each in given for row in rows_of(each)]:
        yield _differs(operator, records.take(sound), users, given, whole)
    yield from _told(operator, records, whole)


def _wrong(outcome: object) -> str:
    return "" if isinstance(outcome, Exception) else what_is_wrong(outcome)


def _differs(operator: Operator, records: Records, users: LoopThread, alone: Sequence[Records], whole: Records) -> Finding:
    """Why rows alone and together gave different rows: they do so each time, or by the cut."""
    again = [_tried(operator, records.slice(row, row + 1), users) for row in range(len(records))]
    together = _tried(operator, records, users)
    for first, second in [*zip(alone, again, strict=True), (whole, together)]:
        if isinstance(second, Exception) or what_is_wrong(second):
            message = f"it fails where it did not before: {_named(second) if isinstance(second, Exception) else 'no records'}"
            return Finding(operator.name, "runs_differ", "error", message, _KEEP_NOTHING)
        if pair := _first_other(rows_of(first), rows_of(second)):
            return Finding(operator.name, "runs_differ", "error", f"the same records gave {pair}", _KEEP_NOTHING)
    pair = _first_other(rows_of(whole), [row for each in alone for row in rows_of(each)])
    message = f"records together and one at a time gave {pair}"
    return Finding(
        operator.name, "cut_matters", "error", message, "treat each row by itself, or use map_batches(rows=n), accumulate"
    )


_KEEP_NOTHING = "keep nothing between calls, and take randomness from the record or its origin"


def _told(operator: Operator, records: Records, out: Records) -> Iterator[Finding]:
    """Whether it gives what it says that it gives."""
    told = operator.output(records.columns.schema)
    if told is not None and len(out) and not out.columns.schema.equals(told, check_metadata=True):
        message = f"output() tells {_fields(told)}, and it gave {_fields(out.columns.schema)}"
        yield Finding(operator.name, "other_columns", "error", message, "make output() tell what it gives, or None")


def _tried(operator: Operator, records: Records, users: LoopThread) -> Records | Exception:
    try:
        return applied(operator, records, users)
    except RecordFailed as failed:
        return _raised(failed.__cause__ or failed)
    except Exception as error:
        return error


def _raised(error: BaseException) -> Exception:
    """Raise what is meant to end the program; anything else is an exception like others."""
    if is_interrupt(error):
        raise error
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__} was raised")


# Accumulators


class _Ran(NamedTuple):
    """What a new accumulator gave, its flush included; `faults` in what it told of itself on the way."""

    rows: Rows
    marks: list[tuple[int, int, int]]
    faults: list[Finding]


def try_accumulator(
    operator: Operator, records: Records, stops: Iterable[int] = (), most_marks: int | None = None, more: Records | None = None
) -> Iterator[Finding]:
    """Two runs, other cuts (row by row, and at `stops`), flush, and restart at marks: at all of them, or at so many.

    more: what is fed to one that was flushed; None: the same again.
    """
    name = operator.name
    try:
        whole = _ran(operator, records)
        yield from whole.faults
        if pair := _first_other(whole.rows, _ran(operator, records).rows):
            yield Finding(name, "runs_differ", "error", f"the same records gave {pair}", _KEEP_IN_STATE)
            return
        for cuts in (range(1, len(records)), sorted({stop for stop in stops if stop < len(records)})):
            cut = _ran(operator, records, cuts)
            yield from [fault for fault in cut.faults if fault not in whole.faults]
            if pair := _first_other(whole.rows, cut.rows):
                message = f"pushed in other parts, the same records gave {pair}"
                yield Finding(name, "cut_matters", "error", message, "let nothing depend on how many rows one push has")
                return
        yield from _marked(operator, whole.marks)
        yield from _restarted(operator, records, whole, most_marks)
        yield from _flushed(operator, records, records if more is None else more)
    except RecordFailed as failed:
        yield _fails(operator, _raised(failed.__cause__ or failed), "a record")
    except Exception as error:
        yield _fails(operator, error, "a record")


_KEEP_IN_STATE = "make all of what decides in accumulator(), and key randomness by output numbers"


def feed(
    accumulator: Accumulator, records: Records, stops: Iterable[int] = (), skip: int = 0
) -> Iterator[tuple[Records | None, list[tuple[int, int, int]], int]]:
    """Push in parcels that end at `stops`: what each gave, its marks, and how many rows were pushed by then."""
    for start, stop in pairwise(sorted({0, len(records), *(stop for stop in stops if 0 < stop < len(records))})):
        out, marks = accumulator.push(records.slice(start, stop), skip if start == 0 else 0, Counter())
        yield out, list(zip(*marks, strict=True)), stop


def _ran(operator: Operator, records: Records, stops: Iterable[int] = ()) -> _Ran:
    accumulator, tally = operator.accumulator(LANE, FIRST), Counter[str]()
    rows, marks, faults = Rows(), list[tuple[int, int, int]](), list[Finding]()

    def fault(name: str, message: str, change: str) -> None:
        found = Finding(operator.name, name, "error", message, change)
        if found.name not in [each.name for each in faults]:
            faults.append(found)

    def took(out: Records | None) -> None:
        if out is not None and (wrong := what_is_wrong(out)):
            fault("no_records", f"its accumulator gave {wrong}", "give Records, or None")
        elif out is not None:
            faults.extend(_told(operator, records, out))
            rows.extend(rows_of(out))
        if accumulator.given != FIRST + len(rows):
            message = f"given is {accumulator.given} behind {len(rows)} outputs, the first of which was number {FIRST}"
            fault("given_is_wrong", message, "add to given what goes out")

    for out, named, pushed in feed(accumulator, records, stops):
        marks += named
        took(out)
        if not 0 <= accumulator.held_rows <= pushed or (accumulator.held_rows > 0) != (accumulator.held_bytes > 0):
            message = f"held_rows is {accumulator.held_rows}, held_bytes {accumulator.held_bytes}, behind {pushed} rows"
            fault("held_is_wrong", message, "count the input rows, and their bytes, that have not gone out")
    held, before = accumulator.held_rows, len(rows)
    out = accumulator.flush(tally)
    took(out)
    if (accumulator.held_rows, accumulator.held_bytes) != (0, 0):
        fault("held_is_wrong", f"held_rows is {accumulator.held_rows} behind flush", "let flush give out all that is held")
    sources = set() if out is None or what_is_wrong(out) else {tuple(each)[:5] for each in out.origins.segments.tolist()}
    if len(sources) > held:
        message = f"flush gave records of {len(sources)} rows, and held_rows said {held}"
        fault("held_is_wrong", message, "count the input rows that have not gone out")
    if held and len(rows) == before and not +tally:
        message = f"flush gave nothing of {held} rows that were held, and counted nothing"
        lost = Finding(operator.name, "lost_at_flush", "warning", message, "give them out in flush, or count them in its tally")
        faults.append(lost)
    return _Ran(rows, marks, faults)


def _marked(operator: Operator, marks: Sequence[tuple[int, int, int]]) -> Iterator[Finding]:
    if operator.needs_flush and marks:
        message = f"it gave {len(marks)} marks, which are not used as it says needs_flush"
        yield Finding(operator.name, "marks_are_wrong", "error", message, "give NO_MARKS, or leave needs_flush out")
    if not operator.needs_flush and not marks:
        yield Finding(operator.name, "marks_are_wrong", "error", "it gave no mark", "give marks, or set needs_flush = True")
    if [mark[0] for mark in marks] != sorted(mark[0] for mark in marks):
        yield Finding(operator.name, "marks_are_wrong", "error", "its marks do not ascend", "name marks by their outputs, in order")


def _restarted(operator: Operator, records: Records, whole: _Ran, most: int | None) -> Iterator[Finding]:
    marks = [] if operator.needs_flush else sorted(set(whole.marks))
    if most is not None:
        marks = [marks[at] for at in np.unique(np.linspace(0, len(marks) - 1, min(most, len(marks))).astype(int))]
    for output, row, skip in marks:
        accumulator = operator.accumulator(LANE, output)
        rest = records.slice(row, len(records))
        rows = [each for out, _, _ in feed(accumulator, rest, skip=skip) for each in rows_of(out)]
        rows += rows_of(accumulator.flush(Counter()))
        if pair := _first_other(whole.rows[output - FIRST :], rows):
            message = f"restarted at its mark (output {output}, row {row}, skip {skip}) it gave {pair}"
            yield Finding(operator.name, "restart_differs", "error", message, "name marks at which nothing is held that decides")
            return


def _flushed(operator: Operator, records: Records, more: Records) -> Iterator[Finding]:
    flushed = operator.accumulator(LANE, FIRST)
    for _ in feed(flushed, records):
        pass
    flushed.flush(Counter())
    new = operator.accumulator(LANE, flushed.given)
    if operator.carries:
        cast(Carrying, new).carry(cast(Carrying, flushed).carried)
    if flushed.flush(Counter()) is not None:
        yield Finding(operator.name, "flush_differs", "error", "a second flush gave more", "let flush give out all that is held")
        return
    gave = [
        (
            [(rows_of(out), marks) for out, marks, _ in feed(each, more)],
            each.held_rows,
            each.held_bytes,
            rows_of(each.flush(Counter())),
        )
        for each in (flushed, new)
    ]
    counts = [(each.given, cast(Carrying, each).carried if operator.carries else ()) for each in (flushed, new)]
    if gave[0] != gave[1] or counts[0] != counts[1]:
        message = "behind a flush it does not give what a new one gives"
        yield Finding(operator.name, "flush_differs", "error", message, "begin anew in flush, all but `given`")


# Words


def _fails(operator: Operator, error: Exception | None, what: str) -> Finding:
    change = "give samples that it takes, so that more can be looked at"
    return Finding(operator.name, "fails", "warning", f"it fails on {what}: {_named(error)}", change)


def _named(error: BaseException | None) -> str:
    try:
        return f"{type(error).__name__}: {error!s:.200}"
    except Exception:  # one of a user's may have no text
        return type(error).__name__


def _fields(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _first_other(first: Rows, second: Rows) -> str:
    """The first row in which two lists differ, in words; "" where there is none."""
    for (one, origin), (other, from_other) in zip(first, second, strict=False):
        if one != other:
            return f"{one:.80} and {other:.80}"
        if origin != from_other:
            return f"{one:.80} of two origins"
    return "" if len(first) == len(second) else f"{len(first)} and {len(second)} rows"
