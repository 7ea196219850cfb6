"""The process runner: the same data, workers that may die, errors as they were raised, nothing left behind (D01, D05, G04)."""

import errno
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from tests.by_processes import Dies, Record, Unpicklable, children, pipeline, with_pid
from tests.numbered import NUMBERS, numbers, seen, settle, source
from zephon_async import Dataset, Pipeline
from zephon_async.engine import placement
from zephon_async.errors import BadRecord, RecipeError, WorkerError

TOKENIZER = Path(__file__).parent / "tokenizer.json"


def test_functions_run_in_the_workers_and_these_end_with_the_pipeline() -> None:
    with pipeline(with_pid) as made:
        batches = list(made)
        pids = {batch.to_pylist("pid")[0] for batch in batches}
        assert pids <= children()
        assert os.getpid() not in pids
        assert seen(batches) == list(range(200))
    assert not pids & children()


@pytest.mark.parametrize("kind", ["lambda", "closure", "partial"])
def test_functions_go_by_value(kind: str) -> None:
    offset = 5
    made = {"lambda": lambda r: {"n": r["n"] + 5}, "closure": lambda r: {"n": r["n"] + offset}, "partial": Adds(5)}[kind]
    with pipeline(made, rows=20) as run:
        assert seen(run) == list(range(5, 25))


class Adds:
    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, record: Record) -> Record:
        return {"n": record["n"] + self.n}


@pytest.mark.parametrize(
    ("times", "by"), [(1, signal.SIGKILL), pytest.param(2, signal.SIGSEGV, marks=pytest.mark.slow)], ids=["once", "twice"]
)
def test_a_worker_that_dies_is_replaced_and_its_rows_come(times: int, by: int, tmp_path: Path) -> None:
    with pipeline(Dies(tmp_path, 77, times, by)) as run:
        assert seen(run) == list(range(200))


def test_rows_that_three_workers_die_of_are_named(tmp_path: Path) -> None:
    with pipeline(Dies(tmp_path, 77, 3)) as run:
        found: list[int] = []

        def take() -> None:
            for batch in run:
                found.append(batch.to_pylist("n")[0])  # noqa: PERF401 (those before the failure are wanted)

        with pytest.raises(WorkerError) as caught:
            take()
        said = str(caught.value)
        first = len(found)
        assert 77 - 8 < first <= 77
        assert found == list(range(first))
        assert re.match(
            rf"map on [1-8] rows?, dataset 'numbers', shard '0', row {first}, epoch 0( to dataset .*)?: worker process", said
        )
        assert said.count("was killed by SIGKILL") == 3
        assert seen(run) == list(range(200))  # it has died its three times


@pytest.mark.parametrize(("busy", "workers"), [pytest.param(False, 2, marks=pytest.mark.slow), (True, 4)])
def test_all_workers_killed_at_once(busy: bool, workers: int) -> None:
    with pipeline(with_pid, rows=2000, workers=workers) as run:
        batches = iter(run)
        first = [next(batches) for _ in range(20)]
        pids = {batch.to_pylist("pid")[0] for batch in first}
        if not busy:
            settle(run)  # nothing is asked for, so they have nothing to do
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        rest = list(batches)
        assert seen([*first, *rest]) == list(range(2000))
        assert not pids & {rest[-1].to_pylist("pid")[0]}


def test_a_worker_that_is_stopped_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    with pipeline(Dies(tmp_path, 77, 1, signal.SIGSTOP), worker_timeout_s=5) as run:
        assert seen(run) == list(range(200))


class Raises:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, record: Record) -> Record:
        if record["n"] == 77:
            self.fail()
        return record

    def fail(self) -> None:
        if self.kind == "value":
            raise ValueError("77 is no number") from KeyError("why")
        if self.kind == "unpicklable":
            raise Unpicklable(77, threading.Lock())
        if self.kind == "exit":
            raise SystemExit(3)
        if self.kind == "interrupt":
            raise KeyboardInterrupt
        if self.kind == "local":

            class Local(Exception):
                pass

            raise Local("of a function")
        raise BadRecord("not this one")


