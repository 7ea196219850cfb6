"""`map_transform`: `map`, in which None leaves a record out, counted as `records_filtered`."""

from typing import Any

from zephon_async.operators.base import Tally
from zephon_async.operators.flat_map import FlatMap
from zephon_async.records import Records


class MapTransform(FlatMap):
    """`fn(dict) -> dict | None` for every record; arguments as for `Map`."""

    name = "map_transform"

    def _checked(self, result: Any) -> list[Any]:
        return [] if result is None else [self._record(result)]

    def _give(self, records: Records, results: list[Any], tally: Tally) -> Records:
        given = super()._give(records, results, tally)
        if left_out := len(results) - len(given):
            tally["records_filtered"] += left_out
        return given
