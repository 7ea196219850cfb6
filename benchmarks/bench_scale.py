"""What do many lanes, many datasets and both together cost on one rank?

Text is tokenized and packed with 64 lanes against one lane, and from 100 datasets against one, at full speed; then 64 lanes draw
from 1,000 small datasets inside a budget of 1 GiB, and memory and descriptors are read off.

Its last answer is in benchmarks/README.md.
"""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pyarrow as pa
import pyarrow.parquet as pq
from figures import Figure, alternate, arguments, ratio, show
from texts import texts, tokenizer
from tokenizers import Tokenizer

from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

LANES, FEW, MANY, WORKERS = 64, 100, 1000, 2


def datasets(folder: Path, documents: list[str], number: int) -> list[Dataset]:
    """The documents as `number` datasets of one Parquet file each."""
    folder.mkdir()
    for n in range(number):
        pq.write_table(pa.table({"text": documents[n::number]}), folder / f"{n:04}.parquet", compression="zstd")
    return [Dataset.from_path(f"d{n:04}", folder / f"{n:04}.parquet") for n in range(number)]


def source(of: list[Dataset]) -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource(of, {dataset.name: 1 for dataset in of}, seed=1, epochs=None)


def packed(of: list[Dataset], encoder: Tokenizer, lanes: int, seconds: float) -> float:
    """Documents tokenized a second, those that lanes are ahead with included."""
    pipeline = Pipeline(source(of)).options(lanes=lanes, workers=WORKERS).tokenize(encoder, field="text", eos_token="<|endoftext|>")
    with pipeline.pack_flat(2048).batch(4):
        batches = iter(pipeline)
        next(batches)
        began, before = perf_counter(), tokenized(pipeline)
        while perf_counter() < began + seconds:
            next(batches)
        return (tokenized(pipeline) - before) / (perf_counter() - began)


def tokenized(pipeline: Pipeline) -> int:
    return next(stage.rows for stage in pipeline.statistics().stages if "tokenize" in stage.name)


def drawn(of: list[Dataset], microbatches: int) -> tuple[float, int, int]:
    """Rows a second, memory in bytes and descriptors of 64 lanes over many datasets."""
    descriptors = 0
    with Pipeline(source(of)).options(lanes=LANES, workers=WORKERS, memory_budget="1GiB").batch(8) as pipeline:
        batches = iter(pipeline)
        next(batches)
        began = perf_counter()
        for n in range(microbatches):
            next(batches)
            if n % 64 == 0:
                descriptors = max(descriptors, len(os.listdir("/proc/self/fd")))
        seconds = perf_counter() - began
        return 8 * microbatches / seconds, resident_bytes(), descriptors


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    chosen = arguments(__doc__.splitlines()[0])
    rounds, seconds = (1, 3.0) if chosen.quick else (5, 6.0)
    with tempfile.TemporaryDirectory() as name:
        documents = texts(30 if chosen.quick else 60)
        kind, encoder = tokenizer(documents)
        many = datasets(Path(name, "many"), documents, MANY)
        before = resident_bytes()
        rate, memory, descriptors = drawn(many, 512 if chosen.quick else 8192)
        one, few = datasets(Path(name, "one"), documents, 1), datasets(Path(name, "few"), documents, FEW)
        rates = alternate(
            rounds,
            {
                "one": partial(packed, one, encoder, 1, seconds),
                "lanes": partial(packed, one, encoder, LANES, seconds),
                "datasets": partial(packed, few, encoder, 1, seconds),
            },
        )
    print(f"Python {sys.version.split()[0]}; {len(documents):,} documents, {kind} tokenizer")
    figures = [
        Figure(f"{LANES} lanes / 1 lane", ratio(rates["lanes"], rates["one"]), "", 0.95),
        Figure(f"{FEW} datasets / 1 dataset", ratio(rates["datasets"], rates["one"]), "", 0.95),
        Figure(f"{LANES} lanes x {MANY:,} datasets: memory", (memory - before) / (1 << 20), "MiB", 1024.0, at_most=True),
        Figure(f"{LANES} lanes x {MANY:,} datasets: descriptors", descriptors, "", 256.0, at_most=True),
        Figure(f"{LANES} lanes x {MANY:,} datasets: rows", rate, "per s"),
    ]
    show(figures, chosen.json)


if __name__ == "__main__":
    main()
