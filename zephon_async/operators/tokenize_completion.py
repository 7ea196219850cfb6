"""`tokenize_completion`: prompts and completions to token ids and a loss mask on the completion.

Takes two text columns, or one prompt and several completions of it (`completion_field=("chosen", "rejected")`). Gives what
`masked` says. Prompt and completion are one text to the tokenizer; a token that overlaps the completion is in the loss, and so is
the end-of-text token behind it. The name of a special token stays text.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from zephon_async.checks import one_of
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import is_text
from zephon_async.operators.chat_tokens import ChatTokens, Spanned, Tokens
from zephon_async.operators.masked import Masked
from zephon_async.operators.rows import to_python
from zephon_async.operators.tokenizer_files import load_tokenizer, token_id

SPECIAL_TOKENS = ("eos", "bos", "bos_eos", "none")


class TokenizeCompletion(Masked):
    """Make token ids and loss masks of prompts and completions.

    tokenizer, tokenizer_id, eos_token, bos_token: as for `Tokenize`. special_tokens: what brackets prompt and completion.
    prompt_field, completion_field: text columns; of completions there may be several, each of which is an answer.
    max_length: most tokens of a row, brackets counted; None: no limit. on_long: "truncate" at the end (which drops EOS), "drop"
        (both counted), or "error". on_no_loss: rows without a label: "drop" (counted), "keep", or "error".
    keep_columns, parallelism: as for `Tokenize`. A null is a bad record.
    """

    name = "tokenize_completion"
    releases_gil = True

    def __init__(
        self,
        tokenizer: Any = None,
        *,
        tokenizer_id: Any = None,
        prompt_field: str = "prompt",
        completion_field: str | Sequence[str] = "completion",
        special_tokens: str = "eos",
        eos_token: str | int | None = None,
        bos_token: str | int | None = None,
        max_length: int | None = None,
        on_long: str = "truncate",
        on_no_loss: str = "drop",
        keep_columns: Sequence[str] = (),
        parallelism: int | None = None,
    ) -> None:
        if (tokenizer is None) == (tokenizer_id is None):
            raise RecipeError("tokenize_completion: give either tokenizer= or tokenizer_id=")
        one_of("tokenize_completion: special_tokens", special_tokens, SPECIAL_TOKENS)
        if not isinstance(prompt_field, str):
            raise RecipeError(f"tokenize_completion: prompt_field= must be the name of a text column, not {prompt_field!r:.80}")
        self.prompt_field, self.special_tokens = prompt_field, special_tokens
        self._set(completion_field, max_length, on_long, on_no_loss, keep_columns, parallelism)
        file = load_tokenizer(tokenizer if tokenizer_id is None else tokenizer_id)
        self._json = file.text
        brackets = special_tokens.split("_")
        for role, given in (("bos", bos_token), ("eos", eos_token)):
            if given is not None and role not in brackets:
                raise RecipeError(f"tokenize_completion: {role}_token= has no use with special_tokens={special_tokens!r}")
        self.bos = (token_id("bos", bos_token, file.config, file.copy),) if "bos" in brackets else ()
        self.eos = (token_id("eos", eos_token, file.config, file.copy),) if "eos" in brackets else ()

    def settings(self) -> Mapping[str, Any]:
        plain = {"prompt_field": self.prompt_field, "special_tokens": self.special_tokens}
        brackets = {"bos": list(self.bos), "eos": list(self.eos)}
        return {**super().settings(), "tokenizer": hashlib.sha256(self._json.encode()).hexdigest(), **plain, **brackets}

    def _inputs(self) -> Mapping[str, str]:
        return dict.fromkeys((self.prompt_field, *self.answers), "string")

    def _tools(self) -> ChatTokens:
        return ChatTokens(self._json, as_text=True)

    def _texts(self, columns: pa.RecordBatch, tools: ChatTokens) -> Iterator[tuple[Spanned, ...]]:
        names = (self.prompt_field, *self.answers)
        for row in zip(*(to_python(self._text(columns, name)) for name in names), strict=True):
            for name, text in zip(names, row, strict=True):
                if text is None:
                    raise BadRecord(f"tokenize_completion: column {name!r} is missing or null")
            prompt, *completions = row
            yield tuple(_spanned(prompt, text, tools) for text in completions)

    def _text(self, columns: pa.RecordBatch, name: str) -> pa.Array:
        column = columns.column(name)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not is_text(kind) and not pa.types.is_null(kind):
            raise TypeError(f"tokenize_completion: column {name!r} is {column.type}, wanted text; tokenize_chat takes messages")
        return column.cast(pa.large_string())

    def _encoded(self, texts: Sequence[Spanned], tools: ChatTokens) -> Tokens:
        return tools.encode(texts, self.bos, self.eos)


def _spanned(prompt: str, completion: str, tools: ChatTokens) -> Spanned:
    text = prompt + completion
    spans = [(len(prompt), len(text))] if completion else []
    return tools.apart(text, spans) if tools.names_in(text) else Spanned(text, spans)
