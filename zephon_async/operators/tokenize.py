"""`tokenize`: text to token ids, with a tokenizer of Hugging Face's `tokenizers`.

Takes a text column; gives `input_ids: list<int32>`, one row a document, and the columns named in `keep_columns`. No others survive.

Documents are bracketed here, exactly once, whatever the tokenizer's own template would add: an empty text is a lone EOS.
(`special_tokens="tokenizer_default"` leaves it to the template.) The name of a special token inside a text stays text. The
tokenizer's own truncation and padding are off. `max_length` counts the brackets: "split" cuts the bracketed document, so BOS is on
its first piece and EOS on its last; "truncate" takes tokens off the end of the text and keeps both brackets.

Speed: a chunk is one call of `encode_batch_fast`, which works outside the GIL, and its ids go straight into one int32 array.
Workers are the parallelism. The library would run a pool of threads inside each call as well, one for the whole process, and
only the environment variable TOKENIZERS_PARALLELISM turns that off: see `idle`.

Threads: the given tokenizer is copied once, as JSON, and never used. Each copy made of that belongs to one call at a time (a
copy's cache of words is behind a lock), see `idle`.
"""

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import different_names, one_of, whole_or_none
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import is_text
from zephon_async.operators.base import Columns, Operator, RecordFailed, Tally
from zephon_async.operators.idle import Idle
from zephon_async.operators.rows import find_field, to_python
from zephon_async.operators.tokenizer_files import load_tokenizer, names_as_text, token_id
from zephon_async.records import Records, take

SPECIAL_TOKENS = ("eos", "bos", "bos_eos", "none", "tokenizer_default")
ON_LONG = ("split", "truncate", "drop", "error")
ON_NULL = ("error", "skip", "empty")
IDS = "input_ids"
_CACHED_WORDS = 1 << 15  # that each copy remembers the pieces of, some 12 MB: 7 % quicker than with the library's 10,000


