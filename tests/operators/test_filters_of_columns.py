"""`filter_length`, `filter_regex`, `filter_batches`: which rows stay, nulls, units, and what is refused."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.made_rows import made
from zephon_async.errors import RecipeError
from zephon_async.operators import Filter, FilterBatches, FilterLength, FilterRegex, Operator

WORDS = ["", "a", "\u00e9t\u00e9", None, "four"]


def stay(operator: Operator, column: pa.Array) -> list[int]:
    """The numbers of the rows that stay."""
    records, tally = made({"c": column, "other": list(range(len(column)))}), Counter[str]()
    out = operator.apply(records, tally)
    assert out.columns.schema.equals(records.columns.schema, check_metadata=True)
    assert operator.output(records.columns.schema) == records.columns.schema
    assert tally["records_filtered"] == len(records) - len(out)
    assert out.origins.segments["row"].tolist() == out.columns.column("other").to_pylist()
    return list(out.columns.column("other").to_pylist())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_lengths_of_text(kind: pa.DataType) -> None:
    column = pa.array(WORDS, pa.string()).cast(kind)
    assert stay(FilterLength("c", min=0), column) == [0, 1, 2, 4]
    assert stay(FilterLength("c", min=3), column) == [2, 4]
    assert stay(FilterLength("c", max=3), column) == [0, 1, 2]
    assert stay(FilterLength("c", min=1, max=1, unit="characters"), column) == [1]
    assert stay(FilterLength("c", min=4, unit="bytes"), column) == [2, 4]


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.string()), pa.list_view(pa.int8())])
def test_lengths_of_lists(kind: pa.DataType) -> None:
    column = pa.array([[], [None], None, [None] * 3], kind)
    assert stay(FilterLength("c", min=1), column) == [1, 3]
    assert stay(FilterLength("c", max=0, unit="values"), column) == [0]


def test_lengths_of_bytes_and_of_nothing() -> None:
    assert stay(FilterLength("c", min=2), pa.array([b"\0\1", b"", None], pa.binary())) == [0]
    assert stay(FilterLength("c", min=0), pa.nulls(3)) == []


@pytest.mark.parametrize(
    ("unit", "kind"), [("values", pa.string()), ("characters", pa.binary()), ("bytes", pa.list_(pa.int8())), (None, pa.int64())]
)
def test_columns_without_such_a_length(unit: str | None, kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match=f"filter_length: column 'c' is .*, which has no length in {unit or 'any unit'}"):
        stay(FilterLength("c", min=1, unit=unit), pa.nulls(2, kind))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "give min= or max="),
        ({"min": 3, "max": 2}, "min=3 is more than max=2"),
        ({"min": -1}, "filter_length: min is -1: it must be a whole number of at least 0"),
        ({"max": 2.5}, "filter_length: max is 2.5"),
        ({"max": 2, "unit": "tokens"}, "unit is 'tokens': it must be one of 'characters', 'bytes', 'values'"),
    ],
)
def test_lengths_that_cannot_be_meant(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        FilterLength("c", **settings)


def test_regular_expressions() -> None:
    column = pa.array(["spam", "ham", None, "eggs and spam", "SPAM"])
    assert stay(FilterRegex("c", "spam"), column) == [0, 3]
    assert stay(FilterRegex("c", "spam", keep=False), column) == [1, 2, 4]
    assert stay(FilterRegex("c", "(?i)^spam$"), column.dictionary_encode()) == [0, 4]
    assert stay(FilterRegex("c", r"^\p{Lu}", keep=True), column.cast(pa.large_string())) == [4]


@pytest.mark.parametrize("pattern", ["(", "(?<=a)b", 5, None, "\ud800"])
def test_what_is_no_regular_expression(pattern: Any) -> None:
    with pytest.raises(RecipeError, match="filter_regex: pattern "):
        FilterRegex("c", pattern)


@pytest.mark.parametrize(
    "mask",
    [
        [True, False, True],
        np.array([True, False, True]),
        pa.array([True, False, True]),
        pa.chunked_array([[True], [False, True]]),
        (True, np.False_, True),
    ],
)
def test_masks(mask: Any) -> None:
    assert stay(FilterBatches(lambda columns: mask), pa.array([1, 2, 3])) == [0, 2]


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ([True, False], "list of bool, shape \\(2,\\)"),
        ([1, 0, 1], "list of int64"),
        (pa.array([True, None, False]), "BooleanArray of object with nulls"),
        (None, "NoneType of object"),
        ([[True]] * 3, "list of bool, shape \\(3, 1\\)"),
    ],
)
def test_what_is_no_mask(mask: Any, found: str) -> None:
    with pytest.raises(TypeError, match=f"filter_batches: .*<lambda> gave {found}.*, wanted 3 bools, one for each row"):
        stay(FilterBatches(lambda columns: mask), pa.array([1, 2, 3]))


def test_a_function_gets_the_columns_that_are_named() -> None:
    seen: list[list[str]] = []

    def all_of(columns: pa.RecordBatch) -> Any:
        seen.append(columns.schema.names)
        return np.ones(len(columns), bool)

    operator = FilterBatches(all_of, columns=["other"])
    assert stay(operator, pa.array([1, 2])) == [0, 1]
    assert (seen, operator.reads(frozenset(["c"])), operator.reads(None)) == ([["other"]], frozenset(["c", "other"]), None)


async def later(columns: Any) -> Any:
    return columns


@pytest.mark.parametrize(
    "make",
    [
        lambda: FilterBatches(later),
        lambda: FilterBatches(5),  # type: ignore[arg-type]
        lambda: FilterLength(["c"], min=1),  # type: ignore[arg-type]
        lambda: FilterRegex("c", "a", keep=1),  # type: ignore[arg-type]
        lambda: FilterLength("c", min=1, parallelism=0),
    ],
)
def test_filters_that_cannot_be_meant(make: Callable[[], Operator]) -> None:
    with pytest.raises(RecipeError):
        make()


@pytest.mark.parametrize("operator", [FilterLength("no", min=1), FilterRegex("no", "a"), FilterBatches(len, columns=["no"])])
def test_columns_that_are_not_there(operator: Operator) -> None:
    with pytest.raises(RecipeError, match="there is no column 'no' here"):
        operator.output(pa.schema({"c": pa.string()}))
    assert isinstance(operator.settings(), dict)


def test_settings_decide_the_fingerprint() -> None:
    made = [FilterLength("c", min=1), FilterLength("c", min=2), FilterLength("c", max=1), FilterLength("c", min=1, unit="bytes")]
    made_too: list[Operator] = [FilterRegex("c", "a"), FilterRegex("c", "b"), FilterRegex("c", "a", keep=False)]
    several = [repr(each.settings()) for each in (*made, *made_too, Filter(bool), FilterBatches(len))]
    assert len(set(several)) == len(several)
