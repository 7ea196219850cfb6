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
import sys, time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *said): pass

    def do_HEAD(self): self.answer(False)

    def do_GET(self): self.answer(True)

    def answer(self, with_body):
        body = (Path(sys.argv[1]) / self.path.lstrip("/")).read_bytes()
        size, asked = len(body), self.headers.get("Range")
        begin, end = 0, size - 1
        if asked:
            first, _, last = asked.partition("=")[2].partition("-")
            begin, end = int(first), int(last or end)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end + 1 - begin))
        self.send_header("ETag", '"one"')
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
        self.end_headers()
        time.sleep(0.05)
        if with_body:
            self.wfile.write(body[begin : end + 1])

ThreadingHTTPServer.request_queue_size = 128  # else it lets connections wait for a second
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server in a process of its own, so that nothing here can hold it up; it answers at once."""
    for shard in range(SHARDS):
        table = pa.table({"n": range(shard * ROWS, (shard + 1) * ROWS), "text": ["x" * 2_000] * ROWS})
        pq.write_table(table, tmp_path / f"{shard}.parquet", row_group_size=10)
    with subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.kill()


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
    datasets = [Dataset.from_path(f"d{shard}", f"{url}/{shard}.parquet") for shard in range(SHARDS)]
    source = StaticMixtureWorkSource(datasets, {dataset.name: 1.0 for dataset in datasets}, shuffle=False)
    options: dict[str, Any] = {"runner": "threads", "workers": 2, "io_options": {"download_timeout": TIMEOUT_S}}
    with Pipeline(source).options(**options).map(work, schema={"n": pa.int64()}).batch(10) as pipeline:
        found = [n for batch in pipeline for n in batch.columns["n"].tolist()]
        storage = pipeline.statistics().storage
    assert sorted(found) == list(range(SHARDS * ROWS))
    assert storage["retries"] == 0
