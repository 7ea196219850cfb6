"""`tokenize_chat`: conversations to token ids and a loss mask, through the chat template of a tokenizer.

Takes a column of conversations (lists of structs, or JSON text; see `chat_messages`), or several that answer one prompt
(`field=("chosen", "rejected")`). Gives what `masked` says. Ids equal those of `apply_chat_template` of transformers, but where a
message contains the name of a special token: see `special_text`. How the mask comes about is told in `chat_spans`.
"""

import datetime
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from zephon_async.checks import one_of
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.chat_messages import check_messages, messages_of, nested, tools_of
from zephon_async.operators.chat_spans import LOSS_SCOPES, by_prefixes, by_tags, first_trained
from zephon_async.operators.chat_tokens import ChatTokens, Spanned, Tokens
from zephon_async.operators.masked import Masked
from zephon_async.operators.tokenizer_files import load_tokenizer

SPAN_SOURCES = ("auto", "generation_tags", "prefix_diff")
SPECIAL_TEXT = ("text", "error", "token")
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _Tools(NamedTuple):
    tokens: ChatTokens
    templates: Mapping[str, Any]


class TokenizeChat(Masked):
    """Make token ids and loss masks of conversations.

    tokenizer, tokenizer_id: as for `Tokenize`; or a fast tokenizer of transformers.
    field: the column of conversations; or several, such as ("chosen", "rejected"), each of which is an answer.
    prompt_field: a column of messages that come before those of `field`, without a loss.
    chat_template: the text of a template, the path of a file (a `Path`), or the name of one of the tokenizer's; None: its own
        (chat_template.jinja, or tokenizer_config.json; "tool_use", where there is one, for records with tools).
    chat_template_kwargs: variables for the template, JSON values. tools_field, enable_thinking_field: columns with such variables
        for each record, `tools` and `enable_thinking`; null: none.
    date: what `strftime_now` tells: "2025-01-31" or a `datetime.date`.
    loss_scope: "all_assistant", "last_assistant" (the last turn of the assistant), "after_last_user".
    span_source: "generation_tags" of the template, "prefix_diff", or "auto": tags, if the template has any.
    special_text: a special token's name in a message is "text", an "error", or the "token" itself, as in transformers.
    max_length: most tokens of a row; None: no limit. on_long: "truncate" at the end, "drop" (both counted), or "error".
    on_no_loss: rows without a label: "drop" (counted), "keep", or "error".
    keep_columns, parallelism: as for `Tokenize`.

    `RecipeError` where there is no template, or none that can be compiled; or no jinja2.
    """

    name = "tokenize_chat"

    def __init__(
        self,
        tokenizer: Any = None,
        *,
        tokenizer_id: Any = None,
        field: str | Sequence[str] = "messages",
        prompt_field: str | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools_field: str | None = None,
        enable_thinking_field: str | None = None,
        date: str | datetime.date | None = None,
        loss_scope: str = "all_assistant",
        span_source: str = "auto",
        special_text: str = "text",
        max_length: int | None = None,
        on_long: str = "truncate",
        on_no_loss: str = "drop",
        keep_columns: Sequence[str] = (),
        parallelism: int | None = None,
    ) -> None:
        if (tokenizer is None) == (tokenizer_id is None):
            raise RecipeError("tokenize_chat: give either tokenizer= or tokenizer_id=")
        one_of("tokenize_chat: loss_scope", loss_scope, LOSS_SCOPES)
        one_of("tokenize_chat: span_source", span_source, SPAN_SOURCES)
        one_of("tokenize_chat: special_text", special_text, SPECIAL_TEXT)
        for name, value in (("prompt", prompt_field), ("tools", tools_field), ("enable_thinking", enable_thinking_field)):
            if value is not None and not isinstance(value, str):
                raise RecipeError(f"tokenize_chat: {name}_field= must be the name of a column, not {value!r:.80}")
        self.prompt_field, self.tools_field, self.enable_thinking_field = prompt_field, tools_field, enable_thinking_field
        self.loss_scope, self.span_source, self.special_text = loss_scope, span_source, special_text
        self.date = None if date is None else _day(date)
        self._set(field, max_length, on_long, on_no_loss, keep_columns, parallelism)
        file = load_tokenizer(tokenizer if tokenizer_id is None else tokenizer_id)
        self._json = file.text
        self._sources = _sources(chat_template, file.config.get("chat_template"))
        special = {name: said for name in _NAMED if isinstance(said := _content(file.config.get(name)), str)}
        self._special = special
        self._variables = _plain(chat_template_kwargs or {})
        tools = self._tools()
        asked = {name for template in tools.templates.values() for name in template.names.intersection(_NAMED)}
        if not any(name in file.config for name in _NAMED) and (unknown := sorted(asked.difference(self._variables))):
            raise RecipeError(
                f"tokenize_chat: the chat template asks for {unknown[0]}, which this tokenizer does not tell: there is no "
                f"tokenizer_config.json; give chat_template_kwargs={{{unknown[0]!r}: ...}}"
            )
        if span_source == "generation_tags" and not all(template.tagged for template in tools.templates.values()):
            raise RecipeError(
                "tokenize_chat: span_source='generation_tags', but the chat template has no {% generation %}; use 'prefix_diff'"
            )
        self._idle.add(tools)

    def settings(self) -> Mapping[str, Any]:
        names = ("prompt_field", "tools_field", "enable_thinking_field", "date", "loss_scope", "span_source", "special_text")
        return {
            **super().settings(),
            "tokenizer": hashlib.sha256(self._json.encode()).hexdigest(),
            "chat_templates": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(self._sources.items())},
            "chat_template_kwargs": json.dumps(self._variables),  # in order: a template may iterate over them
            "special_tokens": dict(sorted(self._special.items())),
            **{name: getattr(self, name) for name in names},
        }

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        for name in (*self.answers, *([] if self.prompt_field is None else [self.prompt_field])):
            check_messages(schema, name, self.name)
        return super().output(schema)

    def _inputs(self) -> Mapping[str, str]:
        others = (self.prompt_field, self.tools_field, self.enable_thinking_field)
        return dict.fromkeys((*self.answers, *(name for name in others if name is not None)), "any")

    def _tools(self) -> _Tools:
        try:
            from zephon_async.operators.chat_template import ChatTemplate
        except ImportError as error:
            raise RecipeError(f"tokenize_chat needs jinja2 ({error}): pip install 'zephon-async[chat]'") from error
        return _Tools(ChatTokens(self._json), {name: ChatTemplate(text, self.date) for name, text in self._sources.items()})

    def _texts(self, columns: pa.RecordBatch, tools: _Tools) -> Iterator[tuple[Spanned, ...]]:
        def values(name: str | None) -> Any:
            return repeat(None, len(columns)) if name is None else nested(columns.column(name), name)

        answers = zip(*map(values, self.answers), strict=True)
        others = (values(self.prompt_field), values(self.tools_field), values(self.enable_thinking_field))
        for row, prompt, given, thinks in zip(answers, *others, strict=True):
            before = [] if self.prompt_field is None else messages_of(prompt, self.prompt_field)
            variables = self._special | self._variables
            variables |= {"tools": tools_of(given, str(self.tools_field)), "documents": None, "add_generation_prompt": False}
            if thinks is not None:
                variables["enable_thinking"] = thinks
            yield tuple(
                self._spanned(before + messages_of(value, name), len(before), variables, tools)
                for name, value in zip(self.answers, row, strict=True)
            )

    def _spanned(self, messages: list[dict[str, Any]], prompt: int, variables: dict[str, Any], tools: _Tools) -> Spanned:
        names = tools.tokens.names_in([messages, variables["tools"]]) if self.special_text != "token" else frozenset()
        if names and self.special_text == "error":
            raise BadRecord(f"tokenize_chat: a message contains the name of a special token, {min(names)!r}")
        by_use = variables["tools"] is not None and "tool_use" in tools.templates
        template = tools.templates["tool_use" if by_use else "default"]
        tagged = template.tagged if self.span_source == "auto" else self.span_source == "generation_tags"
        spans_by = by_tags if tagged else by_prefixes
        first = first_trained(messages, self.loss_scope, prompt)
        if not names:
            return Spanned(*spans_by(template, messages, variables, first))
        marked = variables | {"tools": tools.tokens.mark(variables["tools"])}
        text, spans = spans_by(template, tools.tokens.mark(messages), marked, first)
        return tools.tokens.unmark(text, spans, template.render(messages, variables)[0])

    def _encoded(self, texts: Sequence[Spanned], tools: _Tools) -> Tokens:
        return tools.tokens.encode(texts)


