"""`accumulate`: a user's own state, one per lane, that sees every record in order.

    def init() -> State                               a new, changeable state: a list, a dict, an object
    def push(state, record: dict) -> iterable | None  changes the state in place; gives output records (dicts), or None for none
    def flush(state) -> iterable | None               the same for what is left; without it, what is left is given up

`push` may be a generator function: `yield` a dict for each output. The state lives as long as a segment (`flush_every` rows drawn
by the lane): there it is flushed and a new one is made, so that a run can be restarted at every segment. Nothing else of it is
saved, so it need not be picklable. `flush` is not called where no record came since the last.

Output records are typed once, see `typed`. All outputs of one call have the origins of all records taken since the last call that
gave any; where there are none, that of the last record.

Where `push` raises `BadRecord`, or gives what does not fit, `on_bad_record="quarantine"` skips the record: its outputs and its
origin are left out, but what `push` has changed in the state stays changed. Where that happens to `flush`, what it gives is left
out, and the last record of the segment counts as the bad one.

Threads: as in `typed`; the three functions are called from several threads at once, each time with the state of another lane.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from zephon_async.errors import BadRecord, InternalError, RecipeError
from zephon_async.operators.base import NO_MARKS, Accumulator, RecordFailed, Tally
from zephon_async.operators.functions import check_function, function_name, function_settings, is_async
from zephon_async.operators.rows import to_dicts
from zephon_async.operators.typed import Typed
from zephon_async.records import Marks, Origins, Records

_UNCHANGEABLE = (bool, int, float, str, bytes, tuple, frozenset, type(None))


class Accumulate(Typed):
    """Keep a state of one's own per lane."""

    name = "accumulate"
    needs_flush = True
    survives = True

    def __init__(
        self,
        init: Callable[[], Any],
        push: Callable[[Any, dict[str, Any]], Iterable[dict[str, Any]] | None],
        flush: Callable[[Any], Iterable[dict[str, Any]] | None] | None = None,
        *,
        schema: pa.Schema | Mapping[str, pa.DataType] | None = None,
        columns: Sequence[str] | None = None,
        version: str | int | None = None,
    ) -> None:
        """init, push, flush: see the head of this module.

        schema: pa.Schema or mapping of names to Arrow types; None: learned from a trial. columns: the names push gets; None: all
        there are. version: changes the fingerprint when something changes that the source of the functions does not show.
        """
        for fn in (init, push) if flush is None else (init, push, flush):
            check_function(self.name, fn, version)
            if is_async(fn):
                raise RecipeError(
                    f"{self.name}: {function_name(fn)} is async; records must come in order, so give a plain function"
                )
        super().__init__(columns, version)
        self._type_by(push, schema)
        self.init, self.push, self.flush = init, push, flush
        if self.new_state() is self.new_state():
            raise RecipeError(
                f"{self.name}: {function_name(init)} gives the same object twice; every lane needs a state of its own"
            )

    def settings(self) -> Mapping[str, Any]:
        told = {**function_settings(self.init, self.version, "init "), **function_settings(self.push, self.version, "push ")}
        if self.flush is not None:
            told |= function_settings(self.flush, self.version, "flush ")
        return {**told, **super().settings()}

    def functions(self) -> Sequence[Callable[..., Any]]:
        return [fn for fn in (self.init, self.push, self.flush) if fn is not None]

    def learn(self, records: Records) -> bytes | None:
        state, given, called = self.new_state(), list[dict[str, Any]](), len(records)
        for row in range(len(records)):
            try:
                for record in to_dicts(self.selected(records.slice(row, row + 1))):
                    given += self.checked(self.push, self.push(state, record))
            except Exception:  # it fails again in its place, before it is missed that there is no output
                called = 0
        try:
            given += [] if self.flush is None else self.checked(self.flush, self.flush(state))
        except Exception:
            called = 0
        return self._learn_from(given, called, records.columns.schema)

    def accumulator(self, lane: int, first: int) -> Accumulator:
        return OwnState(self, first)

    def takes_rows(self, rows: int, row_tokens: float | None) -> int | None:
        return None

    def new_state(self) -> Any:
        state = self.init()
        if isinstance(state, _UNCHANGEABLE):
            found = f"{function_name(self.init)} gave {state!r:.80}"
            raise RecipeError(f"{self.name}: {found}, which push cannot change in place; give a list, a dict or an object")
        return state

    def checked(self, fn: Callable[..., Any], results: Any) -> list[dict[str, Any]]:
        """The output records of a call."""
        if results is None:
            return []
        listed = isinstance(results, Iterable) and not isinstance(results, dict | str | bytes)
        records = list(results) if listed else [results]
        if not listed or not all(isinstance(record, dict) for record in records):
            found = f"{function_name(fn)} gave {type(results).__name__} {results!r:.80}"
            raise TypeError(f"{self.name}: {found}, wanted a list of dicts (or dicts yielded one by one), or None")
        return records


