"""A shard that is broken: an error that names it, or, with quarantine, left out as far as it must be, on every way to run it."""

import gzip
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon_async import Batch, ColumnError, Dataset, DatasetError, Pipeline, ShardError, StaticMixtureWorkSource, StorageError
from zephon_async.io.formats import line_format

ROWS, GROUP = 200, 50  # of a shard, and of a row group
BROKEN = 2  # the shard of five


def parquet(path: Path, numbers: Iterable[int]) -> None:
    table = pa.table({"n": list(numbers)})
    pq.write_table(table, path, row_group_size=GROUP, compression="none", use_dictionary=False, write_page_checksum=True)


def gzipped(path: Path, numbers: Iterable[int]) -> None:
    path.write_bytes(gzip.compress(b"".join(b'{"n": %d}\n' % n for n in numbers), mtime=0))


def a_page(path: Path) -> None:
    """One byte of the values of the second row group."""
    column = pq.read_metadata(path).row_group(1).column(0)
    body = bytearray(path.read_bytes())
    body[column.data_page_offset + column.total_compressed_size - 3] ^= 0xFF
    path.write_bytes(body)


def the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def nothing(path: Path) -> None:
    """Nothing is broken."""


def made(folder: Path, writer: Callable[[Path, Iterable[int]], None], breaks: Callable[[Path], None]) -> Dataset:
    suffix = ".parquet" if writer is parquet else ".jsonl.gz"
    for shard in range(5):
        writer(folder / f"{shard}{suffix}", range(shard * ROWS, (shard + 1) * ROWS))
    breaks(folder / f"{BROKEN}{suffix}")
    return Dataset.from_path("d", folder, block_bytes=128)


def pipeline(dataset: Dataset, **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource([dataset], {"d": 1}, unit="samples", seed=1)
    settings = {"on_bad_record": "quarantine", "lanes": 4, "workers": 2, "on_end": "pad", **options}
    return Pipeline(source).options(**settings).batch(5)


def numbers(batches: Iterable[Batch]) -> list[int]:
    return [n for batch in batches for n, real in zip(batch.to_pylist("n"), batch.mask.tolist(), strict=True) if real]


GONE = {
    "page": (parquet, a_page, range(BROKEN * ROWS + GROUP, BROKEN * ROWS + 2 * GROUP)),
    "footer": (parquet, the_end, range(BROKEN * ROWS, (BROKEN + 1) * ROWS)),
    "gzip": (gzipped, the_end, range(BROKEN * ROWS, (BROKEN + 1) * ROWS)),
}


@pytest.mark.parametrize("kind", GONE)
def test_without_quarantine_it_is_an_error_that_names_it(kind: str, tmp_path: Path) -> None:
    writer, breaks, _ = GONE[kind]
    dataset = made(tmp_path, writer, breaks)
    with pipeline(dataset, on_bad_record="error") as run, pytest.raises(ShardError, match=f"shard '{BROKEN}"):
        list(run)


@pytest.mark.parametrize("kind", GONE)
def test_all_else_comes_once(kind: str, tmp_path: Path) -> None:
    writer, breaks, gone = GONE[kind]
    dataset = made(tmp_path, writer, breaks)
    with pipeline(dataset) as run:
        expected = [batch.digest() for batch in run]
    with pipeline(dataset, runner="inline", chunk_rows=3) as run:
        batches = list(run)
        counts = run.statistics().counts
    assert [batch.digest() for batch in batches] == expected
    assert Counter(numbers(batches)) == Counter(n for n in range(5 * ROWS) if n not in gone)
    left_out = {"records_quarantined": GROUP} if kind == "page" else {"shards_left_out": 1}
    assert {name: n for name, n in counts.items() if n} == left_out
    for stop in (1, 7, 30):
        with pipeline(dataset) as run:
            before = [batch.digest() for batch in islice(run, stop)]
            state = run.checkpoint()
        with pipeline(dataset, chunk_rows=7).restore(state) as run:
            assert before + [batch.digest() for batch in run] == expected


def test_ranks_leave_out_the_same(tmp_path: Path) -> None:
    dataset = made(tmp_path, parquet, a_page)
    with pipeline(dataset, on_end="drop", lanes=4) as run:
        expected = sorted(batch.digest() for batch in run)
    found = []
    for rank in range(2):
        with pipeline(dataset, on_end="drop", dp_size=2, dp_rank=rank, agree=lambda steps: steps) as run:
            found += [batch.digest() for batch in run]
    assert len(set(found) & set(expected)) >= len(expected) - 4  # without a true agreement the last steps may differ


def test_what_is_not_counted_is_read_up_to_where_it_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)
    dataset = made(tmp_path, gzipped, the_end)
    with pipeline(dataset) as run:
        batches = list(run)
        assert run.statistics().counts["records_quarantined"] >= 1
    found = Counter(numbers(batches))
    assert all(found[n] == 1 for n in range(5 * ROWS) if not BROKEN * ROWS <= n < (BROKEN + 1) * ROWS)
    assert max(found.values()) == 1
    with pipeline(dataset, chunk_rows=3, runner="inline") as run:
        assert [batch.digest() for batch in run] == [batch.digest() for batch in batches]
    with pipeline(dataset, on_bad_record="error") as run, pytest.raises(ShardError, match="it was cut short"):
        list(run)


def test_rows_that_cannot_be_read_count_each(tmp_path: Path) -> None:
    """A lane that owns a part of a row block that cannot be read counts the rows of the part."""
    dataset = made(tmp_path, parquet, a_page)
    with pipeline(dataset, lanes=1, max_bad=GROUP) as run:
        assert len(numbers(run)) == 5 * ROWS - GROUP
    with pipeline(dataset, lanes=1, max_bad=GROUP - 1) as run, pytest.raises(DatasetError, match=f"{GROUP} bad records of dataset"):
        list(run)


def test_too_many_broken_shards_are_refused_at_the_start(tmp_path: Path) -> None:
    dataset = made(tmp_path, parquet, the_end)
    said = f"dataset 'd': 1 of 5 shards are broken, more than .*; the first: dataset 'd', shard '{BROKEN}.parquet'"
    for most in (0, 0.1):
        with pytest.raises(DatasetError, match=said):
            next(iter(pipeline(dataset, max_bad=most)))
    with pipeline(dataset, max_bad=0.2) as run:
        assert len(numbers(run)) == 4 * ROWS


def test_nothing_but_what_is_broken_is_left_out(tmp_path: Path) -> None:
    """Neither a shard that has changed or is gone, nor one that lacks a column."""
    dataset = made(tmp_path, parquet, nothing)
    with pipeline(dataset) as run:
        next(iter(run))
        (tmp_path / f"{BROKEN}.parquet").unlink()
        with pytest.raises(StorageError, match="No such file"):
            list(run)
    pq.write_table(pa.table({"m": np.arange(3)}), tmp_path / f"{BROKEN}.parquet")
    lacking = Dataset.from_path("d", tmp_path)
    source = StaticMixtureWorkSource([lacking], {"d": 1}, unit="samples")
    wants_n = Pipeline(source).options(on_bad_record="quarantine").map(lambda record: record, columns=["n"]).batch(1)
    with wants_n as run, pytest.raises(ColumnError, match="there is no column 'n'"):
        list(run)
