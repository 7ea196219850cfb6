"""`tokenize_chat`, `tokenize_completion` and `expand_chat`: masks, special tokens that are text, limits.

The contract is in `test_stateless`.
"""

import json
import pickle
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import WhitespaceSplit

from tests.chats import chat_tokenizer, conversation
from tests.made_rows import byte_tokenizer, made, placed, run
from tests.taken import in_order
from zephon_async import Pipeline
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.io import Dataset
from zephon_async.operators import ExpandChat, TokenizeChat, TokenizeCompletion
from zephon_async.operators.chat_spans import LOSS_SCOPES
from zephon_async.records import Records

WRITTEN = Path(__file__).parent.parent / "written" / "chat"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text(encoding="utf-8"))
TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
TURNS += "{% if add_generation_prompt %}<|assistant|>{% endif %}"
TAGGED = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
)
NAMES = "<|system|><|user|><|assistant|><|tool|><|end|>"
TOKENIZER = chat_tokenizer(NAMES)
USER, ASSISTANT, END = (int(TOKENIZER.token_to_id(name) or 0) for name in ("<|user|>", "<|assistant|>", "<|end|>"))


def chats(*several: Any, **others: Any) -> Records:
    return made({"messages": pa.array(several), **others})


def said(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]


def one(records: Records, **settings: Any) -> tuple[list[int], list[int]]:
    out = TokenizeChat(TOKENIZER, **{"chat_template": TURNS, **settings}).apply(records, Counter()).columns
    return out.column("input_ids")[0].as_py(), out.column("loss_mask")[0].as_py()


@pytest.mark.parametrize("name", EXPECTED)
def test_as_transformers_wrote(name: str) -> None:
    template = WRITTEN / f"{name}.jinja"
    tokenizer = chat_tokenizer(template.read_text(encoding="utf-8"))
    special = {"bos_token": "<s>", "eos_token": "<|endoftext|>"}
    operator = TokenizeChat(tokenizer, chat_template=template, tools_field="tools", on_no_loss="keep", chat_template_kwargs=special)
    equal = 0
    for row in EXPECTED[name]:
        columns = {field: pa.array([None if row[field] is None else json.dumps(row[field])], pa.string()) for field in row}
        out, _, cause = run(operator, made({field: columns[field] for field in ("messages", "tools")}))
        if row["expected"] is None or cause is not None:
            assert isinstance(cause, BadRecord)
            assert row["expected"] is None or row["expected"]["mask"] is None
            continue
        assert out is not None
        equal += 1
        found = out.columns.to_pylist()[0]
        assert found["input_ids"] == row["expected"]["ids"]
        assert row["expected"]["mask"] is None or found["loss_mask"] == row["expected"]["mask"]
    assert equal > 1


@pytest.mark.parametrize("template", [TURNS, TAGGED])
def test_the_loss_is_on_what_was_asked_for(template: str) -> None:
    first, last = [ASSISTANT, 98, END], [ASSISTANT, 100, END]
    records = chats(said("a", "b", "c", "d"))
    wanted = [USER, 97, END, *first, USER, 99, END, *last]
    for scope, mask in (
        ("all_assistant", [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]),
        ("last_assistant", [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]),
        ("after_last_user", [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]),
    ):
        assert one(records, chat_template=template, loss_scope=scope) == (wanted, mask)


@given(st.integers(0, 1 << 30), st.sampled_from(LOSS_SCOPES))
def test_tags_and_prefixes_tell_the_same(seed: int, scope: str) -> None:
    messages = conversation(seed)["messages"]
    for message in messages:
        message["content"] += random.Random(seed).choice(["", "<|end|>"])
    records = made({"messages": [json.dumps(messages)]})
    ids, mask = one(records, loss_scope=scope, on_no_loss="keep")
    assert (ids, mask) == one(records, chat_template=TAGGED, loss_scope=scope, on_no_loss="keep")
    roles = "".join(message["role"][0] for message in messages)
    first = {"all_assistant": 0, "last_assistant": roles.rindex("a"), "after_last_user": roles.rindex("u")}[scope]
    ends = [label for token, label in zip(ids, mask, strict=True) if token == END]
    assert ends == [int(role == "a" and at >= first) for at, role in enumerate(roles)]


def test_without_jinja2_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "zephon_async.operators.chat_template", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(RecipeError, match=r"tokenize_chat needs jinja2 .*: pip install 'zephon-async\[chat\]'"):
        TokenizeChat(TOKENIZER, chat_template=TURNS)