class _Called(NamedTuple):
    """What the function gave for each record before the first that fails, and its failure."""

    groups: list[list[dict[str, Any]]]
    failure: BaseException | None


class OwnState:
    """The state of a lane, and the origins of the records taken since the last output."""

    def __init__(self, operator: Accumulate, first: int) -> None:
        self._operator, self.given = operator, first
        self._begin()

    def _begin(self) -> None:
        self._state = self._operator.new_state()
        self._last: Records | None = None  # the last record taken; None where there was none
        self._ahead = _Called([], None)  # with the records that come next, behind one whose outputs did not fit
        self._held: list[Origins] = []
        self.held_rows = self.held_bytes = 0  # what the state may hold; what it does is not known

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        if skip:
            raise InternalError(f"accumulate is told to skip {skip} tokens, but it gives no marks")
        groups, failure = self._called(records)
        try:
            out = self._take(records.slice(0, len(groups)), groups)
        except BadRecord:
            at, misfit = self._operator.first_misfit(groups)
            self._ahead = _Called(groups[at + 1 :], failure)
            raise RecordFailed(at, self._take(records.slice(0, at), groups[:at])) from misfit
        if failure is not None:
            raise RecordFailed(len(groups), out) from failure
        return out, NO_MARKS

    def _called(self, records: Records) -> _Called:
        """Call the function with each record once, in order."""
        operator, (groups, failure) = self._operator, self._ahead
        self._ahead = _Called([], None)
        if failure is not None:
            return _Called(groups, failure)
        try:
            for record in islice(to_dicts(operator.selected(records)), len(groups), None):
                groups.append(operator.checked(operator.push, operator.push(self._state, record)))
        except BaseException as error:
            failure = error
        return _Called(groups, failure)

    def _take(self, records: Records, groups: Sequence[list[dict[str, Any]]]) -> Records | None:
        """Take records of which `groups` came; gives these typed. `BadRecord` where one does not fit, and then nothing is taken."""
        causes = np.flatnonzero(np.fromiter(map(len, groups), np.int64, len(groups)))
        out, behind = None, 0
        if len(causes):
            columns = self._operator.to_batch([record for group in groups for record in group])
            origins = Origins.concat([*self._held, records.origins])
            offsets = origins.bounds()[np.append(0, self.held_rows + causes + 1)]
            united = Origins(origins.segments[: offsets[-1]], offsets)
            out = Records(columns, united.take(np.repeat(np.arange(len(causes)), [len(group) for group in groups if group])))
            self.given += len(out)
            self._held, behind = [], int(causes[-1]) + 1
            self.held_rows = self.held_bytes = 0
        if len(records):
            last = records.slice(len(records) - 1, len(records))
            self._last = last.with_columns(last.columns.select([]))  # where it comes from, nothing else
        if behind < len(records):
            rest = records.slice(behind, len(records))
            self._held.append(rest.origins)
            self.held_rows += len(rest)
            self.held_bytes += rest.nbytes
        return out

    def flush(self, tally: Tally) -> Records | None:
        try:
            return None if self._last is None else self._flushed(self._last)
        except Exception as error:
            raise RecordFailed(0, None, failed=self._last) from error
        finally:
            self._begin()

    def _flushed(self, last: Records) -> Records | None:
        operator = self._operator
        given = [] if operator.flush is None else operator.checked(operator.flush, operator.flush(self._state))
        if not given:
            return None
        columns = operator.to_batch(given)
        segments = Origins.concat(self._held or [last.origins]).segments
        united = Origins(segments, np.array([0, len(segments)]))
        self.given += len(given)
        return Records(columns, united.take(np.zeros(len(given), np.int64)))
