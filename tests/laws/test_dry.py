"""Endless data of which nothing comes out ends in an error, in its place; data of which little comes, or comes late, does not."""

import logging
from collections.abc import Callable
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from tests.numbered import NUMBERS, numbers, seen, source
from tests.recipes import TOKENS, Recipe
from tests.recipes import seen as told
from zephon_async import Dataset, Pipeline
from zephon_async.errors import DatasetError

Add = Callable[[Pipeline], Pipeline]
WAYS: list[dict[str, Any]] = [
    {"runner": "threads", "workers": 2, "chunk_rows": 256},
    {"runner": "threads", "workers": 3, "chunk_rows": 3, "prefetch": 1},
    {"runner": "inline", "chunk_rows": 64, "prefetch": 9},
]


def nothing(record: dict[str, Any]) -> bool:
    return False


async def nothing_later(record: dict[str, Any]) -> bool:
    return False


def swallow(state: list[Any], record: dict[str, Any]) -> list[dict[str, Any]]:
    return []


def documents(*lengths: int) -> Dataset:
    return Dataset.from_arrow("numbers", pa.table({"input_ids": pa.array([[7] * n for n in lengths], TOKENS.field(0).type)}))


def endless(add: Add, made: Dataset | None = None, **options: Any) -> Pipeline:
    mixture = source(made or numbers(10), epochs=None, shuffle=True)
    return add(Pipeline(mixture).options(**{"flush_every": 50, **options})).batch(1)


DRY: list[tuple[str, Add, Dataset | None]] = [
    (r": filter let none of", lambda p: p.filter(nothing), None),
    (r": filter let none of", lambda p: p.filter(nothing_later), None),
    (r": flat_map let none of", lambda p: p.flat_map(lambda record: [], schema=NUMBERS), None),
    (r": filter let none of", lambda p: p.filter(nothing).shuffle(7).filter(bool), None),
    (r": filter let none of", lambda p: p.shuffle(7).filter(nothing), None),
    (r": filter let none of", lambda p: p.shuffle(300).shuffle(8).filter(nothing).shuffle(3), None),
    (r": filter let none of", lambda p: p.pack_flat(5).filter(nothing).shuffle(4), documents(1, 2, 3, 4)),
    (r": accumulate let none of", lambda p: p.accumulate(list, swallow, schema=NUMBERS), None),
    (r": pack_flat let none of", lambda p: p.pack_flat(5), documents(0, 0)),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way['runner']}-{way['chunk_rows']}")
@pytest.mark.parametrize(("said", "add", "made"), DRY)
def test_a_lane_that_gives_nothing_ends_in_an_error(said: str, add: Add, made: Dataset | None, way: dict[str, Any]) -> None:
    messages = set()
    for lanes in (1, 2):
        with endless(add, made, lanes=lanes, **way) as pipeline:
            for _ in range(2):
                with pytest.raises(DatasetError, match=said) as caught:
                    next(iter(pipeline))
                messages.add(str(caught.value).partition("(counted")[0])
    assert len(messages) == 2  # the same at every way and every time, for one lane and for two


def test_the_error_comes_behind_what_came_out_and_again_after_a_restore() -> None:
    seen_by_it: list[int] = []

    def early(record: dict[str, Any]) -> bool:
        seen_by_it.append(record["n"])
        return len(seen_by_it) <= 100

    found: list[int] = []
    with endless(lambda p: p.shuffle(5).filter(early), runner="inline", validate="off") as pipeline:
        states: list[bytes] = []

        def take_all() -> None:
            for batch in pipeline:
                found.extend(batch.to_pylist("n"))
                states.append(pipeline.checkpoint())

        with pytest.raises(DatasetError, match=": filter let none of"):
            take_all()
        assert found == seen_by_it[:100]
        pipeline.restore(states[-1])
        with pytest.raises(DatasetError, match=": filter let none of"):
            take_all()
        assert len(found) == 100


def test_what_comes_late_or_is_rare_is_waited_for() -> None:
    late: list[tuple[Add, Dataset | None]] = [
        (lambda p: p.shuffle(2_000), None),
        (lambda p: p.pack_flat(3_000), documents(1, 2)),
        (lambda p: p.shuffle(900).filter(lambda record: record["n"] == 3), None),
        (lambda p: p.filter(lambda record: record["n"] == 3).shuffle(90), None),
        (lambda p: p.map_batches(lambda batch: batch, rows=900, schema=NUMBERS), None),
    ]
    for add, made in late:
        with endless(add, made) as pipeline:
            assert len(list(islice(pipeline, 2))) == 2
    with endless(lambda p: p.filter(lambda record: record["n"] == 299), numbers(300), lanes=6) as pipeline:
        assert seen(islice(pipeline, 20)) == [299] * 20


def test_sixteen_turns_of_a_few_rows_say_nothing() -> None:
    """Found by test_stops_within_a_step_change_nothing: 28 packed rows were 16 turns, and the 29th to come was let through."""
    four = ((0, 1, 2), (20, 21), (40, 41), (60, 61, 62))
    recipe = Recipe({"b": four}, {"b": 1}, (("wrap", 6), ("odd", 0), ("window", 3)), 1, unit="samples", per_lane=2, flush_every=4)
    wanted = [batch for step in recipe.wanted(4)[:4] for batch in step]
    with recipe.pipeline(runner="inline") as pipeline:
        assert [told(batch) for batch in islice(pipeline, len(wanted))] == wanted


def test_a_dataset_that_gives_nothing_beside_one_that_does_is_no_error() -> None:
    mixture = source(numbers(3), Dataset.from_dict("others", {"n": [100]}), epochs=None)
    with Pipeline(mixture).options(flush_every=5).filter(lambda record: record["n"] == 100).batch(1) as pipeline:
        assert seen(islice(pipeline, 100)) == [100] * 100


# -- data that ends ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_a_run_without_one_full_step_says_so(runner: str, caplog: pytest.LogCaptureFixture) -> None:
    def warnings(add: Add, rows: int = 5, **options: Any) -> list[str]:
        caplog.clear()
        pipeline = Pipeline(source(numbers(rows))).options(lanes=2, microbatches_per_step=4, runner=runner, **options)
        with caplog.at_level(logging.WARNING), add(pipeline).batch(2) as started:
            batches = len(list(started))
            state = started.checkpoint()
            list(started.restore(state))
        return [f"{batches} batches", *(record.getMessage() for record in caplog.records)]

    for add, said in (
        (lambda p: p, "of 5 rows drawn, 5 came out of lanes 0 to 1; a step takes 4 rows of each of 2 lanes, 8 in all"),
        (lambda p: p.filter(nothing), "of 5 rows drawn, 0 came out of lanes 0 to 1; records_filtered 5; a step takes"),
    ):
        nought, first, again = warnings(add)
        assert (nought, first) == ("0 batches", again)
        assert said in first
    assert warnings(lambda p: p, on_end="pad") == ["4 batches"]
    assert warnings(lambda p: p, rows=9) == ["4 batches"]
    assert "of 5 rows drawn, 0 came out" in warnings(lambda p: p.filter(nothing), on_end="pad")[1]
