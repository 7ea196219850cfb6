"""A checkpoint is of what was taken, whoever asks for it and when, and stays small."""

import threading
from itertools import islice
from typing import Any

import pytest

from tests.made_rows import byte_tokenizer
from tests.numbered import digests, gated, packed, seen, settle, source
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation, inspect_checkpoint

RUNNERS = pytest.mark.parametrize("runner", ["threads", "inline"])


def test_a_checkpoint_is_of_what_was_taken(wanted: list[str]) -> None:
    for taken in (0, 1, 7, len(wanted)):
        with packed(prefetch=4) as pipeline:
            iterator = iter(pipeline)
            for _ in range(taken):
                next(iterator)
            settle(pipeline)
            state = pipeline.checkpoint()
            assert state == pipeline.checkpoint()
            with packed(runner="inline", chunk_rows=256) as fresh:
                fresh.restore(state)
                assert fresh.checkpoint() == state
                assert digests(fresh) == wanted[taken:]
            pipeline.restore(state)
            assert pipeline.checkpoint() == state
            assert digests(pipeline) == wanted[taken:]
        with packed() as another:
            assert digests(another.restore(pipeline.checkpoint())) == []


def test_a_checkpoint_knows_nothing_of_what_was_made_ahead() -> None:
    """Case B02."""
    rows = Dataset.from_dict("d", {"n": [1, 2, 10, 20]})
    with Pipeline(source(rows)).options(workers=2, prefetch=4).batch(2) as pipeline:
        assert seen([next(iter(pipeline))]) == [1, 2]
        settle(pipeline)
        state = pipeline.checkpoint()
        assert pipeline.checkpoint() == state
        assert seen(pipeline.restore(state)) == [10, 20]


def test_threads_that_share_an_iterator_get_everything_once(wanted: list[str]) -> None:
    found: list[str] = []
    with packed(prefetch=1) as pipeline:
        iterator = iter(pipeline)
        threads = [threading.Thread(target=lambda: found.extend(digests(iterator))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == sorted(wanted)


def test_a_checkpoint_before_anything_was_begun(wanted: list[str]) -> None:
    with packed() as pipeline, packed() as other:
        state = pipeline.checkpoint()
        iter(pipeline)
        assert pipeline.checkpoint() == state
        assert digests(other.restore(state)) == wanted


def test_a_checkpoint_from_another_thread_while_a_next_waits(wanted: list[str]) -> None:
    may, entered = threading.Event(), threading.Event()
    with gated(may, entered) as pipeline:
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.extend(digests(pipeline)))
        thread.start()
        entered.wait(60)
        state = pipeline.checkpoint()
        may.set()
        thread.join()
        assert found == wanted
        pipeline.restore(state)
        assert digests(pipeline) == wanted


def test_twenty_stops_and_the_size_of_a_state() -> None:
    with packed(epochs=None) as pipeline:
        iterator = iter(pipeline)
        wanted = [next(iterator).digest() for _ in range(400)]
        long = len(pipeline.checkpoint())
    found: list[str] = []
    sizes: list[int] = []
    state = None
    for n in range(20):
        with packed(epochs=None, runner=("threads", "inline")[n % 2]) as pipeline:
            if state is not None:
                pipeline.restore(state)
            iterator = iter(pipeline)
            found += [next(iterator).digest() for _ in range(20)]
            state = pipeline.checkpoint()
            sizes.append(len(state))
    assert found == wanted
    assert max(*sizes, long) - min(sizes) < 40


def test_a_restore_that_fails_half_way_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**estimation: int) -> Pipeline:
        texts = {"a": ["x" * (1 + i % 37) + " é" * (i % 5) for i in range(400)], "b": ["x" * (1 + i % 37) for i in range(400)]}
        datasets = [Dataset.from_dict(name, {"text": values}) for name, values in texts.items()]
        tokens = TokenEstimation(**estimation)
        mixture = StaticMixtureWorkSource(datasets, {"a": 1, "b": 1}, token_estimation=tokens, seed=1, epochs=None)
        return Pipeline(mixture).tokenize(byte_tokenizer(), field="text").pack_flat(16).batch(2)

    def away(*given: Any) -> Any:
        raise OSError("storage is away for a moment")

    with made(blocks=1, rows=3) as other, made() as pipeline:
        facts = [inspect_checkpoint(each.checkpoint()).facts for each in (other, pipeline)]
        assert facts[0] != facts[1]
        wanted = [batch.digest() for batch in islice(pipeline, 40)]
        batches = iter(other)
        assert len(list(islice(batches, 10))) == 10
        state = other.checkpoint()
        with monkeypatch.context() as patch:
            patch.setattr("zephon_async.starting.prepare", away)
            with pytest.raises(OSError, match="for a moment"):
                pipeline.restore(state)
        assert inspect_checkpoint(pipeline.checkpoint()).facts == facts[1]
        assert [batch.digest() for batch in islice(pipeline, 40)] == wanted
        rest = [batch.digest() for batch in islice(batches, 40)]
        pipeline.restore(state).forked()  # as in a child: it starts anew, with what the state knows
        pipeline.forked()  # and in a child of that
        assert [batch.digest() for batch in islice(pipeline, 40)] == rest
        assert [batch.digest() for batch in islice(pipeline.restore(state), 40)] == rest
