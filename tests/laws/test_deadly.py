"""Rows that kill the worker processes: named, or with quarantine left out, for good and on every runner."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.by_processes import Kills
from tests.numbered import NUMBERS, numbers, seen, source
from zephon_async import Pipeline
from zephon_async.engine import Deadly
from zephon_async.errors import CheckpointError, WorkerDied, WorkerError
from zephon_async.lanes import RankState

ROWS = [n for n in range(100) if n not in (7, 60)]


def pipeline(fn: Any, rows: int = 100, shuffle: int = 1, **options: Any) -> Pipeline:
    settings: dict[str, Any] = {"runner": "processes", "workers": 2, "chunk_rows": 4, "on_bad_record": "quarantine", **options}
    mapped = Pipeline(source(numbers(rows))).options(**settings).map(fn, schema=NUMBERS, version=1)
    return mapped.shuffle(shuffle, seed=1).batch(1)


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL])
def test_a_row_that_kills_by_a_signal_of_its_own_is_left_out(by: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pipeline(Kills(tmp_path, by)) as run:
        assert seen(run) == ROWS
        assert run.statistics().counts["records_quarantined"] == 2
        state = run.checkpoint()
    assert "shard '0', row or byte 7, epoch 0: two worker processes died of it" in caplog.text
    assert signal.Signals(by).name in caplog.text
    with pipeline(Kills(tmp_path, by)) as fresh:
        assert seen(fresh.restore(state)) == []


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_it_is_left_out_on_every_runner_behind_a_checkpoint(isolate: bool, tmp_path: Path) -> None:
    def shuffled(by: int, **options: Any) -> Pipeline:  # so that rows are run again behind a restore
        return pipeline(Kills(tmp_path, by), rows=50, shuffle=50, **options)

    with shuffled(signal.SIGSEGV, isolate=isolate, workers=1) as run:
        batches = iter(run)
        first = seen(next(batches) for _ in range(20))
        state = run.checkpoint()
        rest = seen(batches)
    assert sorted([*first, *rest]) == ROWS[:49]
    for way in ({"runner": "threads"}, {"runner": "inline"}):  # which would die of it
        with shuffled(0, **way) as other:
            assert seen(other.restore(state)) == rest
            assert other.statistics().counts["records_quarantined"] == 1


def killed_deaths(tmp_path: Path, *by: int, **options: Any) -> None:
    with pipeline(Kills(tmp_path, *by), **options) as run:
        list(run)


@pytest.mark.slow
@pytest.mark.parametrize("by", [(signal.SIGKILL,), (signal.SIGSEGV, signal.SIGABRT)], ids=["a kill", "not the same"])
def test_what_may_come_from_elsewhere_is_never_left_out(by: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="dataset 'numbers', shard '0', row"):
        killed_deaths(tmp_path, *by)


def test_without_quarantine_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="was killed by SIGSEGV") as caught:
        killed_deaths(tmp_path, signal.SIGSEGV, on_bad_record="raise")
    assert isinstance(caught.value.__cause__, WorkerDied)


@pytest.mark.slow
def test_too_many_of_them_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="max_bad"):
        killed_deaths(tmp_path, signal.SIGSEGV, max_bad=1)


def test_a_checkpoint_that_is_refused_leaves_nothing_out() -> None:
    """Its rows are those of another recipe."""

    def told(version: int) -> Pipeline:
        return Pipeline(source(numbers(9))).options(version=version).batch(1)

    with told(1) as other, told(2) as run:
        row = Deadly()
        row.add(0, next(iter(other)).records, 0)
        state = replace(RankState.decode(other.checkpoint()), deadly=row.rows).encode()
        with pytest.raises(CheckpointError):
            run.restore(state)
        assert RankState.decode(run.checkpoint()).deadly == frozenset()
