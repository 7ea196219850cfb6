"""Pipelines with a fuse: an operator of any kind that raises at one record until it is mended."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.numbered import NUMBERS, numbers, seen, settle, source
from zephon_async import Batch, Pipeline
from zephon_async.operators import Accumulator, Operator, RecordFailed, Tally
from zephon_async.records import Marks, Records

ROWS, AT = 16, 5


WAYS = pytest.mark.parametrize(
    "way",
    [
        {"runner": "threads", "workers": 3, "chunk_rows": 1, "prefetch": 1},
        {"runner": "threads", "workers": 2, "chunk_rows": 256, "prefetch": 8},
        {"runner": "threads", "workers": 2, "chunk_rows": 4, "prefetch": 3},
        {"runner": "inline", "chunk_rows": 1},
        {"runner": "inline", "chunk_rows": 256, "prefetch": 20},
    ],
    ids=lambda way: f"{way['runner']}-{way['chunk_rows']}",
)


class Boom(Exception):
    """What the functions of these tests raise."""


class Fuse:
    """Raises at one record until it is mended."""

    def __init__(self, kind: type[BaseException] = Boom, at: int = AT) -> None:
        self.kind, self.at, self.mended = kind, at, False
        self.raised: list[BaseException] = []

    def blow(self, n: int) -> None:
        if n == self.at and not self.mended:
            self.raised.append(self.kind("no"))
            raise self.raised[-1]


class Checked(Operator):
    """A stateless operator of one's own that fails as a whole."""

    name = "checked"

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse

    def apply(self, records: Records, tally: Tally) -> Records:
        for n in records.columns.column("n").to_pylist():
            self.fuse.blow(n)
        return records


class Passing(Operator):
    """An accumulator of one's own that says which record failed."""

    name = "passing"
    needs_flush = True

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse

    def accumulator(self, lane: int, first: int) -> Accumulator:
        return _Pass(self.fuse, first)


class _Pass:
    held_rows = held_bytes = 0

    def __init__(self, fuse: Fuse, first: int) -> None:
        self._fuse, self.given = fuse, first

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        for at, n in enumerate(records.columns.column("n").to_pylist()):
            try:
                self._fuse.blow(n)
            except BaseException as error:
                self.given += at
                raise RecordFailed(at, records.slice(0, at)) from error
        self.given += len(records)
        return records, Marks([], [], [])

    def flush(self, tally: Tally) -> Records | None:
        return None


def fail_in(kind: str, fuse: Fuse) -> Callable[[Pipeline], Pipeline]:
    """Add an operator of a kind in which the fuse is."""

    def blow(record: dict[str, Any]) -> dict[str, Any]:
        fuse.blow(record["n"])
        return record

    async def blow_later(record: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return blow(record)

    async def keep_later(record: dict[str, Any]) -> bool:
        return bool(await blow_later(record))

    def blow_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        for n in batch.column("n").to_pylist():
            fuse.blow(n)
        return batch

    def push(state: list[int], record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield blow(record)

    adds: dict[str, Callable[[Pipeline], Pipeline]] = {
        "map": lambda p: p.map(blow, schema=NUMBERS),
        "map, learned": lambda p: p.map(blow),
        "async map": lambda p: p.map(blow_later, schema=NUMBERS, concurrency=3),
        "filter": lambda p: p.filter(lambda record: bool(blow(record))),
        "async filter": lambda p: p.filter(keep_later),
        "flat_map": lambda p: p.flat_map(lambda record: [blow(record)], schema=NUMBERS),
        "map_batches": lambda p: p.map_batches(blow_batch, schema=NUMBERS),
        "map_batches, rows": lambda p: p.map_batches(blow_batch, rows=1, schema=NUMBERS),
        "accumulate": lambda p: p.accumulate(list, push, schema=NUMBERS),
        "accumulate, learned": lambda p: p.accumulate(list, push),
        "stateless": lambda p: p.apply(Checked(fuse)),
        "accumulator": lambda p: p.apply(Passing(fuse)),
        "behind a window": lambda p: p.shuffle(1).map(blow, schema=NUMBERS),
        "before a window": lambda p: p.map(blow, schema=NUMBERS).shuffle(1).map(dict, schema=NUMBERS),
        "behind two": lambda p: p.shuffle(1).map(dict, schema=NUMBERS).accumulate(list, push, schema=NUMBERS).shuffle(1),
    }
    return adds[kind]


KINDS = [
    *("map", "map, learned", "async map", "filter", "async filter", "flat_map", "map_batches", "map_batches, rows", "accumulate"),
    *("accumulate, learned", "stateless", "accumulator", "behind a window", "before a window", "behind two"),
]


def blown(kind: str, fuse: Fuse, **options: Any) -> Pipeline:
    """A pipeline whose functions are not tried at the start, where they would blow the fuse before the run."""
    return fail_in(kind, fuse)(Pipeline(source(numbers(ROWS))).options(**{"validate": "off", **options})).batch(1)


def until_it_fails(pipeline: Pipeline, wanted: type[BaseException], full: bool = False) -> tuple[list[int], BaseException, bytes]:
    """The numbers before the failure, the failure, and the state of the last batch; with the checks that hold for any failure."""
    iterator, state, found = iter(pipeline), pipeline.checkpoint(), list[Batch]()

    def take() -> None:
        nonlocal state
        while True:
            if full:
                settle(pipeline)
            found.append(next(iterator))
            state = pipeline.checkpoint()

    with pytest.raises(wanted) as caught:
        take()
    depth = len(caught.traceback) - 1
    for _ in range(3):
        with pytest.raises(wanted) as again:
            next(iterator)
        assert again.value is caught.value
        assert len(again.traceback) == depth
        assert pipeline.checkpoint() == state
    return seen(found), caught.value, state
