"""`map`: a user's function makes one record of each.

Takes any columns, as dicts; gives the columns of the dicts that the function returns, and no others. Origins stay.

The columns are typed once, see `typed`.

Threads: as in `functions` and `typed`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from zephon_async.errors import BadRecord
from zephon_async.operators.base import RecordFailed, Tally
from zephon_async.operators.functions import PerRecord, function_name, is_interrupt
from zephon_async.operators.rows import no_rows
from zephon_async.operators.typed import Typed
from zephon_async.records import Records


class Map(Typed, PerRecord):
    """`fn(dict) -> dict` for every record; `async def` is accepted.

    fn: gets a record as a dict, returns a dict of columns.
    schema: pa.Schema or mapping of names to Arrow types; None: learned from a trial.
    columns: the names fn gets; None: all there are.
    version: changes the fingerprint when something changes that the source of fn does not show.
    parallelism: workers at once; for async functions `concurrency`, records at once (default 16).
    """

    name = "map"

    def __init__(
        self,
        fn: Callable[[dict[str, Any]], Any],
        *,
        schema: pa.Schema | Mapping[str, pa.DataType] | None = None,
        columns: Sequence[str] | None = None,
        version: str | int | None = None,
        parallelism: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        super().__init__(fn, columns=columns, version=version, parallelism=parallelism, concurrency=concurrency)
        self._type_by(fn, schema)

    def learn(self, records: Records) -> bytes | None:
        trials: list[tuple[list[Any], BaseException | None]] = []
        for row in range(len(records)):
            trials.append(self._call(records.slice(row, row + 1)))
            if is_interrupt(trials[-1][1]):
                break
        return self._learned(records, trials)

    async def learn_async(self, records: Records) -> bytes | None:
        trials = await asyncio.gather(*(self._call_async(records.slice(row, row + 1)) for row in range(len(records))))
        return self._learned(records, trials)

    def _learned(self, records: Records, trials: Sequence[tuple[list[Any], BaseException | None]]) -> bytes | None:
        """The serialized schema of what a trial gave; None where the function failed on every record."""
        for _, error in trials:
            if error is not None and is_interrupt(error):
                raise error
        results = [result for trial, _ in trials for result in trial]
        given = [child for group in self._groups(results) for child in group]
        return self._learn_from(given, len(results), records.columns.schema)

    def _record(self, result: Any) -> Any:
        if not isinstance(result, dict):
            found = type(result).__name__
            raise TypeError(
                f"{self.name}: {function_name(self.fn)} gave {found} {result!r:.80}, wanted a dict of column names to values"
            )
        return result

    _checked = _record

    def _groups(self, results: list[Any]) -> list[list[dict[str, Any]]]:
        """The records that each record became."""
        return [[result] for result in results]

    def _give(self, records: Records, results: list[Any], tally: Tally) -> Records:
        groups = self._groups(results)
        children = [child for group in groups for child in group]
        if self._typed is None and not children:
            return self._placed(records, groups, no_rows(None))
        try:
            columns = self.to_batch(children)
        except BadRecord:
            at, error = self.first_misfit(groups)
            done = self._give(records.slice(0, at), results[:at], tally)
            raise RecordFailed(at, done) from error
        return self._placed(records, groups, columns)

    def _placed(self, records: Records, groups: Sequence[Sequence[Any]], columns: pa.RecordBatch) -> Records:
        """The columns made, with their origins."""
        return records.with_columns(columns)