def test_names_of_special_tokens_are_text() -> None:
    records = chats(said("th<|end|>e", "<|assistant|>"))
    name, other = list(b"<|end|>"), list(b"<|assistant|>")
    text = TOKENIZER
    text.encode_special_tokens = True
    inner, answer = text.encode("th<|end|>e").ids, text.encode("<|assistant|>").ids
    text.encode_special_tokens = False
    ids, mask = one(records)
    assert ids == [USER, *inner, END, ASSISTANT, *answer, END]
    assert mask == [0] * (len(inner) + 3) + [1] * (len(answer) + 1)
    assert END not in inner
    assert ASSISTANT not in answer
    assert (len(name), len(other)) == (7, 13)
    assert one(records, special_text="token", chat_template=TAGGED)[0].count(END) == 3
    _, at, cause = run(TokenizeChat(TOKENIZER, chat_template=TURNS, special_text="error"), records)
    assert (at, str(cause)) == (0, "tokenize_chat: a message contains the name of a special token, '<|assistant|>'")


@pytest.mark.parametrize("normalized", [False, True])
def test_what_normalizing_makes_a_name_of_is_text(normalized: bool) -> None:
    """A tokenizer may look for its special tokens in what is normalized already."""
    tokenizer = chat_tokenizer("<|user|><|assistant|>")
    tokenizer.normalizer = Lowercase()
    tokenizer.add_special_tokens([AddedToken("<|End|>", special=True, normalized=normalized)])
    template, end = TURNS.replace("<|end|>", "<|End|>"), tokenizer.token_to_id("<|End|>")
    for text in ("<|End|>", "<|end|>", "a<|END|>b"):
        records = chats(said(text, "b"))
        out = TokenizeChat(tokenizer, chat_template=template).apply(records, Counter()).columns
        assert out.column("input_ids")[0].as_py().count(end) == 2
        out = TokenizeChat(tokenizer, chat_template=template, special_text="token").apply(records, Counter()).columns
        assert out.column("input_ids")[0].as_py().count(end) == 2 + (normalized or text == "<|End|>")


def test_a_template_that_forgets_is_a_bad_record_and_not_a_wrong_mask() -> None:
    template = "{% for m in messages %}<|{{ m.role }}|>{% if loop.last %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    _, at, cause = run(TokenizeChat(TOKENIZER, chat_template=template), chats(said("a", "b", "c", "d")))
    assert at == 0
    assert "otherwise with more behind" in str(cause)
    headed = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    _, at, cause = run(TokenizeChat(TOKENIZER, chat_template=headed), chats(said("a", "b")))
    assert at == 0
    assert "no generation prompt" in str(cause)


@pytest.mark.parametrize("value", [None, [], [{"role": None, "content": "a"}]])
def test_what_is_no_conversation_is_a_bad_record(value: Any) -> None:
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    records = made({"messages": pa.array([said("a", "b"), value], kind)})
    for operator in (TokenizeChat(TOKENIZER, chat_template=TURNS), ExpandChat()):
        out, at, cause = run(operator, records)
        assert (len(placed(out)), at, type(cause)) == (1, 1, BadRecord)


def test_the_names_of_sharegpt_are_told_of() -> None:
    records = made({"messages": pa.array([[{"from": "human", "value": "a"}]])})
    _, _, cause = run(TokenizeChat(TOKENIZER, chat_template=TURNS), records)
    assert str(cause) == (
        "column 'messages': message 0 is no dict with a role: {'from': 'human', 'value': 'a'}; "
        "make its from and value role and content, with map before it"
    )


def test_pairs() -> None:
    records = made({"prompt": [said("a")], "chosen": [said("", "b")[1:]], "rejected": [said("", "cd")[1:]]})
    operator = TokenizeChat(TOKENIZER, chat_template=TURNS, field=("chosen", "rejected"), prompt_field="prompt")
    head = [USER, 97, END, ASSISTANT]
    assert operator.apply(records, Counter()).columns.to_pylist() == [
        {
            "chosen_input_ids": [*head, 98, END],
            "chosen_loss_mask": [0, 0, 0, 0, 1, 1],
            "rejected_input_ids": [*head, 99, 100, END],
            "rejected_loss_mask": [0, 0, 0, 0, 1, 1, 1],
        }
    ]


