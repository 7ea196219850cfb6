"""`refer`: bytes are referred to from here on, and no longer copied.

Takes columns of bytes (images as they are encoded, say), or of lists of bytes; gives them as `binary_view`, or lists of these: 16
bytes a value, which say where in the memory that was read the bytes lie. What comes later (a shuffle window, open rows of
`pack_flat(carry=)`) moves and holds these alone, and each chunk that was read stays in memory until no row refers to it. All other
columns, nulls and the values stay as they are. Functions get bytes as before; what a `map` gives is bytes again, so it comes first.

What rows refer to counts as bytes of theirs. Worker processes are sent a copy of that, and nothing else of the chunk.

A value of 2 GiB and more is a `BadRecord`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from zephon_async.checks import different_names
from zephon_async.errors import RecipeError
from zephon_async.operators.base import Columns, Operator, Tally
from zephon_async.operators.rows import find_field
from zephon_async.records import Records
from zephon_async.views import refer, referred


class Refer(Operator):
    """Refer to bytes. fields: names of columns of bytes, or of lists of bytes, which must be there."""

    name = "refer"
    releases_gil = True
    keeps_columns = True

    def __init__(self, fields: Sequence[str] = ("image",)) -> None:
        self.fields = different_names("refer: fields", fields)

    def settings(self) -> Mapping[str, Any]:
        return {"fields": list(self.fields)}

    def reads(self, wanted: Columns) -> Columns:
        return None if wanted is None else wanted.union(self.fields)

    def requires(self) -> Mapping[str, str]:
        return dict.fromkeys(self.fields, "any")

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        for name in self.fields:
            field = find_field(schema, name, self.name)
            if schema is not None and field is not None:
                if (kind := referred(field.type)) is None:
                    raise RecipeError(
                        f"refer(fields=...): column {name!r} is {field.type}, not bytes or lists of bytes; leave it out"
                    )
                schema = schema.set(schema.get_field_index(name), field.with_type(kind))
        return schema

    def apply(self, records: Records, tally: Tally) -> Records:
        columns = records.columns
        for name in self.fields:
            at = columns.schema.get_field_index(name)
            column = refer(columns.column(name))
            columns = columns.set_column(at, columns.schema.field(at).with_type(column.type), column)
        return records.with_columns(columns)
