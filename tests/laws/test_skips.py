"""Steps that are left out: what is behind them is as if they had been delivered, over stops, ranks and faces."""

from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.numbered import digests, packed
from tests.recipes import Recipe, job, recipes, seen
from zephon_async import CheckpointError, Pipeline, RecipeError


def numbered(batches: Any) -> list[tuple[int, str]]:
    return [(batch.step, batch.digest()) for batch in batches]


@given(recipes(endless=True), st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), max_size=2), st.data())
def test_what_is_not_left_out_stays_as_it_was(recipe: Recipe, spans: list[tuple[int, int]], data: st.DataObject) -> None:
    ranges, at = [], 0
    for gap, length in spans:
        ranges.append(range(at + gap, at + gap + length))
        at += gap + length
    left_out = {step for each in ranges for step in each}
    ranks = data.draw(st.sampled_from([n for n in (1, 2, 3) if recipe.microbatches % n == 0]))
    face = data.draw(st.sampled_from(("for", "asyncio")))

    def make(size: int, rank: int, options: dict[str, Any]) -> Pipeline:
        pipeline = recipe.pipeline(size, rank)
        for each in ranges:
            pipeline.skip(steps=each)
        return pipeline

    steps = 10
    wanted = [batch for step, each in enumerate(recipe.wanted(steps)) if step not in left_out for batch in each]
    per_rank = recipe.microbatches // ranks
    delivered = steps - len(left_out & set(range(steps)))
    stop = data.draw(st.integers(0, delivered)) * per_rank
    first, states = job(make, ranks, stop, face=face)
    rest, _ = job(lambda size, rank, options: recipe.pipeline(size, rank), ranks, delivered * per_rank - stop, states, face=face)
    assert [seen(batch) for batch in [*first, *rest]] == wanted
    assert [batch.step for batch in [*first, *rest]] == [
        s for s in range(steps) if s not in left_out for _ in range(recipe.microbatches)
    ]


def test_steps_that_cannot_be_left_out() -> None:
    with packed(epochs=None) as pipeline:
        for wrong in (5, range(0), range(3, 9, 2), range(-2, 3)):
            with pytest.raises(RecipeError, match="it must be a range of steps such as range"):
                pipeline.skip(wrong)  # type: ignore[arg-type]
        pipeline.skip(range(4, 6)).skip(steps=range(8, 9)).skip(range(4, 6))
        with pytest.raises(RecipeError, match="skip: steps 5 to 6 and 4 to 5 overlap"):
            pipeline.skip(range(5, 7))
        steps = [batch.step for batch in islice(pipeline, 14)]
        assert steps == [step for step in (0, 1, 2, 3, 6, 7, 9) for _ in range(2)]
        with pytest.raises(RecipeError, match="skip: step 9 has begun or is past; the first that can be left out is 10"):
            pipeline.skip(range(9, 12))
        pipeline.skip(range(4, 6))  # as a program says that was restored
        state = pipeline.checkpoint()
    with packed(epochs=None) as pipeline:
        pipeline.restore(state)
        with pytest.raises(RecipeError, match="the first that can be left out is 10"):
            pipeline.skip(range(2, 3))
        pipeline.skip(range(8, 9)).skip(range(10, 12))
        assert [batch.step for batch in islice(pipeline, 3)] == [12, 12, 13]


def test_what_is_left_out_at_the_end_of_the_data_is_no_step() -> None:
    whole = digests(packed())
    with packed() as pipeline:
        steps = len(whole) // 2
        pipeline.skip(range(steps - 2, steps + 5))
        assert digests(pipeline) == whole[:-4]


def test_ranks_that_leave_out_other_steps_are_told_at_the_restore() -> None:
    recipe = Recipe({"a": ((1, 2), (3,))}, {"a": 1}, (), lanes=2)
    states = []
    for rank, steps in enumerate((range(3, 4), range(3, 5))):
        with recipe.pipeline(2, rank) as pipeline:
            states.append(pipeline.skip(steps).checkpoint())
    with recipe.pipeline() as pipeline:
        with pytest.raises(CheckpointError, match=r"leave out other steps .* skip\(\) must be told the same on all ranks"):
            pipeline.restore(states)
        assert next(iter(pipeline)).step == 0
