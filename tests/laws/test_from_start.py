"""Units that are read from their start, of unknown numbers of row blocks: each row once, in one order, for all."""

import gzip
import random
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.system.fake_s3 import FakeS3
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource, global_digest
from zephon_async.io import Blocks, catalog
from zephon_async.io.formats import inflate, line_format
from zephon_async.io.formats.inflate import Inflated

SIZES = (400, 1, 90, 0, 333, 50, 700)  # rows of each shard


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)
    chance = random.Random(1)
    for shard, rows in enumerate(SIZES):
        lines = [b'{"n": %d, "text": "%s"}\n' % (shard * 1_000 + n, b"x" * chance.randint(0, 60)) for n in range(rows)]
        (tmp_path / f"{shard}.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))
    return tmp_path


def pipeline(folder: Any, source: dict[str, Any] | None = None, storage: dict[str, Any] | None = None, **options: Any) -> Pipeline:
    made = Dataset.from_path("d", folder, block_bytes=2_000, storage_options=storage)
    mixed = StaticMixtureWorkSource([made], {"d": 1}, **{"seed": 3, "unit": "samples", **(source or {})})
    return Pipeline(mixed).options(**{"lanes": 3, "workers": 2, "on_end": "pad", **options}).batch(4)


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n, real in zip(batch.to_pylist("n"), batch.mask.tolist(), strict=True) if real]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("lanes", [1, 3, 16])
def test_each_row_comes_once_an_epoch(lanes: int, shuffle: bool, folder: Path) -> None:
    with pipeline(folder, {"epochs": 2, "shuffle": shuffle}, lanes=lanes) as run:
        found = numbers(run)
    assert Counter(found) == {shard * 1_000 + n: 2 for shard, rows in enumerate(SIZES) for n in range(rows)}
    if lanes == 1 and not shuffle:
        assert found == sorted(found[: len(found) // 2]) * 2


def test_explain_says_what_it_costs_to_enter_one_again(folder: Path) -> None:
    largest = max(path.stat().st_size for path in folder.iterdir())
    said = f"to enter one again, as after a restore, costs at most one pass over it, of {largest:,} bytes for the largest"
    with pipeline(folder) as run:
        assert f"    7 units read from the start: {said}" in run.explain().splitlines()


def test_each_slice_has_room_for_what_stands_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would push out one another in turn, and each read its shard from the start for every row block."""
    monkeypatch.setattr(inflate, "_GIVEN", 1_000)
    monkeypatch.setitem(inflate._CODECS, ".gz", inflate._GZIP._replace(nbytes=lambda head: 50 << 20))
    with pipeline(folder, lanes=3, memory_budget="2GiB") as run:
        (found,) = re.findall(r"and ([\d,]+) for units that stand open", run.explain())
    assert 3 * (50 << 20) < int(found.replace(",", "")) < 3 * (51 << 20)


def test_lanes_share_one_shard_evenly(folder: Path) -> None:
    text = b"".join(b'{"n": %d}\n' % n for n in range(8_000))
    (folder / "one").mkdir()
    (folder / "one" / "a.jsonl.gz").write_bytes(gzip.compress(text))
    counts = Counter[int]()
    with pipeline(folder / "one", lanes=8) as run:
        for batch in run:
            counts[batch.lane] += int(batch.mask.sum())
    assert sum(counts.values()) == 8_000
    assert all(850 < count < 1_150 for count in counts.values()), counts


def test_all_is_read_that_may_come_out_of_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many row blocks as a shard of the greatest ratio has."""
    body = gzip.compress(b'{"n": 1}\n' * 60_000)
    monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)
    ratio = 60_000 * 9 // len(body) + 1
    monkeypatch.setattr(catalog, "MOST_RATIO", ratio)
    monkeypatch.setattr(inflate, "MOST_RATIO", ratio)
    (tmp_path / "a.jsonl.gz").write_bytes(body)
    with pipeline(tmp_path) as run:
        assert len(numbers(run)) == 60_000


def test_a_shard_is_decompressed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind its end nothing is looked for, however far ahead is read, and nothing is kept of what is not there."""
    begun, taken = list[str](), Inflated.__init__

    def noted(self: Inflated, source: Any, *rest: Any) -> None:
        begun.append(source.name)
        taken(self, source, *rest)

    made, blocks = Blocks.__init__, list[Blocks]()

    def kept(self: Blocks, *arguments: Any) -> None:
        blocks.append(self)
        made(self, *arguments)

    monkeypatch.setattr(Blocks, "__init__", kept)
    with pipeline(folder, lanes=1) as run:
        run.explain()
        monkeypatch.setattr(Inflated, "__init__", noted)
        assert len(numbers(run)) == sum(SIZES)
        assert Counter(begun) == {f"{shard}.jsonl.gz": 1 for shard in range(len(SIZES))}
        assert len(blocks[-1]._kept) <= len(SIZES)


def digests(run: Any) -> list[str]:
    return [global_digest([batch]) for batch in run]


def test_the_order_is_that_of_nothing_but_the_recipe(folder: Path) -> None:
    with pipeline(folder) as run:
        expected = digests(run)
    for options in (
        {"runner": "inline"},
        {"workers": 4, "chunk_rows": 3},
        {"read_ahead": 1, "prefetch": 1},
        {"memory_budget": "4MiB"},
    ):
        with pipeline(folder, **options) as run:
            assert digests(run) == expected, options


@pytest.mark.parametrize("taken", [1, 2, 7, 40, 90])
def test_a_run_that_was_stopped_goes_on(taken: int, folder: Path) -> None:
    with pipeline(folder) as run:
        expected = digests(run)
    with pipeline(folder) as run:
        begun = digests(islice(run, taken))
        state = run.checkpoint()
    with pipeline(folder) as run:
        assert [*begun, *digests(run.restore(state))] == expected


def test_ranks_share_them(folder: Path) -> None:
    endless = {"epochs": None}
    with pipeline(folder, endless, lanes=4) as run:
        expected = digests(islice(run, 80))
    found: list[list[str]] = []
    for rank in range(2):
        with pipeline(folder, endless, lanes=4, dp_size=2, dp_rank=rank) as run:
            found.append(digests(islice(run, 40)))
    steps = [each[2 * n : 2 * n + 2] for n in range(20) for each in found]
    assert [digest for step in steps for digest in step] == expected


def test_from_a_store_that_is_far_away(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pipeline(folder) as run:
        expected = digests(run)
    cache = {"cache": {"enabled": True, "root": str(tmp_path_factory.mktemp("cache")), "limit": 1 << 26}}
    with FakeS3() as store:
        for path in folder.iterdir():
            store.put(f"d/{path.name}", path.read_bytes())
        for options in ({}, {"io_options": cache}, {"io_options": cache}):
            before = len(store.requests)
            with pipeline(f"{store.root}d", storage=store.options, **options) as run:
                assert digests(run) == expected
                assert run.statistics().held_bytes < 1 << 20
        assert [request.key for request in store.requests[before:] if request.key and request.method == "GET"] == []
