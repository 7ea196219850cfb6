"""How long does a trainer wait, and how free is its loop?

The time to the first batch behind a restore against that of a cold start (8 lanes, a shuffle of 64); and how late a tick of
1 ms comes on the consumer's own event loop while it takes batches at full speed. Beside it the ceiling: the same tick on a loop
that does nothing else, while two bare threads tokenize, so that the scheduler of the system is all that can make it late.

Its last answer is in benchmarks/README.md.
"""

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from figures import Figure, alternate, arguments, ratio, show
from texts import texts, tokenizer, write
from tokenizers import Tokenizer

from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

TICK_S, WORKERS = 0.001, 2


def first(make: Callable[[], Pipeline], state: bytes | None) -> float:
    """Firsts a second: from iter() to the first batch, cold or behind a restore."""
    with make() as pipeline:
        began = perf_counter()
        if state is not None:
            pipeline.restore(state)
        next(iter(pipeline))
        return 1 / (perf_counter() - began)


async def ticks(late: list[float], most: int) -> None:
    """How much later than asked each tick came, in milliseconds; until there are so many, or it is cancelled."""
    while len(late) < most:
        began = perf_counter()
        await asyncio.sleep(TICK_S)
        late.append((perf_counter() - began - TICK_S) * 1e3)


async def gaps(make: Callable[[], Pipeline], batches: int) -> list[float]:
    """Of the ticks beside a pipeline."""
    late: list[float] = []
    async with make() as pipeline:
        taken = aiter(pipeline)
        await anext(taken)
        ticking = asyncio.create_task(ticks(late, sys.maxsize))
        for _ in range(batches):
            await anext(taken)
        ticking.cancel()
    return sorted(late)


async def bare_gaps(encoder: Tokenizer, documents: list[str], number: int) -> list[float]:
    """Of as many ticks beside two threads that tokenize and know nothing of a loop."""
    late: list[float] = []
    done = threading.Event()

    def encode() -> None:
        clone = Tokenizer.from_str(encoder.to_str())
        for start in cycle(range(0, len(documents), 64)):
            clone.encode_batch_fast(documents[start : start + 64], add_special_tokens=False)
            if done.is_set():
                return

    threads = [threading.Thread(target=encode) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    await ticks(late, number)
    done.set()
    for thread in threads:
        thread.join()
    return sorted(late)


def main() -> None:
    chosen = arguments(__doc__.splitlines()[0])
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    with tempfile.TemporaryDirectory() as name:
        documents = texts(12 if chosen.quick else 60)
        _, folder = write(Path(name), documents)
        kind, encoder = tokenizer(documents)

        def text(lanes: int) -> Pipeline:
            source = StaticMixtureWorkSource([Dataset.from_path("text", folder)], {"text": 1}, seed=1, epochs=None)
            pipeline = Pipeline(source).options(lanes=lanes, workers=WORKERS)
            return pipeline.tokenize(encoder, field="text", eos_token="<|endoftext|>").pack_flat(2048).shuffle(64).batch(8)

        with text(8) as pipeline:
            for _ in islice(pipeline, 8 * 11):
                pass
            state = pipeline.checkpoint()
        waits = alternate(
            1 if chosen.quick else 15,
            {"cold": partial(first, partial(text, 8), None), "restored": partial(first, partial(text, 8), state)},
        )
        late = asyncio.run(gaps(partial(text, 8), 64 if chosen.quick else 400))
        bare = asyncio.run(bare_gaps(encoder, documents, len(late)))
    print(f"Python {sys.version.split()[0]}; {len(documents):,} documents, {kind} tokenizer; {len(late):,} ticks")
    figures = [
        Figure("first batch behind a restore / cold", ratio(waits["cold"], waits["restored"]), "", 1.25, at_most=True),
        Figure("a tick of 1 ms comes late, p99", late[int(len(late) * 0.99)], "ms", 6.0 if gil else 1.0, at_most=True),
        Figure("a tick of 1 ms comes late, median", late[len(late) // 2], "ms"),
        Figure("the same beside two bare threads, p99", bare[int(len(bare) * 0.99)], "ms"),
        Figure("the same beside two bare threads, median", bare[len(bare) // 2], "ms"),
    ]
    show(figures, chosen.json)


if __name__ == "__main__":
    main()
