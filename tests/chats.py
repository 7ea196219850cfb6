"""Conversations, and a tokenizer for a chat template, for the tests of chat operators."""

import random
import re
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tests.made_rows import byte_tokenizer

WORDS = (
    "the thin hein",
    "a\n b ",
    "\u00e9\u4e2d\U0001f600",
    "<b>&amp;</b>",
    "1 + 1",
    "{x: 'y'}",
    "in <think>here</think> then",
    "",
)
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add <two> numbers",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "the"}}, "required": ["a"]},
    },
}


def chat_tokenizer(template: str) -> Tokenizer:
    """A byte-level BPE with the special tokens of a template; `<think>` and its like are added, but not special."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special_names(template)])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in ("<think>", "</think>", "<tool_call>")])
    return tokenizer


def special_names(template: str) -> list[str]:
    """The special tokens that a template writes."""
    return sorted(set(re.findall(r"<[|\uff5c][^<>|\uff5c{}' ]+[|\uff5c]>|<(?:bos|eos|start_of_turn|end_of_turn)>", template)))


def conversation(seed: int, in_parts: bool = False) -> dict[str, Any]:
    """`messages`, and `tools` (None for none). in_parts: contents are lists of texts."""
    draw = random.Random(seed)

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 3))).strip() or "x"

    messages: list[dict[str, Any]] = [{"role": "system", "content": text()}] if draw.random() < 0.3 else []
    tools = [TOOL] if draw.random() < 0.3 else None
    for _ in range(draw.randint(1, 3)):
        messages.append({"role": "user", "content": text()})
        if tools and draw.random() < 0.5:
            call = {"type": "function", "function": {"name": "add", "arguments": {"a": draw.randint(0, 9)}}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "name": "add", "content": "3"})
        answer: dict[str, Any] = {"role": "assistant", "content": text()}
        if draw.random() < 0.3:
            answer["reasoning_content"] = text()
        messages.append(answer)
    if in_parts:
        for message in messages:
            message["content"] = [{"type": "text", "text": message["content"]}]
    return {"messages": messages, "tools": tools}


def varied(row: dict[str, Any], seed: int, names: list[str]) -> dict[str, Any]:
    """A conversation with null contents, other names of the reasoning, and names of special tokens in the contents."""
    draw = random.Random(seed)
    for message in row["messages"]:
        if "reasoning_content" in message:
            message[draw.choice(["thinking", "reasoning", "reasoning_content"])] = message.pop("reasoning_content")
        if message.get("tool_calls"):
            message["content"] = draw.choice([None, "", "the"])
        elif draw.random() < 0.3:
            message["content"] += draw.choice(names) + draw.choice(["", " ", "in"])
    return row
