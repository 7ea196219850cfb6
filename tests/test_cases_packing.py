"""Cases D06 and E01 to E07: tokens in rows, the edges between documents, labels, and one tokenizer for many threads."""

import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import processors

from tests.taken import CASES, WAYS, batches, column, counted, expected, in_order, letters, of, said, written
from zephon_async import BadRecord, Dataset, Pipeline, RecipeError

each_way = pytest.mark.parametrize("way", WAYS)


def documents(*lengths: int) -> Dataset:
    """Documents of so many tokens: 10.., 20.., 30.., ..."""
    return Dataset.from_dict("d", {"input_ids": [[10 * (n + 1) + i for i in range(length)] for n, length in enumerate(lengths)]})


def listed(made: dict[str, Any], name: str) -> Any:
    return np.asarray(made[name]).tolist()


# E01, E07


@each_way
def test_positions_and_edges_of_every_row(way: dict[str, Any]) -> None:
    right, labels = expected("E01"), expected("E07")
    for case in ("E01", "E07"):
        source = in_order(of(CASES / case / "docs.jsonl"), epochs=2)
        (batch,) = batches(Pipeline(source).options(**way).pack_flat(max_length=8).batch(2))
        made = batch.to_training()
        assert listed(made, "input_ids") == [right["input_ids"]] * 2
        assert listed(made, "positions") == [right["position_ids"]] * 2
        assert listed(made, "document_ids") == [right["document_ids"]] * 2
        assert listed(made, "cu_seqlens") == [right["cumulative_lengths"]] * 2
        assert listed(made, "labels") == [labels["labels_isolated"]] * 2
        assert listed(made, "loss_mask") == [[float(label != -100) for label in labels["labels_isolated"]]] * 2
        across = [-100 if label is None else label for label in labels["labels_not_isolated"]]
        assert listed(batch.to_training(labels_across_documents=True), "labels") == [across] * 2
        flat = batch.to_training(flatten=True)
        assert listed(flat, "cu_seqlens") == [0, 3, 5, 8, 11, 13, 16]
        assert listed(flat, "labels") == labels["labels_isolated"] * 2


@each_way
def test_documents_that_go_on_in_the_next_row(way: dict[str, Any]) -> None:
    (batch,) = batches(Pipeline(in_order(documents(3, 7, 1, 1))).options(**way).pack_flat(4).batch(3))
    made = batch.to_training()
    assert listed(made, "input_ids") == [[10, 11, 12, 20], [21, 22, 23, 24], [25, 26, 30, 40]]
    assert listed(made, "document_ids") == [[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 2]]
    assert listed(made, "positions") == [[0, 1, 2, 0], [0, 1, 2, 3], [0, 1, 0, 0]]
    assert listed(batch.to_training(position_mode="continue"), "positions") == [[0, 1, 2, 0], [1, 2, 3, 4], [5, 6, 0, 0]]
    assert listed(made, "labels") == [[11, 12, -100, 21], [22, 23, 24, 25], [26, -100, -100, -100]]
    assert listed(batch.to_training(labels_across_documents=True), "labels") == [
        [11, 12, 20, 21],
        [22, 23, 24, 25],
        [26, 30, 40, -100],
    ]


# E02


def test_no_token_of_a_long_document_is_lost() -> None:
    right = expected("E02")
    found, counts = counted(Pipeline(in_order(of(CASES / "E02/docs.jsonl"))).pack_flat(4).batch(1))
    rows = [[token for token, real in zip(*pair, strict=True) if real] for pair in real_tokens(found)]
    assert rows == right["concatenated"]
    assert counts == {"padding_tokens": 3}
    huge = Pipeline(in_order(of(CASES / "E02/one-huge-doc.jsonl"))).pack_flat(4).batch(2)
    assert sum(sum(real) for _, real in real_tokens(batches(huge))) == right["tokens_huge"]


def real_tokens(found: Any) -> list[tuple[list[int], list[bool]]]:
    out: list[tuple[list[int], list[bool]]] = []
    for batch in found:
        made = batch.to_training()
        out += zip(listed(made, "input_ids"), (~np.asarray(made["padding_mask"])).tolist(), strict=True)
    return out


