"""Which files are which split: by cards, and by names as the library `datasets` finds them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.errors import DatasetError
from zephon_async.io import hub_layouts
from zephon_async.io.hub_layouts import Config, configs_of, converted, inferred, leads, matching

WRITTEN = json.loads((Path(__file__).parent.parent / "written/hub_layouts/expected.json").read_text())


@pytest.mark.parametrize("case", WRITTEN)
def test_splits_are_found_as_datasets_finds_them(case: dict[str, Any]) -> None:
    assert {split: sorted(names) for split, names in inferred(case["names"]).items()} == case["splits"]
    for pattern, names in case["matched"].items():
        config = Config("default", {"train": [pattern]}, "", False)
        if names:
            assert matching(config, "train", case["names"]) == names
        else:
            with pytest.raises(DatasetError, match="there is no such file"):
                matching(config, "train", case["names"])


def test_nothing_is_no_split() -> None:
    assert inferred(["README.md", ".gitattributes"]) == {}
    assert inferred(["a/train.jsonl"], "b/") == {}


def test_splits_of_a_folder_are_found_below_it() -> None:
    names = ["en/train.jsonl", "en/test.jsonl", "de/train.jsonl", "train.jsonl"]
    assert inferred(names, "en/") == {"train": ["en/train.jsonl"], "test": ["en/test.jsonl"]}


@pytest.mark.parametrize(
    ("said", "patterns"),
    [
        ("a/*.jsonl", {"train": ["a/*.jsonl"]}),
        (["a", "b"], {"train": ["a", "b"]}),
        ([{"split": "test", "path": "a"}, {"split": "train", "path": ["b", "c"]}], {"test": ["a"], "train": ["b", "c"]}),
        ({"train": "a", "test": ["b"]}, {"train": ["a"], "test": ["b"]}),
        (None, None),
    ],
)
def test_data_files_of_a_card_are_spelled_in_many_ways(said: object, patterns: object) -> None:
    card = {"configs": [{"config_name": "c", "data_files": said, "data_dir": "./x/", "default": True}]}
    assert configs_of(card) == {"c": Config("c", patterns, "x/", True)}  # type: ignore[arg-type]


def test_a_config_without_a_name_is_the_default_one() -> None:
    assert configs_of({"configs": [{"data_files": "a"}]}) == {"default": Config("default", {"train": ["a"]}, "", False)}
    assert configs_of(None) == configs_of({}) == configs_of({"configs": None}) == {}


@pytest.mark.parametrize(
    ("configs", "says"),
    [
        (["c"], "its card has a config that is no table: 'c'"),
        ([{"config_name": "c"}, {"config_name": "c"}], "its card has a config that is named twice: {'config_name': 'c'}"),
        ([{"config_name": "c", "data_files": 5}], "its card has data_files of the config 'c' that cannot be meant: 5"),
        (
            [{"config_name": "c", "data_files": []}],
            "its card has data_files of the config 'c' that cannot be meant: {'split': 'train', 'path': []}",
        ),
        (
            [{"config_name": "c", "data_files": [{"split": "a"}]}],
            "its card has data_files of the config 'c' that cannot be meant: {'split': 'a'}",
        ),
        (
            [{"config_name": "c", "data_files": [{"split": "a", "path": "x"}, {"split": "a", "path": "y"}]}],
            "its card has data_files of the config 'c' that cannot be meant: {'split': 'a', 'path': 'y'}",
        ),
    ],
)
def test_a_card_that_cannot_be_meant_is_refused(configs: object, says: str) -> None:
    with pytest.raises(DatasetError, match=f"^{re.escape(says)}$"):
        configs_of({"configs": configs})


@pytest.mark.parametrize("setting", ["data_dir", "data_files"])
def test_nothing_outside_of_the_repository_can_be_meant(setting: str) -> None:
    with pytest.raises(
        DatasetError, match=f"its card has (a )?{setting} of the config 'c' that cannot be meant: .*a/\\.\\./\\.\\./b"
    ):
        configs_of({"configs": [{"config_name": "c", setting: "a/../../b"}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(("train", "a/*", "**", "[", "", "..", "default")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("config_name", "data_files", "data_dir", "split", "path", "default")), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=3), st.lists(st.sampled_from(("a/b", "train.jsonl", "a/train/x.jsonl", "[")), unique=True))
def test_any_card_gives_files_that_are_there_or_is_refused(configs: Any, names: list[str]) -> None:
    try:
        found = [
            (config, split, matching(config, split, names))
            for config in configs_of({"configs": configs}).values()
            for split in config.patterns or ()
        ]
    except DatasetError as error:
        assert str(error).startswith("its card ")  # noqa: PT017
        return
    for config, split, matched in found:
        assert matched
        assert all(name in names and name.startswith(tuple(leads(config, split))) for name in matched)


def test_a_pattern_of_nothing_is_an_error() -> None:
    with pytest.raises(DatasetError) as caught:
        matching(Config("c", {"train": ["x/*.jsonl", "y/*"]}, "d/", False), "train", ["d/x/1.jsonl", "y/2"])
    assert str(caught.value) == "its card says that the split 'train' of 'c' is 'd/y/*', and there is no such file"


@pytest.mark.parametrize(
    ("patterns", "folders"),
    [
        (["a/b-*.parquet", "a/c/d.jsonl"], ["a/"]),
        (["a/x/*", "b/**"], ["a/x/", "b/"]),
        (["a/x/*", "*.jsonl"], [""]),
        (["ab/x", "a/x"], ["a/", "ab/"]),
    ],
)
def test_only_folders_are_listed_that_patterns_can_match_in(patterns: list[str], folders: list[str]) -> None:
    assert leads(Config("c", {"train": patterns}, "", False), "train") == folders


def test_what_the_hub_has_converted_is_told_by_its_names() -> None:
    names = ["c/train/0001.parquet", "c/train/0000.parquet", "c/partial-test/0000.parquet", "README.md", "c/train/index.json"]
    assert converted(names) == {
        "c": {("test", True): ["c/partial-test/0000.parquet"], ("train", False): ["c/train/0000.parquet", "c/train/0001.parquet"]}
    }


def test_a_pattern_of_many_folders_is_matched_at_once() -> None:
    assert not hub_layouts._fits(["**"] * 30 + ["x"], [str(n) for n in range(40)])
    assert hub_layouts._fits(["**"] * 30 + ["x"], [*map(str, range(40)), "x"])
