"""Chat templates of trl: row for row what transformers makes of them. Collected where both libraries are installed."""

import datetime
import importlib.util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from transformers import PreTrainedTokenizerFast

from tests.chats import chat_tokenizer, conversation, special_names, varied
from tests.made_rows import made, run
from zephon_async.kinds import json_field
from zephon_async.nesting import json_text
from zephon_async.operators import TokenizeChat
from zephon_async.operators.chat_messages import messages_of
from zephon_async.operators.chat_tokens import Spanned

FOUND = importlib.util.find_spec("trl")
assert FOUND is not None
assert FOUND.origin is not None
TEMPLATES = sorted(Path(FOUND.origin).with_name("chat_templates").glob("*.jinja"))
SPECIAL = {"bos_token": "<s>", "eos_token": "<|endoftext|>"}


def theirs(tokenizer: Any, template: str, row: dict[str, Any], tagged: bool) -> Any:
    """Ids and mask (None where there is none); None where transformers refuses."""
    try:
        out = tokenizer.apply_chat_template(
            row["messages"],
            tools=row["tools"],
            chat_template=template,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=tagged,
        )
    except Exception:
        return None
    return list(out["input_ids"]), list(out["assistant_masks"]) if tagged else None


def ours(operator: TokenizeChat, row: dict[str, Any]) -> Any:
    """Ids and mask; the reason where the record is bad."""
    columns = {name: [None if row[name] is None else json_text(row[name])] for name in ("messages", "tools")}
    batch = pa.RecordBatch.from_pydict(columns, schema=pa.schema([json_field(name) for name in columns]))
    out, _, cause = run(operator, made({"x": [0]}).with_columns(batch))
    if cause is not None or out is None:
        return str(cause)
    return out.columns.column("input_ids")[0].as_py(), out.columns.column("loss_mask")[0].as_py()


def ids_alone(operator: TokenizeChat, row: dict[str, Any]) -> list[int]:
    """Of a template whose spans cannot be known."""
    tools = operator._tools()
    variables = {**operator._special, "tools": row["tools"], "documents": None, "add_generation_prompt": False}
    text, _ = tools.templates["default"].render(messages_of(row["messages"], "messages"), variables)
    return list(tools.tokens.encode([Spanned(text, [])]).ids.tolist())


def test_there_are_more_than_forty() -> None:
    assert len(TEMPLATES) > 40


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_as_transformers(path: Path) -> None:
    template = path.read_text(encoding="utf-8")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=chat_tokenizer(template), **SPECIAL)
    date = datetime.date.today() if "strftime_now" in template else None
    operator = TokenizeChat(tokenizer, chat_template=template, tools_field="tools", on_no_loss="keep", date=date)
    tagged = "{%- generation" in template or "{% generation" in template
    equal = 0
    for seed in range(60):
        row = conversation(seed, in_parts=seed >= 40)
        wanted, found = theirs(tokenizer, template, row, tagged), ours(operator, row)
        if wanted is None:
            assert isinstance(found, str), row
            continue
        equal += 1
        if not isinstance(found, str):
            assert found[0] == wanted[0]
            assert wanted[1] is None or found[1] == wanted[1]
        else:
            assert not tagged, found
            assert ids_alone(operator, row) == wanted[0], found
    assert equal > 10


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_with_nulls_and_names_of_special_tokens(path: Path) -> None:
    template = path.read_text(encoding="utf-8")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=chat_tokenizer(template), **SPECIAL)
    settings: dict[str, Any] = {"tools_field": "tools", "on_no_loss": "keep", "date": datetime.date.today()}
    as_token, as_text = (TokenizeChat(tokenizer, chat_template=template, special_text=to, **settings) for to in ("token", "text"))
    names = special_names(template) or ["<s>"]
    equal = 0
    for seed in range(12):
        row = varied(conversation(seed), seed, names)
        wanted, found, apart = (
            theirs(tokenizer, template, row, "generation %}" in template),
            ours(as_token, row),
            ours(as_text, row),
        )
        assert isinstance(found, str) == isinstance(apart, str)
        if wanted is None:
            assert isinstance(found, str), row
            continue
        equal += 1
        if isinstance(found, str):
            assert not as_token._tools().templates["default"].tagged, found
            assert ids_alone(as_token, row) == wanted[0], found
            continue
        assert found[0] == wanted[0]
        assert wanted[1] is None or found[1] == wanted[1]
        decode = tokenizer.backend_tokenizer.decode
        assert decode(apart[0], skip_special_tokens=False) == decode(found[0], skip_special_tokens=False)
        assert sum(apart[1]) > 0 or sum(found[1]) == 0
    assert equal > 0 or path.stem.startswith("llava")  # takes contents in parts alone
