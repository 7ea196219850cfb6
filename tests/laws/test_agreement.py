"""Ranks that agree on the last step: how often each calls `agree` follows from what its consumer asked for, so that iterations
that are left early, on ranks of different speed, do not pair one's call with another's."""

import asyncio
import sys
import threading
import weakref
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.recipes import Recipe, job
from zephon_async import Batch, Pipeline
from zephon_async.errors import RecipeError

DOCUMENTS = {"a": tuple(tuple(range(n, n + 3)) for n in range(40))}


class Collective:
    """Pairs the n-th call of every rank, like a real one."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=30)
        self.calls: list[list[int]] = [[] for _ in range(ranks)]

    def of(self, rank: int) -> Any:
        def agree(steps: int) -> int:
            self.calls[rank].append(steps)
            n = len(self.calls[rank]) - 1
            self._barrier.wait()
            chosen = min(calls[n] for calls in self.calls)
            self._barrier.wait()
            return chosen

        return agree


def test_an_iteration_that_is_left_early_leaves_the_ranks_in_step() -> None:
    recipe = Recipe(DOCUMENTS, {"a": 1}, (), epochs=1, lanes=2, rows=1)
    collective = Collective(2)
    taken: list[list[list[Batch]]] = [[], []]

    def run(rank: int) -> None:
        with recipe.pipeline(2, rank, agree=collective.of(rank), prefetch=1 + 3 * rank) as pipeline:
            for stop in (3, 1, 7, None):
                got = []
                for batch in pipeline:
                    got.append(batch)
                    if len(got) == stop:
                        break
                taken[rank].append(got)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(2):
        assert [len(got) for got in taken[rank]] == [3, 1, 7, 20]
    assert collective.calls[0] == collective.calls[1] == [1, 2, 3, 1, *range(1, 8), *range(1, 21), 20]


@pytest.mark.parametrize("stop", range(1, 8))
def test_uneven_restores_of_data_that_ends(stop: int) -> None:
    recipe = Recipe(DOCUMENTS, {"a": 1}, (), epochs=1, lanes=2, per_lane=2, rows=1)
    whole, _ = job(lambda n, r, more: recipe.pipeline(n, r, **more), 1, None)
    first, states = job(lambda n, r, more: recipe.pipeline(n, r, **more), 1, stop)

    def restored(ranks: int, rank: int, more: dict[str, Any]) -> Any:
        return recipe.pipeline(ranks, rank, **more).restore(states, partial_step="uneven")

    rest, _ = job(restored, 2, None)
    assert [batch.digest() for batch in first + rest] == [batch.digest() for batch in whole]


MINIMUM = "with on_end='drop' options(agree=) must give the minimum over all ranks, here"
MAXIMUM = "with on_end='pad' options(agree=) must give the maximum over all ranks, here"


@pytest.mark.parametrize(
    ("on_end", "agree", "batches", "said"),
    [
        ("drop", lambda steps: None, 0, "options(agree=) gave None, wanted a whole number"),
        ("drop", lambda steps: 1.0, 0, "options(agree=) gave 1.0, wanted a whole number"),
        ("drop", lambda steps: 2, 0, f"agreed on 2 steps, and this one, asked for step 0, proposed 1: {MINIMUM} 0 or 1;"),
        ("drop", lambda steps: max(steps, 21), 0, "agreed on 21 steps, and this one, asked for step 0, proposed 1"),
        ("drop", lambda steps: steps % 3, 4, f"agreed on 0 steps, and this one, asked for step 2, proposed 3: {MINIMUM} 2 or 3;"),
        ("pad", lambda steps: steps * 2, 0, f"agreed on 2 steps, and this one, asked for step 0, proposed 1: {MAXIMUM} 1;"),
        ("pad", lambda steps: min(steps, 3), 6, f"agreed on 3 steps, and this one, asked for step 3, proposed 4: {MAXIMUM} 4;"),
    ],
)
def test_what_no_agreement_can_be_ends_in_an_error(on_end: str, agree: Any, batches: int, said: str) -> None:
    """Else rows would be made up, or left out, without a word."""
    recipe = Recipe(DOCUMENTS, {"a": 1}, (), epochs=1, lanes=2, rows=1)
    with recipe.pipeline(1, 0, agree=agree, on_end=on_end) as pipeline:
        taken = iter(pipeline)
        assert len(list(islice(taken, batches))) == batches
        with pytest.raises((TypeError, ValueError)) as caught:
            next(taken)
        assert said in str(caught.value)


# -- torch.distributed -------------------------------------------------------------------------------------------------------------


class Group:
    """A stand-in for a gloo group, as one rank has it."""

    def __init__(self, rank: int, collective: Collective) -> None:
        self.agree = collective.of(rank)


class Torch:
    """A stand-in for torch.distributed, whose ranks are threads that are named by their numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int, initialised: bool = True) -> None:
        self.made: list[int] = [0] * ranks
        self.left: list[weakref.ref[Group]] = []
        self.fails = False
        self._ranks, self._groups = ranks, [Collective(ranks) for _ in range(9)]
        torch, dist = ModuleType("torch"), ModuleType("torch.distributed")
        vars(dist).update(
            is_available=lambda: True,
            is_initialized=lambda: initialised,
            get_world_size=lambda: ranks,
            new_group=self._new_group,
            all_reduce=self._all_reduce,
            destroy_process_group=lambda group: self.left.append(weakref.ref(group)),
            ReduceOp=SimpleNamespace(MIN="min", MAX="max"),
        )
        vars(torch).update(distributed=dist, int64="int64", tensor=lambda values, dtype: np.array(values))
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch.distributed", dist)

    def _new_group(self, backend: str) -> Group:
        rank = int(threading.current_thread().name)
        self.made[rank] += 1
        return Group(rank, self._groups[self.made[rank]])

    def _all_reduce(self, value: Any, operation: str, group: Group) -> None:
        if self.fails:
            raise RuntimeError("connection closed by peer")
        assert operation == "min"
        value[0] = group.agree(int(value[0]))


