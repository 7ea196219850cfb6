"""What `explain()` foresees is what happens: rows to the first microbatch, rows made again after a restore, bytes held."""

import re
from bisect import bisect_left
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from tests.fuses import Boom
from tests.numbered import settle
from tests.recipes import TOKENS
from zephon_async import Batch, Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation

ROWS = 400
PLACES = (1, 2, 5, 13, 31)  # microbatches behind which is stopped


def push(state: list[Any], record: dict[str, Any]) -> list[dict[str, Any]]:
    state += record["input_ids"]
    return [{"input_ids": [state.pop() for _ in range(9)]}] if len(state) == 9 else []


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


CHAINS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "batch": lambda p: p.batch(3),
    "window": lambda p: p.shuffle(10, seed=1).batch(3),
    "two windows": lambda p: p.shuffle(10, seed=1).shuffle(4, seed=1).batch(3),
    "two windows, large first": lambda p: p.shuffle(4, seed=1).shuffle(10, seed=1).batch(1),
    "windows with a filter between": lambda p: p.shuffle(10, seed=1).filter(bool).shuffle(4, seed=1).batch(3),
    "pack": lambda p: p.pack_flat(12).batch(2),
    "pack, window": lambda p: p.pack_flat(12).shuffle(5, seed=1).batch(3),
    "window, pack, window": lambda p: p.shuffle(7, seed=1).pack_flat(12).shuffle(5, seed=1).batch(3),
    "pack, filter, window": lambda p: p.pack_flat(12).filter(bool).shuffle(5, seed=1).batch(3),
    "batches": lambda p: p.map_batches(same, rows=7, schema=TOKENS).batch(2),
    "accumulate": lambda p: p.accumulate(list, push, schema=TOKENS).batch(2),
    "window, accumulate": lambda p: p.shuffle(10, seed=1).accumulate(list, push, schema=TOKENS).batch(2),
}
FORESEEN = [name for name in CHAINS if "accumulate" not in name]
each_chain = pytest.mark.parametrize("chain", CHAINS)


def made(chain: str, good: int = ROWS, drawn: list[int] | None = None, **options: Any) -> Pipeline:
    """Documents of three tokens, their number; from number `good` on they fail."""

    def look(record: dict[str, Any]) -> bool:
        if (n := record["input_ids"][0]) >= good:
            raise Boom
        if drawn is not None:
            drawn.append(n)
        return True

    table = pa.table({"input_ids": pa.array([[n] * 3 for n in range(ROWS)], TOKENS.field(0).type)})
    documents = Dataset.from_arrow("d", table).with_sizes(block_bytes=400)
    mixture = StaticMixtureWorkSource([documents], {"d": 1}, shuffle=False, epochs=None, token_estimation=TokenEstimation(0.25))
    chosen = {"runner": "inline", "chunk_rows": 1, "flush_every": 20, "prefetch": 1, **options}
    return CHAINS[chain](Pipeline(mixture).options(**chosen).filter(look))


@cache
def comes_of(chain: str, rows: int) -> int:
    """How many microbatches the first rows give: a row that fails is raised behind all that come of those before it."""
    with made(chain, rows) as pipeline:
        found = list[Batch]()
        with pytest.raises(Boom):
            found.extend(pipeline)
        return len(found)


def needed(chain: str, microbatches: int) -> int:
    """How many rows it takes to give so many microbatches."""
    return bisect_left(range(ROWS), microbatches, key=partial(comes_of, chain))


def foreseen(pipeline: Pipeline, line: str) -> int:
    """The rows in a line of what `explain()` says."""
    said = next(each for each in pipeline.explain().splitlines() if each.startswith(line))
    found = re.search(r"(?:draws|up to) (?:about )?([\d,]+) rows?, if operators leave none out and add none$", said)
    assert found is not None, said
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize("chain", FORESEEN)
def test_the_first_microbatch_comes_of_as_many_rows_as_are_foreseen(chain: str) -> None:
    with made(chain) as pipeline:
        assert foreseen(pipeline, "to its first microbatch a lane draws") == needed(chain, 1)


@each_chain
@pytest.mark.parametrize("chunk_rows", [pytest.param(1, marks=pytest.mark.slow), 7, 64])
def test_no_more_rows_are_made_again_than_are_foreseen(chain: str, chunk_rows: int) -> None:
    for place in PLACES:
        drawn: list[int] = []
        with made(chain, chunk_rows=chunk_rows) as pipeline:
            assert len(list(islice(pipeline, place))) == place
            state, bound = pipeline.checkpoint(), foreseen(pipeline, "a restore makes again")
        with made(chain, drawn=drawn, chunk_rows=chunk_rows).restore(state) as pipeline:
            next(iter(pipeline))
        assert needed(chain, place) - drawn[0] <= bound, place


@each_chain
@pytest.mark.parametrize("lanes", [1, 3])
def test_no_more_bytes_are_held_than_are_foreseen(chain: str, lanes: int) -> None:
    with made(chain, lanes=lanes, prefetch=4, chunk_rows=8, runner="threads", memory_budget="64KiB") as pipeline:
        memory, need = pipeline.explain().splitlines()[-2:]
        budget, share, of, cache, opened = (int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\b", memory))
        least = int(need.removeprefix("  a lane must be able to hold ").partition(":")[0].replace(",", ""))
        assert lanes * least <= lanes * share <= budget == 64 << 10
        assert of == lanes
        most = 0
        for _ in islice(pipeline, 30):
            settle(pipeline)
            most = max(most, pipeline.statistics().held_bytes)
        assert 0 < most <= lanes * share + cache + opened
