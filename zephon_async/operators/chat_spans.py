"""What a loss is on: a conversation as text, with the spans of the assistant's turns.

Where the template has generation blocks, they say it. Elsewhere a turn is what it adds to the text of the messages before it with
a generation prompt behind them. That the longer text begins with the shorter is verified for every turn of every record; where it
does not (a template that drops earlier thinking, say) the record is bad, as its spans cannot be known.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from zephon_async.errors import BadRecord

LOSS_SCOPES = ("all_assistant", "last_assistant", "after_last_user")
_Messages: TypeAlias = Sequence[Mapping[str, Any]]
_Spans: TypeAlias = list[tuple[int, int]]


class Template(Protocol):
    def render(self, messages: _Messages, variables: Mapping[str, Any]) -> tuple[str, _Spans]: ...


def first_trained(messages: _Messages, scope: str, prompt: int) -> int:
    """The number of the first message a loss may be on; `prompt` messages have none in any case."""
    last = {message["role"]: number for number, message in enumerate(messages)}
    if scope == "last_assistant":
        return max(prompt, last.get("assistant", len(messages)))
    return max(prompt, last.get("user", -1) + 1) if scope == "after_last_user" else prompt


def by_tags(template: Template, messages: _Messages, variables: Mapping[str, Any], first: int) -> tuple[str, _Spans]:
    """The text and the generation blocks of the messages from `first` on."""
    text, spans = template.render(messages, variables)
    if not any(message["role"] == "assistant" for message in messages[:first]):
        return text, spans
    before, earlier = template.render(messages[:first], variables)
    end = earlier[-1][1] if earlier else 0
    if spans[: len(earlier)] != earlier or text[:end] != before[:end]:
        raise BadRecord(
            "tokenize_chat: the chat template renders earlier turns otherwise once there are later ones, so it is not known whose "
            "its generation blocks are; use loss_scope='all_assistant' without a prompt, or another template"
        )
    return text, spans[len(earlier) :]


def by_prefixes(template: Template, messages: _Messages, variables: Mapping[str, Any], first: int) -> tuple[str, _Spans]:
    """The text, and what the assistant's messages from `first` on add to it."""
    text = template.render(messages, variables)[0]
    prompting = {**variables, "add_generation_prompt": True}
    spans: _Spans = []
    for number in range(first, len(messages)):
        if messages[number]["role"] != "assistant":
            continue
        asked = template.render(messages[:number], prompting)[0]
        said = text if number + 1 == len(messages) else template.render(messages[: number + 1], variables)[0]
        if not text.startswith(said) or not said.startswith(asked):
            raise BadRecord(
                f"tokenize_chat: the chat template renders what is before the end of message {number} otherwise with more behind, "
                "so what the assistant says there is not known; use a template with {% generation %} blocks"
            )
        if asked == template.render(messages[:number], variables)[0]:
            _check_content(messages[number], number, said[len(asked) :])
        spans.append((len(asked), len(said)))
    return text, spans


def _check_content(message: Mapping[str, Any], number: int, said: str) -> None:
    """Of a template without a generation prompt: that a turn begins with what is said, and not with a header."""
    content = message.get("content")
    if not isinstance(content, str) or not said.lstrip().startswith(content.strip()):
        raise BadRecord(
            f"tokenize_chat: the chat template has no generation prompt, so the header of message {number} cannot be told from "
            "what the assistant says; use a template with {% generation %} blocks"
        )
