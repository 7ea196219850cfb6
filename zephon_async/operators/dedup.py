"""`dedup`: leave out rows of which the same has come before, within a window of a lane.

Takes any columns and gives the same. Rows `k * window:(k + 1) * window` that reach it in a lane are compared among themselves, by a
hash of 128 bits of some columns; the first of equal rows stays, the others are counted as `duplicates_dropped`. Two rows of other
windows, or of other lanes, are not compared: it is for what comes in bursts, such as repeated lines of a crawl, and for small data
with one lane. An epoch that comes again within a window is a duplicate too. Where all the columns are null, a row stays.

A window depends on nothing before it, so each begins with a mark: a run that is resumed works at most one window again.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.checks import different_names, whole
from zephon_async.errors import InternalError
from zephon_async.operators.base import Accumulator, Columns, Operator, Tally
from zephon_async.operators.rows import find_field, to_python
from zephon_async.records import Marks, Records

_HASH_BYTES = 128  # of one in a set, about


class Dedup(Operator):
    """Keep the first of rows that are equal in `fields` (a name, or several), among each `window` rows of a lane."""

    name = "dedup"
    keeps_columns = True

    def __init__(self, fields: str | Sequence[str], *, window: int) -> None:
        self.fields = different_names(f"{self.name}: fields", (fields,) if isinstance(fields, str) else fields)
        self.window = whole(f"{self.name}: window", window, 2)

    def settings(self) -> Mapping[str, Any]:
        return {"fields": list(self.fields), "window": self.window}

    def reads(self, wanted: Columns) -> Columns:
        return None if wanted is None else wanted.union(self.fields)

    def requires(self) -> Mapping[str, str]:
        return dict.fromkeys(self.fields, "any")

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        for name in self.fields:
            find_field(schema, name, self.name)
        return schema

    def accumulator(self, lane: int, first: int) -> Accumulator:
        return Seen(self.fields, self.window, first)

    def holds_bytes(self, row_bytes: int) -> int:
        return self.window * _HASH_BYTES


class Seen:
    """The hashes of the rows of a window so far; no rows are held."""

    held_rows = held_bytes = 0

    def __init__(self, fields: Sequence[str], window: int, first: int) -> None:
        self._fields, self._window, self.given = fields, window, first
        self._begin()

    def _begin(self) -> None:
        self._taken = 0
        self._seen: set[bytes] = set()

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        if skip:
            raise InternalError(f"dedup is told to skip {skip} tokens, but its marks name whole rows")
        marks = Marks([], [], [])
        new: list[int] = []
        for row, found in enumerate(_hashes(records.columns.select(self._fields))):
            if self._taken % self._window == 0:
                self._seen.clear()
                self._mark(marks, self.given + len(new))
            self._taken += 1
            if found is None or found not in self._seen:
                new.append(row)
            if found is not None:
                self._seen.add(found)
        self.given += len(new)
        if self._taken % self._window == 0:
            self._mark(marks, self.given)
        if len(new) == len(records):
            return records, marks
        tally["duplicates_dropped"] += len(records) - len(new)
        return records.take(np.array(new)) if new else None, marks

    def _mark(self, marks: Marks, output: int) -> None:
        for numbers, number in zip(marks, (output, self._taken, 0), strict=True):
            numbers.append(number)  # type: ignore[attr-defined]

    def flush(self, tally: Tally) -> Records | None:
        self._begin()
        return None


def _hashes(columns: pa.RecordBatch) -> list[bytes | None]:
    """A hash of each row, by the values; None where all are null."""
    rows = zip(*(to_python(column) for column in columns.columns), strict=True)
    return [None if all(value is None for value in row) else blake2b(repr(row).encode(), digest_size=16).digest() for row in rows]
