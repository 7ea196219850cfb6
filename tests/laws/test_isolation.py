"""`isolate=True`: the engine in a child process gives the same batches and the same checkpoints, and dies alone."""

import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.by_processes import Record, children, with_pid
from tests.numbered import NUMBERS, digests, numbers, packed, seen, source
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_async.engine import Run
from zephon_async.errors import ClosedError, RecipeError, WorkerError
from zephon_async.isolation import IsolatedEngine
from zephon_async.lanes import Start, Topology


def mapped(fn: Callable[[Record], Record], rows: int = 200, schema: pa.Schema | None = None, **options: Any) -> Pipeline:
    settings: dict[str, Any] = {"isolate": True, "runner": "threads", "workers": 2, "chunk_rows": 8, **options}
    return Pipeline(source(numbers(rows))).options(**settings).map(fn, schema=schema).batch(1)


def test_batches_and_checkpoints_are_those_of_an_engine_here() -> None:
    with packed() as here, packed(isolate=True) as there:
        pairs = list(zip(here, there, strict=True))
        assert digests(one for one, _ in pairs) == digests(other for _, other in pairs)
        assert here.checkpoint() == there.checkpoint()
        assert all(other.to_pylist("input_ids") == one.to_pylist("input_ids") for one, other in pairs)


@pytest.mark.parametrize("first", [False, True])
def test_a_run_goes_on_in_the_other_placement(first: bool) -> None:
    with packed() as whole:
        expected = digests(whole)
    with packed(isolate=first) as run:
        begun = digests(islice(run, 7))
        state = run.checkpoint()
    with packed(isolate=not first) as other:
        assert [*begun, *digests(other.restore(state))] == expected


def test_the_engine_is_another_process_that_ends_with_the_pipeline() -> None:
    with mapped(with_pid) as run:
        batches = list(run)
        pids = {batch.to_pylist("pid")[0] for batch in batches}
        assert pids <= children()
        assert seen(batches) == list(range(200))
        assert seen(run) == list(range(200))
    assert not pids & children()


