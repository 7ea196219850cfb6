"""The reference's names do what they did there, or say what there is instead."""

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tests.made_rows import byte_tokenizer
from tests.taken import in_order
from zephon_async import Dataset, Operator, Pipeline, RecipeError
from zephon_async.operators import Accumulate, Map, MapTransform, Tally, ValidationReport
from zephon_async.records import Records
from zephon_async.reference_names import SETTINGS

ROWS = Dataset.from_dict("d", {"text": ["a b", "c", "d e f", "g"], "n": [0, 1, 2, 3]})


def begun(**options: Any) -> Any:
    return Pipeline(in_order(ROWS, epochs=1)).options(runner="inline", **options)


def added(pipeline: Any) -> Operator:
    """The operator that was added last."""
    operator: Operator = pipeline._operators[-1]
    return operator


def said(call: Any, *given: Any, **settings: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        call(*given, **settings)
    return str(caught.value)


def values(pipeline: Any, name: str) -> list[Any]:
    with pipeline.batch(1) as started:
        return [value for batch in started for value in batch.to_pylist(name)]


TOKENIZE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"missing_field": "empty"}, {"on_null": "empty"}),
    ({"missing_field": "error"}, {}),
    ({"max_length": 3, "truncation": True}, {"max_length": 3, "on_long": "truncate"}),
    ({"max_length": 3, "split_long_samples": True, "truncation": False}, {"max_length": 3, "on_long": "split"}),
    (
        {"special_tokens": "bos_eos", "bos_token_id": 3, "eos_token_id": 5},
        {"special_tokens": "bos_eos", "bos_token": 3, "eos_token": 5},
    ),
    ({"add_attention_mask": False, "padding": False, "return_tensors": None, "use_fast": True}, {}),
    ({"preserve_upstream_payload": False, "parallelism": 3, "placement": "local"}, {"parallelism": 3}),
]


@pytest.mark.parametrize(("theirs", "ours"), TOKENIZE)
def test_tokenize(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    one, other = (added(begun().tokenize(byte_tokenizer(), field="text", **each)) for each in (theirs, ours))
    assert (one.settings(), one.parallelism) == (other.settings(), other.parallelism)


def test_the_other_methods_of_both() -> None:
    def same(method: str, given: Any, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
        one, other = (added(getattr(begun(), method)(*given, **each)) for each in (theirs, ours))
        assert one.settings() == other.settings()

    bins = {"algorithm": "first_fit", "num_bins": 3, "max_sequences_per_bin": 2, "homogeneity": "full", "flush_strategy": "fullest"}
    here = {"algorithm": "first_fit", "num_bins": 3, "max_sequences_per_row": 2, "homogeneity": "dataset"}
    plain = {"tokens_field": "auto", "min_sequence_length": 1, "candidate_pool_size": 1024, "max_candidate_age": 8192}
    same("pack_flat", (8,), bins | plain | {"pad_token_id": 7, "emit_positions": True}, here | {"pad_id": 7})
    same("pack_flat", (8,), {"tokens_field": "ids", "drop_oversized": True}, {"field": "ids", "on_long": "drop"})
    same("pack_sequences", (8,), {"drop_oversized": False, "pack_payloads": "keep_list"}, {"on_long": "error"})
    same("shuffle", (), {"algorithm": "block", "seed": 1}, {"seed": 1})
    same("ensure_mixture", (), {"weight_by": "auto", "warn_tolerance": None}, {})
    same("decode_text", (), {"max_batch": 128, "lowercase": True}, {"lowercase": True})
    chat = (byte_tokenizer(),)
    template = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}", "span_source": "prefix_diff"}
    same("tokenize_chat", chat, template | {"loss_scope": "last_span"}, template | {"loss_scope": "last_assistant"})
    same("tokenize_chat", chat, template | {"loss_on_last_turn_only": True}, template | {"loss_scope": "last_assistant"})
    same("tokenize_chat", chat, template | {"mask_field_out": "loss_mask", "loss_scope": None}, template)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("tokenize", {"add_attention_mask": True}, "to_training(return_padding_mask=True)"),
    ("tokenize", {"padding": "max_length"}, "pack_flat(max_length)"),
    ("tokenize", {"return_tensors": "pt"}, "batch.to_training()"),
    ("tokenize", {"use_fast": False}, "fast tokenizers only"),
    ("tokenize", {"preserve_upstream_payload": True}, "keep_columns="),
    ("tokenize", {"missing_field": "skip"}, "on_null="),
    ("tokenize", {"placement": "remote"}, "runner="),
    ("tokenize", {"placement": ["local"]}, "runner="),
    ("tokenize_chat", {"apply_chat_template": False}, "tokenize_completion()"),
    ("tokenize_chat", {"mask_field_out": "mask"}, "to_training(rename"),
    ("tokenize_chat", {"eos_token": "</s>"}, "chat_template="),
    ("pack_flat", {"min_sequence_length": 8}, "a row is closed when it is full"),
    ("pack_flat", {"flush_strategy": "fifo"}, "the fullest goes out"),
    ("pack_flat", {"shuffle_strategy": "random"}, "shuffle() behind it"),
    ("pack_sequences", {"length_fn": len}, "field="),
    ("pack_sequences", {"pack_payloads": "torch_tensor"}, "map_batches()"),
    ("shuffle", {"algorithm": "streaming"}, "windows of buffer_size rows"),
    ("ensure_mixture", {"weight_by": "samples"}, "unit='samples'"),
    ("decode_text", {"max_batch": 7}, "options(chunk_rows=)"),
]


