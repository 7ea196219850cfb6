"""Arrow to Python and back: nothing is lost, nothing is coerced."""

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import FILL, JSON
from zephon_async.operators.rows import (
    as_schema,
    first_misfit,
    infer,
    learn_schema,
    no_rows,
    schema_settings,
    to_batch,
    to_column,
    to_dicts,
    to_python,
)

NUMBERS = st.one_of(st.none(), st.integers(-9, 9))
COLUMNS = st.one_of(
    st.lists(NUMBERS, max_size=9).map(lambda v: pa.array(v, pa.int16())),
    st.lists(st.integers(-9, 9), max_size=9).map(lambda v: pa.array(v, pa.int64())),
    st.lists(st.one_of(st.none(), st.booleans()), max_size=9).map(lambda v: pa.array(v, pa.bool_())),
    st.lists(st.floats(width=32, allow_nan=False), max_size=9).map(lambda v: pa.array(v, pa.float32())),
    st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=9).map(lambda v: pa.array(v, pa.large_string())),
    st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=9).map(lambda v: pa.array(v, pa.binary())),
    st.lists(st.one_of(st.none(), st.lists(NUMBERS, max_size=3)), max_size=9).map(lambda v: pa.array(v, pa.list_(pa.int32()))),
    st.lists(st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=3), max_size=9).map(
        lambda v: pa.array(v, pa.large_list(pa.list_(pa.int8())))
    ),
    st.lists(st.lists(NUMBERS, min_size=2, max_size=2), max_size=9).map(lambda v: pa.array(v, pa.list_(pa.int32(), 2))),
    st.lists(st.fixed_dictionaries({"a": NUMBERS}), max_size=9).map(lambda v: pa.array(v, pa.struct({"a": pa.int64()}))),
    st.lists(st.dates(), max_size=9).map(lambda v: pa.array(v, pa.date32())),
)


@given(COLUMNS, st.integers(0, 9), st.integers(0, 9))
def test_python_values_are_those_of_arrow_in_any_slice(column: pa.Array, start: int, length: int) -> None:
    part = column.slice(min(start, len(column)), length)
    values = to_python(part)
    assert values == part.to_pylist()
    assert list(map(type, values)) == list(map(type, part.to_pylist()))


@given(COLUMNS)
def test_rows_go_there_and_back(column: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([column, column], names=["a", "b"])
    rows = list(to_dicts(batch))
    assert rows == batch.to_pylist()
    assert to_batch(rows, batch.schema).equals(batch)


def test_rows_without_columns() -> None:
    assert list(to_dicts(pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([]))))) == [{}, {}]
    assert no_rows(None).num_columns == 0
    assert no_rows(pa.schema({"a": pa.int8()})).schema.names == ["a"]


JSON_FIELD = pa.field("meta", pa.large_string(), metadata=JSON)


def test_json_columns_are_decoded_exactly_and_written_again() -> None:
    texts = ['{"a": 123456789012345678901234567890, "b": [1.0, null]}', None, '"text"', "[]", "1"]
    batch = pa.RecordBatch.from_arrays([pa.array(texts, pa.large_string())], schema=pa.schema([JSON_FIELD]))
    rows = list(to_dicts(batch))
    assert [row["meta"] for row in rows] == [{"a": 123456789012345678901234567890, "b": [1.0, None]}, None, "text", [], 1]
    assert list(to_dicts(to_batch(rows, batch.schema))) == rows


def test_what_is_no_json_fails_when_its_turn_comes() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["1", "{"], pa.large_string())], schema=pa.schema([JSON_FIELD]))
    rows = to_dicts(batch)
    assert next(rows) == {"meta": 1}
    with pytest.raises(BadRecord, match=r"column 'meta': wanted JSON text, found '\{'"):
        next(rows)


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [200, 900, 2_000, 100_000])
def test_json_values_are_at_most_200_levels_deep_with_the_record(levels: int) -> None:
    schema = pa.schema([JSON_FIELD])
    assert list(to_dicts(to_batch([{"meta": nested(199)}], schema))) == [{"meta": nested(199)}]
    with pytest.raises(BadRecord, match=r"wanted a JSON value, .*a record is nested more than 200 levels deep"):
        to_batch([{"meta": nested(levels)}], schema)
    text = "[" * levels + "]" * levels
    with pytest.raises(BadRecord, match="column 'meta': a record is nested more than 200 levels deep"):
        next(to_dicts(pa.RecordBatch.from_arrays([pa.array([text], pa.large_string())], schema=schema)))