def _sources(given: str | os.PathLike[str] | None, own: Any) -> dict[str, str]:
    """The texts of templates by name, with a "default"."""
    named = own if isinstance(own, Mapping) else {}
    if isinstance(own, list):  # as tokenizer_config.json has several
        named = {each["name"]: each["template"] for each in own}
    elif isinstance(own, str):
        named = {"default": own}
    if given is None:
        if "default" not in named:
            there = f"; it has some by name, {sorted(named)}" if named else ""
            raise RecipeError(f"tokenize_chat: the tokenizer has no chat template{there}: give chat_template=")
        return {name: text for name, text in named.items() if name in ("default", "tool_use")}
    if isinstance(given, str):
        return {"default": named.get(given, given)}
    try:
        return {"default": Path(given).read_text(encoding="utf-8")}
    except (OSError, ValueError, TypeError) as error:
        raise RecipeError(f"tokenize_chat: chat_template={given!r:.80} cannot be read ({error})") from error


def _content(token: Any) -> Any:
    """The text of a token, which configurations also write as a dict."""
    return token.get("content") if isinstance(token, Mapping) else token


def _plain(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables for a template, made of JSON values alone."""
    for name in _RESERVED:
        if name in variables:
            raise RecipeError(f"tokenize_chat: chat_template_kwargs may not set {name!r}, which tokenize_chat gives itself")
    try:
        made = dict(json.loads(json.dumps(dict(variables), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise RecipeError(f"tokenize_chat: chat_template_kwargs={variables!r:.80} must be JSON values by name ({error})") from error
    return made


def _day(date: str | datetime.date) -> str:
    try:
        return (date if isinstance(date, datetime.date) else datetime.date.fromisoformat(date)).isoformat()
    except (TypeError, ValueError) as error:
        raise RecipeError(f"tokenize_chat: date={date!r:.80} must be a day such as '2025-01-31' ({error})") from None
