"""Law 7 seen from outside: the memory of the process while 2.4 GB go through a budget of 256 MiB.

Arrow's allocator gives pages back to the system a while after they are freed, which is up to 100 MB here; it is told not to wait.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUDGET_BYTES = 256 << 20
SHARDS, GROUPS, ROWS = 8, 4, 16_000  # rows of a row group of 75 MB
PROGRAM = """
import sys
from pathlib import Path
import pyarrow as pa
from tests.numbered import settle
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

def kept(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

def words(record):
    return {"n": record["text"].count(" ") + 1}

folder, runner, chain, consumer = sys.argv[1:]
source = StaticMixtureWorkSource([Dataset.from_path("d", folder)], {"d": 1}, unit="samples", seed=1)
pipeline = Pipeline(source).options(lanes=4, runner=runner, workers=2, memory_budget="256MiB")
if chain == "map":
    pipeline.map(words, schema={"n": pa.int64()}, columns=["text"])
pipeline.batch(64)
pipeline.explain()
before, most = kept("VmRSS"), 0
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
with pipeline:
    for number, batch in enumerate(pipeline):
        if number % 40 == 0:
            most = max(most, pipeline.statistics().held_bytes)
            if consumer == "slow":
                settle(pipeline)
                most = max(most, pipeline.statistics().held_bytes)
print(number + 1, most, kept("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long texts that are small on disk: there are few of them."""
    dice, folder = random.Random(0), tmp_path_factory.mktemp("texts")
    texts = pa.array([" ".join(f"word{dice.randrange(1000)}" for _ in range(600)) for _ in range(16)])
    for shard in range(SHARDS):
        table = pa.table({"text": texts.take(pa.array(dice.choices(range(len(texts)), k=GROUPS * ROWS)))})
        assert table.nbytes > 288 << 20
        path = folder / f"{shard}.parquet"
        pq.write_table(table, path, row_group_size=ROWS, compression="zstd", use_dictionary=False)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("chain", ["map", "batch"])
@pytest.mark.parametrize(("runner", "consumer"), [("threads", "quick"), ("threads", "slow"), ("inline", "quick")])
def test_the_memory_of_the_process_stays_within_the_budget(runner: str, consumer: str, chain: str, folder: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(folder), runner, chain, consumer]
    environment = {**os.environ, "MIMALLOC_PURGE_DELAY": "0"}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    batches, held, grown = map(int, said.split())
    assert batches == SHARDS * GROUPS * ROWS // 64
    assert 0 < held <= BUDGET_BYTES
    assert 0 < grown <= BUDGET_BYTES
