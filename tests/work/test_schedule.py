"""Schedules and groups of weights: what can be meant, what cannot, and what becomes of it in a run."""

from itertools import islice
from typing import Any

import pytest

from zephon_async import Dataset, MixtureSchedule, MixtureSpec, Pipeline, RecipeError, ScheduledMixtureWorkSource
from zephon_async.work.schedule import Course

A = Dataset.from_dict("a", {"n": list(range(100))})
B = Dataset.from_dict("b", {"n": list(range(100))})


def said(make: Any, *given: Any, **settings: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        make(*given, **settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("points", "settings", "words"),
    [
        ([], {}, "begin at 0, not at none"),
        ([(5, {"a": 1})], {}, "begin at 0, not at 5"),
        ([(0, {"a": 1}), (7, {"b": 1}), (7, {"a": 1})], {}, "must ascend, and 7 stands behind 7"),
        ([{"a": 1}], {}, "a point of a MixtureSchedule is {'a': 1}: give (place, weights)"),
        ([(0, 3)], {}, "the weights of a MixtureSchedule at 0 are 3: give a dict"),
        ([(0, {"a": 1}), (1.5, {"a": 1})], {}, "MixtureSchedule: a place is 1.5"),
        ([(0, {"a": 0})], {}, "all weights of the mixture are 0 (a)"),
        ([(0, {"a": 1})], {"by": "token"}, "MixtureSchedule: by is 'token'"),
        ([(0, {"a": 1})], {"between": "cubic"}, "MixtureSchedule: between is 'cubic'"),
        ([(0, {"a": 1})], {"change_rows": 0}, "MixtureSchedule: change_rows is 0"),
    ],
)
def test_schedules_that_cannot_be_meant(points: Any, settings: dict[str, Any], words: str) -> None:
    assert words in said(MixtureSchedule, points, **settings)


def test_sources_that_cannot_be_meant() -> None:
    schedule = MixtureSchedule([(0, {"a": 1}), (10, {"b": 1})], by="tokens")
    assert "give a MixtureSchedule, or use StaticMixtureWorkSource" in said(ScheduledMixtureWorkSource, [A, B], {"a": 1, "b": 1})
    assert "the schedule counts tokens, but sizes of this source are samples" in said(ScheduledMixtureWorkSource, [A, B], schedule)
    assert "the mixture gives no weight to 'b'" in said(ScheduledMixtureWorkSource, [A, B], MixtureSchedule([(0, {"a": 1})]))
    assert "the mixture names 'c'" in said(ScheduledMixtureWorkSource, [A], MixtureSchedule([(0, {"a": 1}), (1, {"c": 1})]))


def test_what_has_no_weight_at_any_point_is_not_drawn_from() -> None:
    source = ScheduledMixtureWorkSource([A, B], MixtureSchedule([(0, {"a": 1, "b": 0})]))
    assert [dataset.name for dataset in source.datasets] == ["a"]


@pytest.mark.parametrize(
    ("between", "weights"),
    [("constant", [0, 0, 0, 0, 1, 1]), ("linear", [0, 0.25, 0.5, 0.75, 1, 1]), ("cosine", [0, 0.1464466, 0.5, 0.8535534, 1, 1])],
)
def test_weights_between_two_points(between: Any, weights: list[float]) -> None:
    course = Course.of(MixtureSchedule([(0, {"a": 1}), (400, {"b": 1})], between=between), ["a", "b"])
    found = [course.at(place) for place in (0, 100, 200, 300, 400, 999)]
    assert all(sum(pair) == 2**32 for pair in found)
    assert [pair[1] / 2**32 for pair in found] == pytest.approx(weights, abs=1e-7)
    assert [course.over(place) for place in (0, 399, 400)] == [(False, False), (False, False), (True, False)]


def test_a_run_goes_from_one_stage_to_the_next_and_tells_what_was_asked_for() -> None:
    schedule = MixtureSchedule([(0, {"a": 1}), (64, {"a": 1, "b": 3}), (128, {"b": 1})], change_rows=8)
    source = ScheduledMixtureWorkSource([A, B], schedule, epochs=None, seed=3)
    with Pipeline(source).options(lanes=2, validate="off", prefetch=1).batch(1) as pipeline:
        names = [batch.documents()[0][0].dataset for batch in islice(pipeline, 256)]
        statistics = pipeline.statistics()
    assert names[:64] == ["a"] * 64
    assert abs(names[64:128].count("a") - 16) <= 2  # half a row in each lane, for each dataset
    assert names[128:] == ["b"] * 128
    assert statistics.target == pytest.approx(statistics.actual, abs=0.02)
    assert 0 < statistics.target["a"] < 0.35


def test_explain_tells_of_the_changes() -> None:
    source = ScheduledMixtureWorkSource([A, B], MixtureSchedule([(0, {"a": 1}), (5_000, {"b": 1})], between="linear"))
    with Pipeline(source).batch(1) as pipeline:
        assert "the mixture changes: in a line to 5,000 samples over all lanes, every 256 rows of a lane" in pipeline.explain()


def test_groups_share_what_they_weigh() -> None:
    spec = MixtureSpec({"web": 3, "code": (1, {"py": 2, "rs": 1, "old": 0})})
    assert spec.names == ("web", "py", "rs", "old")
    assert {name: weight / 2**32 for name, weight in spec.exact().items()} == pytest.approx(
        {"py": 1 / 6, "rs": 1 / 12, "web": 0.75}
    )
    assert MixtureSpec({"x": {"a": 1, "b": 1}, "y": {"c": 5}}).exact() == {"a": 2**30, "b": 2**30, "c": 2**31}
    assert MixtureSpec({"x": (0, {"a": 1}), "b": 1}).exact() == {"b": 2**32}
    assert MixtureSpec({"x": {"y": (1, {"a": "0.5", "b": "0.5"})}}).exact() == {"a": 2**31, "b": 2**31}


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"x": {"a": 0}, "b": 1}, "all weights of the group 'x' are 0 (a)"),
        ({"x": {"a": 1}, "a": 1}, "the mixture gives 'a' a weight twice, in different groups"),
        ({"x": (-1, {"a": 1}), "b": 1}, "the weight of 'x' is (-1, {'a': 1})"),
        ({"x": (1, 2), "b": 1}, "the weight of 'x' is (1, 2)"),
        ({"x": {}, "b": 1}, "all weights of the group 'x' are 0 ()"),
    ],
)
def test_groups_that_cannot_be_meant(weights: Any, words: str) -> None:
    assert words in said(MixtureSpec, weights)
