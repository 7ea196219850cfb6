"""Law 7: bytes held stay under the budget, and a budget that cannot be kept is refused at the start with the sum."""

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import few
from tests.numbered import digests, engine_of, held_by_the_loop, packed, settle, source
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_async.errors import RecipeError
from zephon_async.io import Blocks

TOKENS = 250


def documents(rows: int = 2000, uneven: int = 1) -> Dataset:
    """Documents of about a thousand bytes; every 97th is `uneven` times as long. Row blocks of 32 rows or so."""
    lists = [list(range(TOKENS * (uneven if n % 97 == 0 else 1))) for n in range(rows)]
    table = pa.table({"input_ids": pa.array(lists, pa.list_(pa.int32()))})
    return Dataset.from_arrow("d", table).with_sizes(block_bytes=32 << 10, unit_bytes=256 << 10)


def windowed(budget: int | str, uneven: int = 1, shuffle: Any = True, **options: Any) -> Pipeline:
    settings = {"lanes": 4, "chunk_rows": 32, "workers": 3, "memory_budget": budget, **options}
    return Pipeline(source(documents(uneven=uneven), epochs=None, shuffle=shuffle)).options(**settings).shuffle(64, seed=1).batch(4)


def needed(pipeline: Pipeline) -> int:
    """What the refusal says that it must be."""
    with pytest.raises(RecipeError) as refused:
        pipeline.checkpoint()
    said = str(refused.value)
    total = int(re.findall(r"memory_budget=(\d+)", said)[0])
    lanes, sizes = int(re.findall(r"and (\d+) lanes", said)[0]), re.findall(r"([\d,]+) for", said)
    assert f"must be able to hold {total:,}" in said
    assert lanes * sum(int(size.replace(",", "")) for size in sizes) == total
    return total


def test_a_budget_below_the_sum_is_refused_with_the_sum() -> None:
    least = needed(windowed("1KB"))
    rows = 4 * (64 + 32) * (4 * TOKENS)
    assert rows < least < 1.6 * rows
    assert needed(windowed(least - 1)) == least
    with windowed(least) as pipeline:
        next(iter(pipeline))
    assert needed(windowed("1KB", lanes=8)) == 2 * least
    assert needed(windowed("1KB", chunk_rows=64)) > least


def test_the_microbatch_that_is_being_cut_is_held_too() -> None:
    one, many = (needed(Pipeline(source(documents())).options(memory_budget=1).batch(size)) for size in (1, 5000))
    assert many - one > 4999 * 4 * TOKENS


def test_operators_say_what_they_hold_and_what_they_make() -> None:
    def packed(length: int) -> Pipeline:
        pipeline = Pipeline(source(documents())).options(memory_budget=1).pack_flat(length).shuffle(100, seed=1)
        return pipeline.batch(1)

    assert needed(packed(4096)) - needed(packed(2048)) == (1 + 100 + 1) * 4 * 2048  # a row, a window, a microbatch
    for chain in ("accumulate", "map_batches"):
        pipeline = Pipeline(source(documents())).options(memory_budget=1)
        if chain == "accumulate":
            pipeline.accumulate(list, lambda state, record: [record])
        else:
            pipeline.map_batches(lambda batch: batch, rows=64)
        assert needed(pipeline.batch(1)) > 256 * 4 * TOKENS


