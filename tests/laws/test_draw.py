"""The draw against the oracle: any datasets, weights, rules, lanes, chunk sizes, and stops at any place."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import Dataset, EmptyTurn, Oracle, Unit
from zephon_async import Dataset as Files
from zephon_async import Pipeline, StaticMixtureWorkSource
from zephon_async.errors import DatasetError
from zephon_async.io import UNIT, Catalog
from zephon_async.lanes import Coordinates, Draw, Rule
from zephon_async.work import DatasetPlan, MixtureSpec, Plan

SIZES = st.one_of(st.just(1), st.integers(1, 90), st.sampled_from((1, 1 << 20, 1 << 36)))


@st.composite
def units(draw: st.DrawFn) -> Unit:
    sizes = draw(st.lists(SIZES, min_size=1, max_size=9))
    return Unit(len(sizes), draw(st.integers(1, 5)), sizes)


@st.composite
def datasets(draw: st.DrawFn) -> list[Dataset]:
    names = draw(st.lists(st.sampled_from("abcdé"), min_size=1, max_size=3, unique=True))
    ratios = st.sampled_from(((1, 1), (1, 4), (3, 7), (4095, 4096)))
    return [Dataset(n, draw(st.lists(units(), max_size=5)), draw(st.integers(1, 9)), draw(ratios)) for n in names]


SHUFFLES = st.sampled_from((False, "units", "blocks", "rows"))
RULES = st.one_of(
    st.just((None, "repeat", None)),
    st.tuples(st.integers(1, 3), st.sampled_from(("stop", "drop_out")), st.none()),
    st.tuples(st.integers(1, 3), st.just("repeat"), st.one_of(st.none(), st.integers(0, 3))),
)


def plan_of(several: Sequence[Dataset], lanes: int, seed: int, shuffle: Any, rule: tuple[Any, ...]) -> Plan:
    plans = []
    ordered = sorted(several, key=lambda d: d.name.encode())
    for dataset in ordered:
        table = np.zeros(len(dataset.units), UNIT)
        table["length"] = [unit.length for unit in dataset.units]
        table["block"] = [unit.block for unit in dataset.units]
        plans.append(DatasetPlan(Catalog(dataset.name, "test", (), table, "rows"), seed, shuffle, lanes))
    weights = MixtureSpec({d.name: str(d.weight) for d in several}).exact()
    ends = Rule(rule[0], rule[1], rule[2], lanes)
    return Plan(tuple(plans), tuple(weights[d.name] for d in ordered), tuple(d.ratio for d in ordered), ends)


def drawn(
    plan: Plan, several: Sequence[Dataset], lane: int, at: Coordinates | None, rows: int, chunk: int
) -> tuple[list[Any], Draw]:
    """Up to `rows` rows as (dataset, epoch, unit, row) in chunks of `chunk`, and the draw behind them."""
    ordered = sorted(several, key=lambda d: d.name.encode())
    draw = plan.draw(lane, at)
    index: dict[int, Any] = {}
    out: list[Any] = []
    while len(out) < rows and not draw.done:
        for d, epoch, part in draw.missing():
            unit = ordered[d].units[part.unit]
            first = part.block * unit.block
            block = _Block(len(unit.sizes[first : first + unit.block]))
            index[d] = first + plan.datasets[d].select(part, epoch, block)  # type: ignore[arg-type]
            draw.supply(d, np.array([unit.sizes[row] for row in index[d]]))
        for run in draw.take(min(chunk, rows - len(out))):
            out += [(run.dataset, run.epoch, run.part.unit, int(row)) for row in index[run.dataset][run.start : run.stop]]
    return out, draw


class _Block:
    lost = ""

    def __init__(self, n: int) -> None:
        self.rows = np.arange(n)


@given(datasets(), st.integers(1, 5), SHUFFLES, RULES, st.integers(0, 5), st.data())
def test_rows_are_the_oracles(
    several: list[Dataset], lanes: int, shuffle: Any, rule: tuple[Any, ...], seed: int, data: st.DataObject
) -> None:
    epochs, on_exhausted, max_repeats = rule
    oracle = Oracle(
        several, lanes=lanes, seed=seed, shuffle=shuffle, epochs=epochs, on_exhausted=on_exhausted, max_repeats=max_repeats
    )
    plan = plan_of(several, lanes, seed, shuffle, rule)
    lane = data.draw(st.integers(0, lanes - 1))
    try:
        wanted = [(o.dataset, o.epoch, o.unit, o.row) for o in (row.origin for row in oracle.rows(lane, 120))]
    except EmptyTurn:
        wanted = None
    got: list[Any] = []
    at: Coordinates | None = None
    stops = sorted(data.draw(st.lists(st.integers(0, 119), max_size=4)))
    try:
        for stop in [*stops, 120]:
            rows, draw = drawn(plan, several, lane, at, stop - len(got), data.draw(st.sampled_from((1, 3, 12, 256))))
            got += rows
            at = draw.coordinates
    except DatasetError:
        assert wanted is None
        return
    assert got == wanted


def test_a_dataset_that_cannot_go_on_is_told_with_its_rows_and_the_lanes() -> None:
    several = [Dataset("empty", []), Dataset("full", [Unit(2, 2, [1, 1])])]
    plan = plan_of(several, 3, 0, False, (None, "repeat", None))
    with pytest.raises(DatasetError, match=r"'empty' has no rows for one of 3 lanes in 3 epochs in a row \(it has 0 in all\)"):
        plan.draw(0)


@pytest.mark.parametrize("epochs", [1, 3, 8])
def test_an_empty_dataset_has_no_turn_of_repeats_before_it_repeats(epochs: int) -> None:
    several = [Dataset("empty", []), Dataset("full", [Unit(2, 2, [1, 1])])]
    plan = plan_of(several, 2, 0, False, (epochs, "repeat", 1))
    assert len(drawn(plan, several, 0, None, 99, 3)[0]) == epochs


@pytest.mark.parametrize("seed", range(3))
def test_a_line_longer_than_a_lanes_part_is_no_end_of_uncounted_data(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zephon_async.io.formats.line_format.COUNTED_BYTES", 1)
    lines = [json.dumps({"n": n, "text": "x" * (60_000 if n == 100 else 50)}) for n in range(101)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    dataset = Files.from_path("d", str(tmp_path), unit_bytes=16_000, block_bytes=1_000)
    mixture = StaticMixtureWorkSource([dataset], {"d": 1}, seed=seed, epochs=None)
    with Pipeline(mixture).options(lanes=8).batch(1) as pipeline:
        assert len(list(islice(pipeline, 1_500))) == 1_500
