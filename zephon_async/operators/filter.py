"""`filter`: a user's function says which records stay.

Takes any columns, as dicts; gives the same columns, untouched, of the records for which the function returns True. What is left
out is counted as `records_filtered`. The function must return a bool (Python's or numpy's): anything else, None above all, is
more likely a forgotten `return` than an answer.

Threads: as in `functions`.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.operators.base import Columns, Tally
from zephon_async.operators.functions import PerRecord, function_name
from zephon_async.operators.keeping import kept
from zephon_async.records import Records


class Filter(PerRecord):
    """Keep the records for which `fn(dict)` is True; `async def` is accepted.

    columns: the names fn gets; None: all there are (and then all are read).
    version, parallelism, concurrency: as for `Map`.
    """

    name = "filter"
    keeps_columns = True

    def reads(self, wanted: Columns) -> Columns:
        return None if self.columns is None or wanted is None else wanted.union(self.columns)

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        self.check_columns(schema)
        return schema

    def _checked(self, result: Any) -> bool:
        if not isinstance(result, bool | np.bool_):
            raise TypeError(
                f"{self.name}: {function_name(self.fn)} gave {type(result).__name__} {result!r:.80}, wanted True or False"
            )
        return bool(result)

    def _give(self, records: Records, results: list[Any], tally: Tally) -> Records:
        return kept(records, np.array(results, bool), tally)
