"""The mixture of tokens against a slow oracle, and what it promises of every window."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recipes import Recipe, seen
from zephon_async import Batch, Dataset, Pipeline, StaticMixtureWorkSource
from zephon_async.errors import RecipeError
from zephon_async.lanes import Cursor, RankState, Topology
from zephon_async.operators.ensure_mixture import EnsureMixture
from zephon_async.records import ORIGIN, Origins, Records


class Document(NamedTuple):
    dataset: int
    tokens: int


DOCUMENTS = st.lists(st.builds(Document, st.integers(0, 2), st.one_of(st.integers(0, 9), st.integers(50, 80))), max_size=60)
TARGETS = st.fixed_dictionaries({name: st.integers(1, 7) for name in "abc"})


def as_records(documents: Sequence[Document]) -> Records:
    origins = np.zeros(len(documents), ORIGIN)
    origins["row"], origins["dataset"], origins["stop"] = np.arange(len(documents)), [d.dataset for d in documents], -1
    columns = {
        "input_ids": pa.array([[i] * d.tokens for i, d in enumerate(documents)], pa.list_(pa.int32())),
        "number": pa.array(range(len(documents)), pa.int64()),
    }
    return Records(pa.RecordBatch.from_pydict(columns), Origins(origins))


def rows_of(records: Records | None) -> list[int]:
    """The numbers of the rows, each of which is whole."""
    if records is None:
        return []
    numbers: list[int] = records.columns.column("number").to_pylist()
    assert records.origins.segments["row"].tolist() == numbers
    assert all(set(ids) <= {number} for ids, number in zip(records.columns.column("input_ids").to_pylist(), numbers, strict=True))
    return numbers


def mixed(operator: EnsureMixture, segments: Sequence[Sequence[Document]]) -> tuple[list[list[int]], Counter[str]]:
    """What comes out in each segment, pushed in parcels of 7, and what is counted."""
    accumulator, tally, out = operator.accumulator(0, 0), Counter[str](), list[list[int]]()
    for documents in segments:
        records, rows = as_records(documents), list[int]()
        for start in range(0, len(records), 7):
            rows += rows_of(accumulator.push(records.slice(start, min(start + 7, len(records))), 0, tally)[0])
        out.append(rows + rows_of(accumulator.flush(tally)))
    return out, tally


def oracle(operator: EnsureMixture, segments: Sequence[Sequence[Document]]) -> tuple[list[list[int]], Counter[str]]:
    """The same, one document at a time, in fractions: everything that waits is looked at after every document."""
    shares = [Fraction(weight, sum(operator.target.values())) for weight in operator.target.values()]
    given, out, tally = [0] * len(shares), list[list[int]](), Counter[str]()

    def reached() -> list[int]:
        return [int(tokens / share // operator.window_tokens) for tokens, share in zip(given, shares, strict=True)]

    def held() -> int:
        return sum(max(size, 1) for *_, size in waiting)

    for documents in segments:
        rows, waiting = list[int](), list[tuple[int, int, int]]()
        for row, (d, tokens) in enumerate(documents):
            if (
                operator.on_overflow == "drop"
                and reached()[d] > min(reached())
                and held() + max(tokens, 1) > operator.buffer_tokens
            ):
                tally.update({"documents_dropped": 1, "tokens_dropped": tokens})
                continue
            waiting.append((int((given[d] + Fraction(tokens, 2)) / shares[d] // operator.window_tokens), row, tokens))
            given[d] += tokens
            due = sorted(one for one in waiting if one[0] <= min(reached()))
            rows += [number for _, number, _ in due]
            waiting = [one for one in waiting if one not in due]
            while held() > operator.buffer_tokens:
                oldest = min(waiting, key=lambda one: one[1])
                waiting.remove(oldest)
                rows.append(oldest[1])
                tally.update({"documents_off_target": 1, "tokens_off_target": oldest[2]})
        tally["documents_flushed"] += len(waiting)
        out.append(rows + sorted(number for _, number, _ in waiting))
    return out, tally


@given(
    TARGETS,
    st.integers(1, 150),
    st.integers(1, 400),
    st.sampled_from(["emit", "drop"]),
    st.lists(DOCUMENTS, min_size=1, max_size=3),
)
def test_it_is_the_oracles_order(
    target: dict[str, int], window: int, buffer: int, on_overflow: str, segments: list[list[Document]]
) -> None:
    operator = EnsureMixture(target, window_tokens=window, buffer_tokens=buffer, on_overflow=on_overflow)
    assert mixed(operator, segments) == oracle(operator, segments)


@given(TARGETS, st.integers(1, 300), DOCUMENTS)
def test_in_every_window_a_dataset_is_off_by_half_a_document(
    target: dict[str, int], window: int, documents: list[Document]
) -> None:
    """Whatever the order of arrival, where the buffer suffices: of every window that has come for all datasets."""
    operator = EnsureMixture(target, window_tokens=window, buffer_tokens=1 << 30)
    tally = Counter[str]()
    out = operator.accumulator(0, 0).push(as_records(documents), 0, tally)[0] if documents else None
    assert not tally["documents_off_target"]
    shares = [Fraction(weight, sum(target.values())) for weight in target.values()]
    totals = [sum(document.tokens for document in documents if document.dataset == d) for d in range(3)]
    halves = [Fraction(max((document.tokens for document in documents if document.dataset == d), default=0), 2) for d in range(3)]
    prefixes = [[0] * 3]
    for row in rows_of(out):
        dataset, tokens = documents[row]
        prefixes.append([given + tokens * (d == dataset) for d, given in enumerate(prefixes[-1])])
    for k in range(1, min(int(total / share / window) for total, share in zip(totals, shares, strict=True)) + 1):
        due = [k * window * share for share in shares]
        assert any(all(abs(given[d] - due[d]) <= halves[d] for d in range(3)) for given in prefixes)


def test_documents_of_the_window_go_out_as_they_come_and_others_wait() -> None:
    a, b = Document(0, 4), Document(1, 4)
    operator = EnsureMixture({"a": 1, "b": 1}, window_tokens=16)
    assert mixed(operator, [[a, a, a, a, b, b, b, b]])[0] == [[0, 1, 4, 5, 2, 3, 6, 7]]
    assert mixed(operator, [[a, a, b, b, a, b, b, a]])[0] == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_what_a_segment_gave_too_much_of_is_made_up_in_the_next() -> None:
    a, b = Document(0, 4), Document(1, 4)
    operator = EnsureMixture({"a": 1, "b": 1}, window_tokens=8)
    out, tally = mixed(operator, [[a, a, a], [b, a, b, b]])
    assert out == [[0, 1, 2], [0, 2, 3, 1]]
    assert tally == {"documents_flushed": 2}


def test_a_full_buffer_lets_the_oldest_go_and_counts_it() -> None:
    a, b = Document(0, 4), Document(1, 4)
    out, tally = mixed(EnsureMixture({"a": 1, "b": 1}, window_tokens=8, buffer_tokens=8), [[a, a, a, a, a, b]])
    assert out == [[0, 1, 2, 5, 3, 4]]
    assert tally == {"documents_off_target": 2, "tokens_off_target": 8, "documents_flushed": 2}


def test_a_full_buffer_drops_what_comes_of_a_dataset_that_is_ahead_when_asked() -> None:
    a, b = Document(0, 4), Document(1, 4)
    operator = EnsureMixture({"a": 1, "b": 1}, window_tokens=8, buffer_tokens=8, on_overflow="drop")
    out, tally = mixed(operator, [[a, a, a, a, a, b, b, b, a]])
    assert out == [[0, 5, 1, 6, 2, 7, 8]]
    assert tally == {"documents_dropped": 2, "tokens_dropped": 8, "documents_flushed": 0}


@pytest.mark.parametrize("on_overflow", ["emit", "drop"])
def test_documents_without_a_token_fill_the_buffer_too(on_overflow: str) -> None:
    operator = EnsureMixture({"a": 1, "b": 1}, window_tokens=8, buffer_tokens=8, on_overflow=on_overflow)
    accumulator, tally = operator.accumulator(0, 0), Counter[str]()
    accumulator.push(as_records([Document(0, 7), *[Document(0, 0)] * 100]), 0, tally)
    assert accumulator.held_rows == 8
    assert tally["documents_off_target" if on_overflow == "emit" else "documents_dropped"] == 92


def test_what_would_be_dropped_nearly_whole_is_refused() -> None:
    datasets = [Dataset.from_dict(name, {"input_ids": [[1]]}) for name in "ab"]
    source = StaticMixtureWorkSource(datasets, {"a": 1, "b": 1}, on_exhausted="drop_out")
    with pytest.raises(RecipeError, match="nearly all that comes would be dropped; use on_overflow='emit'"):
        Pipeline(source).ensure_mixture(on_overflow="drop")
    Pipeline(source).ensure_mixture()


def test_a_pipeline_that_draws_rows_has_its_shares_of_tokens() -> None:
    """Documents of one dataset are ten times as long, so equal numbers of rows are no equal numbers of tokens."""
    datasets = [
        Dataset.from_dict(name, {"input_ids": [[len(name)] * tokens] * rows})
        for name, tokens, rows in (("a", 10, 2000), ("bb", 100, 2000))
    ]

    def tokens_of(**settings: Any) -> tuple[Counter[int], Any]:
        source = StaticMixtureWorkSource(datasets, {"a": 10, "bb": 1}, epochs=None)
        with Pipeline(source).ensure_mixture(window_tokens=1000, **settings).batch(50) as pipeline:
            batches = [batch for batch, _ in zip(pipeline, range(20), strict=False)]
            return Counter(
                token for batch in batches for ids in batch.to_pylist("input_ids") for token in ids
            ), pipeline.statistics()

    given, _ = tokens_of(target={"a": 1, "bb": 1})
    assert abs(given[1] - given[2]) <= 1000
    given, statistics = tokens_of(target={"a": 1, "bb": 9}, buffer_tokens=500)
    assert abs(given[1] - given[2]) <= 1000  # it cannot be met: what the source draws is what comes
    assert statistics.counts["tokens_off_target"] > 1000


def test_a_run_goes_on_at_any_microbatch_with_what_was_given_too_much_of() -> None:
    """Segments end with documents that wait, so that what is made up later is told by the checkpoint alone."""
    documents = {name: tuple((k,) * (1 + k * step % 11) for k in range(30)) for name, step in (("a", 5), ("b", 7), ("c", 3))}
    chain = (("mix", 4), ("wrap", 8))
    recipe = Recipe(documents, {"a": 3, "b": 2, "c": 1}, chain, unit="samples", lanes=2, rows=1, flush_every=9)
    steps = 20
    wanted = [tuple(one) for step in recipe.wanted(steps) for batch in step for one in batch]

    def told(batches: list[Batch]) -> list[Any]:
        return [tuple(one) for batch in batches for one in seen(batch)]

    for stop in range(0, 2 * steps, 3):
        with recipe.pipeline() as pipeline:
            before = list(islice(pipeline, stop))
            state = pipeline.checkpoint()
        with recipe.pipeline().restore(state) as pipeline:
            assert told([*before, *islice(pipeline, 2 * steps - stop)]) == wanted
    assert any(any(numbers) for cursor in RankState.decode(state).cursors.values() for numbers in cursor.carried)


def test_what_is_carried_may_be_longer_than_64_bits() -> None:
    topology = Topology(1, 1, 1, 0)
    cursor = replace(Cursor.start(2), carried=((), (0, 1 << 90)))
    state = RankState(topology, 0, (), {0: cursor})
    assert RankState.decode(state.encode()).cursors == {0: cursor}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"window_tokens": 0}, "window_tokens is 0: it must be a whole number of at least 1"),
        ({"buffer_tokens": 1.5}, "buffer_tokens is 1.5: it must be a whole number"),
        ({"on_overflow": "raise"}, "on_overflow is 'raise': it must be one of 'emit', 'drop'"),
        ({"windw_tokens": 5}, r"ensure_mixture\(\) knows no 'windw_tokens'; did you mean 'window_tokens'"),
        ({"max_buffer_size": 5}, r"ensure_mixture\(\) knows no 'max_buffer_size'; did you mean 'buffer_tokens'"),
        ({"mixture": {"a": 1}}, r"ensure_mixture\(\) knows no 'mixture'; did you mean 'target'"),
        ({"target": {"a": 1}}, "target gives 'b' no share, but the source draws from it"),
        ({"target": {"a": 1, "b": 0}}, "target gives 'b' no share, but the source draws from it"),
        (
            {"target": {"a": 1, "b": 1, "bc": 1}},
            "target names 'bc', which is no dataset that the source draws from; did you mean 'b'",
        ),
        ({"target": 5}, "give a dict of a weight for each dataset"),
    ],
)
def test_refusals(settings: dict[str, Any], said: str) -> None:
    datasets = [Dataset.from_dict(name, {"input_ids": [[1]]}) for name in "ab"]
    with pytest.raises(RecipeError, match=said):
        Pipeline(StaticMixtureWorkSource(datasets, {"a": 1, "b": 1})).ensure_mixture(**settings)


def test_columns_that_it_cannot_take() -> None:
    operator = EnsureMixture({"a": 1})
    tokens = pa.field("input_ids", pa.list_(pa.int32()))
    packed = [tokens, pa.field("segment_lengths", pa.list_(pa.int32())), pa.field("next_token", pa.int32())]
    for fields, said in (
        ([pa.field("text", pa.string())], "there is no column 'input_ids'"),
        ([pa.field("input_ids", pa.string())], "not a list of integers; put tokenize"),
        (packed, "the rows are packed already"),
    ):
        with pytest.raises(RecipeError, match=said):
            operator.output(pa.schema(fields))
    assert operator.output(pa.schema([tokens])) == pa.schema([tokens])
