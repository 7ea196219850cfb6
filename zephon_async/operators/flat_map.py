"""`flat_map`: a user's function makes any number of records of each.

Takes and gives what `map` does, but the function returns an iterable of dicts: a list, or a generator, none at all included.
Children are numbered in the `part` of their origins. A record fails as a whole: a generator that raises behind its third
child gives none of the three.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.operators.functions import function_name
from zephon_async.operators.map import Map
from zephon_async.records import Records


class FlatMap(Map):
    """`fn(dict) -> iterable of dicts` for every record, 0 or more; arguments as for `Map`."""

    name = "flat_map"

    def _checked(self, result: Any) -> list[Any]:
        if isinstance(result, dict | str | bytes) or not isinstance(result, Iterable):
            found = type(result).__name__
            raise TypeError(
                f"{self.name}: {function_name(self.fn)} gave {found} {result!r:.80}, wanted a list of dicts ([] for none)"
            )
        return [self._record(child) for child in result]

    def _groups(self, results: list[Any]) -> list[list[dict[str, Any]]]:
        return results

    def _placed(self, records: Records, groups: Sequence[Sequence[Any]], columns: pa.RecordBatch) -> Records:
        counts = np.fromiter(map(len, groups), np.int64, len(groups))
        return Records(columns, records.origins.children(counts))
