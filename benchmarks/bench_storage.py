"""How near does reading from an object store come to what the store and the wire give?

A real S3 server on this machine (SeaweedFS), through a proxy that adds 30 ms to each request and lets 80 MB/s through in all, and
without one. Values are of 4 KiB, as the texts of web pages are. The ceilings: a bare aiobotocore loop over the same ranges, the
best of 4 to 64 at once; the same with two threads that decode the bytes with pyarrow; plain local files. Ratios within one run.

Its last answer is in benchmarks/README.md.
"""

import asyncio
import io
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from figures import Figure, alternate, arguments, ratio, show

from tests.system.seaweed import Bucket, running
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

HERE = Path(__file__).parent
DELAY_MS, MB_PER_S = 30, 80
ROW = 4096  # bytes of a value
GROUP = 1024  # rows of a row group: 4 MiB a column
COLUMNS = ("a", "b", "c", "text")


def parquet(groups: int, seed: int, rows: int = GROUP, columns: Sequence[str] = COLUMNS) -> bytes:
    """Row groups of equal columns, which do not compress: four of 4 MiB each."""
    chance, file = np.random.default_rng(seed), io.BytesIO()
    values = chance.integers(0, 255, rows * ROW, np.uint8).tobytes()
    column = pa.array([values[i * ROW : (i + 1) * ROW] for i in range(rows)], pa.binary())
    table = pa.table(dict.fromkeys(columns, column))
    with pq.ParquetWriter(file, table.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(groups):
            writer.write_table(table, rows)
    return file.getvalue()


def lines(nbytes: int, seed: int) -> bytes:
    chance = random.Random(seed)
    line = json.dumps({"text": "".join(chance.choices("abcdefghij ", k=1000))}).encode() + b"\n"
    return line * (nbytes // len(line))


@contextmanager
def slow(port: int, *more: float, delay_ms: float = DELAY_MS, mb_per_s: float = MB_PER_S) -> Iterator[str]:
    """The URL of a proxy before a port."""
    command = [sys.executable, str(HERE / "slow_proxy.py"), str(port), str(delay_ms), str(mb_per_s), *map(str, more)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


def chunks(body: bytes) -> list[tuple[int, int]]:
    """Where the column `text` lies in a Parquet file: (offset, length) of each chunk."""
    footer = pq.ParquetFile(io.BytesIO(body)).metadata
    groups = [footer.row_group(n).column(len(COLUMNS) - 1) for n in range(footer.num_row_groups)]
    return [(chunk.data_page_offset, chunk.total_compressed_size) for chunk in groups]


def bare(options: dict[str, Any], bucket: str, ranges: list[tuple[str, int, int]], at_once: int, decodes: bool) -> float:
    """Bytes a second of a bare aiobotocore loop; `decodes`: with two threads that read the pages with pyarrow."""
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

    async def main() -> float:
        config = AioConfig(max_pool_connections=at_once)
        keys = {"aws_access_key_id": options["key"], "aws_secret_access_key": options["secret"]}
        made = AioSession().create_client(
            "s3", region_name="us-east-1", endpoint_url=options["endpoint_url"], config=config, **keys
        )
        with ThreadPoolExecutor(2) as pool:
            async with made as client:
                waiting, loop = list(reversed(ranges)), asyncio.get_running_loop()
                await (await client.get_object(Bucket=bucket, Key=ranges[0][0], Range="bytes=0-9"))["Body"].read()
                began, decoding = perf_counter(), []

                async def some() -> None:
                    while waiting:
                        key, offset, length = waiting.pop()
                        answer = await client.get_object(Bucket=bucket, Key=key, Range=f"bytes={offset}-{offset + length - 1}")
                        body = await answer["Body"].read()
                        if decodes:
                            decoding.append(loop.run_in_executor(pool, decoded, body))

                await asyncio.gather(*(some() for _ in range(at_once)))
                await asyncio.gather(*decoding)
                return sum(length for _, _, length in ranges) / (perf_counter() - began)

    return asyncio.run(main())


def decoded(body: bytes) -> int:
    """Decode a column chunk as pyarrow does: as the only one of a file whose footer is known."""
    return int(pq.read_table(io.BytesIO(FRAME[0] + body + FRAME[1])).num_rows)


FRAME = (b"", b"")


def framed() -> None:
    """What is before and behind a column chunk in a file of one row group of it alone."""
    global FRAME
    file = io.BytesIO()
    values = bytes(GROUP * ROW)
    column = pa.array([values[i * ROW : (i + 1) * ROW] for i in range(GROUP)], pa.binary())
    pq.write_table(pa.table({"text": column}), file, compression="none", use_dictionary=False, row_group_size=GROUP)
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(0)
    body = file.getvalue()
    FRAME = body[: chunk.data_page_offset], body[chunk.data_page_offset + chunk.total_compressed_size :]


class Ours:
    """A pipeline over what lies below a URL; rates in bytes of values a second, once all is prepared."""

    def __init__(self, url: str, options: dict[str, Any] | None, lanes: int = 1, **more: Any) -> None:
        self._url, self._options, self._more = url, options, {"lanes": lanes, "workers": 2, **more}
        self.storage: dict[str, int] = {}
        self.between: list[float] = []

    def __call__(self) -> float:
        dataset = Dataset.from_path("d", self._url, storage_options=self._options)
        pipeline = Pipeline(StaticMixtureWorkSource([dataset], {"d": 1}, seed=1)).options(**self._more)
        with pipeline.map_batches(lengths, columns=["text"], runner="threads").batch(256) as run:
            run.explain()
            began = at = perf_counter()
            used, self.between = 0, []
            for batch in run:
                used += int(batch.columns["n"].sum())
                self.between.append(perf_counter() - at)
                at = perf_counter()
            took = at - began
            self.storage = dict(run.statistics().storage)
        return used / took


def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"n": pc.binary_length(batch.column("text")).cast(pa.int64())})


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def main() -> None:
    arguments_ = arguments(__doc__ or "")
    quick = arguments_.quick
    rounds, shards, groups = (1, 2, 8) if quick else (5, 4, 16)
    framed()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "weed").mkdir()
        port = int(stack.enter_context(running(folder / "weed")).rpartition(":")[2])
        bucket = Bucket(f"http://127.0.0.1:{port}", "bench")
        bucket.create()
        files = {f"pq/{n}.parquet": parquet(groups, n) for n in range(shards)}
        small = {f"lanes/{n}.parquet": parquet(groups * 8, n, GROUP // 4, COLUMNS[-1:]) for n in range(shards)}
        jsonl = {f"js/{n}.jsonl": lines((20 if quick else 160) << 20, n) for n in range(4)}
        for key, body in (files | jsonl).items():
            (folder / key).parent.mkdir(exist_ok=True)
            (folder / key).write_bytes(body)
        bucket.put_all(files | jsonl | small)
        ranges = [(key, *chunk) for key, body in files.items() for chunk in chunks(body)]
        used = shards * groups * GROUP * ROW
        direct = bucket.options
        slowed = {**direct, "endpoint_url": stack.enter_context(slow(port))}
        figures = [
            *wire(slowed, ranges, rounds),
            *unthrottled(direct, ranges, rounds),
            *many_lanes(direct, rounds),
            *cached(direct, folder, rounds),
            *amplification(direct, used, sum(map(len, jsonl.values())), shards, groups),
            *hedged(port, stack, rounds),
        ]
    show(figures, arguments_.json)


def wire(options: dict[str, Any], ranges: list[tuple[str, int, int]], rounds: int) -> list[Figure]:
    ways: dict[str, Callable[[], float]] = {
        f"bare {n}": (lambda n=n: bare(options, "bench", ranges, n, decodes=False)) for n in (4, 16, 64)
    }
    rates = alternate(rounds, {**ways, "ours": Ours("s3://bench/pq/", options)})
    best = [max(rates[name][n] for name in ways) for n in range(rounds)]
    return [
        Figure(f"{DELAY_MS} ms and {MB_PER_S} MB/s: ours / a bare loop", ratio(rates["ours"], best), "", 0.9),
        Figure("rate of the bare loop", statistics.median(best) / 1e6, "MB/s"),
    ]


def unthrottled(options: dict[str, Any], ranges: list[tuple[str, int, int]], rounds: int) -> list[Figure]:
    rates = alternate(
        rounds,
        {
            **{f"bare {n}": (lambda n=n: bare(options, "bench", ranges, n, decodes=True)) for n in (4, 16)},
            "ours": Ours("s3://bench/pq/", options),
        },
    )
    best = [max(a, b) for a, b in zip(rates["bare 4"], rates["bare 16"], strict=True)]
    return [
        Figure("unthrottled: ours / a bare loop that decodes", ratio(rates["ours"], best), "", 0.7),
        Figure("rate of the bare loop that decodes", statistics.median(best) / 1e6, "MB/s"),
    ]


def many_lanes(options: dict[str, Any], rounds: int) -> list[Figure]:
    """Lanes of eight row groups of 1 MiB each, or four where quick; the row groups that a lane cuts are decoded twice."""
    rates = alternate(rounds, {str(n): Ours("s3://bench/lanes/", options, lanes=n) for n in (1, 64)})
    return [Figure("64 lanes / 1 lane", ratio(rates["64"], rates["1"]), "", 0.95)]


def cached(options: dict[str, Any], folder: Path, rounds: int) -> list[Figure]:
    cache = {"cache": {"enabled": True, "root": str(folder / "cache"), "limit": "2GB"}}
    warm = Ours("s3://bench/pq/", options, io_options=cache)
    warm()
    rates = alternate(rounds, {"warm": warm, "local": Ours(str(folder / "pq"), None)})
    return [
        Figure("warm cache / local files", ratio(rates["warm"], rates["local"]), "", 0.8),
        Figure("bodies that a warm cache asks for", warm.storage["bytes"], "bytes", 0, at_most=True),
    ]


def amplification(options: dict[str, Any], used: int, lines: int, shards: int, groups: int) -> list[Figure]:
    figures = []
    for lanes in (1, 64):
        ours = Ours("s3://bench/pq/", options, lanes=lanes)
        ours()
        name = f"Parquet, one of four columns, {lanes} lane{'s' * (lanes > 1)}"
        figures.append(Figure(f"{name}: bytes read / used", ours.storage["bytes"] / used, "", 1.1, at_most=True))
        each = (ours.storage["requests"] - shards) / (shards * groups)
        figures.append(Figure(f"{name}: requests a row group", each, "", 2, at_most=True))
        ours = Ours("s3://bench/js/", options, lanes=lanes)
        ours()
        figures.append(
            Figure(
                f"JSONL, {lanes} lane{'s' * (lanes > 1)}: bytes read / used", ours.storage["bytes"] / lines, "", 1.1, at_most=True
            )
        )
    return figures


def hedged(port: int, stack: ExitStack, rounds: int) -> list[Figure]:
    """With 2 % of the requests 50 times slower."""
    urls = {name: stack.enter_context(slow(port, share, 50)) for name, share in (("even", 0.0), ("some slow", 0.02))}
    ours = {
        name: Ours("s3://bench/lanes/", {**Bucket(url, "bench").options, "endpoint_url": url}, prefetch=8)
        for name, url in urls.items()
    }
    found: dict[str, list[float]] = {name: [] for name in ours}
    for _ in range(rounds):
        for name, one in ours.items():
            one()
            found[name].append(p99(one.between))
    hedges = ours["some slow"].storage["hedges"]
    return [
        Figure(
            "p99 between batches, 2 % of requests 50 times slower / none",
            ratio(found["some slow"], found["even"]),
            "",
            2,
            at_most=True,
        ),
        Figure("p99 between batches, none slower", statistics.median(found["even"]) * 1e3, "ms"),
        Figure("hedges", hedges, ""),
    ]


if __name__ == "__main__":
    main()
