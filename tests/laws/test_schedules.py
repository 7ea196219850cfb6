"""Mixtures that change: the draw against a slow one, over any schedules, rules, lanes, chunk sizes and stops."""

from math import cos, pi
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.laws.test_draw import RULES, SHUFFLES, drawn, plan_of, units
from tests.oracle import Dataset, EmptyTurn
from tests.scheduled_oracle import Points, Scheduled
from zephon_async.errors import DatasetError
from zephon_async.lanes import Coordinates
from zephon_async.work import MixtureSchedule, Plan
from zephon_async.work.schedule import Changes, Course, eased


def scheduled(plan: Plan, points: Points, by: Any, between: Any, every: int) -> Plan:
    schedule = MixtureSchedule(points, by=by, between=between, change_rows=every)
    course = Course.of(schedule, [dataset.catalog.dataset for dataset in plan.datasets])
    return Plan(plan.datasets, course.at(0), plan.ratios, plan.rule, Changes(course, by, every))


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[Dataset], Points]:
    """Datasets each of which has a weight somewhere, and points."""
    names = draw(st.lists(st.sampled_from("abcdé"), min_size=1, max_size=3, unique=True))
    places = [0, *sorted(draw(st.lists(st.integers(1, 300), max_size=3, unique=True)))]
    weights = st.fixed_dictionaries({name: st.sampled_from((0, 1, 5)) for name in names})
    points = [(place, draw(weights.filter(lambda each: any(each.values())))) for place in places]
    used = [name for name in names if any(each[name] for _, each in points)]
    ratios = st.sampled_from(((1, 1), (1, 4), (3, 7)))
    several = [Dataset(name, draw(st.lists(units(), max_size=5)), 1, draw(ratios)) for name in used]
    return several, [(place, {name: each[name] for name in used}) for place, each in points]


@given(
    schedules(),
    st.sampled_from(("samples", "tokens")),
    st.sampled_from(("constant", "linear")),
    st.sampled_from((1, 5, 16)),
    st.integers(1, 3),
    SHUFFLES,
    RULES,
    st.data(),
)
def test_rows_are_the_oracles(
    made: tuple[list[Dataset], Points],
    by: str,
    between: str,
    every: int,
    lanes: int,
    shuffle: Any,
    rule: tuple[Any, ...],
    data: st.DataObject,
) -> None:
    several, points = made
    epochs, on_exhausted, max_repeats = rule
    ends = {"epochs": epochs, "on_exhausted": on_exhausted, "max_repeats": max_repeats}
    oracle = Scheduled(several, points, by, between, every, lanes=lanes, seed=0, shuffle=shuffle, **ends)
    plan = scheduled(plan_of(several, lanes, 0, shuffle, rule), points, by, between, every)
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


def test_half_a_wave_of_the_cosine_is_worked_out_in_whole_numbers() -> None:
    ways = [0, 1, 2**20, 2**31, 2**32 - 1, *range(0, 2**32, 12345678)]
    for way in ways:
        assert abs(eased(way) - (1 - cos(pi * way / 2**32)) / 2 * 2**32) <= 2
    assert [eased(way) for way in (0, 2**31, 2**32)] == [0, 2**31, 2**32]
