"""The same global digests on every Python, with and without the GIL, whatever the performance settings.

The digests of `golden.json` are those of a handful of recipes over small data that is made here from whole numbers alone. They
change only when the order of the data, the operators or the digest itself change, which breaks every run that is under way.
`python -m tests.laws.test_golden --write` writes them anew, on purpose.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon_async import Batch, Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation, global_digest, inspect_checkpoint

HERE = Path(__file__).parent
FILE, TOKENIZER = HERE / "golden.json", str(HERE / "tokenizer.json")
STEPS = 12  # of recipes that do not end
LISTED = 4  # steps whose digests are listed one by one
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "inline": {"runner": "inline", "chunk_rows": 1, "prefetch": 1},
    "threads": {"runner": "threads", "workers": 3, "chunk_rows": 7, "read_ahead": 3},
    "processes": {"runner": "processes", "workers": 2, "chunk_rows": 5},
    "isolated": {"isolate": True, "workers": 2, "chunk_rows": 9},
}
SLOW = ("processes", "isolated")  # to start
WORDS = [
    "the",
    "river",
    "of",
    "stone",
    "and",
    "a",
    "winter",
    "letter",
    "to",
    "be",
    "read",
    "in",
    "small",
    "pieces",
    "é",
    "日本",
    "😀",
    "<s>",
    "<|endoftext|>",
    "naïve\u2028line",
]


def numbers(seed: int) -> Iterator[int]:
    """Numbers that look like chance (a linear congruential generator of 64 bits, its upper half)."""
    while True:
        seed = (6364136223846793005 * seed + 1442695040888963407) % (1 << 64)
        yield seed >> 33


def rows(seed: int, n: int) -> list[dict[str, Any]]:
    """Documents of nought to forty words with side columns."""
    chance = numbers(seed)
    made = []
    for i in range(n):
        words = [WORDS[next(chance) % len(WORDS)] for _ in range(next(chance) % 41)]
        made.append({"id": i, "text": " ".join(words), "score": (next(chance) % 1000) / 8, "tags": [i, -i][: i % 3] or None})
    return made


def datasets(folder: Path) -> dict[str, Dataset]:
    """JSON lines in three shards, Parquet in two, an Arrow stream, and rows in memory."""
    (folder / "web").mkdir(parents=True)
    (folder / "books").mkdir()
    web, books, chat = rows(1, 120), rows(2, 80), rows(3, 30)
    web = [{**row, "meta": {"from": [row["id"], None, {}]}} for row in web]
    for n in range(3):
        lines = [json.dumps(row, ensure_ascii=n == 1) for row in web[n::3]]
        (folder / f"web/part-{n}.jsonl").write_bytes("\n".join(lines).encode() + b"\n" * (n != 2))
    for n in range(2):
        pq.write_table(pa.Table.from_pylist(books[n::2]), folder / f"books/{n}.parquet", row_group_size=16)
    table = pa.Table.from_pylist(chat)
    with pa.ipc.new_stream(folder / "chat.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=9)
    raw = [{"text": row["text"].encode(), "id": row["id"]} for row in rows(4, 50)]
    return {
        "web": Dataset.from_path("web", folder / "web"),
        "books": Dataset.from_path("books", folder / "books"),
        "chat": Dataset.from_path("chat", folder / "chat.arrow"),
        "raw": Dataset.from_arrow("raw", pa.Table.from_pylist(raw)),
    }


def source(made: dict[str, Dataset], weights: dict[str, float | str], **settings: Any) -> Pipeline:
    return Pipeline(StaticMixtureWorkSource([made[name] for name in weights], weights, **settings))


def long_enough(record: dict[str, Any]) -> bool:
    return len(record["text"]) > 20


def measured(record: dict[str, Any]) -> dict[str, Any]:
    return {"text": record["text"], "size": len(record["text"]), "pair": [record["id"], -record["id"]]}


async def halves(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "text": record["text"][: record["size"] // 2]}


def words(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"text": word, "size": record["size"]} for word in record["text"].split()[:4]]


def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("at", pa.array(range(batch.num_rows), pa.int16()))


def gathered(state: list[str], record: dict[str, Any]) -> list[dict[str, Any]]:
    state.append(record["text"])
    return rest(state) if sum(map(len, state)) > 200 else []


def rest(state: list[str]) -> list[dict[str, Any]]:
    found = [{"text": " ".join(state), "documents": len(state)}] if state else []
    state.clear()
    return found


def pretraining(made: dict[str, Dataset]) -> Pipeline:
    pipeline = source(made, {"web": 0.7, "books": 0.3}, token_estimation=TokenEstimation(), seed=42, epochs=None)
    pipeline.options(lanes=4, microbatches_per_step=8).tokenize(tokenizer_id=TOKENIZER, field="text")
    return pipeline.pack_flat(max_length=64, algorithm="wrap").shuffle(buffer_size=16, seed=42).batch(microbatch_size=2)


def pinned(made: dict[str, Dataset]) -> Pipeline:
    ratios = TokenEstimation({"web": "0.31", "books": 0.5, "chat": 1})
    pipeline = source(
        made, {"web": 1, "books": "0.1", "chat": "1/3"}, token_estimation=ratios, seed=7, epochs=2, on_exhausted="stop"
    )
    pipeline.options(lanes=2).tokenize(
        tokenizer_id=TOKENIZER, field="text", special_tokens="bos_eos", max_length=30, on_long="truncate"
    )
    return pipeline.shuffle(9).pack_flat(48, on_long="drop", pad_id=1).shuffle(5, seed=3).batch(1)


def by_bytes(made: dict[str, Dataset]) -> Pipeline:
    pipeline = source(made, {"web": 1, "books": 2, "chat": 3}, unit="bytes", seed=1, epochs=2, max_repeats=3).options(
        lanes=3, flush_every=20
    )
    pipeline.tokenize(tokenizer_id=TOKENIZER, field="text", max_length=16, keep_columns=["id", "score"])
    return pipeline.batch(4)


def by_samples(made: dict[str, Dataset]) -> Pipeline:
    pipeline = source(made, {"chat": 1, "books": 1}, unit="samples", seed=5, on_exhausted="drop_out").options(lanes=3, on_end="pad")
    return pipeline.filter(long_enough).map(measured).map(halves).flat_map(words).shuffle(20).batch(5)


def groups(made: dict[str, Dataset]) -> Pipeline:
    pipeline = source(made, {"raw": 1}, seed=9, epochs=3).options(lanes=2, flush_every=17, microbatches_per_step=4)
    pipeline.decode_text(["text"]).map_batches(numbered, rows=6).accumulate(list, gathered, rest)
    return pipeline.tokenize(tokenizer_id=TOKENIZER, field="text", keep_columns=["documents"]).batch(1)


def as_it_lies(made: dict[str, Dataset]) -> Pipeline:
    return source(made, {"web": 1, "chat": 1}, unit="samples", shuffle=False, epochs=None).options(lanes=5).batch(3)


def from_a_hat(made: dict[str, Dataset]) -> Pipeline:
    pipeline = source(made, {"web": 1, "chat": 2}, shuffle="rows", seed=3, unit="bytes", epochs=2).options(lanes=3)
    return pipeline.shuffle(8, block_size=2).batch(4)


def by_blocks(made: dict[str, Dataset]) -> Pipeline:
    small = {"raw": made["raw"].with_sizes(unit_bytes=2000, block_bytes=500)}
    return source(small, {"raw": 1}, shuffle="blocks", seed=3, unit="samples", epochs=None).options(lanes=2).batch(3)


RECIPES: dict[str, Callable[[dict[str, Dataset]], Pipeline]] = {
    each.__name__: each for each in (pretraining, pinned, by_bytes, by_samples, groups, as_it_lies, from_a_hat, by_blocks)
}


def take(pipeline: Pipeline, batches: int | None) -> list[Batch]:
    found: list[Batch] = []
    for batch in pipeline if batches != 0 else ():
        found.append(batch)
        if len(found) == batches:
            break
    return found


def digests(make: Callable[[dict[str, Dataset]], Pipeline], folder: Path, way: dict[str, Any], stop: int = 0) -> dict[str, Any]:
    """The global digests of a recipe; stopped after `stop` microbatches and begun again from the checkpoint."""
    made = datasets(folder)
    with make(made).options(**way) as pipeline:
        found, state = take(pipeline, stop), pipeline.checkpoint()
        told = pipeline.explain()
    most = STEPS * inspect_checkpoint(state).microbatches_per_step - stop if "endless" in told else None
    with make(made).options(**way) as pipeline:
        found += take(pipeline.restore(state), most)
    steps = [global_digest(step) for _, step in groupby(found, lambda batch: batch.step)]
    whole = hashlib.sha256("".join(steps).encode()).hexdigest()
    return {"batches": len(found), "rows": sum(int(batch.mask.sum()) for batch in found), "first": steps[:LISTED], "all": whole}


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * (way in SLOW)) for way in WAYS])
@pytest.mark.parametrize("name", RECIPES)
def test_golden_digests(name: str, way: str, tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text())
    assert digests(RECIPES[name], tmp_path / "data", WAYS[way]) == golden[name]


@pytest.mark.parametrize("name", RECIPES)
def test_golden_digests_over_a_stop(name: str, tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text())
    assert digests(RECIPES[name], tmp_path / "data", WAYS["threads"], stop=golden[name]["batches"] // 2 - 1) == golden[name]


def test_the_file_holds_these_recipes_and_no_others() -> None:
    assert list(json.loads(FILE.read_text())) == list(RECIPES)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(
            "python -m tests.laws.test_golden --write writes golden.json anew: every run under way will be told apart from new ones"
        )
    with tempfile.TemporaryDirectory() as made_here:
        new = {name: digests(make, Path(made_here) / name, {}) for name, make in RECIPES.items()}
    FILE.write_text(json.dumps(new, indent=1) + "\n")
