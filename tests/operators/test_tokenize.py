"""`tokenize`: brackets, limits, nulls, threads, and what is fingerprinted. The contract is in `test_stateless`."""

import pickle
import subprocess
import sys
import threading
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.made_rows import byte_tokenizer, made, placed, run, texts
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.tokenize import Tokenize
from zephon_async.records import Records

BYTES = byte_tokenizer()


def ids(values: list[str | None], tally: Counter[str] | None = None, **settings: Any) -> list[list[int]]:
    tokenizer = settings.pop("tokenizer", BYTES)
    out = Tokenize(tokenizer, field="text", **settings).apply(texts(values), Counter() if tally is None else tally)
    assert out.columns.schema == pa.schema({"input_ids": pa.list_(pa.int32())})
    return [list(row) for row in out.columns.column("input_ids").to_pylist()]


def templated(template: str) -> Tokenizer:
    tokenizer = byte_tokenizer()
    tokens = [("<s>", 257), ("<|endoftext|>", 0)]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=tokens)
    return tokenizer


@pytest.mark.parametrize("template", ["$A", "<s> $A", "$A <|endoftext|>", "<s> $A <|endoftext|>"])
def test_exactly_one_bracket_whatever_the_tokenizer_adds(template: str) -> None:
    tokenizer = templated(template)
    assert list(chain.from_iterable(ids(["ab", "", "c"], tokenizer=tokenizer))) == [97, 98, 0, 0, 99, 0]
    assert ids(["ab", ""], tokenizer=tokenizer, special_tokens="bos") == [[257, 97, 98], [257]]
    assert ids(["ab", ""], tokenizer=tokenizer, special_tokens="bos_eos") == [[257, 97, 98, 0], [257, 0]]
    assert ids(["ab", ""], tokenizer=tokenizer, special_tokens="none") == [[97, 98], []]
    written = {"<s>": [257], "$A": [97, 98], "<|endoftext|>": [0]}
    wanted = [token for part in template.split() for token in written[part]]
    assert ids(["ab"], tokenizer=tokenizer, special_tokens="tokenizer_default") == [wanted]


def test_the_name_of_a_special_token_stays_text() -> None:
    assert ids(["<s>"]) == [[*b"<s>", 0]]
    assert ids(["a<|endoftext|>"], special_tokens="tokenizer_default") == [[*b"a<|endoftext|>"]]