@pytest.mark.parametrize("levels", [65, 200, 2_000, 100_000])
@pytest.mark.parametrize("inner", [lambda value: [value], lambda value: {"a": value}])
def test_what_is_nested_deeper_than_a_type_may_be_needs_a_schema(levels: int, inner: Any) -> None:
    value: Any = 1
    for level in range(levels):
        value = inner(value)
        if level == 62:
            assert learn_schema([{"x": value}], pa.schema([]), "map").names == ["x"]
    with pytest.raises(RecipeError, match=r"map: column 'x' .*\(nested more than 64 levels deep\); pass schema="):
        learn_schema([{"x": value}], pa.schema([]), "map")


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64()), pa.large_string(), pa.struct({"a": pa.int8()})])
def test_a_value_too_deep_to_be_shown_is_a_bad_record(kind: pa.DataType) -> None:
    with pytest.raises(BadRecord, match="column 'x' of the result: wanted "):
        to_column([nested(100_000)], pa.field("x", kind))


@pytest.mark.parametrize("value", [math.nan, (1, 2), {1: "a"}, {"a": np.int64(1)}, object(), datetime(2020, 1, 1)])
def test_values_that_json_would_change_are_refused(value: Any) -> None:
    with pytest.raises(BadRecord, match="column 'meta' of the result: wanted a JSON value, found"):
        to_column([value], JSON_FIELD)


I64, F64, TEXT, BYTES = pa.int64(), pa.float64(), pa.large_string(), pa.large_binary()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TEXT, 5),
        (TEXT, b"x"),
        (TEXT, "\ud800"),
        (BYTES, "x"),
        (I64, "5"),
        (I64, 1.5),
        (I64, 1.0),
        (I64, True),
        (I64, np.float64(2)),
        (I64, 2**63),
        (pa.int8(), 128),
        (pa.uint8(), -1),
        (F64, True),
        (F64, "1.5"),
        (F64, 2**53 + 1),
        (pa.bool_(), 1),
        (pa.bool_(), "true"),
        (pa.date32(), datetime(2020, 1, 1, 5)),
        (pa.timestamp("us"), date(2020, 1, 1)),
        (pa.timestamp("us"), 5),
        (pa.timestamp("us"), datetime(2020, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), datetime(2020, 1, 1)),
        (pa.decimal128(3, 1), Decimal("1.25")),
        (pa.list_(I64), [1, 2.5]),
        (pa.list_(I64), [1, True]),
        (pa.list_(I64), {1, 2}),
        (pa.list_(I64), "12"),
        (pa.list_(I64), np.array([1.0])),
        (pa.list_(pa.int8()), np.array([1, 300])),
        (pa.list_(I64), np.array([True])),
        (pa.list_(pa.int32(), 2), [1]),
        (pa.list_view(I64), [1.5]),
        (pa.binary(2), "ab"),
        (pa.map_(TEXT, I64), {"a": 1.5}),
        (pa.map_(TEXT, I64), [("a", 1.5)]),
        (pa.map_(TEXT, I64), [{"key": "a", "value": 1}]),
        (pa.struct({"a": I64}), {"a": 1, "b": 2}),
        (pa.struct([pa.field("a", I64, nullable=False)]), {}),
        (pa.struct({"a": pa.list_(I64)}), {"a": ["1"]}),
        (pa.dictionary(pa.int8(), pa.string()), 5),
        (pa.null(), 5),
    ],
    ids=repr,
)
def test_nothing_is_coerced(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(BadRecord, match=r"column 'x' of the result: wanted .*, found \w+ .* \(.*\)"):
        to_column([None, value], pa.field("x", kind))


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (F64, 5, 5.0),
        (F64, np.float32(1.5), 1.5),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.int32(), np.int64(5), 5),
        (pa.bool_(), np.bool_(True), True),
        (TEXT, np.str_("a"), "a"),
        (BYTES, bytearray(b"a"), b"a"),
        (pa.list_(pa.int32()), np.array([1, 2]), [1, 2]),
        (pa.list_(pa.int32()), (1, None), [1, None]),
        (pa.list_(F64), np.array([1, 2]), [1.0, 2.0]),
        (pa.list_(pa.list_(F64)), np.ones((2, 1)), [[1.0], [1.0]]),
        (I64, np.array(7), 7),
        (pa.list_(F64, 2), np.ones(2, np.float32), [1.0, 1.0]),
        (pa.decimal128(5, 2), Decimal("1.25"), Decimal("1.25")),
        (pa.timestamp("us"), datetime(2020, 1, 1), datetime(2020, 1, 1)),
        (pa.dictionary(pa.int8(), pa.string()), "a", "a"),
        (pa.map_(TEXT, I64), [("a", 1)], [("a", 1)]),
        (pa.map_(TEXT, I64), {"a": 1}, [("a", 1)]),
        (pa.struct({"a": I64}), {"a": None}, {"a": None}),
    ],
    ids=repr,
)
def test_what_fits_is_kept(kind: pa.DataType, value: Any, kept: Any) -> None:
    assert to_column([value, None], pa.field("x", kind)).to_pylist() == [kept, None]


