"""Leave rows out by a mask, which is made of columns: what `filter_length`, `filter_regex` and `filter_batches` have in common.

Gives the same columns, untouched. What is left out is counted as `records_filtered`.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import whole_or_none
from zephon_async.errors import RecipeError
from zephon_async.operators.base import Columns, Operator, Tally
from zephon_async.operators.rows import find_field
from zephon_async.records import Records


def kept(records: Records, mask: npt.NDArray[np.bool_], tally: Tally) -> Records:
    """The rows where mask, bool[rows], is True."""
    if mask.all():
        return records
    rows = np.flatnonzero(mask)
    tally["records_filtered"] += len(records) - len(rows)
    return records.take(rows)


class ByColumn(Operator):
    """Rows are kept by a mask of one column."""

    keeps_columns = True
    releases_gil = True

    def __init__(self, field: str, parallelism: int | None) -> None:
        if not isinstance(field, str):
            raise RecipeError(f"{self.name}: field= must be the name of a column, not {field!r:.80}")
        self.field, self.parallelism = field, whole_or_none(f"{self.name}: parallelism", parallelism)

    @abstractmethod
    def _mask(self, column: pa.Array) -> pa.Array:
        """Which rows are kept; null stands for no."""

    def settings(self) -> Mapping[str, Any]:
        return {"field": self.field}

    def reads(self, wanted: Columns) -> Columns:
        return None if wanted is None else wanted.union([self.field])

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        find_field(schema, self.field, self.name)
        return schema

    def apply(self, records: Records, tally: Tally) -> Records:
        mask = self._mask(records.columns.column(self.field)).fill_null(False)
        return kept(records, mask.to_numpy(zero_copy_only=False), tally)