def among_words(model: models.Model, *splitters: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """A tokenizer whose model has names of special tokens among its own words; and `<think>`, which is added and not special."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(splitters))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<mask>"])
    tokenizer.add_tokens(["<think>"])
    return tokenizer


PIECES = ["<unk>", "<s>", "</s>", "a", "<", "s", ">", "/", "b"]
WORDS = {piece: number for number, piece in enumerate(PIECES)}
AMONG_WORDS = {
    "unigram": among_words(models.Unigram([(piece, -float(n)) for n, piece in enumerate(PIECES)], unk_id=0)),
    "word level": among_words(models.WordLevel(WORDS, unk_token="<unk>"), pre_tokenizers.WhitespaceSplit()),
    "wordpiece": among_words(models.WordPiece(WORDS, unk_token="<unk>"), pre_tokenizers.WhitespaceSplit()),
}
THINK = len(PIECES) + 1


@pytest.mark.parametrize(
    ("model", "text", "wanted"),
    [
        ("unigram", "a<s>b", [3, 4, 5, 6, 8]),
        ("unigram", "</s>a<mask>", [4, 7, 5, 6, 3, 4, 0, 3, 5, 0, 6]),
        ("unigram", "a<think>b", [3, THINK, 8]),
        ("word level", "a <s> b </s> <unk> <think>a", [3, 0, 8, 0, 0, THINK, 3]),
        ("wordpiece", "a <s> b </s> <unk> <mask> <think>", [3, 0, 8, 0, 0, 0, THINK]),
    ],
)
def test_the_name_of_a_special_token_stays_text_where_the_model_knows_it(model: str, text: str, wanted: list[int]) -> None:
    tokenizer = AMONG_WORDS[model]
    assert ids([text], tokenizer=tokenizer, special_tokens="none") == [wanted]
    assert ids([text], tokenizer=tokenizer, special_tokens="bos_eos") == [[1, *wanted, 2]]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    assert ids([text], tokenizer=tokenizer, special_tokens="tokenizer_default") == [[1, *wanted, 2]]
    operator = Tokenize(tokenizer, field="text")
    again = pickle.loads(pickle.dumps(operator))
    assert again.settings() == operator.settings()
    assert again.apply(texts([text]), Counter()).columns == operator.apply(texts([text]), Counter()).columns


def test_truncation_and_padding_of_the_tokenizer_are_off() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5, pad_id=7)
    assert ids(["abcd", "e"], tokenizer=tokenizer) == [[97, 98, 99, 100, 0], [101, 0]]
    own: Any = tokenizer
    assert (own.truncation["max_length"], own.padding["length"], own.encode_special_tokens) == (2, 5, False)
    plain = Tokenize(byte_tokenizer(), field="text").settings()
    assert Tokenize(tokenizer, field="text").settings() == plain


def test_splitting_cuts_the_bracketed_document() -> None:
    tally = Counter[str]()
    records = made({"text": pa.array(["abcde", "", "fg"], pa.large_string()), "name": ["x", "y", "z"]})
    operator = Tokenize(BYTES, field="text", special_tokens="bos_eos", max_length=3, keep_columns=["name"])
    assert placed(operator.apply(records, tally)) == [
        ({"input_ids": [257, 97, 98], "name": "x"}, 0, 0),
        ({"input_ids": [99, 100, 101], "name": "x"}, 0, 1),
        ({"input_ids": [0], "name": "x"}, 0, 2),
        ({"input_ids": [257, 0], "name": "y"}, 1, 0),
        ({"input_ids": [257, 102, 103], "name": "z"}, 2, 0),
        ({"input_ids": [0], "name": "z"}, 2, 1),
    ]
    assert tally == {}


def test_truncating_keeps_the_brackets_and_counts() -> None:
    tally = Counter[str]()
    assert ids(["abcde", "fg"], tally, special_tokens="bos_eos", max_length=4, on_long="truncate") == [
        [257, 97, 98, 0],
        [257, 102, 103, 0],
    ]
    assert tally == {"documents_truncated": 1, "tokens_dropped": 3}
    tokenizer = templated("<s> $A <|endoftext|>")
    settings: dict[str, Any] = {
        "tokenizer": tokenizer,
        "special_tokens": "tokenizer_default",
        "max_length": 3,
        "on_long": "truncate",
    }
    assert ids(["abcde"], **settings) == [[257, 97, 0]]


def test_dropping_counts() -> None:
    tally = Counter[str]()
    assert ids(["abcde", "fg", "hijkl"], tally, max_length=3, on_long="drop") == [[102, 103, 0]]
    assert tally == {"documents_dropped": 2, "tokens_dropped": 12}


def test_long_documents_as_errors() -> None:
    out, at, cause = run(
        Tokenize(BYTES, field="text", max_length=3, on_long="error", on_null="skip"), texts([None, "ab", "abcde", None])
    )
    assert (placed(out), at, type(cause)) == ([({"input_ids": [97, 98, 0]}, 1, 0)], 2, BadRecord)
    assert str(cause).startswith("tokenize: 6 tokens in column 'text', more than max_length=3; on_long=")


def test_null_text_is_never_the_word_none() -> None:
    out, at, cause = run(Tokenize(BYTES, field="text"), texts(["a", None]))
    assert (placed(out), at, type(cause)) == ([({"input_ids": [97, 0]}, 0, 0)], 1, BadRecord)
    assert str(cause).startswith("tokenize: column 'text' is missing or null; on_null='skip'")
    tally = Counter[str]()
    assert ids([None, "a", None], tally, on_null="skip") == [[97, 0]]
    assert tally == {"records_skipped_null": 2}
    assert ids([None, "a"], on_null="empty") == [[0], [97, 0]]
    nulls = made({"text": pa.nulls(2)})
    assert len(Tokenize(BYTES, field="text", on_null="skip").apply(nulls, Counter())) == 0


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_every_kind_of_text(kind: pa.DataType) -> None:
    out = Tokenize(BYTES, field="text").apply(made({"text": pa.array(["a", "b"], kind).slice(1)}), Counter())
    assert out.columns.to_pylist() == [{"input_ids": [98, 0]}]


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="column 'text' is binary, wanted text"):
        Tokenize(BYTES, field="text").apply(made({"text": [b"a"]}), Counter())


def test_contract() -> None:
    operator = Tokenize(BYTES, field="text", keep_columns=["name"])
    assert operator.token_column == "input_ids"
    assert operator.reads(frozenset({"input_ids"})) == operator.reads(None) == frozenset({"text", "name"})
    assert operator.requires() == {"text": "string", "name": "any"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "either tokenizer= or tokenizer_id="),
        ({"tokenizer": BYTES, "tokenizer_id": "gpt2"}, "either tokenizer= or tokenizer_id="),
        (
            {"tokenizer": BYTES, "special_tokens": "both"},
            "special_tokens is 'both': it must be one of 'eos', 'bos', 'bos_eos', 'none', 'tokenizer_default'",
        ),
        ({"tokenizer": BYTES, "on_long": "cut"}, "on_long is 'cut': it must be one of"),
        ({"tokenizer": BYTES, "on_null": None}, "on_null is None: it must be one of"),
        ({"tokenizer": BYTES, "max_length": 0}, "max_length is 0: it must be a whole number of at least 1, or None"),
        ({"tokenizer": BYTES, "max_length": 1}, "max_length=1 leaves no room for text beside 1 special tokens"),
        ({"tokenizer": BYTES, "field": 5}, "field= must be the name"),
        ({"tokenizer": BYTES, "keep_columns": "name"}, "keep_columns is 'name': it must be a list of names"),
        ({"tokenizer": BYTES, "keep_columns": ["input_ids"]}, "rename that column before"),
        ({"tokenizer": BYTES, "parallelism": 0}, "parallelism is 0"),
        ({"tokenizer": BYTES, "bos_token": 257}, "bos_token= has no use with special_tokens='eos'"),
        ({"tokenizer": BYTES, "special_tokens": "none", "eos_token": 0}, "eos_token= has no use"),
        ({"tokenizer": BYTES, "eos_token": "</s>"}, "the EOS token '</s>' of eos_token= is not in the vocabulary"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        Tokenize(**{"field": "text", **settings})


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    BYTES.save(str(tmp_path / "a.json"))
    BYTES.save(str(tmp_path / "b.json"), pretty=False)
    by_object = Tokenize(BYTES, field="text").settings()
    assert Tokenize(tokenizer_id=str(tmp_path / "a.json"), field="text", eos_token="<|endoftext|>").settings() == by_object
    assert Tokenize(tmp_path / "b.json", field="text", eos_token=0, parallelism=3).settings() == by_object
    assert Tokenize(byte_tokenizer(["th"]), field="text").settings()["tokenizer"] != by_object["tokenizer"]
    assert Tokenize(BYTES, field="text", eos_token=5).settings() == {**by_object, "eos": [5]}


def test_it_can_be_sent_to_another_process() -> None:
    operator = Tokenize(BYTES, field="text", max_length=3)
    again = pickle.loads(pickle.dumps(operator))
    assert again.settings() == operator.settings()
    assert again.apply(texts(["abcd"]), Counter()).columns == operator.apply(texts(["abcd"]), Counter()).columns


def test_the_tokenizer_may_change_afterwards() -> None:
    tokenizer = byte_tokenizer()
    operator = Tokenize(tokenizer, field="text")
    tokenizer.add_tokens(["ab"])
    assert operator.apply(texts(["ab"]), Counter()).columns.to_pylist() == [{"input_ids": [97, 98, 0]}]


def chunks(n: int) -> list[Records]:
    words = [f"thin{i} the {'hein' * (i % 7)}" for i in range(n)]
    return [texts(words[start : start + 50]) for start in range(0, n, 50)]


def test_sixteen_threads_agree_with_one_while_the_tokenizer_is_used_elsewhere() -> None:
    tokenizer = byte_tokenizer()
    operator = Tokenize(tokenizer, field="text")
    work = chunks(4000)
    wanted = [operator.apply(records, Counter()).columns for records in work]
    found: list[Any] = [None] * len(work)
    errors: list[BaseException] = []
    barrier = threading.Barrier(17)
    done = threading.Event()

    def tokenize(number: int) -> None:
        barrier.wait()
        try:
            for at in range(number, len(work), 16):
                found[at] = operator.apply(work[at], Counter()).columns
        except BaseException as error:
            errors.append(error)

    def use_it() -> None:
        barrier.wait()
        lengths = np.arange(1, 50)
        while not done.is_set():
            for length in lengths.tolist():
                tokenizer.enable_truncation(length)
                tokenizer.encode("the thin hein")

    threads = [threading.Thread(target=tokenize, args=(number,)) for number in range(16)]
    user = threading.Thread(target=use_it)
    for thread in (*threads, user):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    user.join()
    assert errors == []
    assert found == wanted
    assert not getattr(sys, "_is_gil_enabled", lambda: False)() or "free-threading" not in sys.version


def test_calls_use_no_threads_of_the_library_unless_asked_to() -> None:
    code = (
        f"import os, sys; sys.path[:0] = {sys.path!r}\n"
        "from made_rows import byte_tokenizer\n"
        "from zephon_async.operators.tokenize import Tokenize\n"
        "Tokenize(byte_tokenizer(), field='text'); print(os.environ['TOKENIZERS_PARALLELISM'])"
    )
    for given, wanted in ((None, "false"), ("true", "true")):
        environment = {} if given is None else {"TOKENIZERS_PARALLELISM": given}
        ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout.split() == [wanted]
