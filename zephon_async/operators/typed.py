"""Columns that a user's function gives: typed once, by `schema=` or by a trial on up to 64 records at the start.

The outcome of a trial goes into the checkpoint. Records on which the function fails are left out of it; they fail again in their
place. A later result that does not fit is a `BadRecord`; nothing is coerced (see `rows`).

Threads: the schema is set on the copy that one start of a pipeline makes, before anything of it runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.functions import OwnFunction, function_name
from zephon_async.operators.rows import as_schema, first_misfit, learn_schema, schema_settings, to_batch


class Typed(OwnFunction):
    """An operator whose output has the columns that a user's function gives, and no others."""

    def _type_by(self, fn: Callable[..., Any], schema: pa.Schema | Mapping[str, pa.DataType] | None) -> None:
        """Type what `fn` gives by `schema`; None: by a trial."""
        self.schema = None if schema is None else as_schema(schema, self.name)
        self._typed, self._typed_fn = self.schema, fn
        self.learns = self.schema is None

    @property
    def typed(self) -> pa.Schema:
        """The schema of the output."""
        if self._typed is None:
            raise RecipeError(f"{self._who} failed on every record of the trial at the start; pass schema=")
        return self._typed

    @property
    def _given(self) -> bool:
        """Whether the schema is the user's."""
        return self.schema is not None

    def to_batch(self, records: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        """Records that the function gave, typed; `BadRecord` where one does not fit."""
        return to_batch(records, self.typed, self._given)

    def first_misfit(self, groups: Sequence[Sequence[dict[str, Any]]]) -> tuple[int, BadRecord]:
        """The number of the first group with a record that `to_batch` refuses, and the refusal."""
        return first_misfit(groups, self.typed, self._given)

    @property
    def _who(self) -> str:
        return f"{self.name}: {function_name(self._typed_fn)}"

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "schema": schema_settings(self.schema)}

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        self.check_columns(schema)
        return self._typed

    def recall(self, learned: Any) -> None:
        self._typed = self.schema if learned is None else pa.ipc.read_schema(pa.py_buffer(learned))

    def _learn_from(self, given: Sequence[dict[str, Any]], called: int, taken: pa.Schema) -> bytes | None:
        """What `learn` tells of the records that came of `called` calls that did not fail; `taken` is the schema of the input."""
        if given:
            return serialized(learn_schema(given, taken, self._who))
        if called:
            raise RecipeError(f"{self._who} gave no record for any of {called} in the trial; pass schema=")
        return None


def serialized(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize().to_pybytes())
