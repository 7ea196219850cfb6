"""`check_operator`: whether an operator, or a function for one, keeps what it promises, on some records.

    print(check_operator(Map(clean), [{"text": "one"}, {"text": "two"}]))

It is run in this process, several times over, on a copy that has learned its columns from the samples.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.checks import checks_call
from zephon_async.errors import RecipeError
from zephon_async.loops import LoopThread
from zephon_async.operators.base import Operator
from zephon_async.operators.contract import (
    Finding,
    applied,
    learned,
    rows_of,
    try_accumulator,
    try_stateless,
    what_is_wrong,
)
from zephon_async.operators.functions import OwnFunction
from zephon_async.operators.map import Map
from zephon_async.operators.rows import large
from zephon_async.operators.source import own_classes
from zephon_async.operators.suspicious import look_at_source
from zephon_async.records import ORIGIN, Origins, Records

_STATELESS_ROWS = 8  # of a trial at the start, and
_BYTES = 1 << 24
_MARKS = 4


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """What was found. `print` it; `ok` where there is no error."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.severity == "warning")

    def __str__(self) -> str:
        return "\n".join(f"{each.severity}: {each}" for each in self.findings) or "nothing found"


@checks_call
def check_operator(op: Operator | Callable[[dict[str, Any]], Any], samples: Any) -> ValidationReport:
    """Try an operator, or a function as `map` takes one, on samples; give what it does and should not.

    samples: at least one, a list of dicts, a `pa.RecordBatch` or a `pa.Table`. More samples find more; those that a shuffle or a
    packer holds must be filled for its marks to be tried.

    Findings: runs_differ, cut_matters, fails, no_records, other_columns; of accumulators given_is_wrong, held_is_wrong,
    lost_at_flush, marks_are_wrong, restart_differs, flush_differs; not_picklable, copy_differs; and of the source random, clock,
    hash, set_order, keeps_state. Raises `RecipeError` for samples that are none, and for a class.
    """
    if isinstance(op, type) and issubclass(op, Operator):
        name = op.__name__
        raise RecipeError(
            f"check_operator: takes an operator, an instance such as {name}(...), or a function, not the class {name}"
        )
    operator = op if isinstance(op, Operator) else Map(op)
    records = _as_records(samples)
    users = LoopThread("zephon-check")
    try:
        return ValidationReport(tuple(dict.fromkeys(_found(operator, records, users))))
    finally:
        users.close(1.0)


def is_own(operator: Operator) -> bool:
    """Whether it runs code of a user."""
    return isinstance(operator, OwnFunction) or bool(own_classes(type(operator)))


def try_at_start(operator: Operator, records: Records, users: LoopThread) -> list[Finding]:
    """The part of the check that every start can afford: some of up to 64 rows, and a few marks."""
    few = min(_STATELESS_ROWS if operator.stateless else len(records), _BYTES * len(records) // max(1, records.nbytes))
    found = _tried(operator, records.slice(0, max(1, few)), users, _MARKS)
    return [finding for finding in found if finding.name != "fails"]  # it fails again in its place


def _tried(operator: Operator, records: Records, users: LoopThread, most_marks: int | None = None) -> Iterator[Finding]:
    fed: Records | None = records
    if operator.stateless:
        yield from try_stateless(operator, records, users)
        fed = _outcome(operator, records, users) if operator.serial else None
    if operator.serial and fed is not None and len(fed):
        yield from try_accumulator(operator, fed, most_marks=most_marks)


def _found(operator: Operator, records: Records, users: LoopThread) -> Iterator[Finding]:
    yield from look_at_source(operator)
    operator = copy(operator)
    operator.told(["samples"])
    try:
        if operator.learns:
            operator.recall(learned(operator, records, users))
        operator.output(records.columns.schema)
    except RecipeError as error:
        yield Finding(operator.name, "fails", "warning", str(error), "give samples that it takes, or schema=")
        return
    yield from try_fully(operator, records, users)


def try_fully(operator: Operator, records: Records, users: LoopThread) -> Iterator[Finding]:
    """The check of an operator that has learned what it learns, without a look at its source."""
    found = list(_tried(operator, records, users))
    yield from found
    if operator.stateless and not found:
        yield from _travelled(operator, records, users)


def _travelled(operator: Operator, records: Records, users: LoopThread) -> Iterator[Finding]:
    """Whether it can go to worker processes, and does the same there."""
    import cloudpickle

    try:
        there = pickle.loads(cloudpickle.dumps(operator))
    except Exception as error:
        message = f"{type(error).__name__}: {error!s:.200}"
        change = "make what cannot be pickled where it is used, or leave it on threads"
        yield Finding(operator.name, "not_picklable", "warning", message, change)
        return
    here = _outcome(operator, records, users)
    if here is not None and rows_of(_outcome(there, records, users)) != rows_of(here):
        message = "a copy, as worker processes have, gives other rows"
        yield Finding(operator.name, "copy_differs", "error", message, "let __getstate__ keep all that decides")


def _outcome(operator: Operator, records: Records, users: LoopThread) -> Records | None:
    try:
        out = applied(operator, records, users)
    except Exception:  # it has been told
        return None
    return None if what_is_wrong(out) else out


def _as_records(samples: Any) -> Records:
    try:
        listed = list(samples) if not isinstance(samples, pa.RecordBatch | pa.Table) and isinstance(samples, Iterable) else None
        table = pa.Table.from_pylist(listed) if listed is not None else pa.table(samples)
        columns = table.cast(pa.schema([field.with_type(large(field.type)) for field in table.schema])).combine_chunks()
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise RecipeError(f"check_operator: samples= must be a list of dicts, a RecordBatch or a Table ({error})") from error
    if not columns.num_rows:
        raise RecipeError("check_operator: samples= has no record: give at least one")
    origins = np.zeros(columns.num_rows, ORIGIN)
    origins["row"], origins["stop"] = np.arange(columns.num_rows), -1
    return Records(columns.to_batches()[0], Origins(origins))
