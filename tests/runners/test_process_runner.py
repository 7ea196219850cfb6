"""The process runner by itself: results that are held, workers that die before they are ready."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pytest

from tests.made_rows import made
from zephon_async.errors import WorkerError
from zephon_async.records import Parcel, Records
from zephon_async.runners import Portable, ProcessRunner

T = TypeVar("T")
ROWS = 4096  # of 32 KiB: with their origins they fill more than half of a slot


class Same:
    """A stage that gives what it gets."""

    def run(self, parcel: Parcel) -> Parcel:
        return parcel


def numbered(n: int) -> Parcel:
    return Parcel(made({"n": pa.array(np.full(ROWS, n))}))


def on_a_runner(use: Callable[[ProcessRunner], Awaitable[T]]) -> T:
    async def nobody(question: tuple[int, ...]) -> str:
        raise AssertionError(question)

    async def run() -> T:
        runner = ProcessRunner(1, nobody)
        runner.start(asyncio.get_running_loop())
        try:
            return await use(runner)
        finally:
            runner.close(5.0)

    return asyncio.run(run())


def numbers_of(records: Records) -> set[int]:
    return set(records.columns.column(0).to_numpy().tolist())


def slots() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:zephon-arena")


def test_results_that_are_held_stay_as_they_are() -> None:
    """More of them than a worker has slots."""

    async def use(runner: ProcessRunner) -> list[Records]:
        function, held = Portable(Same()), list[Records]()
        for n in range(20):
            parcel, _ = await runner.run(function, numbered(n), (0,))
            assert parcel.records is not None
            held.append(parcel.records)
        assert [numbers_of(records) for records in held] == [{n} for n in range(20)]
        views = slots()
        held = held[::2]
        for n in range(20, 40):  # in slots that are free again
            parcel, _ = await runner.run(function, numbered(n), (0,))
            assert parcel.records is not None
            assert numbers_of(parcel.records) == {n}
        assert slots() <= views
        return held

    held = on_a_runner(use)
    assert [numbers_of(records) for records in held] == [{n} for n in range(0, 20, 2)]  # also behind the end of the runner
    del held
    assert not slots()


def dies_at_its_start(monkeypatch: pytest.MonkeyPatch, folder: Path, starts: range) -> None:
    """Let workers die while they begin, as of a library that cannot be loaded."""
    (folder / "sitecustomize.py").write_text(f"""
import os, signal
if "ZEPHON_CHILD" in os.environ:
    with open({str(folder / "starts")!r}, "a+") as file:
        file.write("x")
        file.flush()
        if file.tell() - 1 in {starts!r}:
            os.kill(os.getpid(), signal.SIGSEGV)
""")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


def test_a_worker_that_dies_while_it_starts_blames_no_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dies_at_its_start(monkeypatch, tmp_path, range(3))

    async def use(runner: ProcessRunner) -> Parcel:
        parcel, _ = await runner.run(Portable(Same()), numbered(7), (0,), deaths=1)
        return parcel

    parcel = on_a_runner(use)
    assert parcel.records is not None
    assert numbers_of(parcel.records) == {7}
    assert os.path.getsize(tmp_path / "starts") == 4


def test_workers_that_all_die_while_they_start_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dies_at_its_start(monkeypatch, tmp_path, range(100))

    async def use(runner: ProcessRunner) -> None:
        await runner.run(Portable(Same()), numbered(7), (0,))

    with pytest.raises(WorkerError, match="end as soon as they are started: the last was killed by SIGSEGV"):
        on_a_runner(use)
