"""`expand_chat`: one record for every user's turn that is answered, the conversation up to the end of its answer.

Takes a column of conversations (lists of structs, or JSON text); gives it cut, and all other columns as they are; lists of a fixed
size and views of lists become plain lists. The answer of a
user's turn ends with the last message of the assistant before the next user's. Children are numbered by the user's turn in the
`part` of their origins, so one without an answer leaves a gap. With `tokenize_chat(loss_scope="after_last_user")` behind it every
answer is trained on once, each with what was known then.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.checks import whole_or_none
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import is_list
from zephon_async.nesting import json_text
from zephon_async.operators.base import Columns, Operator, RecordFailed, Tally
from zephon_async.operators.chat_messages import check_messages, messages_of, nested
from zephon_async.records import Records, take


class ExpandChat(Operator):
    """Make a record of every answered turn. field: the column of conversations. parallelism: workers at once.

    Conversations without an answer are left out and counted.
    """

    name = "expand_chat"
    keeps_columns = True
    gives_views = False

    def __init__(self, field: str = "messages", *, parallelism: int | None = None) -> None:
        if not isinstance(field, str):
            raise RecipeError(f"expand_chat: field= must be the name of a column of messages, not {field!r:.80}")
        self.field = field
        self.parallelism = whole_or_none("expand_chat: parallelism", parallelism)

    def settings(self) -> Mapping[str, Any]:
        return {"field": self.field}

    def reads(self, wanted: Columns) -> Columns:
        return None if wanted is None else wanted | {self.field}

    def requires(self) -> Mapping[str, str]:
        return {self.field: "any"}

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        check_messages(schema, self.field, self.name)
        if schema is None:
            return None
        at = schema.get_field_index(self.field)
        return schema.set(at, schema.field(at).with_type(_cut_type(schema.field(at).type)))

    def apply(self, records: Records, tally: Tally) -> Records:
        column = records.columns.column(self.field)
        ends: list[list[int]] = []
        values: list[Any] = []
        try:
            for value in nested(column, self.field):
                ends.append(_ends(messages_of(value, self.field)))
                values.append(value)
        except BadRecord as error:
            raise RecordFailed(len(values), self.apply(records.slice(0, len(values)), tally)) from error
        counts = np.fromiter(map(len, ends), np.int64, len(ends))
        stops = np.array([end for row in ends for end in row], np.int64)
        answered, rows = stops > 0, np.repeat(np.arange(len(ends)), counts)
        rows, stops = rows[answered], stops[answered]
        if unanswered := len(ends) - len(np.unique(rows)):
            tally["conversations_unanswered"] += unanswered
        columns = take(records.columns, rows)
        cut = [values[row][:stop] for row, stop in zip(rows.tolist(), stops.tolist(), strict=True)]
        at = columns.schema.get_field_index(self.field)
        as_text = not is_list(column.type)
        made = pa.array([json_text(value) for value in cut]).cast(column.type) if as_text else _cut(columns.column(at), stops)
        columns = columns.set_column(at, columns.schema.field(at).with_type(made.type), made)
        return Records(columns, records.origins.children(counts).take(np.flatnonzero(answered)))


def _ends(messages: list[dict[str, Any]]) -> list[int]:
    """For every user's turn how many messages there are up to the end of its answer; 0: none answers."""
    ends: list[int] = []
    for number, message in enumerate(messages):
        if message["role"] == "user":
            ends.append(0)
        elif message["role"] == "assistant" and ends:
            ends[-1] = number + 1
    return ends


def _cut_type(kind: pa.DataType) -> pa.DataType:
    """The type of conversations that are cut."""
    if not is_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return kind
    return pa.large_list(kind.value_field) if pa.types.is_large_list_view(kind) else pa.list_(kind.value_field)


def _cut(column: pa.Array, lengths: Any) -> pa.Array:
    """Lists without what is behind their first `lengths` values."""
    plain = column.cast(pa.large_list(column.type.value_field))
    starts = plain.offsets.to_numpy()[:-1]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - starts, lengths)
    cut = pa.LargeListArray.from_arrays(pa.array(offsets), plain.values.take(pa.array(places)))
    return cut.cast(_cut_type(column.type))
