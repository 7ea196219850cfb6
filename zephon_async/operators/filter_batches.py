"""`filter_batches`: a user's function says of many rows at once which stay, such as by a model of quality or language.

It gets a `pa.RecordBatch` of whatever rows are at hand, some hundreds, and must treat each row by itself; it gives a mask: an Arrow
or numpy array, or a list, of a bool for each row. Rows stay untouched; what is left out is counted as `records_filtered`.

Threads: `fn` is called from several workers at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import whole_or_none
from zephon_async.errors import RecipeError
from zephon_async.operators.base import Columns, Tally
from zephon_async.operators.functions import OwnFunction, check_function, function_name, function_settings, is_async
from zephon_async.operators.keeping import kept
from zephon_async.records import Records


class FilterBatches(OwnFunction):
    """Keep the rows for which `fn(pa.RecordBatch)` gives True.

    columns: the names fn gets; None: all there are (and then all are read).
    version, parallelism: as for `Map`.
    """

    name = "filter_batches"
    keeps_columns = True

    def __init__(
        self,
        fn: Callable[[pa.RecordBatch], Any],
        *,
        columns: Sequence[str] | None = None,
        version: str | int | None = None,
        parallelism: int | None = None,
    ) -> None:
        check_function(self.name, fn, version)
        if is_async(fn):
            raise RecipeError(f"{self.name}: {function_name(fn)} is async; filter takes async functions")
        super().__init__(columns, version)
        self.fn, self.parallelism = fn, whole_or_none(f"{self.name}: parallelism", parallelism)

    def settings(self) -> Mapping[str, Any]:
        return {**function_settings(self.fn, self.version), **super().settings()}

    def reads(self, wanted: Columns) -> Columns:
        return None if self.columns is None or wanted is None else wanted.union(self.columns)

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        self.check_columns(schema)
        return schema

    def apply(self, records: Records, tally: Tally) -> Records:
        if not len(records):
            return records
        return kept(records, self._mask(self.fn(self.selected(records)), len(records)), tally)

    def _mask(self, given: Any, rows: int) -> npt.NDArray[np.bool_]:
        column = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
        mask = column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else np.asarray(column)
        if mask.dtype != np.bool_ or mask.shape != (rows,):
            nulls = " with nulls" if isinstance(column, pa.Array) and column.null_count else ""
            found = f"{type(given).__name__} of {mask.dtype}{nulls}, shape {mask.shape}"
            raise TypeError(f"{self.name}: {function_name(self.fn)} gave {found}, wanted {rows:,} bools, one for each row")
        return mask
