"""Law 6: work sources and storage that fail in mid-run are told in their place, and the run goes on where they are mended."""

import asyncio
import os
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fuses import WAYS, Boom, Fuse, until_it_fails
from tests.numbered import numbers, seen, source
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_async.errors import ShardError
from zephon_async.io import Reader
from zephon_async.io.stores import Source
from zephon_async.operators import Columns, Operator, Tally
from zephon_async.records import Block, Part, Records
from zephon_async.work import DatasetPlan, Plan


class FailingPlan(DatasetPlan):
    """Raises when an epoch is asked for."""

    fuse: Fuse

    def parts(self, lane: int, epoch: int) -> Sequence[Part]:
        self.fuse.blow(epoch)
        return super().parts(lane, epoch)


class FailingSource(StaticMixtureWorkSource):
    """A work source that fails at an epoch."""

    fuse: Fuse

    def plan(self, catalogs: Sequence[Any], ratios: Any, lanes: int) -> Plan:
        plan = super().plan(catalogs, ratios, lanes)
        failing = FailingPlan(catalogs[0], self.seed, self.shuffle, lanes)
        failing.fuse = self.fuse
        return Plan((failing,), plan.weights, plan.ratios, plan.rule)


def of_epochs(fuse: Fuse, epochs: int | None, **options: Any) -> Pipeline:
    failing = FailingSource([numbers(5)], {"numbers": 1}, shuffle=False, epochs=epochs)
    failing.fuse = fuse
    return Pipeline(failing).options(**options).batch(1)


@WAYS
@pytest.mark.parametrize("epochs", [None, 3])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_work_source_that_raises(at: int, epochs: int | None, way: dict[str, Any]) -> None:
    fuse = Fuse(at=at)
    with of_epochs(fuse, epochs, **way) as pipeline:
        found, error, state = until_it_fails(pipeline, Boom)
        assert found == [*range(5)] * at
        assert error in fuse.raised
        fuse.mended = True
        with of_epochs(fuse, epochs, **way).restore(state) as fresh:
            iterator = iter(fresh)
            assert seen(next(iterator) for _ in range(5 * (3 - at))) == [*range(5)] * (3 - at)


@WAYS
def test_a_plan_that_raises(way: dict[str, Any]) -> None:
    class Never(StaticMixtureWorkSource):
        def plan(self, catalogs: Sequence[Any], ratios: Any, lanes: int) -> Plan:
            raise Boom

    with Pipeline(Never([numbers(5)], {"numbers": 1})).options(**way).batch(1) as pipeline:
        for _ in range(2):
            with pytest.raises(Boom):
                iter(pipeline)
        for _ in range(2):
            with pytest.raises(Boom):
                asyncio.run(anext(aiter(pipeline)))


# -- storage ---------------------------------------------------------------------------------------------------------------------


def shards(folder: Path, kind: str) -> list[Path]:
    """Four shards of four numbers."""
    folder.mkdir()
    paths = [folder / f"{shard}.{kind}" for shard in range(4)]
    for shard, path in enumerate(paths):
        values = list(range(4 * shard, 4 * shard + 4))
        if kind == "jsonl":
            path.write_text("".join(f'{{"n": {n}}}\n' for n in values))
        else:
            pq.write_table(pa.table({"n": values}), path)
    return paths


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content + b"\n")


@WAYS
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("spoil", [delete, truncate, change])
def test_a_shard_that_is_lost_in_mid_run(tmp_path: Path, kind: str, spoil: Callable[[Path], None], way: dict[str, Any]) -> None:
    paths = shards(tmp_path / "data", kind)

    def pipeline() -> Pipeline:
        return Pipeline(source(Dataset.from_path("d", tmp_path / "data"))).options(**way).batch(1)

    with pipeline() as first:
        first.checkpoint()  # by now the data has been looked at
        before, content = paths[2].stat(), paths[2].read_bytes()
        spoil(paths[2])
        found, error, state = until_it_fails(first, ShardError)
        assert found == list(range(8))
        assert paths[2].name in str(error)
        paths[2].write_bytes(content)
        os.utime(paths[2], ns=(before.st_atime_ns, before.st_mtime_ns))
        with pipeline() as fresh:
            assert seen(fresh.restore(state)) == list(range(8, 16))


class Failing:
    """Reads of row blocks that fail, from a drawn one on, until they are mended."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: type[BaseException], at: int) -> None:
        self.mended = False
        read = Reader.read_several

        def read_or_fail(reader: Reader, dataset: int, unit: int, blocks: range, source: Source | None) -> dict[int, Block]:
            if at in blocks and not self.mended:
                raise kind("no", at)
            return read(reader, dataset, unit, blocks, source)

        patch.setattr(Reader, "read_several", read_or_fail)


def in_blocks(rows: int, **settings: Any) -> StaticMixtureWorkSource:
    """Numbers in row blocks of four."""
    return source(Dataset.from_dict("numbers", {"n": list(range(rows))}).with_sizes(block_bytes=32), **settings)


@WAYS
@pytest.mark.parametrize("raises", [OSError, MemoryError, StopIteration, StopAsyncIteration, GeneratorExit, CancelledError])
@pytest.mark.parametrize("at", [1, 3])
def test_a_reader_that_raises(at: int, raises: type[BaseException], way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    told = raises if issubclass(raises, OSError | MemoryError) else RuntimeError
    with Pipeline(in_blocks(16)).options(**way).batch(1) as pipeline:
        pipeline.checkpoint()  # by now the data has been looked at
        failing = Failing(monkeypatch, raises, at)
        found, error, state = until_it_fails(pipeline, told)
        assert found == list(range(4 * at))
        cause = error if told is raises else error.__cause__
        assert isinstance(cause, raises)
        assert cause.args == ("no", at)
        failing.mended = True
        assert seen(pipeline.restore(state)) == list(range(4 * at, 16))


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_lanes_that_wait_for_one_read_each_say_so_in_an_error_of_their_own(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Pipeline(in_blocks(4, epochs=None)).options(runner=runner, lanes=4).batch(1) as pipeline:
        pipeline.checkpoint()
        Failing(monkeypatch, OSError, 0)
        _, error, _ = until_it_fails(pipeline, OSError)
    assert (error.args, error.__notes__) == (("no", 0), ["zephon_async: while lane 0 read for row 0"])
    assert [entry.name for entry in pytest.ExceptionInfo.from_exception(error).traceback].count("_chunk") == 1


class Counted(Operator):
    """Reads no column."""

    name = "counted"

    def reads(self, wanted: Columns) -> Columns:
        return frozenset()

    def apply(self, records: Records, tally: Tally) -> Records:
        return records


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_without_a_column_are_rows(shuffle: bool) -> None:
    mixture = StaticMixtureWorkSource([numbers(10)], {"numbers": 1}, shuffle=shuffle)
    with Pipeline(mixture).apply(Counted()).shuffle(4).batch(2) as pipeline:
        assert sorted(document.row for batch in pipeline for row in batch.documents() for document in row) == list(range(10))
