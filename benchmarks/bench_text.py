"""How much does the loader add to the bare libraries on text?

Tokenize and pack to 2,048 with two workers, against `encode_batch_fast` of the same texts on two threads; fetch and batch 256
rows, against a bare scan of the same files by pyarrow; the time to the first batch. Ratios within one run.

Its last answer is in benchmarks/README.md.
"""

import os
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pyarrow.json as pj
import pyarrow.parquet as pq
from figures import Figure, alternate, arguments, ratio, show, timed
from texts import texts, tokenizer, write
from tokenizers import Tokenizer

from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

WORKERS, LENGTH = 2, 2048


def bare_tokenizer(encoder: Tokenizer, documents: list[str]) -> float:
    """Characters tokenized on two threads, each with a tokenizer of its own."""

    def encode(mine: list[str]) -> None:
        clone = Tokenizer.from_str(encoder.to_str())
        for start in range(0, len(mine), 256):
            clone.encode_batch_fast(mine[start : start + 256], add_special_tokens=False)

    threads = [threading.Thread(target=encode, args=(documents[n::WORKERS],)) for n in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(sum(map(len, documents)))


def source(folder: Path) -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource([Dataset.from_path("text", folder)], {"text": 1}, seed=1)


def pack(folder: Path, encoder: Tokenizer, characters: float) -> float:
    """Characters through tokenize and pack, order and checkpoints on."""
    pipeline = (
        Pipeline(source(folder))
        .options(workers=WORKERS)
        .tokenize(encoder, field="text", eos_token="<|endoftext|>")
        .pack_flat(LENGTH)
        .batch(8)
    )
    with pipeline:
        for _ in pipeline:
            pipeline.checkpoint()
    return characters


def fetch(folder: Path, rows: int) -> float:
    """Rows through fetch and batch."""
    seen = 0
    with Pipeline(source(folder)).options(workers=WORKERS).batch(256) as pipeline:
        for batch in pipeline:
            seen += len(batch)
    assert rows - 256 < seen <= rows
    return float(seen)


def scan_parquet(folder: Path) -> float:
    rows = 0
    for path in sorted(folder.iterdir()):
        with pq.ParquetFile(path) as file:
            rows += sum(batch.num_rows for batch in file.iter_batches(256))
    return float(rows)


def scan_jsonl(folder: Path) -> float:
    return float(sum(pj.read_json(path).num_rows for path in sorted(folder.iterdir())))


def first_batch(folder: Path, encoder: Tokenizer) -> float:
    """Seconds from iter() to the first batch, with 8 lanes and a shuffle of 64."""
    pipeline = (
        Pipeline(source(folder))
        .options(workers=WORKERS, lanes=8)
        .tokenize(encoder, field="text", eos_token="<|endoftext|>")
        .pack_flat(LENGTH)
        .shuffle(64)
        .batch(8)
    )
    with pipeline:
        began = perf_counter()
        next(iter(pipeline))
        return perf_counter() - began


def main() -> None:
    chosen = arguments(__doc__.splitlines()[0])
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    with tempfile.TemporaryDirectory() as name:
        documents = texts(12 if chosen.quick else 200)
        jsonl, parquet = write(Path(name), documents)
        kind, encoder = tokenizer(documents)
        few = documents[: len(documents) // (1 if chosen.quick else 4)]
        few_folder = Path(name, "few")
        few_folder.mkdir()
        small, _ = write(few_folder, few)
        characters = float(sum(map(len, few)))
        tokenizing: dict[str, Any] = {
            "bare tokenizer": partial(bare_tokenizer, encoder, few),
            "tokenize and pack": partial(pack, small, encoder, characters),
        }
        fetching: dict[str, Any] = {
            "scan Parquet": partial(scan_parquet, parquet),
            "fetch Parquet": partial(fetch, parquet, len(documents)),
            "scan JSONL": partial(scan_jsonl, jsonl),
            "fetch JSONL": partial(fetch, jsonl, len(documents)),
        }
        rates = alternate(3, {name: partial(timed, way) for name, way in tokenizing.items()})
        rates |= alternate(9, {name: partial(timed, way) for name, way in fetching.items()})  # each takes less than a second
        waits = [first_batch(parquet, encoder) for _ in range(3)]
    build = "with the GIL" if gil else "free-threaded"
    print(f"Python {sys.version.split()[0]}, {build}; {len(documents):,} documents, {kind} tokenizer")
    added = ratio(rates["tokenize and pack"], rates["bare tokenizer"])
    figures = [
        Figure("tokenize + pack / bare tokenizer", added, "", 0.8 if gil else 0.9),
        Figure("fetch + batch / scan, Parquet", ratio(rates["fetch Parquet"], rates["scan Parquet"]), "", 0.5),
        Figure("fetch + batch / scan, JSONL", ratio(rates["fetch JSONL"], rates["scan JSONL"]), "", 0.5),
        Figure("first batch, 8 lanes, shuffle 64", sorted(waits)[1], "s", 3.0, at_most=True),
        *(Figure(f"rate: {name}", sorted(each)[len(each) // 2], "per s") for name, each in rates.items()),
    ]
    show(figures, chosen.json)


if __name__ == "__main__":
    main()
