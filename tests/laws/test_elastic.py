"""Laws 1 and 2: the oracle's data for every chunk size, runner, parallelism and number of ranks, and over any stops."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recipes import Recipe, job, recipes, seen
from zephon_async import Pipeline

WAYS = st.fixed_dictionaries(
    {
        "chunk_rows": st.sampled_from((1, 3, 12, 256)),
        "workers": st.integers(1, 3),
        "runner": st.sampled_from(("threads", "inline")),
        "prefetch": st.integers(1, 4),
        "memory_budget": st.sampled_from(("256KiB", "1GiB")),
    }
)

PLACES = st.fixed_dictionaries(
    {"chunk_rows": st.sampled_from((1, 12)), "runner": st.sampled_from(("threads", "processes")), "isolate": st.booleans()}
)


FACES = st.sampled_from(("for", "for", "asyncio", "trio"))


def steps_of(recipe: Recipe, most: int) -> list[list[list[Any]]]:
    return recipe.wanted(most)[:most]


def _made(recipe: Recipe, way: dict[str, Any], ranks: int, rank: int, more: dict[str, Any]) -> Pipeline:
    return recipe.pipeline(ranks, rank, **way, **more)


def rank_sizes(recipe: Recipe) -> list[int]:
    return [size for size in range(1, recipe.microbatches + 1) if recipe.microbatches % size == 0]


@given(recipes(), WAYS, st.data())
def test_global_batches_are_the_oracles(recipe: Recipe, way: dict[str, Any], data: st.DataObject) -> None:
    steps = 4
    wanted = steps_of(recipe, steps)
    ranks = data.draw(st.sampled_from(rank_sizes(recipe)))
    count = len(wanted) * recipe.microbatches // ranks
    finite = recipe.epochs is not None and len(wanted) < steps
    face = data.draw(FACES)
    got, _ = job(lambda n, r, more: recipe.pipeline(n, r, **way, **more), ranks, None if finite else count, face=face)
    assert [seen(batch) for batch in got] == [batch for step in wanted for batch in step]


@given(recipes(), st.data())
def test_stops_and_other_sizes_change_nothing(recipe: Recipe, data: st.DataObject) -> None:
    steps = 5
    wanted = steps_of(recipe, steps)
    got, at, states = [], 0, None
    while at < len(wanted):
        more = data.draw(st.integers(0, len(wanted) - at))
        ranks, way = data.draw(st.sampled_from(rank_sizes(recipe))), data.draw(WAYS)
        count = more * recipe.microbatches // ranks
        made = partial(_made, recipe, way)
        batches, states = job(made, ranks, count, states, face=data.draw(FACES))
        got += batches
        at += more if more or data.draw(st.booleans()) else 0
        if not more:
            batches, states = job(lambda n, r, extra: recipe.pipeline(n, r, **extra), 1, recipe.microbatches, states)
            got += batches
            at += 1
    assert [seen(batch) for batch in got] == [batch for step in wanted for batch in step]


@pytest.mark.slow
@settings(max_examples=10)
@given(recipes(), st.data())
def test_stops_and_other_processes_change_nothing(recipe: Recipe, data: st.DataObject) -> None:
    wanted = steps_of(recipe, 4)
    got, states = [], None
    for more in (1, 2, len(wanted) - 3) if len(wanted) > 3 else [1] * len(wanted):
        ranks, way = data.draw(st.sampled_from(rank_sizes(recipe)[:2])), data.draw(PLACES)
        count = more * recipe.microbatches // ranks
        made = partial(_made, recipe, way)
        batches, states = job(made, ranks, count, states, face=data.draw(FACES))
        got += batches
    assert [seen(batch) for batch in got] == [batch for step in wanted for batch in step]


@given(recipes(), st.data())
def test_stops_within_a_step_change_nothing(recipe: Recipe, data: st.DataObject) -> None:
    steps = 4
    wanted = steps_of(recipe, steps)
    ranks = data.draw(st.sampled_from(rank_sizes(recipe)))
    left = len(wanted) * recipe.microbatches // ranks
    got, states = [], None
    while left:
        more = data.draw(st.integers(1, left))
        way = data.draw(WAYS)
        batches, states = job(lambda n, r, extra, way=way: recipe.pipeline(n, r, **way, **extra), ranks, more, states)  # type: ignore[misc]
        got += batches
        left -= more
    got.sort(key=lambda batch: (batch.step, batch.number))
    assert [seen(batch) for batch in got] == [batch for step in wanted for batch in step]
