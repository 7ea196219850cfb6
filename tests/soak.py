"""Draw pipelines for as long as is wanted, run them in every odd way, and look whether anything breaks or creeps.

    python -m tests.soak --minutes 20 [--seed N]

A round draws a recipe and takes some steps of it over several stops, on other sizes, workers and chunks each time, with consumers
that are quick or slow, take in bursts, or are cancelled while they wait: what comes must be byte for byte what one lone run gives.
Then it begins the same pipeline many times and leaves it in all the ways in which a program can, and lets a function of it fail.
Memory, threads, descriptors and children are counted between the rounds: after a first quarter they must stay level.

It ends with 0, or says what differed, and the seed and the round that make it happen again.
"""

import argparse
import asyncio
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from tests.by_processes import children
from tests.conftest import open_descriptors
from tests.recipes import CHAINS, Recipe
from zephon_async import Batch, Pipeline

WORKERS = 16
STEPS = 6
LEFT_EARLY = 10  # times that each pipeline is begun and left
_MORE_BYTES = 48 << 20  # that memory may grow behind the first quarter
Take = Callable[[Pipeline, int, random.Random], list[Batch]]


class Level(NamedTuple):
    """What this process holds."""

    memory_bytes: int
    threads: int
    descriptors: int
    children: int

    @classmethod
    def now(cls) -> "Level":
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), threading.active_count(), len(open_descriptors()), len(children()))

    def __str__(self) -> str:
        return f"{self.memory_bytes >> 20} MiB, {self.threads} threads, {self.descriptors} descriptors, {self.children} children"


def drawn_recipe(dice: random.Random) -> Recipe:
    """One to three datasets of token documents, any chain of operators, no end."""
    documents = {}
    for k, name in enumerate(dice.sample("abc", dice.randint(1, 3))):
        lengths = [1, *(dice.randint(1, 12) for _ in range(dice.randint(3, 40)))]  # one of 1: no filter lets nothing through
        documents[name] = tuple(tuple(1000 * k + 20 * i + j for j in range(n)) for i, n in enumerate(lengths))
    return Recipe(
        documents,
        {name: dice.randint(1, 5) for name in documents},
        dice.choice(CHAINS),
        seed=dice.randint(0, 9),
        unit=dice.choice(("bytes", "samples")),
        lanes=dice.randint(1, 4),
        per_lane=dice.randint(1, 3),
        rows=dice.randint(1, 3),
        flush_every=dice.choice((4, 7, 8192)),
    )


def drawn_way(dice: random.Random) -> dict[str, Any]:
    runner = dice.choice((*["threads"] * 14, *["inline"] * 5, "processes"))
    return {
        "chunk_rows": dice.choice((1, 2, 3, 256)),
        "workers": 2 if runner == "processes" else dice.choice((1, 3, WORKERS)),
        "runner": runner,
        "isolate": not dice.randrange(20),
        "prefetch": dice.randint(1, 5),
        "memory_budget": dice.choice(("256KiB", "1GiB")),
    }


# -- consumers -------------------------------------------------------------------------------------------------------------------


def quick(pipeline: Pipeline, n: int, dice: random.Random) -> list[Batch]:
    batches = iter(pipeline)
    return [next(batches) for _ in range(n)]


def slow(pipeline: Pipeline, n: int, dice: random.Random) -> list[Batch]:
    found = []
    batches = iter(pipeline)
    for _ in range(n):
        if not dice.randrange(3):
            time.sleep(0.005)
        found.append(next(batches))
    return found


def cancelled(pipeline: Pipeline, n: int, dice: random.Random) -> list[Batch]:
    """From a loop, with a wait that is given up again and again."""

    async def take() -> list[Batch]:
        found: list[Batch] = []
        batches = aiter(pipeline)
        while len(found) < n:
            try:
                async with asyncio.timeout(dice.choice((None, 0, 0.0005, 0.01))):
                    found.append(await anext(batches))
            except TimeoutError:
                continue
        return found

    return asyncio.run(take())


def watched(pipeline: Pipeline, n: int, dice: random.Random) -> list[Batch]:
    """While another thread asks for checkpoints and statistics."""
    done = threading.Event()

    def ask() -> None:
        while not done.wait(0.0002):
            pipeline.checkpoint()
            pipeline.statistics()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        return quick(pipeline, n, dice)
    finally:
        done.set()
        asking.join()


CONSUMERS: tuple[Take, ...] = (quick, slow, cancelled, watched)


