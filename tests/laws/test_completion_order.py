"""Law 1 for completion orders: the oracle's data, whatever the order in which work is run and finished."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.drawn_runner import DrawnRunner
from tests.fuses import AT, KINDS, Boom, Fuse, blown, until_it_fails
from tests.recipes import Recipe, job, recipes, seen
from zephon_async.runners import RUNNERS


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    usual = RUNNERS["threads"]
    yield
    RUNNERS["threads"] = usual


def draw_from(seed: int) -> dict[str, Any]:
    RUNNERS["threads"] = partial(DrawnRunner, seed)
    return {"runner": "threads"}


@given(recipes(), st.integers(0, 2**32), st.sampled_from((1, 2, 5)), st.sampled_from((1, 3)))
def test_no_order_of_completion_changes_anything(recipe: Recipe, seed: int, chunk_rows: int, prefetch: int) -> None:
    steps = 5
    wanted = recipe.wanted(steps)[:steps]
    finite = recipe.epochs is not None and len(wanted) < steps
    way = {**draw_from(seed), "chunk_rows": chunk_rows, "prefetch": prefetch}
    got, _ = job(lambda n, r, more: recipe.pipeline(n, r, **way, **more), 1, None if finite else len(wanted) * recipe.microbatches)
    assert [seen(batch) for batch in got] == [batch for step in wanted for batch in step]


@given(recipes(), st.integers(0, 2**32), st.data())
def test_nor_does_it_over_stops(recipe: Recipe, seed: int, data: st.DataObject) -> None:
    steps = 4
    wanted = recipe.wanted(steps)[:steps]
    left, got, states = len(wanted) * recipe.microbatches, [], None
    while left:
        more, way = data.draw(st.integers(1, left)), {**draw_from(seed + left), "chunk_rows": data.draw(st.sampled_from((1, 3)))}
        batches, states = job(lambda n, r, extra, way=way: recipe.pipeline(n, r, **way, **extra), 1, more, states)  # type: ignore[misc]
        got += batches
        left -= more
    assert [seen(batch) for batch in got] == [batch for step in wanted for batch in step]


@given(st.sampled_from(KINDS), st.integers(0, 2**32), st.sampled_from((1, 2, 256)))
def test_a_failure_keeps_its_place(kind: str, seed: int, chunk_rows: int) -> None:
    fuse = Fuse()
    with blown(kind, fuse, chunk_rows=chunk_rows, **draw_from(seed)) as pipeline:
        found, error, _ = until_it_fails(pipeline, Boom)
    assert (found, error in fuse.raised) == (list(range(AT)), True)
