"""`decode_text`: bytes to text, and tidy line ends and case.

Takes binary or text columns, gives them as large_string; all other columns, and nulls, stay as they are. Bytes that are no text in
`encoding` are a `BadRecord` of their row, unless `errors` says what stands for them. UTF-8 is checked by Arrow, a column at a
time; other encodings, and columns with bad bytes in them, go row by row through Python's codecs.

Newlines are normalized by default, as "\\r\\n" and then "\\r" to "\\n". Lower case is that of Arrow, a character at a time: it
knows no context, so a final sigma is like any other.
"""

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zephon_async.checks import different_names, flag, one_of, whole_or_none
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import is_bytes, is_text
from zephon_async.operators.base import Columns, Operator, RecordFailed, Tally
from zephon_async.operators.rows import find_field
from zephon_async.records import Records

ERRORS = ("strict", "replace", "ignore", "backslashreplace")


class DecodeText(Operator):
    """Decode columns to text.

    fields: names of binary or text columns, which must be there.
    encoding: any text encoding that Python knows. errors: as in `bytes.decode`, one of `ERRORS`.
    normalize_newlines: make every line end "\\n". lowercase: make everything lower case. parallelism: workers at once.
    """

    name = "decode_text"
    releases_gil = True
    gives_views = False
    keeps_columns = True

    def __init__(
        self,
        fields: Sequence[str] = ("text",),
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        normalize_newlines: bool = True,
        lowercase: bool = False,
        parallelism: int | None = None,
    ) -> None:
        self.fields = different_names(f"{self.name}: fields", fields)
        one_of(f"{self.name}: errors", errors, ERRORS)
        try:
            b"a".decode(encoding, "ignore")
            self.encoding = codecs.lookup(encoding).name
        except (LookupError, TypeError) as error:
            raise RecipeError(f"{self.name}: encoding={encoding!r} is no text encoding that Python knows ({error})") from None
        self.errors = errors
        self.normalize_newlines = flag(f"{self.name}: normalize_newlines", normalize_newlines)
        self.lowercase = flag(f"{self.name}: lowercase", lowercase)
        self.parallelism = whole_or_none(f"{self.name}: parallelism", parallelism)

    def settings(self) -> Mapping[str, Any]:
        names = ("encoding", "errors", "normalize_newlines", "lowercase")
        return {"fields": list(self.fields), **{name: getattr(self, name) for name in names}}

    def reads(self, wanted: Columns) -> Columns:
        return None if wanted is None else wanted.union(self.fields)

    def requires(self) -> Mapping[str, str]:
        return dict.fromkeys(self.fields, "text")

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        for name in self.fields:
            field = find_field(schema, name, self.name)
            if schema is not None and field is not None:
                schema = schema.set(schema.get_field_index(name), field.with_type(pa.large_string()))
        return schema

    def apply(self, records: Records, tally: Tally) -> Records:
        columns = records.columns
        failures: list[tuple[int, str, UnicodeError]] = []
        for name in self.fields:
            text = self._decoded(columns.column(name), name)
            if isinstance(text, pa.Array):
                at = columns.schema.get_field_index(name)
                columns = columns.set_column(at, columns.schema.field(at).with_type(pa.large_string()), self._tidy(text))
            else:
                failures.append((text[0], name, text[1]))
        if failures:
            row, name, error = min(failures, key=lambda failure: failure[0])
            why = (
                f"{self.name}: column {name!r} is no {self.encoding} text ({error}); errors='replace' would stand in for such bytes"
            )
            raise RecordFailed(row, self.apply(records.slice(0, row), tally)) from BadRecord(why)
        return records.with_columns(columns)

    def _decoded(self, column: pa.Array, name: str) -> pa.Array | tuple[int, UnicodeError]:
        """The column as large_string, or the first row that is no text and why."""
        kind = column.type
        inner = kind.value_type if pa.types.is_dictionary(kind) else kind
        if is_text(inner) or pa.types.is_null(kind):
            return column.cast(pa.large_string())
        if not is_bytes(inner):
            raise TypeError(f"{self.name}: column {name!r} is {kind}, wanted text or bytes")
        if self.encoding == "utf-8":
            try:
                return column.cast(pa.large_string())
            except pa.ArrowInvalid:
                pass  # some row is no UTF-8: find it, or what stands for it
        return self._each(column.cast(pa.large_binary()).to_pylist())

    def _each(self, values: list[bytes | None]) -> pa.Array | tuple[int, UnicodeError]:
        texts: list[str | None] = []
        try:
            for value in values:
                text = None if value is None else value.decode(self.encoding, self.errors)
                if text is not None:
                    text.encode()  # some codecs let half a surrogate pair through
                texts.append(text)
        except UnicodeError as error:
            return len(texts), error
        return pa.array(texts, pa.large_string())

    def _tidy(self, text: pa.Array) -> pa.Array:
        if self.normalize_newlines:
            text = pc.replace_substring(pc.replace_substring(text, "\r\n", "\n"), "\r", "\n")
        return pc.utf8_lower(text) if self.lowercase else text
