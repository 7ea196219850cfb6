"""Runs over a dataset that is read by its own library: the same batches whatever the ranks, the runner and the stops."""

from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zephon_async import CheckpointError, Dataset, Pipeline, StaticMixtureWorkSource

ROWS = 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lance") / "d.lance"
    table = pa.table({"n": list(range(ROWS)), "text": ["x" * (n % 37) for n in range(ROWS)]})
    written = import_module("lance").write_dataset(table, path, max_rows_per_file=170)
    written.delete("n % 7 = 0")
    return path


def pipeline(folder: Path, version: int | None = None, **options: Any) -> Pipeline:
    chosen = {} if version is None else {"version": version}
    made = Dataset.from_path("d", folder, storage_options=chosen, block_bytes=500, unit_bytes=2_000)
    source = StaticMixtureWorkSource([made], {"d": 1}, seed=3, epochs=2, unit="samples")
    return Pipeline(source).options(**{"lanes": 4, "workers": 2, "on_end": "drop", **options}).batch(3)


def taken(run: Any) -> list[tuple[str, list[int]]]:
    return [(batch.digest(), batch.to_pylist("n")) for batch in run]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[tuple[str, list[int]]]:
    with pipeline(folder, runner="inline") as run:
        return taken(run)


def test_every_row_that_is_there_comes(folder: Path, expected: list[tuple[str, list[int]]]) -> None:
    found = [n for _, several in expected for n in several]
    assert set(found) == {n for n in range(ROWS) if n % 7}
    assert max(found.count(n) for n in set(found)) == 2
    assert len(found) > 2 * len(set(found)) - 4 * 3


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 4, "chunk_rows": 3},
        {"read_ahead": 1, "prefetch": 1},
        {"memory_budget": "4MiB"},
        {"runner": "processes"},
        {"isolate": True},
    ],
    ids=str,
)
def test_runners_and_settings(options: dict[str, Any], folder: Path, expected: list[tuple[str, list[int]]]) -> None:
    with pipeline(folder, **options) as run:
        assert taken(run) == expected


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks(ranks: int, folder: Path, expected: list[tuple[str, list[int]]]) -> None:
    steps = len(expected) // 4
    found: list[list[tuple[str, list[int]]]] = []
    for rank in range(ranks):
        with pipeline(folder, dp_size=ranks, dp_rank=rank, agree=lambda steps: steps) as run:
            found.append(taken(run))
    share = 4 // ranks
    assert [one for step in range(steps) for each in found for one in each[share * step : share * (step + 1)]] == expected


@pytest.mark.parametrize("stop", [1, 4, 33])
def test_stops(stop: int, folder: Path, expected: list[tuple[str, list[int]]]) -> None:
    with pipeline(folder) as run:
        begun = taken(islice(run, stop))
        state = run.checkpoint()
    with pipeline(folder, runner="inline") as run:
        assert [*begun, *taken(run.restore(state))] == expected


def test_a_write_does_not_change_the_run(folder: Path, expected: list[tuple[str, list[int]]]) -> None:
    """Neither one that is under way, nor one that goes on where the version is said; another version is refused."""
    with pipeline(folder) as run:
        batches = iter(run)
        begun = taken(islice(batches, 8))
        import_module("lance").write_dataset(pa.table({"n": [-1], "text": [""]}), folder, mode="append")
        state = run.checkpoint()
        assert [*begun, *taken(batches)] == expected
    with pipeline(folder, version=2) as run:
        assert [*begun, *taken(run.restore(state))] == expected
    with pipeline(folder) as run, pytest.raises(CheckpointError, match="\n  dataset d: other content "):
        taken(run.restore(state))
