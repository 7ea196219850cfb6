"""What does it cost to run Python somewhere else: on threads, in worker processes, in an isolated engine?

Hand-over of Arrow batches to a worker process and back, against a bare ping-pong of the same bytes through memfds; a Python-heavy
`map` and the decoding of images, against the same functions on bare processes or threads; the first batch; the memory of a worker;
and how much of its speed a trainer keeps beside an isolated engine. Ratios within one run.

Its last answer is in benchmarks/README.md.
"""

import asyncio
import io
import mmap
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pyarrow as pa
from figures import Figure, alternate, arguments, ratio, show
from texts import texts, tokenizer

from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_async.loops import new_loop
from zephon_async.records import ORIGIN, Origins, Parcel, Records
from zephon_async.runners import Portable, ProcessRunner

Record = dict[str, Any]
WORKERS, CHUNK = 2, 256
KIB, MIB = 1 << 10, 1 << 20
FREE = not getattr(sys, "_is_gil_enabled", lambda: True)()


# -- (a) the hand-over -------------------------------------------------------------------------------------------------------


class Same:
    """A stage that gives what it gets."""

    def run(self, parcel: Parcel) -> Parcel:
        return parcel


def parcel(size: int) -> Parcel:
    rows = size // 1024
    columns = pa.record_batch({"x": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 128, np.int64)), 128)})
    return Parcel(Records(columns, Origins(np.zeros(rows, ORIGIN))))


def handed_over(size: int, calls: int) -> Callable[[], float]:
    """Calls a second of a function that does nothing."""

    async def run() -> float:
        async def nobody(question: tuple[int, ...]) -> str:
            raise AssertionError(question)

        runner, function, given = ProcessRunner(1, nobody), Portable(Same(), copies=False), parcel(size)
        runner.start(asyncio.get_running_loop())
        for _ in range(20):
            await runner.run(function, given, (0,))
        began = perf_counter()
        for _ in range(calls):
            await runner.run(function, given, (0,))
        rate = calls / (perf_counter() - began)
        runner.close(5.0)
        return rate

    def on_the_loop_of_an_engine() -> float:
        with asyncio.Runner(loop_factory=new_loop) as loop:
            return loop.run(run())

    return on_the_loop_of_an_engine


_ECHO = """
import mmap, socket, sys
of_socket, there, back, size = map(int, sys.argv[1:])
line, inbox, outbox = socket.socket(fileno=of_socket), mmap.mmap(there, size), mmap.mmap(back, size)
while line.recv(16):
    outbox[:] = memoryview(inbox)
    line.sendall(b"x" * 16)
"""


