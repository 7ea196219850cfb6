"""The source of users' functions and operators is in the recipe, how it is written is not; a changed one can be called equal."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from tests.conftest import Load
from tests.taken import taken
from zephon_async import CheckpointError, Dataset, Pipeline, RecipeError, StaticMixtureWorkSource, inspect_checkpoint

LAMBDAS = """
    import pyarrow as pa
    from zephon_async import Pipeline

    def make(source):
        return Pipeline(source).options(lanes=2).map(lambda row: {"n": row["n"] + 1}, schema={"n": pa.int64()}).filter(lambda row: row["n"] > 3).batch(1)
"""  # noqa: E501
REWRITTEN = """
    import pyarrow as pa

    import zephon_async

    def make(source):
        return (
            zephon_async.Pipeline(source)
            .options(lanes=2, prefetch=1)
            .map(
                lambda row: {
                    'n': row['n'] + 1,  # one more
                },
                schema={"n": pa.int64()},
            )
            .filter((lambda row: row["n"]
                     > 3), parallelism=2)
            .batch(1)
        )
"""


def source(name: str = "d", rows: int = 24) -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource([Dataset.from_dict(name, {"n": list(range(rows))})], {name: 1}, seed=1)


def digests(pipeline: Pipeline) -> list[str]:
    return [batch.digest() for batch in pipeline]


def state_of(pipeline: Pipeline, steps: int = 2) -> bytes:
    with pipeline:
        taken(pipeline, 2 * steps)
        return pipeline.checkpoint()


def refusal(pipeline: Pipeline, state: bytes | Sequence[bytes], **how: Any) -> list[str]:
    """The lines of what is said against a checkpoint."""
    with pipeline, pytest.raises(CheckpointError) as caught:
        pipeline.restore(state, **how)
    return str(caught.value).splitlines()[1:]


def changed(name: str) -> str:
    allow = "restore(..., allow_changed_source=True) if it gives the same data"
    return f"the source of made_module:{name} has changed (put it back, or {allow})"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lanes=2)", "lanes=2, workers=3, runner='threads')"),
        ("lanes=2)", "lanes=2, memory_budget='64MiB')"),
        ("schema=", "parallelism=2, schema="),
        (LAMBDAS, REWRITTEN),
    ],
)
def test_performance_settings_beside_a_lambda_and_how_it_is_written(old: str, new: str, load: Load) -> None:
    with load(LAMBDAS).make(source()) as pipeline:
        whole = digests(pipeline)
    state = state_of(load(LAMBDAS).make(source()))
    with load(LAMBDAS.replace(old, new)).make(source()) as pipeline:
        assert digests(pipeline.restore(state)) == whole[4:]


def test_the_number_of_ranks_beside_a_lambda(load: Load) -> None:
    state = state_of(load(LAMBDAS).make(source()))
    two = LAMBDAS.replace("lanes=2", "lanes=2, dp_size=2, dp_rank=1, agree=int")
    with load(two).make(source()) as pipeline:
        pipeline.restore([state])


def test_a_changed_source_is_refused_and_can_be_allowed(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    with load(LAMBDAS).make(source()) as pipeline:
        whole = digests(pipeline)
    state = state_of(load(LAMBDAS).make(source()))
    other = LAMBDAS.replace('row["n"] + 1', '1 + row["n"]')
    assert refusal(load(other).make(source()), state) == [f"  1 map source: {changed('make.<locals>.<lambda>')}"]
    assert caplog.text == ""
    with load(other).make(source()) as pipeline:
        assert digests(pipeline.restore([state, state], allow_changed_source=True)) == whole[4:]
        new = pipeline.restore(state, allow_changed_source=True).checkpoint()
    assert caplog.messages == 2 * [
        "the source of made_module:make.<locals>.<lambda> (1 map source) is not that of the checkpoint; allow_changed_source says "
        "that the data is the same"
    ]
    with load(other).make(source()) as pipeline:
        assert digests(pipeline.restore(new)) == whole[4:]
    assert len(refusal(load(LAMBDAS).make(source()), new)) == 1
    with (
        load(LAMBDAS).make(source()) as pipeline,
        pytest.raises(RecipeError, match="allow_changed_source is 1: it must be True or"),
    ):
        pipeline.restore(state, allow_changed_source=1)


def test_nothing_else_is_allowed_with_it(load: Load) -> None:
    state = state_of(load(LAMBDAS).make(source()))
    other = LAMBDAS.replace('row["n"] + 1', '1 + row["n"]')
    found = refusal(load(other.replace("batch(1)", "batch(2)")).make(source()), state, allow_changed_source=True)
    assert found == [
        f"  1 map source: {changed('make.<locals>.<lambda>')}",
        "  microbatch_size: 1 in the checkpoint, 2 here",
    ]
    named = "def two(row):\n    return {'n': row['n'] + 1}\n" + LAMBDAS.replace("\n    ", "\n")
    renamed = named.replace('lambda row: {"n": row["n"] + 1}', "two")
    found = refusal(load(renamed).make(source()), state, allow_changed_source=True)
    assert [line.split(":")[0] for line in found] == ["  1 map function", "  1 map source"]


def test_a_dataset_may_be_named_as_if_it_were_a_source(load: Load) -> None:
    state = state_of(load(LAMBDAS).make(source("x source", 24)))
    [line] = refusal(load(LAMBDAS).make(source("x source", 25)), state, allow_changed_source=True)
    assert line.startswith("  dataset x source: other content (")


SUMS = """
    import pyarrow as pa
    from zephon_async import Pipeline

    def init():
        return []

    def push(state, row):
        state.append(row["n"])

    def flush(state):
        return [{"n": sum(state)}]

    def make(source):
        return Pipeline(source).options(lanes=2, flush_every=4).accumulate(init, push, flush, schema={"n": pa.int64()}).batch(1)
