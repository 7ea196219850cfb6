"""The schema of a dataset and of a mixture: what is found, what is pinned, what is required, and what cannot be."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.whole import LEAVE_OUT, schema_of, whole
from zephon_async.errors import DatasetError, RecipeError
from zephon_async.io import Access, Dataset, dataset_schema, unify
from zephon_async.kinds import is_json, json_field


def said(make: Any, kind: type[Exception] = RecipeError) -> str:
    with pytest.raises(kind) as caught:
        make()
    return str(caught.value)


def shards(tmp_path: Path, *tables: pa.Table) -> Dataset:
    for n, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{n}.parquet")
    return Dataset.from_path("d", tmp_path)


def test_shards_that_drift(tmp_path: Path) -> None:
    dataset = shards(
        tmp_path,
        pa.table({"a": pa.array([1], pa.int16()), "b": ["x"]}),
        pa.table({"b": pa.array(["y"]).dictionary_encode(), "a": pa.array([2], pa.uint32()), "c": pa.array([None], pa.null())}),
        pa.table({"a": [3.5], "c": [[1]], "d": pa.array([b"z"], pa.binary_view())}),
    )
    right = {"a": pa.float64(), "b": pa.large_string(), "c": pa.list_(pa.int64()), "d": pa.large_binary()}
    assert dataset_schema(dataset, None, {}) == pa.schema(right)
    assert dataset_schema(dataset, frozenset({"c", "zz"}), {}) == pa.schema({"c": pa.list_(pa.int64()), "zz": pa.null()})
    assert whole(dataset).rows == [
        {"a": 1.0, "b": "x", "c": None, "d": None},
        {"a": 2.0, "b": "y", "c": None, "d": None},
        {"a": 3.5, "b": None, "c": [1], "d": b"z"},
    ]


def test_shards_that_contradict_each_other_give_bad_records(tmp_path: Path) -> None:
    dataset = shards(tmp_path, pa.table({"a": [1, None]}), pa.table({"a": ["x", None]}))
    schema = dataset_schema(dataset, None, {})
    found = whole(dataset)
    if schema.field("a").type == pa.int64():
        assert found.bad == ["dataset 'd', shard '1.parquet', row 0: column 'a': int64 is wanted, not string"]
        assert found.column("a") == [1, None, None, None]
    else:
        assert found.bad == ["dataset 'd', shard '0.parquet', row 0: column 'a': large_string is wanted, not int64"]
        assert found.column("a") == [None, None, "x", None]


def test_the_look_is_at_no_more_than_sixteen_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(40):
        (tmp_path / f"{n}.jsonl").write_text(f'{{"text": "a", "c{n}": 1}}\n')
    dataset = Dataset.from_path("d", tmp_path)
    found = dataset_schema(dataset, None, {})
    assert len(found) == 17
    assert found == dataset_schema(Dataset.from_path("d", tmp_path), None, {})
    assert found != dataset_schema(dataset, None, {}, seed=1)
    opened = []
    real = Dataset.open

    def open_one(self: Dataset, shard: int, access: Access | None) -> Any:
        opened.append(shard)
        return real(self, shard, access)

    monkeypatch.setattr(Dataset, "open", open_one)
    assert dataset_schema(dataset, frozenset(), {"text": "string"}) == pa.schema({"text": pa.large_string()})
    assert len(opened) == 1


def test_pins(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": [1], "meta": {"x": 1}}\n')
    pins = {"a": pa.float32(), "b": pa.list_(pa.uint16()), "meta": pa.struct({"x": pa.int8()}), "rare": pa.string()}
    dataset = Dataset.from_path("d", tmp_path, schema=pins)
    assert schema_of(dataset) == pa.schema(pins | {"rare": pa.large_string()})
    assert schema_of(dataset, needed=["a"]) == pa.schema({"a": pa.float32()})
    assert whole(dataset).rows == [{"a": 1.0, "b": [1], "meta": {"x": 1}, "rare": None}]
    text = Dataset.from_path("d", tmp_path, schema={"a": pa.json_()})
    assert is_json(schema_of(text).field("a"))
    assert whole(text).column("a") == ["1"]


def test_required_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": [1]}\n')
    dataset = Dataset.from_path("d", tmp_path, schema={"b": pa.list_(pa.int64())})
    assert schema_of(dataset, needed=[], required={"a": "any", "b": "integers"}) == pa.schema(
        {"a": pa.int64(), "b": pa.list_(pa.int32())}
    )
    wrong = "dataset 'd': column 'b' is pinned to list<item: int64>, but an operator needs text"
    assert said(lambda: dataset_schema(dataset, None, {"b": "string"})) == wrong
    pinned = Dataset.from_path("d", tmp_path, schema={"b": pa.string()})
    wrong = "dataset 'd': column 'b' is pinned to large_string, but an operator needs a list of integers"
    assert said(lambda: dataset_schema(pinned, None, {"b": "integers"})) == wrong
    missing = "dataset 'd': there is no column 'text' in shard 'a.jsonl', and an operator needs it; columns seen: 'a', 'b'"
    for needed in (None, frozenset({"a"}), frozenset[str]()):
        assert said(lambda needed=needed: dataset_schema(dataset, needed, {"text": "string"}), DatasetError) == missing


def test_a_missing_column_may_have_been_meant_otherwise(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"texts": "a", "id": 1}\n')
    dataset = Dataset.from_path("d", tmp_path)
    assert said(lambda: dataset_schema(dataset, None, {"text": "string"}, by={"text": "tokenize"}), DatasetError) == (
        "dataset 'd': there is no column 'text' in shard 'a.jsonl', and tokenize needs it; columns seen: 'id', 'texts'; "
        "did you mean 'texts'?"
    )


TEXT, BYTES, NUMBER, LIST = pa.array(["a", None]), pa.array([b"a", None]), pa.array([1, None]), pa.array([[1], []])
MISFITS = [
    ("string", NUMBER, "int64, and tokenize needs text; name a column of text, or make one with map before it"),
    ("string", BYTES, "large_binary, and tokenize needs text; put decode_text before it, which makes text of bytes"),
    ("string", LIST, "list<item: int64>, and tokenize needs text; name a column of text, or make one with map before it"),
    ("string", pa.array([True]), "bool, and tokenize needs text; name a column of text, or make one with map before it"),
    (
        "integers",
        TEXT,
        "large_string, and tokenize needs a list of integers; put tokenize before it, which makes token ids of text",
    ),
    (
        "integers",
        NUMBER,
        "int64, and tokenize needs a list of integers; name a column of token ids, or make one with map before it",
    ),
    (
        "integers",
        pa.array([["a"]]),
        "list<item: large_string>, and tokenize needs a list of integers; name a column of token ids, or",
    ),
    ("text", NUMBER, "int64, and tokenize needs text or bytes; name a column of text or bytes, or make one with map before it"),
]


@pytest.mark.parametrize(("kind", "values", "words"), MISFITS, ids=[f"{kind} {words[:20]}" for kind, _, words in MISFITS])
def test_a_column_that_cannot_be_of_its_kind_is_refused_at_the_start(
    kind: str, values: pa.Array, words: str, tmp_path: Path
) -> None:
    dataset = shards(tmp_path, pa.table({"x": values}))
    message = said(lambda: dataset_schema(dataset, None, {"x": kind}, by={"x": "tokenize"}), DatasetError)
    assert message.startswith(f"dataset 'd', shard '0.parquet': column 'x' is {words}")


FITS = [
    ("string", TEXT),
    ("string", TEXT.dictionary_encode()),
    ("string", pa.nulls(2)),
    ("text", TEXT),
    ("text", BYTES),
    ("integers", LIST),
    ("integers", pa.array([[1.0, 2.0]])),
    ("integers", pa.array([[1, 2]], pa.list_(pa.uint16(), 2))),
    ("integers", pa.array([[], []], pa.list_(pa.null()))),
    *(("any", values) for values in (TEXT, BYTES, NUMBER, LIST)),
]


@pytest.mark.parametrize(("kind", "values"), FITS, ids=[f"{kind} {values.type}" for kind, values in FITS])
def test_a_column_that_can_be_of_its_kind(kind: str, values: pa.Array, tmp_path: Path) -> None:
    found = whole(shards(tmp_path, pa.table({"x": values})), required={"x": kind})
    assert (found.column("x"), found.bad) == (values.to_pylist(), [])


def test_one_shard_of_the_right_kind_is_enough(tmp_path: Path) -> None:
    dataset = shards(tmp_path, *[pa.table({"x": NUMBER})] * 5, pa.table({"x": TEXT}), *[pa.table({"x": NUMBER})] * 5)
    for seed in range(5):
        assert dataset_schema(dataset, None, {"x": "string"}, seed) == pa.schema({"x": pa.large_string()})
    dataset = shards(tmp_path, *[pa.table({"x": NUMBER})] * 11)
    assert "shard '0.parquet' and 10 others: column 'x' is int64" in said(
        lambda: dataset_schema(dataset, None, {"x": "string"}), DatasetError
    )


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "found"),
    [
        ("string", ['"a"', "null", '"b"'], ["5", "null", "6"], "int64"),
        ("string", ['"a"'], ['{"a": 1}', "null"], "JSON text of nested values"),
        ("string", ['"a"'], ["[1]", "[2]"], "list<item: int64>"),
        ("integers", ["[1]", "[]", "null"], ['"a"', "null"], "large_string"),
        ("integers", ["[1]"], ["[1.5]", '["a"]'], "JSON text of nested values"),
        ("text", ['"a"'], ["5"], "int64"),
    ],
)
def test_lines_none_of_which_can_be_of_their_kind(
    kind: str, right: list[str], wrong: list[str], found: str, tmp_path: Path
) -> None:
    def made(values: list[str]) -> Dataset:
        (tmp_path / "a.jsonl").write_text("".join(f'{{"x": {value}}}\n' for value in values))
        return Dataset.from_path("d", tmp_path)

    assert f"dataset 'd', shard 'a.jsonl': column 'x' is {found}, and an operator needs" in said(
        lambda: dataset_schema(made(wrong), None, {"x": kind}), DatasetError
    )
    mixed = whole(made(wrong + right), required={"x": kind})  # those that are not are bad records
    assert len(mixed.bad) == len(wrong) - wrong.count("null")
    assert not whole(made(right), required={"x": kind}).bad
    assert not whole(made(["null"]), required={"x": kind}).bad


def test_one_schema_for_a_mixture() -> None:
    one = pa.schema({"text": pa.large_string(), "n": pa.int32(), "x": pa.null(), "y": pa.null()})
    two = pa.schema(
        [pa.field("n", pa.float32()), json_field("meta"), pa.field("x", pa.bool_()), pa.field("text", pa.large_string())]
    )
    both = unify({"one": one, "two": two})
    assert both.equals(
        pa.schema(
            [json_field("meta"), ("n", pa.float64()), ("text", pa.large_string()), ("x", pa.bool_()), ("y", pa.large_string())]
        ),
        check_metadata=True,
    )
    assert unify({"two": two, "one": one}).equals(both, check_metadata=True)
    assert unify({}) == pa.schema({})


def test_types_that_do_not_go_together() -> None:
    text, number = pa.schema({"a": pa.large_string()}), pa.schema({"a": pa.int64()})
    pin = f"pin it to one type with schema= where they can agree, or {LEAVE_OUT}"
    wrong = f"column 'a' is large_string in dataset 'one' and int64 in dataset 'three': {pin}"
    assert said(lambda: unify({"zero": pa.schema({"a": pa.null()}), "one": text, "two": text, "three": number})) == wrong
    wrong = f"column 'a' is JSON text in dataset 'one' and large_string in dataset 'two': {pin}"
    assert said(lambda: unify({"one": pa.schema([json_field("a")]), "two": text})) == wrong


def test_lines_none_of_which_can_be_read_have_no_columns(tmp_path: Path) -> None:
    """The lines behind the first block would be read as rows without columns."""
    (tmp_path / "a.jsonl").write_text('{"a": "' + "x" * 2_000_000 + '", "b": NaN}\n{"a": "y"}\n')
    dataset = Dataset.from_path("d", str(tmp_path))
    with pytest.raises(
        DatasetError, match=r"shard 'a.jsonl': the columns are not known, .* \(JSON is malformed.*\); pin the columns"
    ):
        dataset_schema(dataset, None, {})
    pinned = Dataset.from_path("d", str(tmp_path), schema={"a": pa.large_string()})
    assert dataset_schema(pinned, None, {}) == pa.schema({"a": pa.large_string()})