@each_way
@pytest.mark.parametrize(
    ("on_long", "tokens", "counts"),
    [
        ("truncate", [10, 3], [{"documents_truncated": 1, "tokens_dropped": 3}, {"documents_truncated": 1, "tokens_dropped": 996}]),
        ("drop", [6, 0], [{"documents_dropped": 1, "tokens_dropped": 7}, {"documents_dropped": 1, "tokens_dropped": 1000}]),
    ],
)
def test_cutting_is_asked_for_and_counted(
    on_long: str, tokens: list[int], counts: list[dict[str, int]], way: dict[str, Any]
) -> None:
    names = ("docs", "one-huge-doc")
    dropped = []
    for name, dropped_here in zip(names, counts, strict=True):
        pipeline = Pipeline(in_order(of(CASES / f"E02/{name}.jsonl"))).options(**way).pack_flat(4, on_long=on_long).batch(1)
        found, counted_ = counted(pipeline)
        assert {key: value for key, value in counted_.items() if key != "padding_tokens"} == dropped_here
        real = sum(sum(mask) for _, mask in real_tokens(found))
        assert real + dropped_here["tokens_dropped"] == (13 if name == "docs" else 1000)
        dropped.append(dropped_here["tokens_dropped"])
    if on_long == "truncate":
        assert dropped == expected("E02")["dropped_if_cut"]


def test_long_documents_can_be_an_error() -> None:
    message = said(Pipeline(in_order(of(CASES / "E02/docs.jsonl"))).pack_flat(4, on_long="error").batch(1), BadRecord)
    assert "shard 'docs.jsonl', line 1" in message
    assert "7 tokens, more than max_length=4" in message


def test_the_tokenizer_cuts_only_where_asked(tmp_path: Path) -> None:
    made = of(written(tmp_path / "d.jsonl", {"text": "a" * 9}, {"text": "b"}))
    for on_long, right, counts in (
        ("split", [[97] * 4, [97] * 4, [97, 0], [98, 0]], {}),
        ("truncate", [[97, 97, 97, 0], [98, 0]], {"documents_truncated": 1, "tokens_dropped": 6}),
        ("drop", [[98, 0]], {"documents_dropped": 1, "tokens_dropped": 10}),
    ):
        found, counted_ = counted(
            Pipeline(in_order(made)).tokenize(letters(), field="text", max_length=4, on_long=on_long).batch(1)
        )
        assert column(found, "input_ids") == right
        assert counted_ == counts
    pipeline = Pipeline(in_order(made)).tokenize(letters(), field="text", max_length=4, on_long="error").batch(1)
    assert "shard 'd.jsonl', line 1" in said(pipeline, BadRecord)


# E03


@each_way
def test_the_rest_is_padded_out_of_the_loss(way: dict[str, Any]) -> None:
    right, source = expected("E03"), in_order(of(CASES / "E03/docs.jsonl"))
    found, counts = counted(Pipeline(source).options(**way).pack_flat(4, pad_id=99).batch(1))
    assert column(found, "input_ids") == [*right["full_rows"], [*right["rest"], 99, 99]]
    assert len(found) == right["rows"]["keep"]
    assert counts == {"padding_tokens": 2}
    last = found[-1].to_training()
    assert listed(last, "loss_mask") == [[1, 0, 0, 0]]
    assert listed(last, "padding_mask") == [[False, False, True, True]]
    assert listed(last, "labels") == [[10, -100, -100, -100]]


@each_way
def test_a_rest_of_rows_is_counted_or_filled(way: dict[str, Any]) -> None:
    source = in_order(of(CASES / "E03/docs.jsonl"))
    found, counts = counted(Pipeline(source).options(**way).pack_flat(4).batch(2))
    assert column(found, "input_ids") == expected("E03")["full_rows"]
    assert counts == {"padding_tokens": 2, "rows_left": 1}
    found, counts = counted(Pipeline(source).options(**way, on_end="pad").pack_flat(4, pad_id=99).batch(2))
    assert [batch.mask.tolist() for batch in found] == [[True, True], [True, False]]
    made = found[1].to_training()
    assert listed(made, "input_ids") == [[9, 10, 99, 99], [99] * 4]
    assert listed(made, "loss_mask") == [[1, 0, 0, 0], [0, 0, 0, 0]]


# E04


TEMPLATES = {
    "nothing": None,
    "bos": processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)]),
    "eos": processors.TemplateProcessing("$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]),
    "both": processors.TemplateProcessing("<s> $A <|endoftext|>", special_tokens=[("<s>", 1), ("<|endoftext|>", 0)]),
}
BRACKETS = {
    "eos": [97, 98, 0, 0, 99, 0],
    "bos": [1, 97, 98, 1, 1, 99],
    "bos_eos": [1, 97, 98, 0, 1, 0, 1, 99, 0],
    "none": [97, 98, 99],
}