@pytest.mark.parametrize(
    ("kind", "raised", "text"),
    [
        ("value", ValueError, "77 is no number"),
        ("unpicklable", Unpicklable, "number 77"),
        ("exit", SystemExit, "3"),
        ("interrupt", KeyboardInterrupt, ""),
        ("local", Exception, "of a function"),
    ],
)
def test_an_exception_keeps_what_it_was(kind: str, raised: type[BaseException], text: str) -> None:
    with pipeline(Raises(kind)) as run:
        found: list[int] = []

        def take() -> None:
            for batch in run:
                found.append(batch.to_pylist("n")[0])  # noqa: PERF401 (those before the failure are wanted)

        with pytest.raises(raised) as caught:
            take()
        assert found == list(range(77))
        assert str(caught.value) == text
        notes = "".join(caught.value.__notes__)
        assert "row 77, epoch 0" in notes
        assert "in fail" in notes
        if kind == "value":
            assert repr(caught.value.__cause__) == "KeyError('why')"
        if kind == "unpicklable":
            assert isinstance(caught.value, Unpicklable)
            assert caught.value.number == 77
        with pytest.raises(raised):
            take()


def test_bad_records_are_skipped_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pipeline(Raises("bad"), on_bad_record="quarantine") as run:
        assert seen(run) == [n for n in range(200) if n != 77]
        assert run.statistics().counts["records_quarantined"] == 1
    assert "skipped a bad record: dataset 'numbers', shard '0', row or byte 77" in caplog.text


def test_what_cannot_be_pickled_runs_on_threads_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    lock = threading.Lock()

    def locked(record: Record) -> Record:
        with lock:
            return {"n": record["n"], "pid": os.getpid()}

    with caplog.at_level(logging.WARNING), pipeline(locked, rows=20) as run:
        assert {batch.to_pylist("pid")[0] for batch in run} == {os.getpid()}
        assert "map on threads, as it cannot be pickled: TypeError: cannot pickle '_thread.lock' object" in run.explain()
    assert "map runs on threads, not on processes, as it cannot be pickled" in caplog.text


def test_where_work_runs_is_as_asked() -> None:
    def where(**options: Any) -> str:
        with Pipeline(source(numbers(9))).options(**options).map(with_pid).batch(1) as run:
            return next(line for line in run.explain().splitlines() if "map on" in line)

    assert "on processes, as options(runner='processes')" in where(runner="processes")
    assert "on processes, as options(per_stage_runner=...)" in where(runner="threads", per_stage_runner={"map": "processes"})
    assert "on inline" in where(runner="inline", per_stage_runner={"map": "processes"})
    with pytest.raises(RecipeError, match="runner is 'proceses': it must be one of"):
        where(runner="proceses")
    with pytest.raises(RecipeError, match="worker_timeout_s is 0"):
        where(worker_timeout_s=0)


@pytest.mark.slow
def test_twenty_starts_behind_a_tokenizer_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """D05: workers are not forked from a process whose libraries have threads."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    encoder = Tokenizer.from_file(str(TOKENIZER))
    texts = [f"the river of stone {n}" for n in range(50)]
    wanted = [encoding.ids for encoding in encoder.encode_batch(texts, add_special_tokens=False)]
    for _ in range(20):
        made = Pipeline(source(Dataset.from_dict("d", {"text": texts}))).options(runner="processes", workers=2)
        with made.tokenize(encoder, field="text", special_tokens="none").batch(1) as run:
            assert [batch.to_pylist("input_ids")[0] for batch in run] == wanted


def pools(record: Record) -> Record:
    names = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")
    return {"arrow": [pa.cpu_count(), pa.io_thread_count()], "set": [os.environ[name] for name in names]}


def test_pools_of_libraries_have_one_thread_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("RAYON_NUM_THREADS", "3")
    schema = pa.schema({"arrow": pa.list_(pa.int64()), "set": pa.list_(pa.string())})
    with Pipeline(source(numbers(1))).options(runner="processes", workers=1).map(pools, schema=schema).batch(1) as run:
        (batch,) = run
    assert batch.to_pylist("arrow") == [[1, 1]]
    assert batch.to_pylist("set") == [["1", "3"]]


def mapped(record: Record) -> Record:
    return {"maps": Path("/proc/self/maps").read_text()}


def test_shared_memory_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a /dev/shm of 64 MiB, or one that is full, is no matter, and two jobs do not meet (D02)."""
    before = set(os.listdir("/dev/shm"))
    text = pa.schema({"maps": pa.string()})
    with Pipeline(source(numbers(1))).options(runner="processes", workers=1).map(mapped, schema=text).batch(1) as run:
        (batch,) = run
        for told in (batch.to_pylist("maps")[0], Path("/proc/self/maps").read_text()):
            assert "/memfd:zephon-arena (deleted)" in told
            assert "/dev/shm" not in told
        assert set(os.listdir("/dev/shm")) <= before


