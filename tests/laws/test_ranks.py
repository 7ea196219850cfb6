"""Ranks of one job: what they share, where they end, and what they say when one cannot go on (F03, F06, B05)."""

from typing import Any

import pytest

from tests.fuses import ROWS, Boom, Fuse, blown, until_it_fails
from tests.numbered import numbers, seen, source
from tests.recipes import job
from zephon_async import Dataset, Pipeline
from zephon_async.errors import RecipeError


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_an_agreement_that_raises_ends_behind_what_was_agreed(runner: str) -> None:
    fuse = Fuse(at=3)

    def agree(steps: int) -> int:
        fuse.blow(steps)
        return steps

    with Pipeline(source(numbers(ROWS))).options(runner=runner, agree=agree).batch(1) as pipeline:
        found, error, _ = until_it_fails(pipeline, Boom)
        assert (found, error) == ([0, 1], fuse.raised[0])
        assert "could not agree" in error.__notes__[0]
    with Pipeline(source(numbers(ROWS))).options(runner=runner, agree=lambda steps: "x").batch(1) as pipeline:
        assert until_it_fails(pipeline, TypeError)[0] == []


@pytest.mark.parametrize("ranks_end", ["drop", "pad"])
def test_ranks_of_unequal_data_give_the_same_number(ranks_end: str) -> None:
    """Case F03: shards of 4, 5, 6, 7 documents on 2 ranks, batch 2; and with an uneven filter behind it."""
    parts = [Dataset.from_dict("d", {"n": list(range(22))})]

    def make(ranks: int, rank: int, more: dict[str, Any]) -> Pipeline:
        pipeline = Pipeline(source(*parts)).options(lanes=2, dp_size=ranks, dp_rank=rank, on_end=ranks_end, **more)
        return pipeline.batch(2)

    def uneven(ranks: int, rank: int, more: dict[str, Any]) -> Pipeline:
        pipeline = Pipeline(source(*parts)).options(lanes=2, dp_size=ranks, dp_rank=rank, on_end=ranks_end, **more)
        return pipeline.filter(lambda record: record["n"] < 15).batch(2)

    choose = min if ranks_end == "drop" else max
    batches, _ = job(make, 2, None, choose=choose)
    assert [batch.step for batch in batches] == [step for step in range(5 if ranks_end == "drop" else 6) for _ in range(2)]
    kept = [n for batch in batches for n in batch.to_pylist("n")[: int(batch.mask.sum())]]
    assert (len(kept), len(set(kept))) == ((20, 20) if ranks_end == "drop" else (22, 22))
    batches, _ = job(uneven, 2, None, choose=choose)
    assert [batch.step for batch in batches] == [step for step in range(2 if ranks_end == "drop" else 6) for _ in range(2)]
    kept = [n for batch in batches for n in batch.to_pylist("n")[: int(batch.mask.sum())]]
    assert sorted(kept) == sorted(set(kept))
    assert len(kept) == (8 if ranks_end == "drop" else 15)


def test_a_rank_whose_data_fails_raises_it_and_the_others_are_told_by_their_collective() -> None:
    fuse = Fuse(at=3)

    def make(ranks: int, rank: int, more: dict[str, Any]) -> Pipeline:
        return blown("map", fuse, lanes=2, dp_size=ranks, dp_rank=rank, **more)

    with pytest.raises(Boom):
        job(make, 2, None)


def test_what_no_rank_can_be_is_refused() -> None:
    for rank, size in ((-1, 2), (5, 2), (0, 0), (2, 2)):
        with pytest.raises(RecipeError, match=r"dp_(rank|size) is"):
            Pipeline(source(numbers(ROWS))).options(lanes=2, dp_rank=rank, dp_size=size, agree=min).batch(1).explain()


def test_two_ranks_share_every_record_fresh_and_restored() -> None:
    """Case F06: rows are split evenly also inside one file."""

    def make(ranks: int, rank: int, more: dict[str, Any]) -> Pipeline:
        return Pipeline(source(numbers(16))).options(lanes=2, dp_size=ranks, dp_rank=rank, **more).batch(1)

    batches, _ = job(make, 2, None)
    assert sorted(seen(batches)) == list(range(16))
    some, states = job(make, 2, 3)
    rest, _ = job(make, 2, None, states)
    assert sorted(seen([*some, *rest])) == list(range(16))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_last_of_a_step_is_told_to_each_rank(ranks: int) -> None:
    for rank in range(ranks):
        mixture = Pipeline(source(numbers(16))).options(lanes=2, microbatches_per_step=4, dp_size=ranks, dp_rank=rank, agree=int)
        with mixture.batch(1) as pipeline:
            assert [batch.last_of_step for batch in pipeline] == ([False] * (4 // ranks - 1) + [True]) * 4


def test_steps_restored_on_other_sizes_and_with_states_missing() -> None:
    """Case B05."""

    def make(ranks: int, rank: int, more: dict[str, Any]) -> Pipeline:
        mixture = source(numbers(160), shuffle=True)
        return Pipeline(mixture).options(lanes=8, dp_size=ranks, dp_rank=rank, **more).shuffle(3, seed=1).batch(1)

    wanted = [batch.digest() for batch in job(make, 1, 64)[0]]
    _, states = job(make, 4, 6)
    for ranks in (1, 2, 4, 8):
        rest, _ = job(make, ranks, 40 // ranks, states)
        assert [batch.digest() for batch in rest] == wanted[24:64]
    with pytest.raises(RecipeError, match="3 ranks"):
        job(make, 3, 1, states)
    for ranks, rank in ((1, 0), (2, 1), (8, 7)):
        with make(ranks, rank, {"agree": int}) as pipeline, pytest.raises(Exception, match="missing"):
            pipeline.restore(states[:2])
