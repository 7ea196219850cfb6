"""Pipelines over numbered records for the tests of faces and faults, and ways to look at a running engine."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from tests.recipes import TOKENS
from zephon_async import Batch, Dataset, Pipeline, StaticMixtureWorkSource
from zephon_async.engine import Engine
from zephon_async.engine.stats import Consumed

NUMBERS = pa.schema([("n", pa.int64())])


def numbers(rows: int) -> Dataset:
    """Records {"n": 0}, {"n": 1}, ..."""
    return Dataset.from_dict("numbers", {"n": list(range(rows))})


def source(*datasets: Dataset, **settings: Any) -> StaticMixtureWorkSource:
    """In the order of the catalog, once."""
    return StaticMixtureWorkSource(datasets, {dataset.name: 1 for dataset in datasets}, **{"shuffle": False, **settings})


def seen(batches: Iterable[Batch]) -> list[int]:
    """The numbers in batches of one record."""
    return [number for batch in batches for number in batch.to_pylist("n")]


def packed(rows: int = 60, epochs: int | None = 1, **options: Any) -> Pipeline:
    """Documents of 1 to 9 tokens, packed and shuffled: a pipeline with two accumulators and two lanes."""
    documents = [[20 * i + j for j in range(1 + i * 7 % 9)] for i in range(rows)]
    table = pa.table({"input_ids": pa.array(documents, TOKENS.field("input_ids").type)})
    mixture = StaticMixtureWorkSource([Dataset.from_arrow("d", table)], {"d": 1}, seed=3, epochs=epochs)
    pipeline = Pipeline(mixture).options(**{"lanes": 2, "workers": 2, "chunk_rows": 4, **options})
    return pipeline.pack_flat(8).shuffle(5, seed=1).batch(1)


def digests(batches: Iterable[Batch]) -> list[str]:
    return [batch.digest() for batch in batches]


def engine_of(pipeline: Pipeline) -> Engine:
    """The engine of a pipeline that has started, in this process."""
    assert pipeline._started is not None
    assert isinstance(pipeline._started.engine, Engine)
    return pipeline._started.engine


def settle(pipeline: Pipeline) -> None:
    """Wait until every lane has made all that it makes ahead, or has ended."""
    engine = engine_of(pipeline)
    assert engine._loop is not None

    run = engine._run
    assert run is not None

    def still() -> bool:
        return bool(engine._lanes) and all(lane.over or (lane.parked and not lane._in_flight) for lane in engine._lanes)

    async def settled() -> None:
        while run._final is None and not still():  # noqa: ASYNC110 (no lane knows of it)
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(settled(), engine._loop).result(60)


@contextmanager
def held_by_the_loop(pipeline: Pipeline) -> Iterator[list[int]]:
    """The bytes that a pipeline holds every millisecond, as its loop sees it: nothing is on its way from one place to another."""
    engine, seen = engine_of(pipeline), [0]
    assert engine._loop is not None

    async def watch() -> None:
        while True:
            seen.append(engine.statistics(Consumed()).held_bytes)
            await asyncio.sleep(0.001)

    watching = asyncio.run_coroutine_threadsafe(watch(), engine._loop)
    try:
        yield seen
    finally:
        watching.cancel()


def gated(may: threading.Event, entered: threading.Event) -> Pipeline:
    """A pipeline whose first record waits until it may go on."""

    def wait(record: dict[str, Any]) -> bool:
        entered.set()
        return may.wait(60)

    pipeline = packed(validate="off")  # or the check at the start would wait
    pipeline._operators.clear()
    pipeline._batch = None
    return pipeline.filter(wait).pack_flat(8).shuffle(5, seed=1).batch(1)