def test_a_block_that_data_begins_again_in_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small dataset that repeats stands in its one row block all the time: it must not be the first to be forgotten."""
    left: list[tuple[int, int, int]] = []
    monkeypatch.setattr(Blocks, "leave", lambda blocks, *place: left.append(place))
    with packed(rows=6, epochs=None) as pipeline:
        assert len(list(islice(pipeline, 20))) == 20
    assert left == []


@pytest.mark.parametrize("shuffle", ["units", "blocks", "rows"])
def test_a_row_block_that_a_chunk_holds_is_not_read_again_beside_it(monkeypatch: pytest.MonkeyPatch, shuffle: str) -> None:
    """Single rows of one block come close together, and where nothing may be kept the cache does not know that it is there."""
    reads: list[tuple[int, int, range]] = []
    start = Blocks._start

    def started(blocks: Blocks, dataset: int, unit: int, numbers: range, need: tuple[int, ...]) -> Any:
        reads.append((dataset, unit, numbers))
        return start(blocks, dataset, unit, numbers, need)

    monkeypatch.setattr(Blocks, "_start", started)
    with windowed(needed(windowed("1KB", lanes=1)), lanes=1, shuffle=shuffle) as pipeline:
        assert len(list(islice(pipeline, 200))) == 200
        blocks = engine_of(pipeline)._blocks
    assert blocks is not None
    assert 0 < len(reads) == blocks.misses


@few
@given(
    extra=st.sampled_from((1.0, 1.2, 2.0, 10.0)),
    chunk_rows=st.sampled_from((1, 32)),
    prefetch=st.sampled_from((1, 50)),
    runner=st.sampled_from(("threads", "inline")),
    shuffle=st.sampled_from(("units", "blocks", "rows")),
)
def test_bytes_held_stay_under_it_while_a_consumer_is_slow(
    extra: float, chunk_rows: int, prefetch: int, runner: str, shuffle: str
) -> None:
    budget = int(needed(windowed("1KB", chunk_rows=chunk_rows)) * extra)
    with windowed(budget, chunk_rows=chunk_rows, prefetch=prefetch, runner=runner, shuffle=shuffle) as pipeline:
        iterator = iter(pipeline)
        next(iterator)
        with held_by_the_loop(pipeline) as seen:
            for n in range(80):
                next(iterator)
                if n % 3 == 0:
                    settle(pipeline)
        assert 0 < max(seen) <= budget


def test_rows_larger_than_a_share_change_nothing_but_the_speed() -> None:
    def first(budget: int | str, **options: Any) -> list[str]:
        with windowed(budget, uneven=60, **options) as pipeline:
            iterator = iter(pipeline)
            return digests(next(iterator) for _ in range(120))

    least = needed(windowed("1KB", uneven=60))
    assert first(least) == first("1GiB") == first(least, runner="inline", workers=1)


def test_a_finite_run_of_many_lanes_within_its_budget_ends() -> None:
    def all_of(budget: int | str, **options: Any) -> list[str]:
        settings: dict[str, Any] = {"lanes": 16, "microbatches_per_step": 64, "chunk_rows": 8, "memory_budget": budget, **options}
        pipeline = Pipeline(source(documents(rows=700, uneven=20), shuffle=True)).options(**settings)
        with pipeline.shuffle(16, seed=1).batch(1) as running:
            return digests(running)

    for options in ({}, {"on_end": "pad"}):
        least = needed_by(options)
        assert all_of(least, **options) == all_of("1GiB", **options)


def needed_by(options: dict[str, Any]) -> int:
    pipeline = Pipeline(source(documents(rows=700, uneven=20), shuffle=True))
    pipeline.options(lanes=16, microbatches_per_step=64, chunk_rows=8, memory_budget=1, **options)
    return needed(pipeline.shuffle(16, seed=1).batch(1))


def test_a_chunk_of_many_datasets_does_not_hold_a_row_block_of_each(tmp_path: Path) -> None:
    lanes, rows = 4, 3000
    for d in range(8):
        lines = (json.dumps({"id": d * rows + n, "text": f"{n:0400}"}) for n in range(rows))
        (tmp_path / f"{d}.jsonl").write_text("\n".join(lines))

    held: list[int] = []
    running: list[Pipeline] = []

    def looks(record: dict[str, Any]) -> dict[str, Any]:
        held.append(running[-1].statistics().held_bytes)  # while the chunk that the record is in is held
        return {"id": record["id"]}

    def pipeline(budget: int | str) -> Pipeline:
        datasets = [Dataset.from_path(f"d{d}", tmp_path / f"{d}.jsonl") for d in range(8)]
        source = StaticMixtureWorkSource(datasets, {dataset.name: 1 for dataset in datasets}, seed=1)
        running.append(Pipeline(source).options(lanes=lanes, memory_budget=budget))
        return running[-1].map(looks, schema={"id": pa.int64()}, columns=["id", "text"], version=1).batch(2)

    def first(budget: int | str) -> list[str]:
        held.clear()
        with pipeline(budget) as batches:
            running.append(batches)
            return digests(islice(batches, 200))

    budget = needed(pipeline("1KB")) * 2
    found = first(budget)
    assert 0 < max(held) <= budget
    assert found == first("1GiB")
