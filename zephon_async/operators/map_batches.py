"""`map_batches`: a user's function makes one Arrow batch of each.

Takes a `pa.RecordBatch`; the function gives a `pa.RecordBatch`, a `pa.Table`, or a mapping of names to columns (Arrow arrays,
numpy arrays of any shape, lists), with as many rows as it got: row i of the result is made of row i, and has its origin. For
another number of rows there are `filter` and `flat_map`.

`rows=None`: stateless. The function gets whatever rows are at hand, some hundreds, and must treat each row by itself.
`rows=n`: the lane's rows are recut to n each, counted from its first, so the function may look at all n together (and at the
fewer than n that are left at the end of the data). It is serial then, with a mark every n rows. Where the function raises
`BadRecord` for n rows, or gives a value that does not fit its column, `on_bad_record="quarantine"` skips these n, no others, and
counts each of them.

The columns are typed once, see `typed`; by a trial of up to `rows` rows. A later batch of other types is refused. JSON columns
arrive as their text. Text and bytes are given on as large_string and large_binary.

Threads: as in `typed`; `fn` is called from several workers at once. A `Recut` belongs to one lane.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.checks import whole_or_none
from zephon_async.errors import InternalError, RecipeError
from zephon_async.operators.base import Accumulator, RecordFailed, Tally
from zephon_async.operators.functions import check_function, function_name, function_settings, is_async
from zephon_async.operators.holding import Holding
from zephon_async.operators.rows import infer, large, no_rows, to_column
from zephon_async.operators.typed import Typed, serialized
from zephon_async.records import Marks, Records


class MapBatches(Typed):
    """`fn(pa.RecordBatch) -> pa.RecordBatch` of as many rows.

    rows: None (stateless), or the number of rows of every batch but a lane's last. A bad record among n rows takes these n with it.
    schema, columns, version, parallelism: as for `Map`; no parallelism with rows=.
    """

    name = "map_batches"
    survives = True

    def __init__(
        self,
        fn: Callable[[pa.RecordBatch], Any],
        *,
        rows: int | None = None,
        schema: pa.Schema | Mapping[str, pa.DataType] | None = None,
        columns: Sequence[str] | None = None,
        version: str | int | None = None,
        parallelism: int | None = None,
    ) -> None:
        check_function(self.name, fn, version)
        rows = whole_or_none(f"{self.name}: rows", rows)
        parallelism = whole_or_none(f"{self.name}: parallelism", parallelism)
        if is_async(fn):
            raise RecipeError(f"{self.name}: {function_name(fn)} is async; map, flat_map and filter take async functions")
        if rows is not None and parallelism is not None:
            raise RecipeError(f"{self.name}: with rows= it is one after the other in each lane; leave parallelism= out")
        super().__init__(columns, version)
        self._type_by(fn, schema)
        self.fn, self.rows, self.parallelism = fn, rows, parallelism
        self.stateless, self.serial = rows is None, rows is not None

    def settings(self) -> Mapping[str, Any]:
        return {**function_settings(self.fn, self.version), "rows": self.rows, **super().settings()}

    def learn(self, records: Records) -> bytes | None:
        """The schema of the result; of a single row, where the function fails on all of them."""
        tries = [records.slice(0, min(len(records), self.rows or len(records)))]
        tries += [records.slice(row, row + 1) for row in range(len(records))]
        for trial in tries:
            try:
                result = self.fn(self.selected(trial))
            except Exception:
                continue
            return serialized(self._columns(result, self.schema).schema)
        return None

    def apply(self, records: Records, tally: Tally) -> Records:
        return self.call(records)

    def accumulator(self, lane: int, first: int) -> Accumulator:
        if self.rows is None:
            raise TypeError(f"{self.name} has no serial half without rows=")
        return Recut(self.call, self.rows, first)

    def holds_rows(self) -> int:
        return self.rows or 0

    def call(self, records: Records) -> Records:
        """The function's result for these rows, checked."""
        if not len(records):
            return records.with_columns(no_rows(self._typed))
        columns = self._columns(self.fn(self.selected(records)), self._typed)
        if columns.num_rows != len(records):
            raise ValueError(
                f"{self.name}: {function_name(self.fn)} gave {columns.num_rows:,} rows for {len(records):,}; it must keep their "
                "number: use filter to leave rows out, flat_map to make more"
            )
        return records.with_columns(pa.RecordBatch.from_arrays(columns.columns, schema=self.typed))

    def _columns(self, result: Any, typed: pa.Schema | None) -> pa.RecordBatch:
        """A batch of what the function gave, with the schema that is known."""
        who = f"{self.name}: {function_name(self.fn)}"
        if isinstance(result, pa.RecordBatch | pa.Table):
            fields = {field.name: field for field in result.schema}
            given = dict(zip(result.schema.names, result.columns, strict=True))
        elif isinstance(result, Mapping):
            fields, given = {}, dict(result)
        else:
            raise TypeError(f"{who} gave {type(result).__name__}, wanted a pa.RecordBatch, a pa.Table or a mapping of columns")
        if typed is not None and set(given) != set(typed.names):
            raise TypeError(f"{who} gave the columns {sorted(given)}, wanted {typed.names}")
        known = {} if typed is None else {field.name: field for field in typed}
        columns = {name: self._column(name, given[name], known.get(name)) for name in known or given}
        lengths = {name: len(column) for name, column in columns.items()}
        if not lengths or len(set(lengths.values())) > 1:
            raise ValueError(f"{who} gave columns of {lengths} rows, wanted at least one column, and all of one length")
        if typed is not None:
            return pa.RecordBatch.from_arrays(list(columns.values()), schema=typed)
        schema = [fields.get(name, pa.field(name, column.type)).with_type(column.type) for name, column in columns.items()]
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(schema))

    def _column(self, name: str, values: Any, field: pa.Field | None) -> pa.Array:
        if isinstance(values, pa.ChunkedArray):
            column = values.combine_chunks()
        elif isinstance(values, pa.Array):
            column = values
        elif isinstance(values, np.ndarray) and values.dtype != object and values.ndim:
            column = _from_numpy(values)
        elif isinstance(values, list | tuple | np.ndarray):
            plain = list(values)
            return to_column(plain, pa.field(name, infer(plain)) if field is None else field, self._given)
        else:
            raise TypeError(
                f"{self.name}: column {name!r} of the result is {type(values).__name__}, wanted an Arrow or numpy array or a list"
            )
        if column.type != large(column.type):
            column = column.cast(large(column.type))
        if field is not None and column.type != field.type:
            if not pa.types.is_null(column.type):
                found = f"column {name!r} of the result: wanted {field.type}, found {column.type}"
                raise TypeError(f"{self.name}: {found}; cast it, or {'change' if self._given else 'pass'} schema=")
            column = pa.nulls(len(column), field.type)
        return column