# -- a round ---------------------------------------------------------------------------------------------------------------------


def lone(recipe: Recipe) -> list[str]:
    """The digests of the first steps, of one rank that is never stopped."""
    with recipe.pipeline(runner="inline") as pipeline:
        return [batch.digest() for batch in quick(pipeline, STEPS * recipe.microbatches, random.Random())]


def stopped(recipe: Recipe, dice: random.Random) -> list[str]:
    """The same over stops, sizes, ways and consumers."""
    sizes = [size for size in range(1, recipe.microbatches + 1) if recipe.microbatches % size == 0]
    found: list[Batch] = []
    step, states = 0, list[bytes]()
    while step < STEPS:
        steps, ranks, saved = dice.randint(1, STEPS - step), dice.choice(sizes), []
        for rank in range(ranks):
            with recipe.pipeline(ranks, rank, **drawn_way(dice)) as pipeline:
                if states:
                    pipeline.restore(states)
                found += dice.choice(CONSUMERS)(pipeline, steps * recipe.microbatches // ranks, dice)
                saved.append(pipeline.checkpoint())
        step, states = step + steps, saved
    found.sort(key=lambda batch: (batch.step, batch.number))
    return [batch.digest() for batch in found]


def left(recipe: Recipe, wanted: list[str], dice: random.Random) -> int:
    """Begin and leave: by `break` and begin again, by closing while it is full, by dropping it."""
    begun = 0
    for _ in range(LEFT_EARLY):
        pipeline = recipe.pipeline(**drawn_way(dice))
        for _ in range(dice.randint(1, 3)):
            n = dice.randrange(4)
            found = dice.choice(CONSUMERS)(pipeline, n, dice)
            begun += 1
            assert [batch.digest() for batch in found] == wanted[:n]
        if dice.randrange(3):
            pipeline.close()
    return begun


class Broken(Exception):
    """What the function of `failing` raises."""


def failing(recipe: Recipe, dice: random.Random) -> None:
    """A function that fails: the same error at the same place each time, and the rest once it is mended."""
    at, calls, mended = dice.randint(1, 40), count(1), False

    def maybe(record: dict[str, Any]) -> bool:
        if not mended and next(calls) >= at:
            raise Broken
        return True

    def made(**way: Any) -> Pipeline:
        return recipe.chained(recipe.begun(**way).filter(maybe))

    found: list[Batch] = []
    wanted = len(lone(recipe))
    with made(**drawn_way(dice)) as pipeline:
        batches = iter(pipeline)
        try:
            while len(found) < wanted:
                found.append(next(batches))
        except Broken:
            mended = True
            with made(**drawn_way(dice)).restore(pipeline.checkpoint()) as other:
                found += quick(other, wanted - len(found), dice)
    assert [batch.digest() for batch in found] == lone(recipe)


def one_round(dice: random.Random) -> int:
    """All of it once; gives how many iterations were begun."""
    recipe = drawn_recipe(dice)
    wanted = lone(recipe)
    assert stopped(recipe, dice) == wanted
    failing(recipe, dice)
    return left(recipe, wanted, dice)


def crept(levels: list[Level]) -> str:
    """What grew behind the first quarter of the run, in words."""
    begin, now = levels[len(levels) // 4], levels[-1]
    if now.memory_bytes > begin.memory_bytes + _MORE_BYTES or now[1:] != begin[1:]:
        return f"it held {begin} after a quarter of the time, and holds {now}"
    return ""


def main() -> str:
    """Run; gives what went wrong."""
    parser = argparse.ArgumentParser(description="Draw pipelines, run them in every odd way, and look whether anything creeps.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        sys.setswitchinterval(1e-6)
    began, begun, levels = time.monotonic(), 0, list[Level]()
    said = began
    for number in count():
        try:
            begun += one_round(random.Random(f"{chosen.seed} {number}"))
        except BaseException:
            print(f"round {number} of --seed {chosen.seed} failed", file=sys.stderr)
            raise
        levels.append(Level.now())
        now = time.monotonic()
        if now - said > 30 or now - began > chosen.minutes * 60:
            said = now
            print(f"{(now - began) / 60:5.1f} min, {number + 1} rounds, {begun} begun and left: {levels[-1]}", flush=True)
        if now - began > chosen.minutes * 60:
            return crept(levels)
    raise AssertionError("count() has no end")


if __name__ == "__main__":
    sys.exit(main() or 0)
