"""Cases B01, B04, B05 and B07: what comes after a checkpoint, on any number of ranks, and how epochs differ."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import job
from tests.taken import CASES, batches, column, expected, in_order, taken
from zephon_async import CheckpointError, Dataset, Pipeline, StaticMixtureWorkSource

# B01

PROGRAM = """
import json, sys
from tests import test_cases_resume as cases
for line in sys.stdin:
    settings, state = json.loads(line)
    with cases.shuffled(**settings) as pipeline:
        print(json.dumps(cases.column(list(pipeline.restore(bytes.fromhex(state))), "id")))
"""


def shuffled(buffer: int = 50, rows: int = 1, lanes: int = 1, **source: Any) -> Pipeline:
    made = in_order(Dataset.from_path("d", CASES / "B01"), **source)
    return Pipeline(made).options(lanes=lanes).shuffle(buffer_size=buffer, seed=7).batch(rows)


SHUFFLES: list[tuple[dict[str, Any], Sequence[int]]] = [
    ({}, expected("B01")["checkpoints_at"]),
    ({"buffer": 1}, [0, 7, 200]),
    ({"buffer": 64, "rows": 8}, [1, 7, 8, 9, 24, 25]),
    ({"buffer": 1000, "shuffle": True, "seed": 3}, [0, 5, 199]),
    ({"buffer": 7, "rows": 3, "lanes": 4, "shuffle": True, "epochs": 2}, [3, 5, 64, 132]),
]


def test_the_rest_of_a_shuffled_stream_in_a_new_process() -> None:
    lines, right = [], []
    for settings, stops in SHUFFLES:
        whole = column(batches(shuffled(**settings)), "id")
        if not settings:
            assert sorted(whole) == list(range(expected("B01")["ids"]))
            assert whole != sorted(whole)
            assert sorted(whole[150:]) == list(range(150, 200))
            assert whole[150:] != sorted(whole[150:])  # the last window is permuted too
        for stop in stops:
            with shuffled(**settings) as pipeline:
                before = column(taken(pipeline, stop), "id")
                lines.append(json.dumps([settings, pipeline.checkpoint().hex()]))
            assert before == whole[: len(before)]
            right.append(whole[len(before) :])
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input="\n".join(lines), capture_output=True, text=True, check=False, cwd=root
    )
    assert done.stderr == ""
    assert [json.loads(line) for line in done.stdout.splitlines()] == right


@pytest.mark.parametrize("n", [19, 20, 50, 51, 99])
def test_the_last_short_window(n: int) -> None:
    made = Dataset.from_dict("d", {"id": list(range(n))})
    for stop in (0, 1, n - 1, n):
        with Pipeline(in_order(made)).shuffle(50, seed=1).batch(1) as pipeline:
            before = column(taken(pipeline, stop), "id")
            pipeline.restore(pipeline.checkpoint())
            after = column(taken(pipeline), "id")
        assert sorted(before + after) == list(range(n))


# B04


def endless(lanes: int = 2, **options: Any) -> Pipeline:
    datasets = [Dataset.from_dict(name, {"text": [f"{name}{n}" * (n % 5 + 1) for n in range(40)]}) for name in "ab"]
    source = StaticMixtureWorkSource(datasets, {"a": 0.3, "b": 0.7}, seed=1, epochs=None, unit="bytes")
    return Pipeline(source).options(lanes=lanes, **options).shuffle(16).batch(2)


def test_twenty_resumes_into_the_same_and_into_a_fresh_pipeline() -> None:
    whole = [batch.digest() for batch in batches(endless(), 230)]
    with endless() as same:
        found = [batch.digest() for batch in taken(same, 30)]
        state = same.checkpoint()
        sizes = [len(state)]
        for _ in range(20):
            again = [batch.digest() for batch in taken(same.restore(state), 10)]
            kept = same.checkpoint()
            with endless() as fresh:
                assert [batch.digest() for batch in taken(fresh.restore(state), 10)] == again
                state = fresh.checkpoint()
            assert state == kept
            found += again
            sizes.append(len(state))
    assert found == whole
    assert max(sizes) - min(sizes) <= 96  # before the first window there are no coordinates yet


def test_the_size_of_a_state_does_not_grow() -> None:
    sizes = {}
    with endless(lanes=4) as pipeline:
        for number, _ in enumerate(pipeline, 1):
            if number in (10, 100, 1000):
                sizes[number] = len(pipeline.checkpoint())
            if number == 1000:
                break
    assert max(sizes.values()) <= 1024 + 4 * (128 + 32 * 2)
    assert max(sizes.values()) - min(sizes.values()) <= 4 * 2 * 8 * 3  # whole numbers of up to 9 bytes


def test_iterating_again_begins_at_the_restored_state() -> None:
    whole = [batch.digest() for batch in batches(endless(), 12)]
    with endless() as pipeline:
        for _ in range(2):
            assert [batch.digest() for batch in taken(pipeline, 5)] == whole[:5]
        pipeline.restore(pipeline.checkpoint())
        for n in (1, 7):
            assert [batch.digest() for batch in taken(pipeline, n)] == whole[5 : 5 + n]


# B05


def of_ranks(per_step: int, ranks: int, rank: int, extra: dict[str, Any]) -> Pipeline:
    made = Dataset.from_dict("d", {"text": [f"text {n}" * (n % 7 + 1) for n in range(300)]})
    source = StaticMixtureWorkSource([made], {"d": 1}, seed=2, epochs=None)
    options = {"lanes": 8, "microbatches_per_step": per_step, "dp_size": ranks, "dp_rank": rank, **extra}
    return Pipeline(source).options(**options).shuffle(8).batch(1)


def run(
    per_step: int, ranks: int, count: int, states: Sequence[bytes] | None = None
) -> tuple[list[tuple[int, int, str]], list[bytes]]:
    found, saved = job(lambda n, r, extra: of_ranks(per_step, n, r, extra), ranks, count * per_step // ranks, states)
    return [(batch.step, batch.number, batch.digest()) for batch in found], saved


@pytest.mark.parametrize(("per_step", "sizes", "wrong"), [(8, (1, 2, 4, 8), (3, 16)), (24, (1, 2, 3, 6, 12), (5, 16))])
def test_states_of_a_step_restore_on_any_size(per_step: int, sizes: Sequence[int], wrong: Sequence[int]) -> None:
    whole, _ = run(per_step, 1, 6)
    first, states = run(per_step, 4, 3)
    assert first == whole[: 3 * per_step]
    for ranks in sizes:
        assert run(per_step, ranks, 3, states)[0] == whole[3 * per_step :]
    assert run(per_step, 2, 3, list(reversed(states)))[0] == whole[3 * per_step :]
    assert run(per_step, 2, 3, states * 2)[0] == whole[3 * per_step :]
    for ranks in wrong:
        with pytest.raises(ValueError, match=f"cannot be shared evenly by dp_size={ranks} ranks"):
            run(per_step, ranks, 1, states)


@pytest.mark.parametrize("kept", [(0, 1), (2, 3), (0, 2), (0, 1, 2), (3,), ()])
def test_missing_states_are_an_error_before_the_first_batch(kept: Sequence[int]) -> None:
    _, states = run(8, 4, 3)
    some = [states[rank] for rank in kept]
    for ranks in (1, 2, 8):
        for rank in range(ranks):
            need = {n // 2 for n in range(rank * 8 // ranks, (rank + 1) * 8 // ranks)}
            with of_ranks(8, ranks, rank, {}) as pipeline:
                if need <= set(kept):
                    taken(pipeline.restore(some), 1)
                else:
                    with pytest.raises(CheckpointError, match="no state" if not kept else rf"missing: \[{min(need - set(kept))}"):
                        pipeline.restore(some)


def test_states_in_the_middle_of_a_step() -> None:
    whole, _ = run(24, 1, 3)
    states = []
    for rank in range(4):
        with of_ranks(24, 4, rank, {}) as pipeline:
            taken(pipeline, 8)
            states.append(pipeline.checkpoint())
    with of_ranks(24, 2, 0, {}) as pipeline:
        with pytest.raises(CheckpointError, match="in the middle of step 1 on dp_size=4"):
            pipeline.restore(states)
        found = taken(pipeline.restore(states, partial_step="uneven"), 8)
    left = [n for n in range(12) if n % 6 >= 2]
    assert [(b.step, b.number, b.digest()) for b in found] == [whole[24 + n] for n in left]
    with of_ranks(24, 4, 1, {}) as pipeline:
        found = taken(pipeline.restore(states[1]), 4)
    assert [(b.step, b.number, b.digest()) for b in found] == whole[24 + 8 : 24 + 12]


def test_a_step_that_one_rank_has_ended_and_the_others_have_not_begun() -> None:
    whole, _ = run(24, 1, 3)
    states = []
    for rank in range(4):
        with of_ranks(24, 4, rank, {}) as pipeline:
            taken(pipeline, 6 if rank else 12)
            states.append(pipeline.checkpoint())
    for ranks in (2, 4):
        with of_ranks(24, ranks, 0, {}) as pipeline:
            with pytest.raises(CheckpointError, match="of the middle of one, restore with partial_step='uneven'"):
                pipeline.restore(states)
            found = taken(pipeline.restore(states, partial_step="uneven"), 3)
            step, first = (2, 0) if ranks == 4 else (1, 6)
            assert [(b.step, b.number, b.digest()) for b in found] == whole[24 * step + first :][:3]


def test_states_of_different_steps_or_runs() -> None:
    _, third = run(8, 2, 3)
    _, fourth = run(8, 2, 4)
    with of_ranks(8, 1, 0, {}) as pipeline:
        with pytest.raises(CheckpointError, match="different steps"):
            pipeline.restore([third[0], fourth[1]])
        _, others = run(8, 4, 3)
        with pytest.raises(CheckpointError, match="different runs"):
            pipeline.restore([third[0], others[3]])
        with pytest.raises(CheckpointError, match="two states of rank 1 that differ"):
            pipeline.restore([*third, fourth[1]])
    with of_ranks(8, 2, 1, {}) as pipeline, pytest.raises(CheckpointError, match="two states of rank 1 that differ"):
        pipeline.restore([third[1], fourth[1]])


# B07


@pytest.mark.parametrize("window", [None, 10, 50])
def test_every_epoch_has_an_order_of_its_own(window: int | None) -> None:
    shards = {n: [{"id": 10 * n + i} for i in range(10)] for n in range(10)}

    def run(seed: int) -> list[list[int]]:
        source = StaticMixtureWorkSource([Dataset.from_dict("d", shards)], {"d": 1}, seed=seed, epochs=3)
        pipeline = Pipeline(source)
        found = column(batches((pipeline.shuffle(window, seed=seed) if window else pipeline).batch(1)), "id")
        return [found[start : start + 100] for start in (0, 100, 200)]

    first = run(1)
    assert all(sorted(epoch) == list(range(100)) for epoch in first)
    assert len({tuple(epoch) for epoch in first}) == 3
    if window is None:
        orders = {tuple(dict.fromkeys(number // 10 for number in epoch)) for epoch in first}
        assert len(orders) == 3  # of the shards
    within = {tuple(number % 10 for number in epoch if number // 10 == 3) for epoch in first}
    assert len(within) == 3  # of the rows of a shard
    assert run(1) == first
    assert all(a != b for a, b in zip(first, run(2), strict=True))


@pytest.mark.parametrize("epochs", [2, 3])
@pytest.mark.parametrize("lanes", [1, 3, 7])
def test_every_epoch_holds_every_row_once_in_any_number_of_lanes(epochs: int, lanes: int) -> None:
    made = Dataset.from_dict("d", {"id": list(range(21))})
    source = StaticMixtureWorkSource([made], {"d": 1}, seed=4, epochs=epochs)
    with Pipeline(source).options(lanes=lanes).batch(1) as pipeline:
        documents = [batch.documents()[0][0] for batch in pipeline]
    for epoch in range(epochs):
        assert sorted(d.row for d in documents if d.epoch == epoch) == list(range(21))