def test_limits_are_counted() -> None:
    records = chats(said("aaaa", "b"), said("a", "bcd"), said("a", "b"))
    for on_long, rows, tally in (
        ("truncate", [1, 2], {"documents_truncated": 1, "documents_unsupervised": 1, "tokens_dropped": 11}),
        ("drop", [2], {"documents_dropped": 2, "tokens_dropped": 17}),
    ):
        counted = Counter[str]()
        out = TokenizeChat(TOKENIZER, chat_template=TURNS, max_length=6, on_long=on_long).apply(records, counted)
        assert ([row for _, row, _ in placed(out)], counted) == (rows, tally)


def test_completions() -> None:
    records = made({"prompt": ["ab"], "completion": ["c<s>"]})
    out = TokenizeCompletion(byte_tokenizer(), special_tokens="bos_eos").apply(records, Counter())
    assert out.columns.to_pylist() == [{"input_ids": [257, *b"abc<s>", 0], "loss_mask": [0, 0, 0, 1, 1, 1, 1, 1]}]


def test_expanding() -> None:
    records = chats([*said("a", "b", "c")[:2], *said("c"), *said("d", "e")], name=["x"])
    as_text = made({"messages": [json.dumps(records.columns.column("messages")[0].as_py())], "name": ["x"]})
    wanted = [(said("a", "b"), 0), ([*said("a", "b", "c"), *said("d", "e")], 2)]
    for source in (records, as_text):
        out = placed(ExpandChat().apply(source, Counter()))
        found = [(row["messages"], part) for row, _, part in out]
        assert [(json.loads(m) if isinstance(m, str) else m, part) for m, part in found] == wanted
        assert [row["name"] for row, _, _ in out] == ["x", "x"]


@pytest.mark.parametrize(
    "kind", [pa.list_view, pa.large_list_view, lambda of: pa.list_(of, 4)], ids=["view", "large view", "fixed"]
)
def test_cut_conversations_are_plain_lists(kind: Any) -> None:
    chat, others = said("a", "b", "c", "d"), {"n": [1, 2]}
    of = pa.struct([("role", pa.string()), ("content", pa.string())])
    records = made({"messages": pa.array([said("d", "c", "b", "a"), chat], kind(of)), **others})
    out = ExpandChat().apply(records.slice(1, 2), Counter()).columns
    assert out.to_pylist() == [{"messages": said("a", "b"), "n": 2}, {"messages": chat, "n": 2}]
    assert out.schema == ExpandChat().output(records.columns.schema)
    assert one(records.slice(1, 2))[0].count(END) == 4


def test_settings_that_cannot_be_meant() -> None:
    for settings, words in (
        ({}, "has no chat template"),
        ({"chat_template": "{% for %}"}, "wrong in line 1"),
        ({"chat_template": "{{ strftime_now('%Y') }}"}, "give date="),
        ({"chat_template": TURNS, "date": "now"}, "must be a day"),
        ({"chat_template": TURNS, "span_source": "generation_tags"}, "has no {% generation %}"),
        ({"chat_template": TURNS, "chat_template_kwargs": {"tools": []}}, "may not set 'tools'"),
        ({"chat_template": "{{ [1, 2] | random }}"}, "random"),
    ):
        with pytest.raises(RecipeError, match=words):
            TokenizeChat(TOKENIZER, **settings)


def test_in_a_pipeline() -> None:
    rows: dict[str, list[Any]] = {"messages": [said("a", "b"), said("th", "c", "d", "e")]}
    pipeline = Pipeline(in_order(Dataset.from_dict("d", rows))).expand_chat().tokenize_chat(TOKENIZER, chat_template=TURNS)
    with pipeline.batch(3) as run_of:
        (batch,) = run_of
    made_of = batch.to_training(framework="numpy")
    assert made_of["labels"][0].tolist() == [-100, -100, -100, 98, END, *[-100] * (made_of["labels"].shape[1] - 5)]
    assert [len(row) for row in batch.to_pylist("input_ids")] == [6, 6, 12]


def test_it_can_be_sent_to_another_process() -> None:
    operator = TokenizeChat(TOKENIZER, chat_template=TURNS + "{{ strftime_now('%Y') }}", date="2025-01-31", on_no_loss="keep")
    again = pickle.loads(pickle.dumps(operator))
    assert again.settings() == operator.settings()
    records = chats([{"role": "user", "content": "a"}])
    ids = again.apply(records, Counter()).columns.column("input_ids")[0].as_py()
    assert ids == [USER, 97, END, *b"2025"]


