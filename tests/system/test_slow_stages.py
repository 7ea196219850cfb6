"""Case G05: users' work that holds a thread, or the GIL, for seconds makes no healthy server look slow."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

BUSY_S, ROWS, SHARDS = 3.0, 60, 3
TIMEOUT_S = 3.0  # of which an attempt has a third
SERVER = """
import sys
from pathlib import Path
from tests.system.http_server import HttpServer

server = HttpServer()
server.files = {f"/{path.name}": path.read_bytes() for path in Path(sys.argv[1]).iterdir()}
server.start()
print(server.url, flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server in a process of its own, so that nothing here can hold it up; it answers at once."""
    for shard in range(SHARDS):
        table = pa.table({"n": range(shard * ROWS, (shard + 1) * ROWS), "text": ["x" * 2_000] * ROWS})
        pq.write_table(table, tmp_path / f"{shard}.parquet", row_group_size=10)
    command = [sys.executable, "-c", SERVER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


def sleeping(record: dict[str, Any]) -> dict[str, Any]:
    if record["n"] == 5:
        time.sleep(BUSY_S)
    return {"n": record["n"]}


def computing(record: dict[str, Any]) -> dict[str, Any]:
    stop = time.monotonic() + BUSY_S * (record["n"] == 5)
    while time.monotonic() < stop:
        sum(range(100))
    return {"n": record["n"]}


@pytest.mark.parametrize("work", [sleeping, computing])
def test_no_timeout_is_told_of_a_server_that_answers(work: Callable[[dict[str, Any]], dict[str, Any]], url: str) -> None:
    datasets = [Dataset.from_path(f"d{shard}", f"{url}{shard}.parquet") for shard in range(SHARDS)]
    source = StaticMixtureWorkSource(datasets, {dataset.name: 1.0 for dataset in datasets}, shuffle=False)
    options: dict[str, Any] = {"runner": "threads", "workers": 2, "io_options": {"download_timeout": TIMEOUT_S}}
    with Pipeline(source).options(**options).map(work, schema={"n": pa.int64()}).batch(10) as pipeline:
        found = [n for batch in pipeline for n in batch.columns["n"].tolist()]
        storage = pipeline.statistics().storage
    assert sorted(found) == list(range(SHARDS * ROWS))
    assert storage["retries"] == 0