class Tokenize(Operator):
    """Make token ids of a text column.

    tokenizer, tokenizer_id: one of them: a `tokenizers.Tokenizer`, the path of a tokenizer.json or of a directory with one, or a
        name on the Hugging Face hub (from its local cache, or downloaded).
    field: the text column.
    special_tokens: what brackets a document: "eos", "bos", "bos_eos", "none", or "tokenizer_default" (the tokenizer's template).
    eos_token, bos_token: a text or an id; None: from tokenizer_config.json, else the first of the usual names there is.
    max_length: most tokens of a row, brackets counted; None: no limit. on_long: what becomes of longer documents: "split" into
        several rows, "truncate", "drop" (both counted), or "error".
    on_null: a null text is an "error", or left out and counted ("skip"), or an "empty" text.
    keep_columns: other columns to keep; the pieces of a split document all have them.
    parallelism: workers at once.
    """

    name = "tokenize"
    releases_gil = True
    gives_views = False
    token_column = IDS

    def __init__(
        self,
        tokenizer: Any = None,
        *,
        tokenizer_id: Any = None,
        field: str,
        special_tokens: str = "eos",
        eos_token: str | int | None = None,
        bos_token: str | int | None = None,
        max_length: int | None = None,
        on_long: str = "split",
        on_null: str = "error",
        keep_columns: Sequence[str] = (),
        parallelism: int | None = None,
    ) -> None:
        if (tokenizer is None) == (tokenizer_id is None):
            raise RecipeError("tokenize: give either tokenizer= or tokenizer_id=")
        one_of("tokenize: special_tokens", special_tokens, SPECIAL_TOKENS)
        one_of("tokenize: on_long", on_long, ON_LONG)
        one_of("tokenize: on_null", on_null, ON_NULL)
        max_length = whole_or_none("tokenize: max_length", max_length)
        if not isinstance(field, str):
            raise RecipeError(f"tokenize: field= must be the name of a text column, not {field!r}")
        self.field = self.token_field = field
        self.special_tokens, self.max_length = special_tokens, max_length
        self.on_long, self.on_null = on_long, on_null
        self.parallelism = whole_or_none("tokenize: parallelism", parallelism)
        self.keep_columns = different_names("tokenize: keep_columns", keep_columns, least=0)
        if IDS in self.keep_columns:
            raise RecipeError(f"tokenize: keep_columns= names {IDS!r}, which tokenize makes; rename that column before")
        file = load_tokenizer(tokenizer if tokenizer_id is None else tokenizer_id)
        self._hash, self._json = hashlib.sha256(file.text.encode()).hexdigest(), names_as_text(file.text)
        self._idle = Idle(self._clone)
        if self._json == file.text:
            self._idle.add(_set_up(file.copy))
        brackets = special_tokens.split("_")
        for role, given in (("bos", bos_token), ("eos", eos_token)):
            if given is not None and role not in brackets:
                raise RecipeError(f"tokenize: {role}_token= has no use with special_tokens={special_tokens!r}")
        self.bos = (token_id("bos", bos_token, file.config, file.copy),) if "bos" in brackets else ()
        self.eos = (token_id("eos", eos_token, file.config, file.copy),) if "eos" in brackets else ()
        self._head, self._tail = len(self.bos), len(self.eos)
        if special_tokens == "tokenizer_default":
            self._head, self._tail = _template(file.copy)
        if max_length is not None and max_length <= self._head + self._tail and on_long != "drop":
            raise RecipeError(
                f"tokenize: max_length={max_length} leaves no room for text beside {self._head + self._tail} special tokens"
            )

    def settings(self) -> Mapping[str, Any]:
        names = ("field", "special_tokens", "max_length", "on_long", "on_null")
        plain = {"bos": list(self.bos), "eos": list(self.eos), "keep_columns": list(self.keep_columns)}
        return {
            "tokenizer": self._hash,
            **{name: getattr(self, name) for name in names},
            **plain,
        }

    def reads(self, wanted: Columns) -> Columns:
        return frozenset({self.field, *self.keep_columns})

    def requires(self) -> Mapping[str, str]:
        return {**dict.fromkeys(self.keep_columns, "any"), self.field: "string"}

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        find_field(schema, self.field, self.name)
        kept = [field for name in self.keep_columns if (field := find_field(schema, name, self.name)) is not None]
        return pa.schema([pa.field(IDS, pa.list_(pa.int32())), *kept]) if len(kept) == len(self.keep_columns) else None

    def apply(self, records: Records, tally: Tally) -> Records:
        column = self._text(records.columns)
        rows = np.arange(len(records))
        if column.null_count:
            if self.on_null == "error":
                null = int(np.argmin(column.is_valid()))
                why = f"tokenize: column {self.field!r} is missing or null; on_null='skip' leaves such records out"
                raise self._failed(records, null, tally) from BadRecord(f"{why}, 'empty' makes them empty")
            if self.on_null == "skip":
                rows = np.flatnonzero(column.is_valid())
            column = column.fill_null("") if self.on_null == "empty" else column.drop_null()
        ids, lengths = self._encoded(to_python(column))
        long = np.zeros(len(lengths), bool) if self.max_length is None else lengths > self.max_length
        if self.on_long == "error" and long.any():
            at = int(np.argmax(long))
            why = f"tokenize: {lengths[at]:,} tokens in column {self.field!r}, more than max_length={self.max_length:,}"
            raise self._failed(records, int(rows[at]), tally) from BadRecord(
                f"{why}; on_long='split', 'truncate' or 'drop' takes such texts"
            )
        if len(rows) < len(records):
            tally["records_skipped_null"] += len(records) - len(rows)
            records = records.take(rows)
        if self.max_length is not None and self.on_long == "split":
            return self._split(records, ids, lengths, self.max_length)
        if self.max_length is not None and long.any():
            return self._shortened(records, ids, lengths, self.max_length, tally)
        return self._made(records, ids, lengths)

    def _text(self, columns: pa.RecordBatch) -> pa.Array:
        column = columns.column(self.field)
        inner = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not is_text(inner) and not pa.types.is_null(inner):
            raise TypeError(f"tokenize: column {self.field!r} is {column.type}, wanted text (decode_text makes it of bytes)")
        return column if pa.types.is_large_string(column.type) else column.cast(pa.large_string())

    def _failed(self, records: Records, at: int, tally: Tally) -> RecordFailed:
        return RecordFailed(at, self.apply(records.slice(0, at), tally))

    def _clone(self) -> Any:
        import tokenizers

        return _set_up(tokenizers.Tokenizer.from_str(self._json))

    def _encoded(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """The bracketed ids of all texts end to end, and how many each has."""
        with self._idle.one() as clone:
            encodings = clone.encode_batch_fast(texts, add_special_tokens=self.special_tokens == "tokenizer_default")
        lengths = np.empty(len(encodings), np.int64)
        tokens = array("i")  # of all ways from lists to a buffer the quickest, and half of what is not tokenizing
        for n, encoding in enumerate(encodings):
            ids = encoding.ids
            ids[:0] = self.bos
            ids += self.eos
            tokens.fromlist(ids)
            lengths[n] = len(ids)
        return np.frombuffer(tokens, np.int32), lengths

    def _split(self, records: Records, ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64], most: int) -> Records:
        """Rows of at most `most` tokens; every document has children, a short one too, so origins do not depend on lengths."""
        counts = np.maximum(1, -(-lengths // most))
        pieces = np.full(counts.sum(), most)
        pieces[np.cumsum(counts) - 1] = lengths - (counts - 1) * most
        columns = records.columns.select(self.keep_columns)
        if len(pieces) > len(lengths) and self.keep_columns:
            columns = take(columns, np.repeat(np.arange(len(lengths)), counts))
        return self._made(Records(columns, records.origins.children(counts)), ids, pieces)

    def _shortened(
        self, records: Records, ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64], most: int, tally: Tally
    ) -> Records:
        """Long documents cut to `most` tokens, or left out."""
        long = np.flatnonzero(lengths > most)
        truncates = self.on_long == "truncate"
        stops = np.cumsum(lengths)[long]
        starts = stops - lengths[long]
        kept = np.ones(len(ids), bool)
        for start, stop in zip(
            (starts + most - self._tail) if truncates else starts, (stops - self._tail) if truncates else stops, strict=True
        ):
            kept[start:stop] = False
        tally["documents_truncated" if truncates else "documents_dropped"] += len(long)
        tally["tokens_dropped"] += len(ids) - int(kept.sum())
        if truncates:
            return self._made(records, ids[kept], np.minimum(lengths, most))
        rows = np.flatnonzero(lengths <= most)
        return self._made(records.take(rows), ids[kept], lengths[rows])

    def _made(self, records: Records, ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]) -> Records:
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids))
        kept = [records.columns.schema.field(name) for name in self.keep_columns]
        arrays = [column, *(records.columns.column(name) for name in self.keep_columns)]
        return records.with_columns(pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(IDS, column.type), *kept])))


def _set_up(clone: Any) -> Any:
    """A copy with what JSON does not tell of it."""
    clone.encode_special_tokens = True
    resize = getattr(clone.model, "_resize_cache", None)  # not every model has one
    if resize is not None:
        resize(_CACHED_WORDS)
    return clone


def _template(clone: Any) -> tuple[int, int]:
    """How many special tokens the tokenizer's own template puts before and behind a text."""
    mask = clone.encode("a").special_tokens_mask
    head = mask.index(0) if 0 in mask else len(mask)
    return head, mask[::-1].index(0) if 0 in mask else 0