def endings(ranks: int, **options: Any) -> Pipeline:
    return Recipe(DOCUMENTS, {"a": 1}, (), epochs=1, lanes=2, rows=1).pipeline(ranks, 0, **options)


def test_nothing_collective_happens_before_an_iteration_and_each_pipeline_makes_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch(monkeypatch, 2)
    recipe = Recipe(DOCUMENTS, {"a": 1}, (), epochs=1, lanes=2, rows=1)
    taken: list[list[int]] = [[], []]

    def run(rank: int) -> None:
        with recipe.pipeline(2, rank) as pipeline:
            state = pipeline.checkpoint()
            pipeline.explain()
            pipeline.restore(state)
            assert torch.made[rank] == 0
            for stop in (3, 30):
                taken[rank].append(len(list(islice(pipeline, stop))))
            assert torch.made[rank] == 1

    threads = [threading.Thread(target=run, args=(rank,), name=str(rank)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [[3, 20], [3, 20]]
    assert len(torch.left) == 2


def test_without_ranks_that_can_agree_only_the_iteration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for initialised, said in ((False, "initialise torch.distributed"), (True, "has 3 ranks and dp_size is 2")):
        torch = Torch(monkeypatch, 3, initialised)
        with endings(2) as pipeline:
            for _ in range(2):
                with pytest.raises(RecipeError, match=said):
                    iter(pipeline)
                with pytest.raises(RecipeError, match=said):
                    asyncio.run(anext(aiter(pipeline)))
            assert pipeline._started is None
            assert "2 lanes" in pipeline.explain()
            pipeline.restore(pipeline.checkpoint())
        assert torch.made == [0, 0, 0]


def test_who_need_not_agree_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch(monkeypatch, 1)
    endless = Recipe(DOCUMENTS, {"a": 1}, (), lanes=2, rows=1)
    with endless.pipeline(2, 0) as pipeline:
        next(iter(pipeline))
    with endings(1) as pipeline:
        assert len(list(pipeline)) == 40
    assert torch.made == [0]


def test_a_rank_that_is_told_of_another_lets_go_of_the_group_though_its_error_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a third rank, which waits for this one, would never be told."""
    torch = Torch(monkeypatch, 2)
    torch.fails = True
    told: list[RuntimeError] = []

    def run() -> None:
        with endings(2) as pipeline:
            with pytest.raises(RuntimeError, match="closed by peer") as caught:
                next(iter(pipeline))
            told.append(caught.value)

    thread = threading.Thread(target=run, name="0")
    thread.start()
    thread.join()
    assert "could not agree" in told[0].__notes__[0]
    assert [group() for group in torch.left] == [None]
