"""Is uvloop a cheaper loop for the engine than asyncio's own?

The same pipeline on each, in turn: with many wake-ups (chunks of 16 small rows, nothing done to them), on text (tokenize and
pack to 2,048), and with a coroutine of the user's for every record, whose loop is changed with the engine's.
Counted is the CPU time of the process, which is what a loop costs, and which other work on the machine disturbs little.

Its last answer is in benchmarks/README.md.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pyarrow as pa
import uvloop
from figures import Figure, alternate, arguments, ratio, show
from texts import texts, tokenizer, write
from tokenizers import Tokenizer

from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@contextmanager
def on(make: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[None]:
    """New loops are made by `make`, the engine's too."""
    with patch("zephon_async.engine.engine.new_loop", make), patch("zephon_async.loops.new_loop", make):
        yield


def source(dataset: Dataset) -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource([dataset], {dataset.name: 1}, seed=1, epochs=None)


def wake_ups(rows: Dataset, lanes: int) -> Pipeline:
    """A chunk gives one microbatch."""
    return Pipeline(source(rows)).options(workers=2, lanes=lanes, chunk_rows=16).batch(16)


def text(folder: Path, encoder: Tokenizer) -> Pipeline:
    pipeline = Pipeline(source(Dataset.from_path("text", folder))).options(workers=2, lanes=8)
    return pipeline.tokenize(encoder, field="text", eos_token="<|endoftext|>").pack_flat(2048).shuffle(64).batch(8)


async def added(record: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"n": record["n"] + 1}


def coroutines(rows: Dataset) -> Pipeline:
    return Pipeline(source(rows)).options(workers=2, lanes=8).map(added, schema={"n": pa.int64()}).batch(256)


def rate(make: Callable[[], Pipeline], microbatches: int, loop: Callable[[], asyncio.AbstractEventLoop]) -> float:
    """Microbatches a second of CPU time, without the start."""
    with on(loop), make() as pipeline:
        taken = iter(pipeline)
        next(taken)
        began = process_time()
        for _ in range(microbatches):
            next(taken)
        return microbatches / (process_time() - began)


def main() -> None:
    chosen = arguments(__doc__.splitlines()[0])
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    rounds = 3 if chosen.quick else 11
    rows = Dataset.from_arrow("numbers", pa.table({"n": range(200_000)}))
    with tempfile.TemporaryDirectory() as name:
        documents = texts(20)
        folder, _ = write(Path(name), documents)
        kind, encoder = tokenizer(documents)
        cases: dict[str, tuple[Callable[[], Pipeline], int]] = {
            "many wake-ups, 1 lane": (partial(wake_ups, rows, 1), 2000),
            "many wake-ups, 32 lanes": (partial(wake_ups, rows, 32), 2000),
            "text": (partial(text, folder, encoder), 150),
            "coroutines": (partial(coroutines, rows), 60),
        }
        ways = {(case, loop): partial(rate, *cases[case], LOOPS[loop]) for case in cases for loop in LOOPS}
        rates = alternate(rounds, {" on ".join(way): work for way, work in ways.items()})
    print(f"Python {sys.version.split()[0]}, {'with the GIL' if gil else 'free-threaded'}; {kind} tokenizer")
    figures = [
        Figure(f"{case}: uvloop / asyncio", ratio(rates[f"{case} on uvloop"], rates[f"{case} on asyncio"]), "") for case in cases
    ]
    figures += [Figure(f"rate: {name}", sorted(each)[len(each) // 2], "per CPU s") for name, each in rates.items()]
    show(figures, chosen.json)


if __name__ == "__main__":
    main()