def test_what_a_schema_says_is_in_its_settings() -> None:
    fields = [pa.field("a", I64, nullable=False), JSON_FIELD, pa.field("b", I64, metadata={FILL: "7", "other": "x"})]
    assert schema_settings(pa.schema(fields)) == [
        ["a", "int64", False, False],
        ["meta", "large_string", True, True],
        ["b", "int64", True, False, "7"],
    ]
    assert schema_settings(None) is None


def test_a_missing_key_is_null() -> None:
    schema = pa.schema([("a", I64), ("b", TEXT), ("c", pa.struct({"d": I64, "e": I64}))])
    rows: list[dict[str, Any]] = [{"a": 1}, {"b": "x", "c": {"e": 2}}, {"c": {}, "b": "y", "a": 2}, {}]
    assert to_batch(rows, schema).to_pylist() == [
        {"a": 1, "b": None, "c": None},
        {"a": None, "b": "x", "c": {"d": None, "e": 2}},
        {"a": 2, "b": "y", "c": {"d": None, "e": None}},
        {"a": None, "b": None, "c": None},
    ]
    assert rows[0] == {"a": 1}  # it is the user's


def test_no_column_is_there_but_those_of_the_schema() -> None:
    schema = pa.schema([pa.field("a", I64, nullable=False), pa.field("b", TEXT)])
    with pytest.raises(BadRecord, match=r"has \['c'\] too many; wanted are \['a', 'b'\]"):
        to_batch([{"a": 1, "b": "x"}, {"a": 1, "c": 2}], schema)
    for record, said in (
        ({"b": "x"}, "lacks the columns ['a'], which the schema does not let be null: change schema="),
        ({"a": 1, "b": "x", "c": 2}, "has ['c'] too many; wanted are ['a', 'b']: change schema="),
    ):
        for ours in (True, False):
            with pytest.raises(BadRecord) as caught:
                to_batch([record], schema, not ours)
            assert str(caught.value) == f"the result {said.replace('change', 'pass') if ours else said}"
    with pytest.raises(BadRecord, match=r"wanted int64, found NoneType None \(the schema forbids it\)"):
        to_batch([{"a": None, "b": "x"}], schema)
    at, error = first_misfit([[], [{"a": 1, "b": "x"}], [{"a": 1, "b": None}, {"a": 1, "b": 5}]], schema)
    assert (at, str(error)) == (2, "column 'b' of the result: wanted large_string, found int 5 (pass schema= if that is right)")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None], I64),
        ([1, 2.5], F64),
        ([True, np.bool_(False)], pa.bool_()),
        ([np.float32(1), None], pa.float32()),
        ([np.int8(1)], pa.int8()),
        ([np.int8(1), 5], I64),
        (["a", np.str_("b")], TEXT),
        ([b"a", bytearray(b"b")], BYTES),
        ([[1], [], None, [2.5]], pa.list_(F64)),
        ([np.zeros(2, np.int16), np.zeros(0, np.int16)], pa.list_(pa.int16())),
        ([np.zeros((2, 2), np.float32)], pa.list_(pa.list_(pa.float32()))),
        ([{"a": 1, "b": None}, {"a": 2, "b": "x"}], pa.struct({"a": I64, "b": TEXT})),
        ([date(2020, 1, 1)], pa.date32()),
        ([datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        ([time(1)], pa.time64("us")),
        ([timedelta(1)], pa.duration("us")),
        ([Decimal("1.25"), Decimal("10.5")], pa.decimal128(4, 2)),
        ([None], pa.null()),
    ],
    ids=repr,
)
def test_types_are_found(values: list[Any], kind: pa.DataType) -> None:
    assert infer(values) == kind
    assert to_column(values, pa.field("x", kind)).null_count == sum(value is None for value in values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, "a"], "int and str"),
        ([True, 1], "bool and int"),
        ([[1], ["a"]], "int and str"),
        ([{"a": 1}, {"b": 1}], "dicts with different keys"),
        ([{}], "or with none"),
        ([object()], "object"),
        ([date(2020, 1, 1), datetime(2020, 1, 1)], "date and datetime"),
    ],
    ids=repr,
)
def test_irregular_values_have_no_type(values: list[Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        infer(values)
    with pytest.raises(RecipeError, match=r"f: column 'x' of the results has no one type .*; pass schema="):
        learn_schema([{"x": value} for value in values], pa.schema([]), "f")


def test_columns_without_a_value_and_json_keep_the_type_they_came_with() -> None:
    taken = pa.schema([pa.field("note", pa.int16()), JSON_FIELD])
    rows: list[dict[str, Any]] = [{"note": None, "meta": {"a": 1}, "new": 1}, {"note": None, "meta": [2], "new": None}]
    learned = learn_schema(rows, taken, "f")
    assert learned.equals(pa.schema([taken.field("note"), JSON_FIELD, pa.field("new", I64)]), check_metadata=True)
    assert learn_schema([{"meta": "title"}], taken, "f").equals(pa.schema({"meta": TEXT}), check_metadata=True)
    assert learn_schema([{"meta": None}], taken, "f").field("meta").equals(JSON_FIELD, check_metadata=True)
    assert learn_schema([{"x": None}, {"x": None}], taken, "f").equals(pa.schema({"x": TEXT}), check_metadata=True)
    nothing: Any
    for nothing in ([], {"a": None}):
        with pytest.raises(RecipeError, match="f: column 'x' has no value in any of the 1 results of the trial; pass schema="):
            learn_schema([{"x": nothing}], taken, "f")


def test_records_of_a_trial_may_lack_columns() -> None:
    rows: list[dict[str, Any]] = [{"a": 1}, {"b": "x"}, {"b": None, "c": 1.5, "a": 3}]
    assert learn_schema(rows, pa.schema([]), "f") == pa.schema({"a": I64, "b": TEXT, "c": F64})


@pytest.mark.parametrize("rows", [[{}], [{5: 1}], [{"a": 1}, {5: 1}]])
def test_records_of_a_trial_have_columns(rows: list[dict[Any, Any]]) -> None:
    with pytest.raises(RecipeError, match=r"f: the records of the trial have the columns .*: give at least one, named by strings"):
        learn_schema(rows, pa.schema([]), "f")


def test_schemas_are_checked_and_made_large() -> None:
    assert as_schema({"a": pa.string(), "b": pa.binary(), "c": I64}, "f") == pa.schema({"a": TEXT, "b": BYTES, "c": I64})
    field = as_schema(pa.schema([JSON_FIELD.with_type(pa.string())]), "f").field("meta")
    assert field.equals(JSON_FIELD, check_metadata=True)
    for wrong in (5, {"a": "no type"}, {}, pa.schema([("a", I64), ("a", I64)]), {"a": 5}):
        with pytest.raises(RecipeError, match="f: schema= must"):
            as_schema(wrong, "f")
