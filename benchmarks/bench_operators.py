"""What do operators cost beside the bare work in them?

Packing alone, against `np.concatenate` of the same pieces into rows of 4,096, on one thread; chat tokenization, against a bare loop
of template and encode on two threads; an exact mixture in a run, against the run without it; conversations with pictures, from
Parquet to packed tokens and pixels, against bare decoding by two threads or, under a GIL, two processes. Ratios within one run.

Its last answer is in benchmarks/README.md.
"""

import io
import multiprocessing
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pyarrow as pa
from figures import Figure, alternate, arguments, ratio, show, timed
from pictures import write_pictures
from PIL import Image
from texts import texts, tokenizer, write
from tokenizers import Tokenizer

from zephon_async import Dataset, PatchGrid, Pipeline, StaticMixtureWorkSource
from zephon_async.operators import PackFlat
from zephon_async.records import ORIGIN, Origins, Records

ROW, CHUNK, SEGMENT, WORKERS = 4096, 1024, 8192, 2
GRID = PatchGrid(max_pixels=28 * 28 * 256)  # at most 256 visual tokens, about 450 x 450 pixels
FREE = not getattr(sys, "_is_gil_enabled", lambda: True)()


def documents(count: int) -> list[Records]:
    """Chunks of token documents with lengths as those of web texts: lognormal, median 400, sigma 1, at most a row."""
    draw = np.random.default_rng(1)
    chunks = []
    for start in range(0, count, CHUNK):
        lengths = np.clip(draw.lognormal(np.log(400), 1, CHUNK).astype(np.int64), 1, ROW)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        tokens = pa.LargeListArray.from_arrays(offsets, pa.array(draw.integers(0, 50_000, offsets[-1], np.int32)))
        segments = np.zeros(CHUNK, ORIGIN)
        segments["row"], segments["stop"] = np.arange(start, start + CHUNK), lengths
        chunks.append(Records(pa.RecordBatch.from_arrays([tokens], ["input_ids"]), Origins(segments)))
    return chunks


def pack(algorithm: str, chunks: list[Records]) -> tuple[int, int]:
    """Tokens and rows, flushed at the end of each segment as in a run."""
    operator, tally, rows = PackFlat(ROW, algorithm=algorithm), Counter[str](), 0
    operator.told(["d"])
    lane, pushed = operator.accumulator(0, 0), 0
    for chunk in chunks:
        rows += len(lane.push(chunk, 0, tally)[0] or ())
        pushed += len(chunk)
        if operator.needs_flush and pushed % SEGMENT == 0:
            rows += len(lane.flush(tally) or ())
    rows += len(lane.flush(tally) or ())
    return sum(len(chunk.columns.column(0).values) for chunk in chunks), rows


def concatenate(chunks: list[Records]) -> float:
    """Tokens of the same documents copied into rows by one call a row, which documents go together being known."""
    for chunk in chunks:
        values, offsets = chunk.columns.column(0).values.to_numpy(), chunk.columns.column(0).offsets.to_numpy()
        pieces = [values[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
        for start in range(0, len(pieces), 6):
            np.concatenate(pieces[start : start + 6])
    return float(sum(len(chunk.columns.column(0).values) for chunk in chunks))


TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
TAGGED = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}{%- if message.role == 'assistant' %}{% generation %}"
    "{{ message.content + '<|im_end|>\n' }}{% endgeneration %}{%- else %}{{ message.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
)


def conversations(texts_: list[str]) -> list[list[dict[str, str]]]:
    """Two questions of 400 characters with answers of 1,600 from each document."""
    parts = [(text[:400], text[400:2000], text[2000:2400], text[2400:]) for text in texts_]
    roles = ("user", "assistant", "user", "assistant")
    return [[{"role": role, "content": part} for role, part in zip(roles, each, strict=True)] for each in parts]


