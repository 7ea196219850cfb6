"""What do order and checkpoints cost?

Text is tokenized and packed, and a checkpoint taken behind every batch; against the same pipeline, changed in this process only:
its lanes take results in the order in which they finish, nothing is noted of where a row can be had again, and no checkpoint is
taken.

Its last answer is in benchmarks/README.md.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from figures import Figure, alternate, arguments, ratio, show, timed
from texts import texts, tokenizer, write
from tokenizers import Tokenizer

from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_async.engine import lane
from zephon_async.engine.line import Line, Submitted
from zephon_async.lanes import Cursor
from zephon_async.records import End

WORKERS, LANES = 2, 4


class FirstDone(Line):
    """Results in the order in which they finish; only the last, which ends the run, waits for the others."""

    async def get(self) -> list[Submitted]:
        while True:
            while not self._entries:
                self._there.clear()
                await self._there.wait()
            results = [entry.result for entry in self._entries]
            await asyncio.wait(results, return_when=asyncio.FIRST_COMPLETED)
            done = [entry for entry in self._entries if entry.result.done()]
            taken = [entry for entry in done if entry.result.result().parcel.end is End.NOTHING or len(self._entries) == 1]
            if taken:
                for entry in taken:
                    self._entries.remove(entry)
                return taken
            await asyncio.wait(results)


class NoTrail:
    """Notes nothing."""

    def __init__(self, cursor: Cursor, passing: object) -> None:
        self._cursor = cursor

    def edge(self, i: int, edge: object) -> None:
        """Not noted."""

    marks = edge

    def cursor(self, out: int) -> Cursor:
        return self._cursor


@contextmanager
def without_order() -> Iterator[None]:
    with patch.object(lane, "Line", FirstDone), patch.object(lane, "Trail", NoTrail):
        yield


def packed(folder: Path, encoder: Tokenizer, checkpoints: bool) -> float:
    """Microbatches of the whole of the data."""
    source = StaticMixtureWorkSource([Dataset.from_path("text", folder)], {"text": 1}, seed=1)
    pipeline = Pipeline(source).options(workers=WORKERS, lanes=LANES)
    seen = 0
    with pipeline.tokenize(encoder, field="text", eos_token="<|endoftext|>").pack_flat(2048).batch(8):
        for _ in pipeline:
            seen += 1
            if checkpoints:
                pipeline.checkpoint()
    return float(seen)


def bare(folder: Path, encoder: Tokenizer) -> float:
    with without_order():
        return timed(partial(packed, folder, encoder, False))


def main() -> None:
    chosen = arguments(__doc__.splitlines()[0])
    with tempfile.TemporaryDirectory() as name:
        documents = texts(10 if chosen.quick else 40)
        _, folder = write(Path(name), documents)
        kind, encoder = tokenizer(documents)
        rates = alternate(
            3 if chosen.quick else 9,
            {"ordered": partial(timed, partial(packed, folder, encoder, True)), "not": partial(bare, folder, encoder)},
        )
    print(f"Python {sys.version.split()[0]}; {len(documents):,} documents, {kind} tokenizer, {LANES} lanes")
    figures = [
        Figure("in order, with checkpoints / as they finish, without", ratio(rates["ordered"], rates["not"]), "", 0.97),
        Figure("rate: in order, with checkpoints", sorted(rates["ordered"])[len(rates["ordered"]) // 2], "per s"),
    ]
    show(figures, chosen.json)


if __name__ == "__main__":
    main()