def ping_pong(size: int, calls: int) -> float:
    """The same bytes through two memfds: laid down, handed back by another process, and copied out."""
    total = size + (size // 1024) * ORIGIN.itemsize
    here, theirs = socket.socketpair()
    memories = [os.memfd_create("bench") for _ in range(2)]
    for memory in memories:
        os.ftruncate(memory, total)
    given, outbox, inbox = np.zeros(total, np.uint8), mmap.mmap(memories[0], total), mmap.mmap(memories[1], total)
    fds = (theirs.fileno(), *memories)
    with subprocess.Popen([sys.executable, "-c", _ECHO, *map(str, fds), str(total)], pass_fds=fds) as process:
        theirs.close()

        def once() -> None:
            np.frombuffer(outbox, np.uint8)[:] = given
            here.sendall(b"x" * 16)
            here.recv(16)
            np.frombuffer(inbox, np.uint8).copy()

        for _ in range(20):
            once()
        began = perf_counter()
        for _ in range(calls):
            once()
        rate = calls / (perf_counter() - began)
        here.close()
        process.wait()
    for memory in memories:
        os.close(memory)
    return rate


# -- (b) a Python-heavy map, and (c) images ----------------------------------------------------------------------------------

NUMBERS = pa.schema([("n", pa.int64()), ("sum", pa.int64())])
PIXELS = pa.schema([("pixels", pa.large_binary())])


def heavy(record: Record, loop: int = 250) -> Record:
    total = record["n"]
    for i in range(loop):
        total += i & 7
    return {"n": record["n"], "sum": total}


def calibrated(seconds: float) -> int:
    """How long a loop takes about so many seconds."""
    heavy({"n": 1}, 1000)
    began = perf_counter()
    for _ in range(300):
        heavy({"n": 1}, 1000)
    return max(1, round(seconds / ((perf_counter() - began) / 300 / 1000)))


def decoded(record: Record) -> Record:
    from PIL import Image

    with Image.open(io.BytesIO(record["jpeg"])) as image:
        return {"pixels": image.convert("RGB").resize((224, 224)).tobytes()}


def images(n: int) -> pa.Table | None:
    """JPEGs of 256 pixels, each another; None without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return None
    chance, made = np.random.default_rng(1), []
    y, x = np.mgrid[:256, :256]
    for _ in range(n):
        waves = [128 + 90 * np.sin((x * a + y * b) / 40) + chance.normal(0, 9, (256, 256)) for a, b in chance.normal(0, 1, (3, 2))]
        file = io.BytesIO()
        Image.fromarray(np.clip(np.dstack(waves), 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        made.append(file.getvalue())
    return pa.table({"jpeg": pa.array(made, pa.large_binary())})


def worked(table: pa.Table, fn: Callable[[Record], Record], schema: pa.Schema) -> None:
    """The same function on the same dicts, from Arrow and to Arrow."""
    for batch in table.to_batches(max_chunksize=CHUNK):
        pa.RecordBatch.from_pylist([fn(record) for record in batch.to_pylist()], schema=schema)


def mapped(table: pa.Table, fn: Callable[[Record], Record], schema: pa.Schema, runner: str) -> float:
    """Rows a second of a pipeline that has begun: a fifth of the rows first, by when all workers are there."""
    mixture = StaticMixtureWorkSource([Dataset.from_arrow("d", table)], {"d": 1}, epochs=None, unit="samples")
    with Pipeline(mixture).options(runner=runner, workers=WORKERS).map(fn, schema=schema, version=1).batch(CHUNK) as pipeline:
        batches = iter(pipeline)
        while stage_rows(pipeline) < len(table) // 5:
            next(batches)
        began, before = perf_counter(), stage_rows(pipeline)
        while stage_rows(pipeline) - before < len(table):
            next(batches)
        return (stage_rows(pipeline) - before) / (perf_counter() - began)


def stage_rows(pipeline: Pipeline) -> int:
    return next(stage.rows for stage in pipeline.statistics().stages if "map" in stage.name)


def bare(table: pa.Table, fn: Callable[[Record], Record], schema: pa.Schema, runner: str) -> float:
    """Rows a second of two bare threads or processes, each with half of the rows."""
    halves = [table.slice(n * (len(table) // WORKERS), len(table) // WORKERS) for n in range(WORKERS)]
    if runner == "threads":
        threads = [threading.Thread(target=worked, args=(half, fn, schema)) for half in halves]
        began = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        spawn = multiprocessing.get_context("spawn")
        barrier = spawn.Barrier(WORKERS + 1)
        processes = [spawn.Process(target=_bare_process, args=(barrier, half, fn, schema)) for half in halves]
        for process in processes:
            process.start()
        barrier.wait()
        began = perf_counter()
        barrier.wait()
    rate = len(table) / (perf_counter() - began)
    if runner != "threads":
        for process in processes:
            process.join()
    return rate


def _bare_process(barrier: Any, half: pa.Table, fn: Callable[[Record], Record], schema: pa.Schema) -> None:
    worked(half.slice(0, CHUNK), fn, schema)
    barrier.wait()
    worked(half, fn, schema)
    barrier.wait()


# -- (d) the first batch, and (e) the memory of a worker ---------------------------------------------------------------------


def first_batch(table: pa.Table) -> float:
    """Seconds from iter() to the first batch, with two workers."""
    mixture = StaticMixtureWorkSource([Dataset.from_arrow("d", table)], {"d": 1}, epochs=None)
    options = {"runner": "processes", "workers": WORKERS}
    with Pipeline(mixture).options(**options).map(heavy, schema=NUMBERS, version=1).batch(CHUNK) as pipeline:
        began = perf_counter()
        next(iter(pipeline))
        return perf_counter() - began


def private_bytes(pid: int) -> int:
    """Private memory of a process, without the arenas."""
    total, counts = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            counts = "memfd:zephon" not in line
        elif counts and name.startswith("Private_"):
            total += int(rest.split()[0]) * KIB
    return total


_IMPORTS = """
import sys, numpy, pyarrow, cloudpickle, zephon_async.runners.worker, zephon_async.engine
print(flush=True)
sys.stdin.readline()
"""


def with_the_same_libraries() -> int:
    """Private memory of an interpreter that has only imported what a worker imports."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _IMPORTS], text=True, **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return private_bytes(process.pid)


def light(record: Record) -> Record:
    return {"n": record["n"], "sum": os.getpid()}


def worker_memory(rows: int) -> tuple[int, int, int]:
    """Private memory of the largest worker after a quarter of the rows and after all of them; and bytes of its largest chunk."""
    mixture = StaticMixtureWorkSource(
        [Dataset.from_arrow("d", pa.table({"n": range(200_000)}))], {"d": 1}, epochs=None, unit="samples"
    )
    options = {"runner": "processes", "workers": WORKERS}
    pids, seen, early = set[int](), 0, 0
    with Pipeline(mixture).options(**options).map(light, schema=NUMBERS, version=1).batch(1024) as pipeline:
        for batch in pipeline:
            seen += len(batch)
            pids.add(int(batch.records.columns.column("sum")[0].as_py()))
            if not early and seen >= rows // 4:
                early = max(map(private_bytes, pids))
            if seen >= rows:
                return early, max(map(private_bytes, pids)), batch.records.nbytes
    raise AssertionError("it does not end")


# -- (f) isolation -----------------------------------------------------------------------------------------------------------

_TOKENIZES = """
import sys
from tokenizers import Tokenizer
encoder, documents = Tokenizer.from_file(sys.argv[1]), open(sys.argv[2]).read().split(chr(0))
at = 0
for line in sys.stdin:
    n = int(line)
    encoder.encode_batch_fast([documents[(at + i) % len(documents)] for i in range(n)], add_special_tokens=False)
    at += n
"""
STEP_S = 0.03  # of the trainer; the documents of a step take a third of it to tokenize


def window(seconds: float, loop: int, between: Callable[[], object]) -> float:
    """Steps a second of a trainer in pure Python that does something between its steps."""
    until, steps, began = perf_counter() + seconds, 0, perf_counter()
    while perf_counter() < until:
        heavy({"n": 1}, loop)
        between()
        steps += 1
    return steps / (perf_counter() - began)


def isolated(folder: Path, windows: int, seconds: float) -> tuple[list[float], list[float]]:
    """Steps a second beside an isolated engine, and beside a bare process that tokenizes as many documents, in turn."""
    documents = texts(8)
    _, encoder = tokenizer(documents)
    encoder.save(str(folder / "tokenizer.json"))
    (folder / "texts").write_text(chr(0).join(documents), "utf-8")
    data = Dataset.from_arrow("d", pa.table({"text": documents}))
    mixture = StaticMixtureWorkSource([data], {"d": 1}, epochs=None, unit="samples")
    command = [sys.executable, "-c", _TOKENIZES, str(folder / "tokenizer.json"), str(folder / "texts")]
    rates: tuple[list[float], list[float]] = ([], [])
    with (
        Pipeline(mixture).options(isolate=True, workers=1).tokenize(encoder, field="text").batch(8) as pipeline,
        subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1) as process,
    ):
        batches, line, loop = iter(pipeline), process.stdin, calibrated(STEP_S)
        assert line is not None
        next(batches)

        def beside_a_process() -> None:
            line.write("8\n")

        for n in range(2 * windows):
            between = (partial(next, batches), beside_a_process)[n % 2]
            between()
            rates[n % 2].append(window(seconds, loop, between))
    return rates


