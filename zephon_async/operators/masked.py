"""Rows of token ids with the mask of what a loss is on: what `tokenize_chat` and `tokenize_completion` have in common.

A record becomes one row, or none. For each answer there are the columns

    input_ids   list<int32>
    loss_mask   list<int8>   of equal length: 1 where the token is a label, unshifted; `Batch.to_training` shifts

of those names where there is one answer, else behind the name of its column (`chosen_input_ids`, ...); and those of
`keep_columns`. No others survive.

Threads: tools for a call (copies of the tokenizer, compiled templates) belong to one call at a time, see `idle`.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.checks import different_names, one_of, whole_or_none
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.base import Columns, Operator, RecordFailed, Tally
from zephon_async.operators.chat_tokens import Spanned, Tokens
from zephon_async.operators.idle import Idle
from zephon_async.operators.rows import find_field
from zephon_async.records import Records

ON_LONG = ("truncate", "drop", "error")
ON_NO_LOSS = ("drop", "keep", "error")


class Masked(Operator):
    """Token ids and loss masks of what `_texts` makes of each record."""

    gives_views = False

    def _set(
        self,
        answers: str | Sequence[str],
        max_length: int | None,
        on_long: str,
        on_no_loss: str,
        keep_columns: Sequence[str],
        parallelism: int | None,
    ) -> None:
        given = (answers,) if isinstance(answers, str) else answers
        self.answers = different_names(f"{self.name}: field", given)
        one_of(f"{self.name}: on_long", on_long, ON_LONG)
        one_of(f"{self.name}: on_no_loss", on_no_loss, ON_NO_LOSS)
        self.max_length = whole_or_none(f"{self.name}: max_length", max_length)
        self.on_long, self.on_no_loss = on_long, on_no_loss
        self.keep_columns = different_names(f"{self.name}: keep_columns", keep_columns, least=0)
        self.parallelism = whole_or_none(f"{self.name}: parallelism", parallelism)
        prefixes = [""] if isinstance(answers, str) else [f"{name}_" for name in self.answers]
        fields = [(f"{prefix}input_ids", f"{prefix}loss_mask") for prefix in prefixes]
        kinds = (pa.list_(pa.int32()), pa.list_(pa.int8()))
        self._fields = [pa.field(name, kind) for names in fields for name, kind in zip(names, kinds, strict=True)]
        self.token_column = self._fields[0].name
        self.token_field = self.answers[0]
        for field in self._fields:
            if field.name in self.keep_columns:
                raise RecipeError(
                    f"{self.name}: keep_columns= names {field.name!r}, which {self.name} makes; rename that column before"
                )
        self._idle = Idle(self._tools)

    @abstractmethod
    def _inputs(self) -> Mapping[str, str]:
        """The columns that `_texts` takes, each with its kind."""

    @abstractmethod
    def _tools(self) -> Any:
        """Make the tools for a call."""

    @abstractmethod
    def _texts(self, columns: pa.RecordBatch, tools: Any) -> Iterator[tuple[Spanned, ...]]:
        """A text for each answer, a row at a time. `BadRecord` when the turn of a bad row comes."""

    @abstractmethod
    def _encoded(self, texts: Sequence[Spanned], tools: Any) -> Tokens:
        """Ids and mask of texts."""

    def settings(self) -> Mapping[str, Any]:
        names = ("max_length", "on_long", "on_no_loss")
        columns = {"fields": [field.name for field in self._fields], "answers": list(self.answers)}
        return {**columns, **{name: getattr(self, name) for name in names}, "keep_columns": list(self.keep_columns)}

    def reads(self, wanted: Columns) -> Columns:
        return frozenset({*self._inputs(), *self.keep_columns})

    def requires(self) -> Mapping[str, str]:
        return {**dict.fromkeys(self.keep_columns, "any"), **self._inputs()}

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        for name in self._inputs():
            find_field(schema, name, self.name)
        kept = [field for name in self.keep_columns if (field := find_field(schema, name, self.name)) is not None]
        return pa.schema([*self._fields, *kept]) if len(kept) == len(self.keep_columns) else None

    def apply(self, records: Records, tally: Tally) -> Records:
        rows: list[tuple[Spanned, ...]] = []
        failure: BadRecord | None = None
        answers: list[Tokens] = []
        with self._idle.one() as tools:
            try:
                rows.extend(self._texts(records.columns, tools))
            except BadRecord as error:
                failure = error
            else:
                columns = list(zip(*rows, strict=True)) or [()] * (len(self._fields) // 2)
                answers = [self._encoded(texts, tools) for texts in columns]
        if failure is not None:
            raise RecordFailed(len(rows), self.apply(records.slice(0, len(rows)), tally)) from failure
        return self._given(records, answers, tally)

    def _given(self, records: Records, answers: Sequence[Tokens], tally: Tally) -> Records:
        """The rows that are kept. A row is left out with all its answers."""
        kept = np.ones(len(records), bool)
        most = self.max_length
        cut = answers if most is None else [answer.cut(most) for answer in answers]
        long = np.any([a.lengths > b.lengths for a, b in zip(answers, cut, strict=True)], axis=0)
        if most is not None and self.on_long == "error":
            self._refuse(records, long, f"more than max_length={most:,} tokens; on_long='truncate' or 'drop' takes such", tally)
        if self.on_long == "drop":
            kept = ~long
        lost = np.any([answer.supervised() == 0 for answer in cut], axis=0) & kept
        if self.on_no_loss == "error":
            self._refuse(records, lost, "no token has a loss; on_no_loss='drop' or 'keep' takes such records", tally)
        if self.on_no_loss == "drop":
            kept &= ~lost
        counts = Counter(
            documents_dropped=int(np.count_nonzero(long)) if self.on_long == "drop" else 0,
            documents_truncated=int(np.count_nonzero(long & kept)),
            documents_unsupervised=int(np.count_nonzero(lost)) if self.on_no_loss == "drop" else 0,
            tokens_dropped=sum(int((a.lengths - b.lengths * kept).sum()) for a, b in zip(answers, cut, strict=True)),
        )
        tally.update(+counts)
        if not kept.all():
            records, cut = records.take(np.flatnonzero(kept)), [answer.only(kept) for answer in cut]
        return self._made(records, cut)

    def _refuse(self, records: Records, rows: Any, why: str, tally: Tally) -> None:
        if rows.any():
            at = int(np.argmax(rows))
            done = self.apply(records.slice(0, at), tally)
            raise RecordFailed(at, done) from BadRecord(f"{self.name}: column {self.answers[0]!r}: {why}")

    def _made(self, records: Records, answers: Sequence[Tokens]) -> Records:
        arrays: list[pa.Array] = []
        for tokens in answers:
            offsets = pa.array(np.concatenate(([0], np.cumsum(tokens.lengths))), pa.int32())
            arrays += [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (tokens.ids, tokens.mask)]
        arrays += [records.columns.column(name) for name in self.keep_columns]
        kept = [records.columns.schema.field(name) for name in self.keep_columns]
        return records.with_columns(pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*self._fields, *kept])))