def _from_numpy(values: Any) -> pa.Array:
    """Rows along the first axis; every further one is a fixed-size list."""
    column = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


class Recut(Holding):
    """Calls with exactly `rows` rows each, and with those that are left on `flush`."""

    def __init__(self, call: Callable[[Records], Records], rows: int, first: int) -> None:
        super().__init__()
        self._call, self._rows = call, rows
        self.given = first
        self._taken = 0  # input rows that have gone out, or were left out

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        if skip:
            raise InternalError(f"map_batches is told to skip {skip} tokens, but its marks name whole rows")
        before, done, marks = self.held_rows, list[Records](), [(self.given, self._taken, 0)]
        self.hold(records)
        rows = self.release(whole) if (whole := self.held_rows // self._rows * self._rows) else records.slice(0, 0)
        for start in range(0, len(rows), self._rows):
            group = rows.slice(start, start + self._rows)
            self._taken += self._rows
            try:
                done.append(self._call(group))
            except Exception as error:
                self.let_go()
                marks.append((self.given, self._taken, 0))
                raise RecordFailed(start + self._rows - before - 1, _joined(done), _marks(marks), group) from error
            self.given += self._rows
            marks.append((self.given, self._taken, 0))
        return _joined(done), _marks(marks)

    def flush(self, tally: Tally) -> Records | None:
        self._taken = 0
        if not self.held_rows:
            return None
        group = self.release(self.held_rows)
        try:
            out = self._call(group)
        except Exception as error:
            raise RecordFailed(0, None, failed=group) from error
        self.given += len(out)
        return out


def _joined(done: Sequence[Records]) -> Records | None:
    return Records.concat(done) if done else None


def _marks(marks: Sequence[tuple[int, int, int]]) -> Marks:
    return Marks(*map(list, zip(*marks, strict=True)))