def test_an_extension_that_has_switched_the_gil_on_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "The global interpreter lock (GIL) has been enabled to load module 'old_extension', which has not declared that it can "
        "safely without the GIL."
    )
    module = ModuleType("imports_it")
    vars(module)["__warningregistry__"] = {(text, RuntimeWarning, 1): True}
    monkeypatch.setitem(sys.modules, "imports_it", module)
    monkeypatch.setattr(placement, "gil_is_on", lambda: True)
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: 1)
    with caplog.at_level(logging.WARNING):
        placement.warn_of_the_gil()
    assert "the extension 'old_extension' has switched it on" in caplog.text


def forks(record: Record) -> Record:
    if record["n"] == 20 and not os.fork():
        return {"n": -1}
    if record["n"] == 30 and not os.fork():
        raise SystemExit(3)
    return record


def test_a_process_that_a_function_forks_is_not_a_worker() -> None:
    made = Pipeline(source(numbers(60))).options(runner="processes", workers=1, chunk_rows=8)
    with made.map(forks, schema=NUMBERS).batch(1) as run:  # without a trial, which is made in this process
        assert seen(run) == list(range(60))


def test_a_function_that_cannot_be_loaded_says_so_each_time(load: Callable[[str], ModuleType]) -> None:
    """Of a module that is in `sys.modules` and nowhere else."""
    module = load("def same(record):\n    return record")
    with Pipeline(source(numbers(4))).options(runner="processes", workers=1, chunk_rows=1, version=1) as run:
        run.map(module.same, schema=NUMBERS, runner="processes").batch(1)
        for _ in range(2):
            with pytest.raises(ModuleNotFoundError, match="made_module") as caught:
                list(run)
            assert "could not be loaded in a worker process" in "".join(caught.value.__notes__)


def test_paths_that_are_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python passes over them too."""
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    with pipeline(with_pid, rows=5) as run:
        assert seen(run) == list(range(5))


def no_descriptors(name: str, flags: int = 0) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_no_descriptors_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", no_descriptors)
    with pipeline(with_pid) as run, pytest.raises(WorkerError, match=r"Too many open files.*raise the limit of open files"):
        list(run)


def test_no_descriptors_when_a_worker_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipeline(with_pid, rows=2000, workers=1) as run:
        batches = iter(run)
        next(batches)
        monkeypatch.setattr(os, "memfd_create", no_descriptors)
        os.kill(children().pop(), signal.SIGKILL)
        with pytest.raises(WorkerError, match="Too many open files"):
            list(batches)


@pytest.mark.slow
def test_fusing_does_not_change_what_is_left_out_for_good(tmp_path: Path) -> None:
    def children_of(record: Record) -> list[Record]:
        return [{"n": 10 * record["n"] + j} for j in range(2)]

    found: list[list[int]] = []
    for way in ({}, {"per_stage_runner": {"flat_map": "threads"}}):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        options: dict[str, Any] = {"runner": "processes", "workers": 1, "chunk_rows": 2, "on_bad_record": "quarantine", **way}
        made = Pipeline(source(numbers(9))).options(**options).flat_map(children_of, schema=NUMBERS)
        with made.map(Dies(folder, 71, 9, signal.SIGSEGV), schema=NUMBERS).batch(1) as run:
            found.append(seen(run))
    assert found == [[n for k in range(9) for n in (10 * k, 10 * k + 1) if n != 71]] * 2
