"""Recipes as TOML files: what is written is read as the same pipeline, and what cannot be meant is told with its line."""

import json
import math
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.named import Passing, twice
from tests.numbered import digests
from zephon_async import (
    Dataset,
    DatasetError,
    MixtureSchedule,
    Pipeline,
    RecipeError,
    ScheduledMixtureWorkSource,
    StaticMixtureWorkSource,
    TokenEstimation,
    load_recipe,
    recipe_schema,
)
from zephon_async.cli import main
from zephon_async.lanes import RankState
from zephon_async.recipes.load import methods
from zephon_async.recipes.words import text_of, texts_of, types_of

TOKENIZER = Path(__file__).parent / "laws" / "tokenizer.json"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        lines = [json.dumps({"text": f"{name} text of the number {n}", "n": n}) for n in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path


def datasets() -> list[Dataset]:
    pinned = Dataset.from_path("a", Path("a.jsonl"), schema={"text": pa.string(), "n": pa.int32()}, block_bytes=200, expect_rows=60)
    return [pinned, Dataset.from_path("b", "b.jsonl", format="jsonl")]


def static() -> Pipeline:
    source = StaticMixtureWorkSource(
        datasets(),
        {"a": 3, "group": (1, {"b": "0.5"})},
        token_estimation=TokenEstimation({"a": 0.25, "b": "0.3"}),
        seed=7,
        epochs=None,
    )
    pipeline = Pipeline(source).options(
        lanes=2, dp_size=2, dp_rank=1, validate="off", max_bad=0.5, io_options={"spill_limit": 1000}
    )
    pipeline.map(twice, schema={"text": pa.string()}, columns=("text",), version=1)
    return pipeline.tokenize(tokenizer_id=str(TOKENIZER), field="text").pack_flat(16).shuffle(8, 3).batch(2)


def scheduled() -> Pipeline:
    schedule = MixtureSchedule([(0, {"a": 1}), (90, {"a": 1, "b": 2})], between="linear", change_rows=16)
    source = ScheduledMixtureWorkSource(datasets(), schedule, shuffle=False, on_exhausted="drop_out")
    return Pipeline(source).map_transform(twice, schema={"text": pa.string()}).dedup(["text"], window=4).batch(1)


def seen(pipeline: Pipeline) -> tuple[Any, list[str]]:
    with pipeline.options(dp_size=1, dp_rank=0, validate="off"):
        taken = digests(islice(pipeline, 20))
        return RankState.decode(pipeline.checkpoint()).recipe, taken


@pytest.mark.parametrize("made", [static, scheduled])
def test_what_is_written_is_read_as_the_same(made: Any) -> None:
    text = made().to_recipe()
    Path("recipe.toml").write_text(text)
    read = load_recipe("recipe.toml")
    assert read.to_recipe() == text
    assert "dp_size" not in text
    assert seen(read) == seen(made())


def test_options_of_a_run_come_before_those_of_the_file() -> None:
    Path("recipe.toml").write_text(static().to_recipe())
    pipeline = load_recipe(Path("recipe.toml"), dp_size=2, dp_rank=1, lanes=4)
    assert (pipeline._options.dp_size, pipeline._options.dp_rank, pipeline._options.lanes) == (2, 1, 4)


WRITTEN = """
[[datasets]]
name = "a"
path = "a.jsonl"

[source]
mixture = {a = 1}

[options]
validate = "off"  # a remark

[[operators]]
map = {fn = "tests.named:twice", schema = {text = "string"}}

[[operators]]
apply = {operator = "tests.named:Passing", setting = 3}

[[operators]]
filter_length = "text"

[[operators]]
[operators.batch]
microbatch_size = 0
"""


def test_a_file_by_hand() -> None:
    Path("r.toml").write_text(WRITTEN.replace('"text"\n\n', '{field = "text", min = 1}\n\n').replace("size = 0", "size = 2"))
    with load_recipe("r.toml") as pipeline:
        assert [type(operator).__name__ for operator in pipeline._operators] == ["Map", "Passing", "FilterLength"]
        assert pipeline._operators[1].settings() == {"setting": 3}
        assert next(iter(pipeline)).to_pylist("text")[0].startswith("a text of the number")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("mixture = {a = 1}", "mixture = {a = }", "r.toml: Invalid value (at line 7"),
        ("[options]", "[option]", "r.toml, line 9: a recipe has no part 'option'; did you mean 'options'?"),
        ('name = "a"', 'nam = "a"', "r.toml, line 3: from_path() knows no 'nam'"),
        ('path = "a.jsonl"', 'path = "x.jsonl"', "r.toml, line 4: dataset 'a': "),
        ("mixture = {a = 1}", "mixture = {b = 1}", "r.toml, line 7: the mixture names 'b'"),
        ("mixture = {a = 1}", "mixture = {a = 1}\nepochs = 0", "r.toml, line 8: epochs is 0"),
        ("mixture = {a = 1}", "", "StaticMixtureWorkSource() needs mixture="),
        ('validate = "off"', "lane = 3", "r.toml, line 10: options() knows no 'lane'; did you mean 'lanes'?"),
        ("map = {", "mapp = {", "r.toml, line 13: there is no operator 'mapp'; did you mean 'map'?"),
        ("named:twice", "named:thrice", "r.toml, line 13: fn is 'tests.named:thrice', which cannot be imported"),
        ("tests.named:twice", "twice", "r.toml, line 13: fn is 'twice': name a function as 'module:function'"),
        (
            '{text = "string"}',
            '{text = "strings"}',
            "r.toml, line 13: schema: text is 'strings': write a type as pyarrow prints it",
        ),
        ('filter_length = "text"', "", "r.toml, line 18: an operator is one key, such as tokenize = {...}, not 0"),
        ('filter_length = "text"', "filter_length = 3", "r.toml, line 19: filter_length"),
        ('"text"\n\n', "{field = 'text', min = 1}\n\n", "r.toml, line 23: microbatch_size is 0"),
        ("[source]", "[[source]]", "r.toml, line 6: source is [{'mixture': {'a': 1}}]: it must be a table"),
        ("[[datasets]]", "[datasets]", "r.toml, line 2: datasets is {'name': 'a', 'path': 'a.jsonl'}: it must be tables"),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_line(old: str, new: str, words: str) -> None:
    assert old in WRITTEN
    Path("r.toml").write_text(WRITTEN.replace(old, new))
    with pytest.raises((RecipeError, DatasetError)) as caught:
        load_recipe("r.toml")
    assert words in str(caught.value)


def test_what_a_file_cannot_hold() -> None:
    def said(pipeline: Pipeline) -> str:
        with pytest.raises(RecipeError) as caught:
            pipeline.to_recipe()
        return str(caught.value)

    def begun() -> Pipeline:
        return Pipeline(StaticMixtureWorkSource(datasets(), {"a": 1, "b": 1}))

    in_memory = Dataset.from_dict("m", {"n": [1]})
    assert "'m', which is in memory: write it to a file" in said(Pipeline(StaticMixtureWorkSource([in_memory], {"m": 1})))
    assert "fn is <function" in said(begun().filter(lambda record: True))
    assert "apply = {operator = 'module:Class', ...}" in said(begun().apply(Passing()))
    assert "a recipe cannot write the type" in said(begun().map(twice, schema={"x": pa.struct([("y", pa.int8())])}))


def test_no_secret_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = datasets()[0]
    dataset.told["storage_options"] = {"key": "AAA", "secret": "BBB", "client_kwargs": {"aws_session_token": "CCC"}, "anon": False}  # type: ignore[index]
    text = Pipeline(StaticMixtureWorkSource([dataset], {"a": 1})).to_recipe()
    assert not any(secret in text for secret in ("AAA", "BBB", "CCC"))
    assert "anon = false" in text


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.float32(),
        pa.string(),
        pa.large_binary(),
        pa.list_(pa.int32()),
        pa.large_list(pa.list_(pa.string())),
        pa.list_(pa.int64(), 3),
        pa.bool_(),
        pa.timestamp("ms"),
    ],
    ids=str,
)
def test_types_are_written_as_pyarrow_prints_them(kind: pa.DataType) -> None:
    assert types_of("schema", texts_of("schema", {"x": kind})).field("x").type == kind


def test_functions_are_found_again_by_their_names() -> None:
    assert text_of("fn", math.sqrt) == "math:sqrt"
    assert text_of("fn", Passing.apply) == "tests.named:Passing.apply"


def test_the_schema_knows_all_that_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    schema = recipe_schema()
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(schema))
    parts = schema["properties"]
    operators = parts["operators"]["items"]["properties"]
    assert set(operators) == set(methods()) >= {"map", "tokenize", "pack_flat", "batch", "add_op"}
    for made in (static, scheduled):
        said = tomllib.loads(made().to_recipe())
        assert set(said) <= set(parts)
        for dataset in said["datasets"]:
            assert set(dataset) <= set(parts["datasets"]["items"]["properties"])
        for part in ("source", "options"):
            assert set(said.get(part, ())) <= set(parts[part]["properties"])
        for entry in said["operators"]:
            ((method, settings),) = entry.items()
            assert set(settings) <= set(operators[method]["anyOf"][0]["properties"]), method
    assert operators["shuffle"]["anyOf"][0]["properties"]["buffer_size"] == {"type": "integer"}
    assert parts["source"]["properties"]["on_exhausted"] == {"enum": ["repeat", "stop", "drop_out"]}