class Fails:
    """At record 77: in `how` it is told."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, record: Record) -> Record:
        if record["n"] == 77:
            if self.how == "raises":
                raise ValueError("77 is no number") from KeyError("why")
            if self.how == "exits":
                os.write(2, b"the last words\n")
                os._exit(3)
            os.kill(os.getpid(), signal.SIGSEGV)
        return record


def test_a_failure_comes_in_its_place() -> None:
    with mapped(Fails("raises")) as run:
        batches, found = iter(run), list[int]()

        def take() -> None:
            for batch in batches:
                found.append(batch.to_pylist("n")[0])

        for _ in range(2):
            with pytest.raises(ValueError, match="77 is no number") as caught:
                take()
        assert found == list(range(77))
        assert repr(caught.value.__cause__) == "KeyError('why')"
        notes = "".join(caught.value.__notes__)
        assert "row 77, epoch 0" in notes
        assert "the traceback in the isolated engine, process" in notes


@pytest.mark.parametrize(("how", "said"), [("exits", "ended with exit code 3"), ("crashes", "was killed by SIGSEGV")])
def test_a_child_that_dies_is_an_error_and_the_next_iteration_has_another(
    how: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with mapped(Fails(how)) as run:
        with pytest.raises(WorkerError, match=said) as caught:
            list(run)
        if how == "exits":
            assert "the last words" in str(caught.value)
            assert "the last words" in capfd.readouterr().err
        assert seen(islice(run, 20)) == list(range(20))


def test_a_child_that_is_killed_while_the_consumer_waits(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    os.mkfifo(told)

    def slow(record: Record) -> Record:
        if record["n"] == 5:
            told.write_text(str(os.getpid()))
            time.sleep(60)
        return record

    def kill() -> None:
        os.kill(int(told.read_text()), signal.SIGKILL)

    with mapped(slow, schema=NUMBERS, chunk_rows=1, validate="off") as run:
        batches = iter(run)
        first = seen(islice(batches, 3))
        killing = threading.Thread(target=kill)
        killing.start()
        with pytest.raises(WorkerError, match="was killed by SIGKILL"):
            first += seen(batches)
        killing.join()
        assert first == list(range(len(first)))


@pytest.mark.parametrize("isolate", [False, True])
def test_ranks_agree_on_the_thread_that_iterates(isolate: bool) -> None:
    asked: list[tuple[int, int]] = []

    def agree(steps: int) -> int:
        asked.append((threading.get_ident(), steps))
        return min(steps, 6)

    with packed(isolate=isolate, dp_size=2, dp_rank=0, agree=agree) as run:
        assert len(list(run)) == 6
        assert [steps for _, steps in asked] == [1, 2, 3, 4, 5, 6, 7]
        if isolate:
            assert {thread for thread, _ in asked} == {threading.get_ident()}
        again = iter(run)
        next(again)
        assert [steps for _, steps in asked[7:]] == [1]


def test_ranks_that_cannot_agree() -> None:
    def agree(steps: int) -> int:
        if steps == 3:
            raise ConnectionError("the other rank has gone")
        return steps

    with packed(isolate=True, dp_size=2, dp_rank=0, agree=agree) as run:
        batches = iter(run)
        assert len([next(batches), next(batches)]) == 2
        with pytest.raises(ConnectionError, match="the other rank has gone"):
            next(batches)


def late(record: Record) -> bool:
    return bool(record["n"] >= 20)


def test_a_lane_that_has_run_dry_keeps_nobody_waiting() -> None:
    """The child is steps ahead of a slow consumer: it has told of rows that are to be made up before earlier ones were taken."""
    found = []
    for isolate in (False, True):
        made = StaticMixtureWorkSource([numbers(90)], {"numbers": 1}, shuffle=False)
        with Pipeline(made).options(lanes=3, on_end="pad", isolate=isolate).filter(late).batch(2) as run:
            batches = []
            for batch in run:
                batches.append(batch)
                time.sleep(0.02)
        found.append(digests(batches))
        assert sum(batch.filled for batch in batches) == 20
    assert found[0] == found[1]


def test_padding_is_made_up_here_as_there() -> None:
    table = pa.table({"n": list(range(7))})
    for isolate in (False, True):
        made = StaticMixtureWorkSource([Dataset.from_arrow("d", table)], {"d": 1}, epochs=1, shuffle=False)
        with Pipeline(made).options(lanes=2, on_end="pad", isolate=isolate).batch(2) as run:
            found = [(batch.mask.tolist(), batch.to_pylist("n"), batch.digest()) for batch in run]
        if not isolate:
            expected = found
    assert found == expected
    assert any(not all(mask) for mask, *_ in found)


def test_what_is_wrong_with_a_recipe_is_told_as_here() -> None:
    with (
        pytest.raises(RecipeError, match="there are more lanes"),
        Pipeline(source(numbers(3))).options(isolate=True, lanes=8).batch(1) as run,
    ):
        list(run)


def test_what_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def locked(record: Record) -> Record:
        with lock:
            return record

    with pytest.raises(RecipeError, match="map, operator 1, cannot be pickled"), mapped(locked) as run:
        list(run)


def test_explain_and_statistics_are_the_childs() -> None:
    with packed() as here, packed(isolate=True) as there:
        assert there.explain() == here.explain()
        assert there.statistics().microbatches == 0
        taken = list(islice(there, 5))
        found = there.statistics()
        assert found.microbatches == len(taken)
        assert {stage.name for stage in found.stages} >= {"storage"}
        assert found.drawn["d"] > 0


def test_an_iteration_that_is_begun_anew_ends_the_one_before() -> None:
    with packed(epochs=None, isolate=True) as run:
        first = iter(run)
        expected = digests(islice(first, 9))
        for _ in range(3):
            assert digests(islice(run, 9)) == expected
        with pytest.raises(ClosedError, match="a newer iteration"):
            next(first)
    with pytest.raises(ClosedError, match="closed"):
        next(iter(run))


@pytest.mark.anyio
async def test_async_consumers() -> None:
    with packed() as here:
        expected = digests(here)
    async with packed(isolate=True) as run:
        assert digests([batch async for batch in run]) == expected


def test_the_runner_of_the_child_may_be_any() -> None:
    for runner in ("inline", "processes"):
        with mapped(with_pid, rows=20, runner=runner) as run:
            batches = list(run)
            assert seen(batches) == list(range(20))
            assert os.getpid() not in {batch.to_pylist("pid")[0] for batch in batches}


def test_the_reference_librarys_name() -> None:
    with Pipeline(source(numbers(3))).options(mtp_mode=True).batch(1) as run:
        assert seen(run) == [0, 1, 2]


def test_an_errand_that_comes_before_the_waker_is_seen() -> None:
    """The loop may ask for a call on the consumer's thread between its look for calls and its wait."""
    topology = Topology(1, 1, 1, 0)
    run, woken = Run(topology, Start.fresh(topology, 0), True), list[int]()
    first = iter([lambda: run.errand(lambda: None)])
    look = run.run_errands
    run.run_errands = lambda: (look(), next(first, lambda: None)())  # type: ignore[method-assign, assignment]
    assert run.take(lambda taken: taken, lambda: woken.append(1)) is None
    assert woken == [1]


def test_a_close_that_a_signal_puts_inside_the_lock_waits_for_nothing_that_needs_it() -> None:
    """A handler runs on the thread that it interrupts; the child is let end by itself, once the lock is free."""
    run = packed(epochs=None, isolate=True)
    next(iter(run))
    assert run._started is not None
    assert isinstance(run._started.engine, IsolatedEngine)
    link = run._started.engine._link
    assert link is not None
    with link._lock:
        run.close()
    link._thread.join(30)
    assert link._child._popen.returncode == 0  # it was not killed for the lock's sake
