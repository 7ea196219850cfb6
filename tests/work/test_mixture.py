"""Sources and mixtures that cannot be meant are refused when they are made."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon_async import Dataset, MixtureSpec, Pipeline, RecipeError, StaticMixtureWorkSource, TokenEstimation
from zephon_async.work import WorkSource

ONE = Dataset.from_dict("one", {"text": ["a"]})
TWO = Dataset.from_dict("two", {"text": ["a"]})


def made(**changes: Any) -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource(**{"datasets": [ONE, TWO], "mixture": {"one": 1, "two": 2}, **changes})


def said(make: Any, *given: Any, **settings: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        make(*given, **settings)
    return str(caught.value)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"datasets": ONE}, "datasets is one dataset, 'one': put it into a list"),
    ({"datasets": ["data/"]}, "must be a list of datasets, such as [Dataset.from_path(name, path)], not of 'data/'"),
    ({"datasets": "data/"}, "not of 'data/'"),
    ({"datasets": [Path("data")]}, "not of PosixPath('data')"),
    ({"datasets": {"one": ONE, "two": TWO}}, "not of 'one'"),
    ({"datasets": 3}, "not of 3"),
    ({"datasets": []}, "there is no dataset"),
    ({"datasets": [ONE, ONE, TWO]}, "two datasets are named 'one'"),
    ({"mixture": 3}, "the mixture is 3: give a dict of a weight for each dataset by its name"),
    ({"mixture": ["one", "two"]}, "the mixture is ['one', 'two']: give a dict"),
    ({"mixture": {1: 1, "two": 2}}, "give a dict of a weight for each dataset by its name"),
    ({"mixture": {}}, "the mixture is empty"),
    ({"mixture": {"one": 1, "twoo": 1}}, "the mixture names 'twoo', which is no dataset; did you mean 'two'?"),
    ({"mixture": {"one": 1, "xyz": 1}}, "the mixture names 'xyz', which is no dataset; there are: one, two"),
    ({"mixture": {"one": 1}}, "gives no weight to 'two'"),
    ({"mixture": {"one": True, "two": 1}}, "the weight of 'one' is True"),
    ({"mixture": {"one": [1], "two": 1}}, "the weight of 'one' is [1]"),
    ({"mixture": {"one": None, "two": 1}}, "the weight of 'one' is None"),
    ({"unit": "token"}, "unit is 'token'"),
    ({"unit": ["tokens"]}, "unit is ['tokens']"),
    ({"on_exhausted": "wait"}, "on_exhausted is 'wait'"),
    ({"epochs": 0}, "epochs is 0: it must be a whole number of at least 1, or None for data without an end"),
    ({"epochs": 1.5}, "epochs is 1.5"),
    ({"max_repeats": -1}, "max_repeats is -1"),
    ({"max_repeats": 1, "epochs": None}, "max_repeats=1 goes with on_exhausted='repeat' and finite epochs"),
    ({"seed": None}, "seed is None: it must be a whole number, so that the run can be repeated"),
    ({"seed": True}, "seed is True"),
    ({"seed": "3"}, "seed is '3'"),
    ({"seed": 1 << 64}, "it must be a whole number of at most 64 bits"),
    ({"shuffle": 1}, "shuffle is 1: it must be one of 'units', 'blocks', 'rows'"),
    ({"shuffle": "True"}, "shuffle is 'True'"),
    ({"shuffle_block_size": 64}, "StaticMixtureWorkSource() knows no 'shuffle_block_size'; did you mean 'shuffle'?"),
    ({"shuffle_within_shard": True}, "did you mean 'shuffle'?"),
    ({"token_estimation": 0.25}, "give a TokenEstimation, such as TokenEstimation(0.25)"),
    ({"token_estimation": TokenEstimation}, "give a TokenEstimation, such as TokenEstimation(0.25)"),
    ({"token_estimation": TokenEstimation({"oen": 1})}, "pins 'oen', which is no dataset of the mixture; did you mean 'one'?"),
    ({"token_estimation": TokenEstimation({1: 1})}, "pins 1, which is no dataset of the mixture"),  # type: ignore[dict-item]
    ({"epoch": 1}, "StaticMixtureWorkSource() knows no 'epoch'; did you mean 'epochs'?"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_cannot_be_meant(changes: dict[str, Any], words: str) -> None:
    assert words in said(made, **changes)


def test_what_can() -> None:
    source = made(epochs=np.int64(2), max_repeats=np.int8(0), seed=np.uint64(7), token_estimation=TokenEstimation({"one": 1}))
    assert isinstance(source, WorkSource)
    assert (source.epochs, source.max_repeats, source.seed) == (2, 0, 7)
    assert {type(source.epochs), type(source.max_repeats), type(source.seed)} == {int}
    assert source.settings()["tokens per byte"] == {"one": (1, 1)}
    left_out = made(mixture={"one": 1, "two": 0}, token_estimation=TokenEstimation({"two": 1}))  # it may get a weight again
    assert left_out.datasets == (ONE,)
    assert made(datasets=iter([TWO, ONE]), mixture=MixtureSpec({"one": 1, "two": 1})).datasets == (ONE, TWO)


ESTIMATIONS: list[tuple[dict[str, Any], str]] = [
    ({"primer": "measured"}, "tokens per byte must be a positive number or \"measure\", not 'measured'"),
    ({"primer": None}, "not None"),
    ({"primer": True}, "not True"),
    ({"primer": 0}, "not 0"),
    ({"primer": {"one": -1}}, "not -1"),
    ({"primer": [0.5]}, "not [0.5]"),
    ({"blocks": "x"}, "TokenEstimation: blocks is 'x': it must be a whole number of at least 1"),
    ({"blocks": True}, "blocks is True"),
    ({"rows": 0}, "rows is 0"),
    ({"rows": 1.5}, "rows is 1.5"),
    ({"row": 3}, "TokenEstimation() knows no 'row'; did you mean 'rows'?"),
]


@pytest.mark.parametrize(("settings", "words"), ESTIMATIONS, ids=[words for _, words in ESTIMATIONS])
def test_estimations_that_cannot_be_meant(settings: dict[str, Any], words: str) -> None:
    assert words in said(TokenEstimation, **settings)


def test_specs_that_cannot_be_meant() -> None:
    assert said(MixtureSpec) == "MixtureSpec() needs weights="
    assert "give a dict" in said(MixtureSpec, [("one", 1)])
    assert said(MixtureSpec, {"a": 0, "b": 0}) == "all weights of the mixture are 0 (a, b): at least one must be above 0"


def test_units_are_permuted_where_nothing_is_said() -> None:
    assert [made(**each).settings()["shuffle"] for each in ({}, {"shuffle": True}, {"shuffle": "rows"}, {"shuffle": False})] == [
        "units",
        "units",
        "rows",
        False,
    ]


def test_rows_of_row_groups_are_refused_at_the_start(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    parquet = Dataset.from_path("a", tmp_path / "a.parquet")
    pipeline = Pipeline(StaticMixtureWorkSource([parquet], {"a": 1}, shuffle="rows")).batch(1)
    assert "of dataset 'a' parquet as it is stored is read in order" in said(pipeline.explain)