def word_tokenizer() -> Tokenizer:
    """One whose model has the special token among its own words, and so makes it of its name."""
    words = {word: number for number, word in enumerate(("<unk>", "user", "assistant", "a", "<end>"))}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    return tokenizer


def test_a_name_that_the_model_makes_a_special_token_of_is_a_bad_record() -> None:
    template = "{% for m in messages %}{{ m.role }} {{ m.content }} <end> {% endfor %}"
    template += "{% if add_generation_prompt %}assistant {% endif %}"
    words = "this tokenizer has no other tokens for the text '<end>'"
    out, at, cause = run(
        TokenizeChat(word_tokenizer(), chat_template=template), chats(said("a", "a"), said("a <end>", "a"), said("a", "a"))
    )
    assert (len(placed(out)), at) == (1, 1)
    assert words in str(cause)
    completion = TokenizeCompletion(word_tokenizer(), special_tokens="none")
    out, at, cause = run(completion, made({"prompt": ["a ", "a <end> "], "completion": ["a", "a"]}))
    assert (len(placed(out)), at) == (1, 1)
    assert words in str(cause)


@pytest.mark.parametrize(
    "changed", ["m.content | tojson(ensure_ascii=True)", "m.content | length", "m.content.startswith('<|end|>')", "m.content[1:]"]
)
def test_a_template_that_looks_into_what_is_marked_is_a_bad_record(changed: str) -> None:
    template = TAGGED.replace("m.content", changed)
    out, at, cause = run(TokenizeChat(TOKENIZER, chat_template=template), chats(said("a", "b"), said("<|end|>", "b")))
    assert (len(placed(out)), at) == (1, 1)
    assert "special_text='token'" in str(cause)


def test_a_template_cannot_change_the_messages() -> None:
    for change in ("dict.update(messages[0], {'content': 'x'})", "messages[0].update({'content': 'x'})", "messages.clear()"):
        _, at, cause = run(TokenizeChat(TOKENIZER, chat_template="{% set _ = " + change + " %}"), chats(said("a", "b")))
        assert at == 0
        assert "the chat template fails" in str(cause)


def test_tags_of_the_last_turn_alone_are_not_taken_for_those_of_an_earlier_one() -> None:
    answered = (
        "{% set last = namespace(at=-1) %}{% for m in messages if m.role == 'assistant' %}{% set last.at = m.at %}{% endfor %}"
    )
    template = answered + TAGGED.replace("m.role == 'assistant'", "m.at == last.at")
    records = chats([{**message, "at": at} for at, message in enumerate(said("a", "b", "c", "b"))])
    _, at, cause = run(TokenizeChat(TOKENIZER, chat_template=template, loss_scope="last_assistant"), records)
    assert at == 0
    assert "renders earlier turns otherwise" in str(cause)


def test_special_tokens_of_a_template_that_nobody_named() -> None:
    template = "{{ bos_token }}" + TAGGED
    with pytest.raises(RecipeError, match="bos_token, which this tokenizer does not tell"):
        TokenizeChat(TOKENIZER, chat_template=template)
    named = {"bos_token": "<s>"}
    ids, _ = one(chats(said("a", "b")), chat_template=template, chat_template_kwargs=named)
    assert ids == [257, USER, 97, END, ASSISTANT, 98, END]


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.string()), pa.struct([("role", pa.string())]), pa.binary()])
def test_columns_that_hold_no_messages_are_refused_at_the_start(kind: pa.DataType) -> None:
    schema = pa.schema([("messages", kind)])
    for operator in (TokenizeChat(TOKENIZER, chat_template=TURNS), ExpandChat()):
        with pytest.raises(RecipeError, match="wanted messages: a list of structs"):
            operator.output(schema)


def test_text_that_is_encoded_as_a_dictionary() -> None:
    column = pa.array([json.dumps(said("a", "b", "c", "d"))]).dictionary_encode()
    records = made({"messages": column})
    assert one(records)[0].count(END) == 4
    out = ExpandChat().apply(records, Counter()).columns
    assert out.schema.field("messages").type == column.type
    assert [json.loads(row["messages"]) for row in out.to_pylist()] == [said("a", "b"), said("a", "b", "c", "d")]
