"""Laws 1, 2 and 5 where rows refer to bytes: the same rows on every runner, chunk size and number of ranks, and over stops."""

import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.by_processes import Kills, Record
from tests.recipes import job
from tests.taken import batches, in_order
from zephon_async import Batch, Dataset, Pipeline, StaticMixtureWorkSource
from zephon_async.errors import BadRecord

ROWS = 120
WAYS: dict[str, dict[str, Any]] = {
    "one by one": {"runner": "threads", "workers": 3, "chunk_rows": 1, "memory_budget": "1MiB"},
    "threads": {"runner": "threads", "workers": 2, "chunk_rows": 7, "prefetch": 1},
    "processes": {"runner": "processes", "workers": 2, "chunk_rows": 16},
    "isolated": {"runner": "threads", "workers": 2, "chunk_rows": 5, "isolate": True},
}
each_way = pytest.mark.parametrize("way", WAYS)


def images(row: int) -> list[bytes | None]:
    """0 to 3 images: of many bytes, none, and few."""
    return [bytes([row]) * 700, None, bytes([row]) * 9][: row % 4]


def without_bad(record: Record) -> bool:
    """Leaves out every eleventh, and calls every thirteenth bad."""
    if record["n"] % 13 == 12:
        raise BadRecord("the thirteenth")
    assert record["images"] == images(record["n"])
    return bool(record["n"] % 11)


def with_bytes(record: Record) -> bool:
    """Looks at rows that are packed."""
    return all(image is None or len(set(image)) == 1 for image in record["images"])


def pipeline(ranks: int = 1, rank: int = 0, more: dict[str, Any] | None = None, **options: Any) -> Pipeline:
    rows = range(ROWS)
    table = {
        "n": pa.array(rows, pa.int64()),
        "input_ids": pa.array([[n] * (1 + 5 * n % 9) for n in rows], pa.list_(pa.int32())),
        "images": pa.array([images(n) for n in rows], pa.list_(pa.binary())),
        "grid": pa.array([[[n, i] for i in range(n % 4)] for n in rows], pa.list_(pa.list_(pa.int32(), 2))),
    }
    source = StaticMixtureWorkSource([Dataset.from_arrow("d", pa.table(table))], {"d": 1}, seed=3, epochs=2)
    settings: dict[str, Any] = {"lanes": 4, "flush_every": 16, "on_bad_record": "quarantine", "runner": "inline"}
    begun = Pipeline(source).options(**{**settings, **options, **(more or {}), "dp_size": ranks, "dp_rank": rank})
    packed = (
        begun.refer(["images"])
        .filter(without_bad)
        .shuffle(9)
        .pack_flat(8, algorithm="best_fit", on_long="drop", num_bins=3, carry=["images", "grid", "n"])
    )
    return packed.filter(with_bytes).shuffle(3, seed=1).batch(1)


def digests(found: list[Batch]) -> list[str]:
    return [batch.digest() for batch in found]


@pytest.fixture(scope="module")
def wanted() -> list[str]:
    found, _ = job(pipeline, 1, None)
    assert len(found) > 40
    return digests(found)


def test_every_row_has_the_images_of_its_documents() -> None:
    with pipeline(on_end="pad") as made:
        found = list(made)
        counts = made.statistics().counts
    seen = Counter[int]()
    for batch in found:
        (documents,) = batch.documents()
        rows = [document.row for document in documents]
        assert batch.records.columns.column("images").type == pa.list_(pa.binary_view())
        assert batch.to_pylist("images") == [[image for row in rows for image in images(row)]]
        assert batch.to_pylist("grid") == [[[row, i] for row in rows for i in range(row % 4)]]
        assert batch.to_pylist("n") == [rows]
        seen.update(rows)
    kept = [n for n in range(ROWS) if n % 11 and n % 13 != 12 and 1 + 5 * n % 9 <= 8]
    assert seen == dict.fromkeys(kept, 2)
    assert counts["records_quarantined"] == 2 * len([n for n in range(ROWS) if n % 13 == 12])


@each_way
@pytest.mark.parametrize("ranks", [1, 4])
def test_rows_are_the_same(way: str, ranks: int, wanted: list[str]) -> None:
    found, _ = job(partial(pipeline, **WAYS[way]), ranks, None)
    assert digests(found) == wanted


@each_way
def test_a_run_goes_on(way: str, wanted: list[str]) -> None:
    begun, states = job(partial(pipeline, **WAYS[way]), 2, 10)
    for other in ({}, WAYS[way]):
        rest, _ = job(partial(pipeline, **other), 1, None, states)
        assert digests(begun) + digests(rest) == wanted


@pytest.mark.slow
def test_rows_that_kill_their_workers_are_left_out(tmp_path: Path) -> None:
    table = pa.table({"n": range(80), "images": pa.array([images(n) for n in range(80)], pa.list_(pa.binary()))})
    kills = Kills(tmp_path, signal.SIGSEGV)
    begun = Pipeline(in_order(Dataset.from_arrow("d", table))).options(on_bad_record="quarantine", **WAYS["processes"])
    found = batches(begun.refer(["images"]).filter(lambda record: bool(kills(record))).shuffle(5, seed=1).batch(1))
    kept = {n: images(n) for n in range(80) if n not in (7, 60)}
    assert {batch.to_pylist("n")[0]: batch.to_pylist("images")[0] for batch in found} == kept