@each_way
@pytest.mark.parametrize("template", TEMPLATES)
def test_one_bracket_at_every_edge(template: str, way: dict[str, Any]) -> None:
    source = in_order(of(CASES / "E04/docs.jsonl"))
    assert BRACKETS["eos"] == expected("E04")["with_ids_a97_b98_c99_eos0"]["keep_empty"]
    brackets = BRACKETS | {"tokenizer_default": BRACKETS[{"nothing": "none", "both": "bos_eos"}.get(template, template)]}
    for special_tokens, right in brackets.items():
        tokenizer = letters(TEMPLATES[template])
        pipeline = Pipeline(source).options(**way).tokenize(tokenizer, field="text", special_tokens=special_tokens)
        found = batches(pipeline.batch(1))
        assert [token for row in column(found, "input_ids") for token in row] == right
    packed = batches(Pipeline(source).options(**way).tokenize(letters(TEMPLATES[template]), field="text").pack_flat(6).batch(1))
    assert column(packed, "input_ids") == [BRACKETS["eos"]]


def test_the_name_of_a_special_token_in_a_text_is_text() -> None:
    tokenizer = letters()
    tokenizer.add_special_tokens(["<|endoftext|>", "<s>"])
    text = "<s>a<|endoftext|>"
    found = batches(Pipeline(in_order(Dataset.from_dict("d", {"text": [text]}))).tokenize(tokenizer, field="text").batch(1))
    assert column(found, "input_ids") == [[*map(ord, text), 0]]


# E05


@each_way
@pytest.mark.parametrize("length", [8, 5, 3, 9])
def test_there_is_exactly_one_shift(length: int, way: dict[str, Any]) -> None:
    right = expected("E05")
    found = batches(Pipeline(in_order(of(CASES / "E05/docs.jsonl"))).options(**way).pack_flat(length).batch(1))
    pairs = []
    for batch in found:
        made = batch.to_training()
        pairs += [(a, b) for a, b in zip(listed(made, "input_ids")[0], listed(made, "labels")[0], strict=True) if b != -100]
    assert pairs == list(zip(right["inputs"], right["labels_shifted"], strict=True))
    if length == 8:
        first = found[0].to_training()
        assert listed(first, "input_ids") == [right["inputs"]]
        assert listed(first, "labels") == [right["labels_shifted"]]


def test_labels_without_packing() -> None:
    (batch,) = batches(Pipeline(in_order(documents(3, 1, 2))).batch(3))
    made = batch.to_training()
    assert listed(made, "labels") == [[11, 12, -100], [-100] * 3, [31, -100, -100]]
    assert listed(made, "padding_mask") == [[False] * 3, [False, True, True], [False, False, True]]


# D06


def test_one_tokenizer_for_sixteen_threads() -> None:
    tokenizer = letters()
    texts = [("abc " * (n % 40 + 1))[: n % 90] for n in range(4000)]
    made = Dataset.from_dict("d", {"text": texts})
    cuts: list[dict[str, Any]] = [
        {},
        {"max_length": 8, "on_long": "truncate"},
        {"max_length": 30, "on_long": "truncate"},
        {"max_length": 5},
    ]

    def tokens(cut: dict[str, Any], **options: Any) -> list[list[int]]:
        pipeline = Pipeline(in_order(made)).options(**options).tokenize(tokenizer, field="text", **cut)
        return column(batches(pipeline.batch(50)), "input_ids")

    alone = [tokens(cut, runner="inline") for cut in cuts]
    assert alone[0][:50] == [[*map(ord, text), 0] for text in texts[:50]]
    with ThreadPoolExecutor(len(cuts) + 1) as threads:
        running = [threads.submit(tokens, cut, runner="threads", workers=16, chunk_rows=16) for cut in cuts]
        for n in range(200):  # the user's own use of it, settings and all, at the same time
            tokenizer.enable_truncation(n % 7 + 1)
            assert len(tokenizer.encode("abcdefghij").ids) == n % 7 + 1
        assert [each.result() for each in running] == alone
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert not getattr(sys, "_is_gil_enabled")()  # noqa: B009 (older Pythons do not have it)


@pytest.mark.parametrize(
    "settings", [{"max_length": 0}, {"max_length": 1.5}, {"max_length": True}, {"algorithm": "x"}, {"pad_id": 1 << 31}]
)
def test_packing_that_cannot_be_meant(settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="pack_flat"):
        Pipeline(in_order(documents(1))).pack_flat(**{"max_length": 4, **settings})
