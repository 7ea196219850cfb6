"""Cases F02, F03, F05 and F06: weights, ranks of equal length, the ends of mixtures, and ranks that there are not."""

import decimal
import fractions
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.recipes import job
from tests.taken import CASES, WAYS, batches, column, counted, expected, in_order, letters, of, taken
from zephon_async import Dataset, MixtureSpec, Pipeline, RecipeError, StaticMixtureWorkSource, TokenEstimation

each_way = pytest.mark.parametrize("way", WAYS)


class Unread:
    """A store that must not be read."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the store was asked for {name!r} before the recipe was checked")


def unread(name: str) -> Dataset:
    return Dataset(name, "jsonl", Unread(), ())


# F02


@pytest.mark.parametrize(
    "weights",
    [
        (0.5, 0.5),
        (5, 5),
        (0.3, 0.3),
        ("0.1", "0.1"),
        ("1/3", fractions.Fraction(1, 3)),
        (decimal.Decimal("0.7"), 0.7),
        (np.float32(0.1), np.float64(0.1)),
        (np.int64(3), 3),
        (1e-300, 1e-300),
        (1e308, 1e308),
        (10**400, 10**400),
    ],
)
def test_weights_in_any_scale_and_spelling(weights: Sequence[Any]) -> None:
    pair = [unread(name) for name in "ab"]
    assert StaticMixtureWorkSource(pair, dict(zip("ab", weights, strict=True))).weights == (1 << 31, 1 << 31)


@pytest.mark.parametrize(
    "weights",
    [
        (0, 0),
        (-1, 2),
        (float("nan"), 1),
        (float("inf"), 1),
        (-float("inf"), 1),
        (True, 1),
        (False, 1),
        (np.bool_(True), 1),
        (None, 1),
        ("", 1),
        ("half", 1),
        ("1/0", 1),
        ("-0.5", 1),
        (1j, 1),
        ([1], 1),
        (1e-300, 1),
        (1, 10**400),
        (0.0, "0"),
    ],
)
def test_weights_that_cannot_be_meant(weights: Sequence[Any]) -> None:
    with pytest.raises(RecipeError, match="weight"):
        StaticMixtureWorkSource([unread("a"), unread("b")], dict(zip("ab", weights, strict=True)))


@pytest.mark.parametrize(
    ("mixture", "names", "message"),
    [
        ({"a": 1}, "ab", "no weight to 'b'"),
        ({"a": 1, "b": 1, "c": 1}, "ab", "names 'c', which is no dataset"),
        ({"A": 1, "b": 1}, "ab", "names 'A', which is no dataset"),
        ({}, "a", "the mixture is empty"),
        ({"a": 1}, "aa", "two datasets are named 'a'"),
        ({"a": 1}, "", "there is no dataset"),
    ],
)
def test_names_that_do_not_match(mixture: dict[str, Any], names: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        StaticMixtureWorkSource([unread(name) for name in names], mixture)
    if mixture:
        with pytest.raises(RecipeError, match=message):
            StaticMixtureWorkSource([unread(name) for name in names], MixtureSpec(mixture))


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"epochs": -1},
        {"epochs": 1.5},
        {"epochs": "1"},
        {"epochs": True},
        {"max_repeats": -1},
        {"max_repeats": 1.5},
        {"max_repeats": 1, "epochs": None},
        {"max_repeats": 1, "on_exhausted": "stop"},
        {"on_exhausted": "Stop"},
        {"on_exhausted": None},
        {"unit": "token"},
        {"seed": None},
        {"seed": "1"},
        {"seed": 1.5},
        {"seed": 1 << 64},
        {"shuffle": "no"},
        {"token_estimation": 0.25},
    ],
)
def test_settings_of_a_source_that_cannot_be_meant(settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(settings))):
        StaticMixtureWorkSource([unread("a")], {"a": 1}, **settings)


@pytest.mark.parametrize("pin", [0, -1, float("nan"), "x", {"a": 0}])
def test_estimations_that_cannot_be_meant(pin: Any) -> None:
    with pytest.raises(RecipeError, match="tokens per byte"):
        TokenEstimation(pin)


def test_a_weight_of_nothing_leaves_a_dataset_out() -> None:
    full = Dataset.from_dict("a", {"text": ["x", "y"]})
    source = StaticMixtureWorkSource([full, unread("b")], {"a": 1, "b": 0}, shuffle=False)
    assert column(batches(Pipeline(source).batch(1)), "text") == ["x", "y"]


@pytest.mark.parametrize("weights", [(0.5, 0.5), (1, 3), ("0.9", 0.1)])
@pytest.mark.parametrize("lanes", [1, 4])
def test_weights_are_ratios_of_tokens(weights: Sequence[Any], lanes: int) -> None:
    length, rows, window = 1024, 200 * lanes, 100 * lanes
    short = Dataset.from_dict("a", {"text": ["a" * 9] * 300})
    long = Dataset.from_dict("b", {"text": ["b" * 999] * 60})
    source = StaticMixtureWorkSource(
        [short, long], dict(zip("ab", weights, strict=True)), token_estimation=TokenEstimation(), seed=42, epochs=None
    )
    pipeline = Pipeline(source).options(lanes=lanes).tokenize(letters(), field="text").pack_flat(length).batch(1)
    found = batches(pipeline, rows)
    shares = []
    for batch in found:
        tokens = Counter[str]()
        for document in batch.documents()[0]:
            tokens[document.dataset] += document.stop - document.start
        assert sum(tokens.values()) == length
        shares.append(tokens["a"] / length)
    wanted = float(fractions.Fraction(str(weights[0])) / sum(fractions.Fraction(str(w)) for w in weights))
    assert abs(float(np.mean(shares)) - wanted) < 0.02
    for start in range(rows - window + 1):
        assert abs(float(np.mean(shares[start : start + window])) - wanted) < 0.02


# F03


def uneven(ranks: int, rank: int, extra: dict[str, Any], lanes: int = 2) -> Pipeline:
    source = in_order(of(CASES / "F03"))
    return Pipeline(source).options(lanes=lanes, dp_size=ranks, dp_rank=rank, **extra).batch(2)


class Counted(Pipeline):
    """A pipeline that tells what it counted before it is closed."""

    def __init__(self, source: StaticMixtureWorkSource, into: Counter[str]) -> None:
        super().__init__(source)
        self._into = into

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._into.update(self.statistics().counts)
        super().__exit__(kind, *error)


@pytest.mark.parametrize(("on_end", "key", "choose"), [("drop", "drop_rest", min), ("pad", "fill", max)])
@each_way
def test_all_ranks_give_the_same_number(on_end: str, key: str, choose: Any, way: dict[str, Any]) -> None:
    right = expected("F03")
    counts = [Counter[str]() for _ in range(2)]

    def make(ranks: int, rank: int, extra: dict[str, Any]) -> Pipeline:
        options = {"lanes": 2, "dp_size": ranks, "dp_rank": rank, "on_end": on_end, **way, **extra}
        return Counted(in_order(of(CASES / "F03")), counts[rank]).options(**options).batch(2)

    found, _ = job(make, 2, None, choose=choose)
    assert Counter(batch.lane for batch in found) == dict.fromkeys(range(2), right["batches_per_rank"][key])
    ids = column(found, "id")
    assert len(set(ids)) == len(ids)
    if on_end == "drop":
        assert len(ids) + sum(each["rows_left"] for each in counts) == right["documents"]
        assert [each["rows_left"] for each in counts] == [1, 1]
    else:
        assert sorted(ids) == list(range(right["documents"]))
        assert sum(batch.filled for batch in found) == 2


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
@pytest.mark.parametrize("rows", [37, 41, 22, 5])
def test_what_any_number_of_ranks_drops_is_counted_once(rows: int, ranks: int) -> None:
    made = Dataset.from_dict("d", {"id": list(range(rows))})
    counts = [Counter[str]() for _ in range(ranks)]  # the ranks are threads: one each

    def make(size: int, rank: int, extra: dict[str, Any]) -> Pipeline:
        options = {"lanes": 2, "microbatches_per_step": 6, "dp_size": size, "dp_rank": rank, **extra}
        return Counted(in_order(made), counts[rank]).options(**options).filter(lambda record: record["id"] % 5 != 1).batch(2)

    found, _ = job(make, ranks, None)
    kept = sum(n % 5 != 1 for n in range(rows))
    assert len(found) % 6 == 0
    assert len(set(column(found, "id"))) == len(column(found, "id")) == kept - sum(each["rows_left"] for each in counts)


@pytest.mark.parametrize(("rows", "lanes", "size"), [(9, 2, 1), (11, 4, 1), (11, 3, 2), (5, 5, 1), (23, 4, 3)])
@pytest.mark.parametrize("per_lane", [1, 2])
def test_what_is_dropped_is_counted(rows: int, lanes: int, size: int, per_lane: int) -> None:
    made = Dataset.from_dict("d", {"id": list(range(rows))})
    options = {"lanes": lanes, "microbatches_per_step": lanes * per_lane}
    found, counts = counted(Pipeline(in_order(made)).options(**options).batch(size))
    assert len(found) == rows // lanes // (size * per_lane) * lanes * per_lane
    assert len(column(found, "id")) + counts.get("rows_left", 0) == rows
    found, counts = counted(Pipeline(in_order(made)).options(**options, on_end="pad").batch(size))
    assert sorted(column(found, "id")) == list(range(rows))
    assert len(found) % (lanes * per_lane) == 0
    assert counts.get("rows_left", 0) == 0


def test_ranks_of_a_finite_run_need_a_way_to_agree() -> None:
    with uneven(2, 0, {}) as pipeline, pytest.raises(RecipeError, match="agree"):
        taken(pipeline)


# F05


RULES = {"stop": "stop_at_first", "drop_out": "each_once", "repeat": "repeat_short"}


@each_way
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_of_the_end(rule: str, way: dict[str, Any]) -> None:
    sources = [Dataset.from_path(name, CASES / f"F05/{name}.jsonl") for name in ("d1", "d2", "d3")]
    pipeline = Pipeline(in_order(*sources, unit="samples", on_exhausted=rule)).options(**way).batch(1)
    assert column(batches(pipeline), "id") == expected("F05")[RULES[rule]]


@pytest.mark.parametrize("chunk_rows", [1, 4, 256])
@pytest.mark.parametrize(
    ("settings", "right"),
    [
        ({"on_exhausted": "stop"}, "b0 a0 b1 b2"),
        ({"on_exhausted": "drop_out"}, "b0 a0 b1 b2 a1 a2 a3 a4"),
        ({"on_exhausted": "repeat"}, "b0 a0 b1 b2 a1 b0 b1 a2 b2 b0 a3 b1 b2 a4 b0"),
        ({"on_exhausted": "repeat", "max_repeats": 0}, "b0 a0 b1 b2 a1 a2 a3 a4"),
        ({"on_exhausted": "repeat", "max_repeats": 1}, "b0 a0 b1 b2 a1 b0 b1 a2 b2 a3 a4"),
        ({"on_exhausted": "stop", "epochs": 2}, "b0 a0 b1 b2 a1 b0 b1 a2 b2"),
        ({"on_exhausted": "drop_out", "epochs": 2}, "b0 a0 b1 b2 a1 b0 b1 a2 b2 a3 a4 a0 a1 a2 a3 a4"),
    ],
)
def test_ends_with_unequal_weights(settings: dict[str, Any], right: str, chunk_rows: int) -> None:
    """Weights 1 to 2: rows of a stand at 3/2, 9/2, ... and those of b at 3/4, 9/4, ... of the time line; a ends at 15, b at 9/2."""
    a, b = (Dataset.from_dict(name, {"id": [f"{name}{i}" for i in range(n)]}) for name, n in (("a", 5), ("b", 3)))
    pipeline = Pipeline(in_order(a, b, mixture={"a": 1, "b": 2}, **settings)).options(chunk_rows=chunk_rows).batch(1)
    found = column(batches(pipeline), "id")
    once = Counter(found)
    if settings["on_exhausted"] != "stop":
        assert all(once[f"a{i}"] == settings.get("epochs", 1) for i in range(5))
    assert " ".join(found) == right


@pytest.mark.parametrize("epochs", [2, 3])
@pytest.mark.parametrize("rule", RULES)
def test_more_epochs(rule: str, epochs: int) -> None:
    sizes = {"a": 2, "b": 3, "c": 7}
    made = [Dataset.from_dict(name, {"id": [f"{name}{i}" for i in range(n)]}) for name, n in sizes.items()]
    for lanes in (1, 3):
        pipeline = Pipeline(in_order(*made, on_exhausted=rule, epochs=epochs)).options(lanes=lanes, on_end="pad").batch(1)
        times = Counter(column(batches(pipeline), "id"))
        if rule == "drop_out":
            assert times == {f"{name}{i}": epochs for name, n in sizes.items() for i in range(n)}
        elif rule == "repeat":
            assert {times[f"c{i}"] for i in range(7)} == {epochs}
            assert all(times[f"{name}{i}"] >= epochs for name in "ab" for i in range(sizes[name]))
        else:
            assert all(times[f"c{i}"] <= epochs for i in range(7))
            assert lanes > 1 or {times[f"a{i}"] for i in range(2)} == {epochs}


@pytest.mark.parametrize("epochs", [1, None])
def test_more_lanes_than_rows_names_both(epochs: int | None) -> None:
    one = Dataset.from_dict("a", {"id": [1]})
    pipeline = Pipeline(in_order(one, epochs=epochs)).options(lanes=4).batch(1)
    with pipeline, pytest.raises(RecipeError, match=r"more lanes \(4\) than rows in all datasets \(1\)"):
        taken(pipeline)
    with Pipeline(in_order(one, epochs=epochs)).batch(1) as pipeline:
        assert column(taken(pipeline, 1), "id") == [1]


def test_a_dataset_smaller_than_the_lanes_reaches_all_of_them() -> None:
    small, large = Dataset.from_dict("a", {"id": [-1]}), Dataset.from_dict("b", {"id": list(range(40))})
    source = StaticMixtureWorkSource([small, large], {"a": 1, "b": 1}, epochs=None)
    found = batches(Pipeline(source).options(lanes=4).batch(1), 160)
    lanes = {batch.lane for batch in found if batch.to_pylist("id") == [-1]}
    assert lanes == {0, 1, 2, 3}


# F06


@pytest.mark.parametrize(
    ("rank", "size"), [(-1, 2), (5, 2), (0, 0), (2, 2), (1, 1), (0, -1), (0.0, 2), ("0", 2), (None, 2), (0, "2"), (0, 2.0)]
)
def test_ranks_that_there_are_not(rank: Any, size: Any) -> None:
    with pytest.raises(RecipeError, match=r"dp_(rank|size) is"):
        Pipeline(in_order(unread("a"))).options(lanes=2, dp_size=size, dp_rank=rank, agree=min).batch(1).explain()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("shards", [1, 3])
def test_ranks_share_all_rows_fresh_and_after_a_restore(ranks: int, shards: int) -> None:
    rows = [{"id": n} for n in range(16)]
    made = Dataset.from_dict("d", {n: rows[n::shards] for n in range(shards)})

    def make(size: int, rank: int, extra: dict[str, Any]) -> Pipeline:
        return Pipeline(in_order(made)).options(lanes=4, dp_size=size, dp_rank=rank, **extra).batch(1)

    found, _ = job(make, ranks, None)
    assert sorted(column(found, "id")) == list(range(16))
    for steps in (1, 3):
        first, states = job(make, ranks, steps * 4 // ranks)
        second, _ = job(make, ranks, None, states)
        assert sorted(column(first + second, "id")) == list(range(16))
        third, _ = job(make, 6 - ranks, None, states)
        assert column(third, "id") == column(second, "id")
