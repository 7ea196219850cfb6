"""Law 3: a checkpoint is small, and no larger after thousands of steps than after ten, but for the width of its whole numbers."""

from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recipes import Recipe, Step, recipes

EARLY, LATE = 10, 2_000
HEAD = 9  # bytes before the body of a state
DOCUMENTS = {name: tuple((k,) * (1 + k * 7 % 9) for k in range(5 + at)) for at, name in enumerate("abcdef")}
CHAINS: dict[str, tuple[Step, ...]] = {
    "window": (("window", 5),),
    "pack, window": (("wrap", 8), ("window", 5)),
    "window, filter, pack, window": (("window", 3), ("odd", 0), ("wrap", 8), ("window", 5)),
    "flushed": (("groups", 3), ("window", 4)),
    "mixed": (("mix", 9), ("wrap", 20)),
}


def shape(value: Any) -> Any:
    """A value with nothing told of its whole numbers but that they are there."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return int if isinstance(value, int) else value


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("lanes", "datasets"), [(1, 1), (4, 2), (3, 6)])
def test_a_state_is_small_and_stays_so(lanes: int, datasets: int, chain: str) -> None:
    names = sorted(DOCUMENTS)[:datasets]
    recipe = Recipe(
        {name: DOCUMENTS[name] for name in names}, dict.fromkeys(names, 1), CHAINS[chain], lanes=lanes, rows=1, flush_every=16
    )
    states: list[bytes] = []
    with recipe.pipeline(runner="inline") as pipeline:
        batches = iter(pipeline)
        for steps in (EARLY, LATE - EARLY):
            assert sum(1 for _ in islice(batches, steps * lanes)) == steps * lanes
            states.append(pipeline.checkpoint())
    assert max(map(len, states)) <= 1024 + lanes * (128 + 32 * datasets)
    early, late = (shape(msgspec.msgpack.decode(state[HEAD:], strict=False)) for state in states)
    assert early == late


@given(recipes(), st.integers(0, 12))
def test_the_state_of_any_recipe_is_small(recipe: Recipe, taken: int) -> None:
    with recipe.pipeline(runner="inline", agree=lambda steps: steps) as pipeline:
        for _ in islice(pipeline, taken):
            pass
        assert len(pipeline.checkpoint()) <= 2048 + recipe.lanes * (256 + 64 * len(recipe.documents))