def main() -> None:
    chosen = arguments(__doc__.splitlines()[0])
    rounds, figures = (3 if chosen.quick else 9), list[Figure]()
    gil = "free-threaded" if FREE else "with the GIL"
    print(f"Python {sys.version.split()[0]}, {gil}")
    calls = 300 if chosen.quick else 2000
    for size in (64 * KIB, MIB):
        found = alternate(rounds, {"ours": handed_over(size, calls), "bare": partial(ping_pong, size, calls)})
        us = 1e6 / statistics.median(found["ours"])
        name = f"a call with {size // KIB} KiB there and back"
        figures.append(Figure(name, us, "us", 150.0 if size < MIB else None, at_most=True))
        figures.append(Figure(f"{name} / ping-pong", ratio(found["ours"], found["bare"]), "", 0.5 if size == MIB else None))
    loop = calibrated(20e-6)
    fn = partial(heavy, loop=loop)
    table = pa.table({"n": range((20_000 if chosen.quick else 100_000) // WORKERS * WORKERS)})
    for runner in ("threads",) if FREE else ("processes",):
        ways = {"ours": partial(mapped, table, fn, NUMBERS, runner), "bare": partial(bare, table, fn, NUMBERS, runner)}
        found = alternate(rounds, ways)
        figures.append(Figure(f"map of 20 us of Python a row, {runner} / bare", ratio(found["ours"], found["bare"]), "", 0.85))
        figures.append(Figure("rate: map of 20 us a row", statistics.median(found["ours"]), "rows/s"))
    pictures = images(200 if chosen.quick else 1000)
    if pictures is None:
        print("images: Pillow is not installed")
    else:
        work = (pictures, decoded, PIXELS, "threads")
        found = alternate(rounds, {"ours": partial(mapped, *work), "bare": partial(bare, *work)})
        target = 0.9 if FREE else None
        figures.append(Figure("JPEG decode and resize, threads / bare threads", ratio(found["ours"], found["bare"]), "", target))
    firsts = [first_batch(table) for _ in range(3 if chosen.quick else 9)]
    figures.append(Figure("first batch, 2 worker processes", statistics.median(firsts), "s", 0.8, at_most=True))
    early, late, chunk = worker_memory(100_000 if chosen.quick else 1_000_000)
    allowed = with_the_same_libraries() + 2 * chunk
    figures.append(Figure("private memory of a worker / its libraries and two chunks", late / allowed, "", 1.2, at_most=True))
    figures.append(Figure("its growth over the last three quarters of the rows", late / early, "", 1.05, at_most=True))
    with tempfile.TemporaryDirectory() as name:
        beside, alone = isolated(Path(name), 3 if chosen.quick else 15, 2.0)
    figures.append(Figure("a trainer beside an isolated engine / a bare process", ratio(beside, alone), "", 0.95))
    show(figures, chosen.json)


if __name__ == "__main__":
    main()