def bare_chat(encoder: Tokenizer, template: str, chats: list[list[dict[str, str]]]) -> float:
    """Conversations rendered and encoded one after the other on two threads, each with a tokenizer and a template of its own."""
    import jinja2.sandbox

    def work(mine: list[list[dict[str, str]]]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        compiled, clone = environment.from_string(template), Tokenizer.from_str(encoder.to_str())
        for messages in mine:
            np.array(clone.encode(compiled.render(messages=messages), add_special_tokens=False).ids, np.int32)

    threads = [threading.Thread(target=work, args=(chats[n::WORKERS],)) for n in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(len(chats))


def chat(encoder: Tokenizer, template: str, chats: pa.Table) -> float:
    """The same conversations through a pipeline, with their loss masks."""
    source = StaticMixtureWorkSource([Dataset.from_arrow("chats", chats)], {"chats": 1}, seed=1)
    pipeline = Pipeline(source).options(workers=WORKERS, runner="threads").tokenize_chat(encoder, chat_template=template).batch(64)
    with pipeline:
        for _ in pipeline:
            pass
    return float(len(chats))


def mix(folders: list[Path], encoder: Tokenizer, characters: float, exact: bool) -> float:
    """Characters of two datasets through tokenize and pack."""
    datasets = [Dataset.from_path(name, folder) for name, folder in zip("ab", folders, strict=True)]
    pipeline = Pipeline(StaticMixtureWorkSource(datasets, {"a": 0.5, "b": 0.5}, seed=1)).options(workers=WORKERS)
    pipeline.tokenize(encoder, field="text", eos_token="<|endoftext|>")
    if exact:
        pipeline.ensure_mixture(window_tokens=65_536, buffer_tokens=262_144)
    with pipeline.pack_flat(2048).batch(8):
        for _ in pipeline:
            pass
    return characters


def decode(pictures: list[bytes]) -> int:
    """Bare decoding to the size that the model takes."""
    pixels = 0
    for each in pictures:
        with Image.open(io.BytesIO(each)) as image:
            height, width = GRID.size(image.height, image.width)
            pixels += np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)).size
    return pixels


def bare_decoding(pool: Executor, pictures: list[bytes]) -> float:
    """Pictures decoded by the workers of a pool, 32 at a time; of processes only the number of pixels comes back."""
    began = perf_counter()
    assert sum(pool.map(decode, [pictures[n : n + 32] for n in range(0, len(pictures), 32)])) > 0
    return len(pictures) / (perf_counter() - began)


def see(folder: Path, encoder: Tokenizer, count: int) -> float:
    """Pictures a second from files to batches of packed tokens and pixels; from the first batch on, when the workers are there."""
    source = StaticMixtureWorkSource([Dataset.from_path("seen", folder)], {"seen": 1}, seed=1, unit="samples", epochs=None)
    pipeline = (
        Pipeline(source)
        .options(workers=WORKERS, runner="threads" if FREE else "processes")
        .tokenize_chat(encoder, chat_template=TEMPLATE, special_text="token", keep_columns=["images"])
        .expand_images("images", placeholder="<image>", tokenizer=encoder, grid=GRID)
        .refer(["images"])
        .pack_flat(2048, algorithm="best_fit", on_long="drop", carry=["images"])
        .decode_image("images", size=GRID)
        .batch(4)
    )
    seen, began = 0, 0.0
    with pipeline:
        for batch in pipeline:
            if began:
                seen += len(batch.ragged("images"))
            began = began or perf_counter()
            if seen >= count:
                return seen / (perf_counter() - began)
    raise AssertionError("the data ended")


def with_chat_tokens(encoder: Tokenizer) -> Tokenizer:
    made = Tokenizer.from_str(encoder.to_str())
    made.add_special_tokens(["<|im_start|>", "<|im_end|>", "<image>"])
    return made