"""


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("init", "return []", "return list()"), ("push", "append(", "append(0 + "), ("flush", "sum(state)", "sum(list(state))")],
)
def test_each_function_of_accumulate_has_a_source(name: str, old: str, new: str, load: Load) -> None:
    with load(SUMS).make(source()) as pipeline:
        whole = digests(pipeline)
    state = state_of(load(SUMS).make(source()), 1)
    other = SUMS.replace(old, new)
    assert refusal(load(other).make(source()), state) == [f"  1 accumulate {name} source: {changed(name)}"]
    with load(other).make(source()) as pipeline:
        assert digests(pipeline.restore(state, allow_changed_source=True)) == whole[2:]


OWN = """
    from zephon_async import Pipeline, Operator

    class Base(Operator):
        def apply(self, records, tally):
            return records.slice(0, len(records))

    class Keep(Base):
        name = "keep"

        def settings(self):
            return {"source": "a"}

    def make(source):
        return Pipeline(source).options(lanes=2).apply(Keep()).batch(1)
"""


def test_the_class_of_an_operator_of_ones_own_has_a_source(load: Load) -> None:
    with load(OWN).make(source()) as pipeline:
        whole = digests(pipeline)
    state = state_of(load(OWN).make(source()))
    with load(OWN.replace('name = "keep"', "'keeps'\n\n        name = 'keep'  # why")).make(source()) as pipeline:
        assert digests(pipeline.restore(state)) == whole[4:]
    for old, new in (("records.slice(0, len(records))", "records"), ("    name =", "    unused = 1\n        name =")):
        other = OWN.replace(old, new)
        assert refusal(load(other).make(source()), state) == [f"  1 keep class source: {changed('Keep')}"]
        with load(other).make(source()) as pipeline:
            assert digests(pipeline.restore(state, allow_changed_source=True)) == whole[4:]
    own = refusal(load(OWN.replace('"source": "a"', '"source": "b"')).make(source()), state, allow_changed_source=True)
    assert own == ["  1 keep class source: " + changed("Keep"), "  1 keep source: 'a' in the checkpoint, 'b' here"]


def typed_in(text: str, **names: str) -> Any:
    """What is called `typed` in a text that no file holds."""
    made: dict[str, Any] = names or {"__name__": "made_module"}
    exec(text, made)
    return made["typed"]


def test_what_has_no_source_and_no_version_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def start(*functions: Any, options: dict[str, Any] | None = None, **settings: Any) -> bytes:
        pipeline = Pipeline(source()).options(**(options or {})).filter(bool)
        for fn in functions:
            pipeline.filter(fn, **settings)
        with pipeline.batch(1):
            taken(pipeline, 3)
            return pipeline.checkpoint()

    def readable(row: Any) -> bool:
        return True

    typed, text = typed_in("def typed(row):\n    return True\n"), "the source of made_module:typed cannot be read, so a checkpoint"
    start(readable)
    start(typed, version=1)
    start(typed, options={"version": "a"})
    assert caplog.text == ""
    state = start(typed, typed)
    assert inspect_checkpoint(state).recipe["2 filter source"] is None
    assert [message.startswith(text) for message in caplog.messages] == [True]
    assert "give version=" in caplog.text
    own = typed_in("from zephon_async import Operator\nclass typed(Operator):\n    def apply(self, records, tally): return records")
    with Pipeline(source()).apply(own()).batch(1) as pipeline:
        taken(pipeline, 1)
    assert [message.startswith(text) for message in caplog.messages] == [True, True]
    start(typed_in("def typed(row):\n    return True\n", unnamed="module"))
    assert caplog.messages[2].startswith("the source of builtins:typed cannot be read")


def test_a_source_that_is_only_read_on_one_side(load: Load) -> None:
    text = "def typed(row):\n    return True\n"
    allow = "so it may have changed (restore(..., allow_changed_source=True) if it gives the same data)"

    def make(fn: Any) -> Pipeline:
        return Pipeline(source()).filter(fn).batch(1)

    for first, second, where in (
        (typed_in(text), load(text).typed, "where the checkpoint was made"),
        (load(text).typed, typed_in(text), "here"),
    ):
        state = state_of(make(first))
        told = f"the source of made_module:typed could not be read {where}, {allow}"
        assert refusal(make(second), state) == [f"  1 filter source: {told}"]
        with make(second) as pipeline:
            pipeline.restore(state, allow_changed_source=True)


def test_the_log_has_one_line_for_the_states_of_all_ranks(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    def rank(text: str, r: int) -> Pipeline:
        return load(text.replace("lanes=2", f"lanes=2, dp_size=2, dp_rank={r}, agree=int")).make(source())  # type: ignore[no-any-return]

    states = []
    for r in range(2):
        with rank(LAMBDAS, r) as pipeline:
            taken(pipeline, 2)
            states.append(pipeline.checkpoint())
    other = LAMBDAS.replace('row["n"] + 1', '1 + row["n"]')
    with caplog.at_level(logging.WARNING), load(other).make(source()) as pipeline:
        pipeline.restore(states, allow_changed_source=True)
    assert len(caplog.messages) == 1
