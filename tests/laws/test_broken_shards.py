"""A shard that is broken: an error that names it, or, with quarantine, left out as far as it must be, on every way to run it."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.numbered import engine_of
from tests.writers import WRITERS
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
    with pipeline(dataset, on_bad_record="raise") as run, pytest.raises(ShardError, match=f"shard '{BROKEN}"):
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
    with pipeline(dataset, on_end="drop") as run:
        expected = [batch.digest() for batch in run]
    found: list[list[str]] = []
    for rank in range(2):
        with pipeline(dataset, on_end="drop", dp_size=2, dp_rank=rank, agree=lambda n: min(n, len(expected) // 4)) as run:
            found.append([batch.digest() for batch in run])
    steps = [found[rank][step : step + 2] for step in range(0, len(found[0]), 2) for rank in range(2)]
    assert [digest for part in steps for digest in part] == expected


def test_what_is_not_counted_is_read_up_to_where_it_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)
    dataset = made(tmp_path, gzipped, the_end)
    with pipeline(dataset, lanes=1) as run:
        batches = list(run)
        assert run.statistics().counts["records_quarantined"] == 1
    found = Counter(numbers(batches))
    assert found == Counter(n for n in range(5 * ROWS) if n not in range(BROKEN * ROWS, (BROKEN + 1) * ROWS) or found[n])
    sound = [n for n in found if n in range(BROKEN * ROWS, (BROKEN + 1) * ROWS)]
    assert sorted(sound) == list(range(BROKEN * ROWS, BROKEN * ROWS + len(sound))), "what comes before is read"
    assert len(sound) > ROWS // 2
    with pipeline(dataset, lanes=1, chunk_rows=3, runner="inline") as run:
        assert [batch.digest() for batch in run] == [batch.digest() for batch in batches]
    with pipeline(dataset, on_bad_record="raise") as run, pytest.raises(ShardError, match="it was cut short"):
        list(run)


@pytest.mark.parametrize("writer", ["mds.gz", "arrow", "parquet", "litdata whole"])
def test_a_broken_row_block_is_left_out_the_same_however_it_is_reached(writer: str, tmp_path: Path) -> None:
    (chosen,) = (each for each in WRITERS if each.name == writer)
    rows = [{"id": n, "text": f"{n:04}" * 40, "score": n / 4, "input_ids": [n, n], "flag": n % 2 == 0} for n in range(600)]
    chosen.write(tmp_path, {"a": rows})
    dataset = Dataset.from_path("d", tmp_path / chosen.at, block_bytes=4_000)
    broken: set[int] = {7, 8}
    found = set()
    for ahead, runner, lanes in ((1, "inline", 4), (4, "threads", 4), (32, "threads", 4), (16, "threads", 4)):
        with pipeline(dataset, lanes=lanes, read_ahead=ahead, runner=runner) as run, pytest.MonkeyPatch.context() as patch:
            breaks(patch, run, broken)
            found.add(tuple(batch.digest() for batch in run))
    assert len(found) == 1


def breaks(patch: pytest.MonkeyPatch, run: Pipeline, broken: set[int]) -> None:
    """Some row blocks of each unit cannot be decoded, whatever is read with them."""
    iterator = iter(run)  # it is started
    decoders = engine_of(run)._reader._decoders
    for name, decoder in decoders.items():
        read = decoder.read

        def fails(source: Any, unit: Any, blocks: range, read: Any = read) -> Any:
            if broken & set(blocks):
                raise ShardError(f"{source.where}: is broken")
            return [each for each in read(source, unit, blocks) if each.block not in broken]

        patch.setitem(decoders, name, SimpleNamespace(read=fails, row_name=decoder.row_name, ranges=decoder.ranges))
    del iterator


@pytest.mark.parametrize(("shards", "all_of_them"), [(1, "its one shard is"), (3, "all of its 3 shards are")])
@pytest.mark.parametrize("most", [0, 1.0, 1000])
def test_a_dataset_of_broken_shards_alone_is_an_error(shards: int, all_of_them: str, most: int | float, tmp_path: Path) -> None:
    for shard in range(shards):
        (tmp_path / f"{shard}.parquet").write_bytes(b"PAR1 and no more")
    said = f"^dataset 'd': {all_of_them} broken, so that nothing would be left: dataset 'd', shard '0\\.parquet': cannot be read"
    with pipeline(Dataset.from_path("d", tmp_path), max_bad=most) as run, pytest.raises(ShardError, match=said):
        list(run)


def test_shards_that_are_left_out_are_told_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    dataset = made(tmp_path / "data", parquet, the_end)
    for _ in range(2):
        with pipeline(dataset, bad_records_dir=tmp_path / "bad") as run:
            list(run)
    (line,) = (tmp_path / "bad" / "bad-records-00000.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert (told["shard"], told["rows"]) == (f"{BROKEN}.parquet", None)
    assert told["reason"].startswith(f"dataset 'd', shard '{BROKEN}.parquet': cannot be read as parquet")


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
