"""`statistics().bottleneck` is what the run waits for. The seconds are those of a clock that only the slow things move."""

import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from tests.drawn_runner import DrawnRunner
from tests.numbered import NUMBERS, source
from zephon_async import Dataset, Pipeline, faces
from zephon_async.engine import engine, lane, line
from zephon_async.io import Reader, blocks
from zephon_async.io.stores import Source
from zephon_async.records import Block
from zephon_async.runners import RUNNERS, InlineRunner, Runner, ThreadRunner

ROWS, TAKEN, SLOW_S = 4000, 40, 200.0
IN_BLOCK = 4  # rows of a row block
DRAWN = {f"drawn {seed}": seed for seed in range(4)}


class Clock:
    """Stands still but where something moves it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._lock, self._now = threading.Lock(), 0.0
        self._away_until, self._waits = 0.0, False
        for module in (engine, lane, line, blocks):
            patch.setattr(module, "perf_counter", self.now)
        patch.setattr(faces, "perf_counter", self.of_consumer)

    def now(self) -> float:
        with self._lock:
            return self._now

    def of_consumer(self) -> float:
        """Of the calls in `next` the first: it is called again when the consumer has paused, whenever its thread comes to that."""
        self._waits = not self._waits
        if not self._waits:
            self._away_until = self.now()
        return self._away_until

    def pause(self, seconds: float) -> None:
        self.move(seconds)
        self._away_until += seconds

    def move(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds


def taken(pipeline: Pipeline, pause: Callable[[], None]) -> str:
    for _ in islice(pipeline, TAKEN):
        pause()
    return pipeline.statistics().bottleneck


@pytest.mark.parametrize("runner", ["threads", "inline", *DRAWN])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("read_ahead", [1, 16])
@pytest.mark.parametrize("slow", ["storage", "workers", "accumulators", "consumer"])
def test_the_bottleneck_is_what_is_slow(
    slow: str, read_ahead: int, lanes: int, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call takes a second, of what is slow many; one call at a time, so that no two are told to have taken the same second.

    Without the check at the start, whose calls would take seconds that the consumer waits."""
    clock, read = Clock(monkeypatch), Reader.read_several

    def seconds(kind: str) -> float:
        return SLOW_S if kind == slow else 1.0

    def read_slowly(reader: Reader, dataset: int, unit: int, numbers: range, source: Source | None) -> dict[int, Block]:
        clock.move(len(numbers) * IN_BLOCK * seconds("storage"))
        return read(reader, dataset, unit, numbers, source)

    def keep(record: dict[str, Any]) -> bool:
        clock.move(seconds("workers"))
        return True

    def push(state: list[int], record: dict[str, Any]) -> list[dict[str, Any]]:
        clock.move(seconds("accumulators"))
        return [record]

    def one_worker(workers: int | None) -> Runner:
        return ThreadRunner(1) if runner == "threads" else DrawnRunner(DRAWN[runner]) if runner in DRAWN else InlineRunner()

    monkeypatch.setitem(RUNNERS, "threads", one_worker)
    numbers = Dataset.from_dict("numbers", {"n": list(range(ROWS))}).with_sizes(block_bytes=8 * IN_BLOCK)
    pipeline = Pipeline(source(numbers, epochs=None)).options(
        runner="threads", lanes=lanes, read_ahead=read_ahead, prefetch=2, validate="off"
    )
    with pipeline.filter(keep).accumulate(list, push, schema=NUMBERS).batch(1):
        pipeline.checkpoint()  # by now the data has been looked at
        monkeypatch.setattr(Reader, "read_several", read_slowly)
        assert taken(pipeline, lambda: clock.pause(seconds("consumer"))) == slow