@pytest.mark.parametrize(("method", "settings", "instead"), REFUSED)
def test_settings_that_are_refused(method: str, settings: dict[str, Any], instead: str) -> None:
    (name, value), given = next(iter(settings.items())), {"pack_flat": (8,), "pack_sequences": (8,)}.get(method, ())
    message = said(getattr(begun(), method), *given, **settings)
    assert message.startswith(f"{method}(): {name}={value!r} is not done here: ")
    assert instead in message


def test_two_names_of_one_setting() -> None:
    message = "tokenize() was given 'on_long' twice: 'split_long_samples' is another name of it"
    assert said(begun().tokenize, byte_tokenizer(), field="text", truncation=True, split_long_samples=True) == message


def test_every_setting_of_the_table_has_a_place_or_a_word() -> None:
    for meant in (each for several in SETTINGS.values() for each in several.values()):
        assert meant.ours or meant.instead


def even(row: dict[str, Any]) -> dict[str, Any] | None:
    return {"n": row["n"] * 10} if row["n"] % 2 == 0 else None


def test_map_transform() -> None:
    pipeline = begun().map_transform(even, parallelism=2)
    assert (type(added(pipeline)), added(pipeline).parallelism) == (MapTransform, 2)
    with pipeline.batch(1) as started:
        assert [(batch.to_pylist("n"), batch.documents()[0][0].row) for batch in started] == [([0], 0), ([20], 2)]
        assert started.statistics().counts["records_filtered"] == 2
    assert type(added(begun().map_transform(even, drop_none=False))) is Map
    with pytest.raises(TypeError, match="gave NoneType None, wanted a dict"):
        values(begun().map_transform(even, False), "n")
    assert "map_transform: drop_none is 1" in said(begun().map_transform, even, 1)


def test_map_batch_names_ours() -> None:
    assert "use map_batches(fn, rows=n) before batch()" in said(begun().map_batch, even)


def push(state: list[int], row: dict[str, Any]) -> Iterable[dict[str, Any]]:
    state.append(row["n"])
    if len(state) == 3:
        yield {"sum": sum(state)}
        state.clear()


def rest(state: list[int]) -> list[dict[str, Any]]:
    return [{"sum": -sum(state)}] if state else []


def test_stateful_transform() -> None:
    pipeline = begun().stateful_transform("sums", list, push, rest, parallelism=1, preserves_cursor_order=False)
    assert (type(added(pipeline)), added(pipeline).name, Accumulate.name) == (Accumulate, "sums", "accumulate")
    assert values(pipeline, "sum") == [3, -3]
    for name, value, instead in (
        ("should_flush", len, "push gives out"),
        ("transform", len, "map(fn)"),
        ("parallelism", 4, "one state per lane"),
        ("indexable", True, "in order"),
    ):
        message = said(begun().stateful_transform, "sums", list, push, rest, **{name: value})
        assert message.startswith(f"stateful_transform(): {name}= is not here: ")
        assert instead in message
    assert "knows no 'schem'; did you mean 'schema'?" in said(begun().stateful_transform, "sums", list, push, schem=3)


class Twice(Operator):
    name = "twice"

    def apply(self, records: Records, tally: Tally) -> Records:
        return records.take(np.repeat(np.arange(len(records)), 2))


def test_add_op() -> None:
    operator = Twice()
    assert values(begun().add_op(operator), "n") == [0, 0, 1, 1, 2, 2, 3, 3]
    renamed = added(begun().add_op(operator, "doubled"))
    assert (renamed.name, operator.name) == ("doubled", "twice")
    pipeline = begun().add_op("evens", process_one=even, preserves_cursor_order=True, indexable=False, columns=["n"])
    assert (added(pipeline).name, MapTransform.name) == ("evens", "map_transform")
    assert values(pipeline, "n") == [0, 20]
    assert "use map_batches(fn)" in said(begun().add_op, "x", process_many=even)
    assert "use accumulate(init, push, flush)" in said(begun().add_op, "x", accumulator=even)
    assert "use check_operator(fn, samples)" in said(begun().add_op, "x", process_one=even, validation_samples=[1])
    assert "takes an operator" in said(begun().add_op, "x")
    assert "takes an operator" in said(begun().add_op, 5)
    assert "the name of an operator must be a text" in said(begun().add_op, operator, 5)
    assert "knows no 'column'; did you mean 'columns'?" in said(begun().add_op, "x", process_one=even, column=["n"])


def test_hints_change_nothing_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pipeline = (
        begun().fetch(4, max_batch=64).fetch_parallelism(parallelism=2).prefetch(buffer_size=9, placement="auto").materialize()
    )
    assert [message.partition(" ")[0] for message in caplog.messages] == ["fetch()", "fetch()", "prefetch()"]
    assert values(pipeline, "n") == [0, 1, 2, 3]
    assert "runner=" in said(begun().prefetch, placement="remote")
    assert begun().preflight_tokenizers() == ValidationReport(())


def test_options_of_the_reference() -> None:
    options = begun(prefetch_batches=3, auto_validation="off")._options
    assert (options.prefetch, options.validate) == (3, "off")