def packing(chosen: Any) -> list[Figure]:
    chunks = documents(SEGMENT * (1 if chosen.quick else 4))
    figures = []
    for algorithm, target in (("wrap", 500.0), ("best_fit", 120.0), ("first_fit", None), ("best_fit_wrap", None)):
        ways: dict[str, Callable[[], float]] = {
            "bare": partial(concatenate, chunks),
            "ours": lambda algorithm=algorithm: float(pack(algorithm, chunks)[0]),  # type: ignore[misc]
        }
        rates = alternate(3 if chosen.quick else 9, {name: partial(timed, way) for name, way in ways.items()})
        tokens, rows = pack(algorithm, chunks)
        figures += [
            Figure(f"{algorithm}: tokens", sorted(rates["ours"])[len(rates["ours"]) // 2] / 1e6, "M per s", target),
            Figure(f"{algorithm}: against np.concatenate", ratio(rates["ours"], rates["bare"]), "", target and 0.5),
            Figure(f"{algorithm}: tokens in rows", 100 * tokens / (rows * ROW), "%", 99 if algorithm == "best_fit" else None),
        ]
    return figures


def chatting(chosen: Any, texts_: list[str], encoder: Tokenizer) -> list[Figure]:
    chats = conversations(texts_)
    table = pa.table({"messages": chats})
    ways: dict[str, Callable[[], float]] = {
        "bare": partial(bare_chat, encoder, TEMPLATE, chats),
        "tags": partial(chat, encoder, TAGGED, table),
        "prefixes": partial(chat, encoder, TEMPLATE, table),
    }
    rates = alternate(3, {name: partial(timed, way) for name, way in ways.items()})
    return [
        Figure("chat / bare template and encode, generation tags", ratio(rates["tags"], rates["bare"]), "", 0.8),
        Figure("chat / bare template and encode, prefix differences", ratio(rates["prefixes"], rates["bare"]), "", 0.8),
    ]


def mixing(chosen: Any, texts_: list[str], encoder: Tokenizer) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folders = []
        for part in range(2):
            folder = Path(name, str(part))
            folder.mkdir()
            folders.append(write(folder, texts_[part::2])[1])
        characters = float(sum(map(len, texts_)))
        ways = {exact: partial(mix, folders, encoder, characters, exact == "exact") for exact in ("exact", "as drawn")}
        rates = alternate(3 if chosen.quick else 5, {name: partial(timed, way) for name, way in ways.items()})
    return [Figure("with ensure_mixture / without", ratio(rates["exact"], rates["as drawn"]), "", 0.97)]


def seeing(chosen: Any, encoder: Tokenizer) -> list[Figure]:
    workers = ThreadPoolExecutor(WORKERS) if FREE else ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn"))
    with tempfile.TemporaryDirectory() as name, workers as pool:
        pictures = write_pictures(Path(name), 256 if chosen.quick else 1024)
        list(pool.map(decode, [pictures[:1]] * WORKERS))  # by now they are there
        ways = {
            "bare": partial(bare_decoding, pool, pictures),
            "ours": partial(see, Path(name), encoder, len(pictures)),
        }
        rates = alternate(3 if chosen.quick else 5, ways)
    bare = f"bare decoding by {WORKERS} {'threads' if FREE else 'processes'}"
    return [Figure(f"pictures to packed tokens and pixels / {bare}", ratio(rates["ours"], rates["bare"]), "", 0.9 if FREE else 0.8)]


def main() -> None:
    chosen = arguments(__doc__.splitlines()[0])
    texts_ = texts(6 if chosen.quick else 40)
    kind, encoder = tokenizer(texts_)
    print(f"{len(texts_):,} documents, {kind} tokenizer")
    for_chat = with_chat_tokens(encoder)
    figures = packing(chosen) + chatting(chosen, texts_, for_chat) + mixing(chosen, texts_, encoder) + seeing(chosen, for_chat)
    show(figures, chosen.json)


if __name__ == "__main__":
    main()
