"""Columns made into those of a schema: every value kept or named, never changed."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.io.conform import canonical, conform, fit, promote


@pytest.mark.parametrize(
    ("array", "target", "right"),
    [
        (pa.array(["a", None], pa.string_view()), pa.large_string(), ["a", None]),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.large_string(), ["a", None, "a"]),
        (pa.DictionaryArray.from_arrays([0, 0], pa.array(["a"], pa.string_view())), pa.large_string(), ["a", "a"]),
        (pc.run_end_encode(pa.array(["a", "a"])), pa.large_string(), ["a", "a"]),
        (pa.array([b"a", None], pa.binary_view()), pa.large_binary(), [b"a", None]),
        (pa.array([b"ab"], pa.binary(2)), pa.large_binary(), [b"ab"]),
        (pa.array([1, None], pa.int8()), pa.float64(), [1.0, None]),
        (pa.array([[1, 2], None, []], pa.list_view(pa.int64())), pa.list_(pa.int32()), [[1, 2], None, []]),
        (pa.array([[1, 2], None], pa.list_(pa.uint64(), 2)), pa.list_(pa.int32()), [[1, 2], None]),
        (pa.array([["a"], None], pa.large_list(pa.string_view())), pa.list_(pa.large_string()), [["a"], None]),
        (pa.array([[1, 2], None], pa.list_(pa.int64())), pa.list_(pa.int8(), 2), [[1, 2], None]),
        (pa.array([None, None]), pa.list_(pa.int8(), 2), [None, None]),
        (pa.array([{"a": 1, "z": 2}]), pa.struct({"b": pa.large_string(), "a": pa.float64()}), [{"b": None, "a": 1.0}]),
    ],
)
def test_what_fits(array: pa.Array, target: pa.DataType, right: list[Any]) -> None:
    for one, values in ((array, right), (array.slice(1), right[1:])):
        made, bad = fit(one, target)
        made.validate(full=True)
        assert (made.type, made.to_pylist(), bad) == (target, values, {})


def pointing(values: list[str | None], kind: pa.DataType | None = None) -> pa.Array:
    """Views of which the null ones point at what is not there."""
    array = pa.array(values, pa.string_view())
    validity, views, *texts = array.buffers()
    everywhere = np.frombuffer(views, np.uint8).reshape(-1, 16).copy()
    everywhere[[value is None for value in values]] = np.frombuffer(
        struct.pack("<i4sii", 1 << 20, b"what", 1 << 20, 1 << 30), np.uint8
    )
    return pa.Array.from_buffers(kind or array.type, len(values), [validity, pa.py_buffer(everywhere), *texts])


LONG = "l" * 30
VIEWS = pointing(["a", None, LONG, None])
TEXTS, TWO = pa.large_string(), pa.array([0, 2, 4], pa.int32())


@pytest.mark.parametrize(
    ("array", "target", "right"),
    [
        (VIEWS, TEXTS, ["a", None, LONG, None]),
        (pointing(["a", None, LONG, None], pa.binary_view()), pa.large_binary(), [b"a", None, LONG.encode(), None]),
        (pa.ListArray.from_arrays(TWO, VIEWS), pa.list_(TEXTS), [["a", None], [LONG, None]]),
        (pa.LargeListArray.from_arrays(TWO, VIEWS), pa.list_(TEXTS), [["a", None], [LONG, None]]),
        (pa.ListViewArray.from_arrays([2, 0], [2, 2], VIEWS), pa.list_(TEXTS), [[LONG, None], ["a", None]]),
        (pa.FixedSizeListArray.from_arrays(VIEWS, 2), pa.list_(TEXTS, 2), [["a", None], [LONG, None]]),
        (pa.StructArray.from_arrays([VIEWS], ["s"]), pa.struct({"s": TEXTS}), [{"s": "a"}, {"s": None}, {"s": LONG}, {"s": None}]),
        (
            pa.MapArray.from_arrays(TWO, ["p", "q", "r", "s"], VIEWS),
            pa.map_(TEXTS, TEXTS),
            [[("p", "a"), ("q", None)], [("r", LONG), ("s", None)]],
        ),
        (pa.DictionaryArray.from_arrays([1, 0, 2], VIEWS), TEXTS, [None, "a", LONG]),
        (
            pa.ListArray.from_arrays([0, 1, 3], pa.DictionaryArray.from_arrays([1, 0, 2], VIEWS)),
            pa.list_(TEXTS),
            [[None], ["a", LONG]],
        ),
        (pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), VIEWS.slice(0, 2)), TEXTS, ["a", None, None]),
    ],
)
def test_where_null_views_point_is_not_looked_at(array: pa.Array, target: pa.DataType, right: list[Any]) -> None:
    for one, values in ((array, right), (array.slice(1), right[1:])):
        made, bad = fit(one, target)
        made.validate(full=True)
        assert (made.type, made.to_pylist(), bad) == (target, values, {})


def test_lists_of_views_of_lists() -> None:
    views = pa.array([[[1], None, []], None, [[2, 3]]], pa.list_(pa.list_view(pa.int64())))
    assert fit(views.slice(1), pa.list_(pa.list_(pa.int64())))[0].to_pylist() == [None, [[2, 3]]]


def test_views_of_texts_that_are_not_utf_8() -> None:
    views = pa.array([b"a", b"\xff", b"l" * 29 + b"\xff", None], pa.binary_view())
    made, bad = fit(pa.Array.from_buffers(pa.string_view(), 4, views.buffers()), TEXTS)
    assert (made.to_pylist(), bad) == (["a", None, None, None], {1: "the text is not UTF-8", 2: "the text is not UTF-8"})


OUT = "Integer value 2147483648 not in range: -2147483648 to 2147483647"


@pytest.mark.parametrize(
    ("array", "target", "right", "said"),
    [
        (pa.array([5, None]), pa.large_string(), [None, None], {0: "large_string is wanted, not int64"}),
        (pa.array(["5", None]), pa.int64(), [None, None], {0: "int64 is wanted, not string"}),
        (pa.array([True]), pa.int8(), [None], {0: "int8 is wanted, not bool"}),
        (pa.array([1]), pa.bool_(), [None], {0: "bool is wanted, not int64"}),
        (pa.array([b"a"]), pa.large_string(), [None], {0: "large_string is wanted, not binary"}),
        (pa.array(["a"]).dictionary_encode(), pa.int8(), [None], {0: "int8 is wanted, not string"}),
        (pa.array([1, 2**31, 3, None]), pa.int32(), [1, None, 3, None], {1: f"int32 is wanted: {OUT}"}),
        (
            pa.array([1.5, 2.0]),
            pa.int64(),
            [None, 2],
            {0: "int64 is wanted: Float value 1.500000 was truncated converting to int64"},
        ),
        (
            pa.array([[1], [2**31], None, [2, 3]]),
            pa.list_(pa.int32()),
            [[1], None, None, [2, 3]],
            {1: f"list<item: int32> is wanted: {OUT}"},
        ),
        (pa.array([[1, None], [], None]), pa.list_(pa.int32()), [None, [], None], {0: "a number of the list is null"}),
        (
            pa.array([[1, None], [2, 3]], pa.list_(pa.int64(), 2)),
            pa.list_(pa.int64(), 2),
            [None, [2, 3]],
            {0: "a number of the list is null"},
        ),
        (
            pa.array([0], pa.timestamp("s")),
            pa.timestamp("s", "UTC"),
            [None],
            {0: "timestamp[s, tz=UTC] is wanted, not timestamp[s]"},
        ),
    ],
)
def test_what_does_not_fit(array: pa.Array, target: pa.DataType, right: list[Any], said: dict[int, str]) -> None:
    made, bad = fit(array, target)
    assert (made.type, made.to_pylist(), bad) == (target, right, said)


def test_a_list_of_another_length_does_not_fit() -> None:
    made, bad = fit(pa.array([[1, 2], [3], None]), pa.list_(pa.int64(), 2))
    assert (made.to_pylist(), list(bad)) == ([[1, 2], None, None], [1])


@given(
    values=st.lists(st.none() | st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 9), max_size=4), max_size=30),
    cut=st.integers(0, 9),
)
def test_tokens_are_kept_or_named(values: list[list[int] | None], cut: int) -> None:
    made, bad = fit(pa.array(values, pa.list_(pa.int64())).slice(cut), pa.list_(pa.int32()))
    fits = [value is None or all(-(1 << 31) <= x < 1 << 31 for x in value) for value in values[cut:]]
    assert made.to_pylist() == [value if fit else None for value, fit in zip(values[cut:], fits, strict=True)]
    assert list(bad) == [row for row, fit in enumerate(fits) if not fit]


def broken(kind: pa.DataType, values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary() if kind == pa.string() else pa.large_binary()).view(kind)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_that_is_not_utf_8_is_named(kind: pa.DataType) -> None:
    array = broken(kind, [b"a", b"\xff", None, b"\xed\xa0\x80", "é".encode()])
    made, bad = fit(array, pa.large_string())
    assert made.to_pylist() == ["a", None, None, None, "é"]
    assert bad == {1: "the text is not UTF-8", 3: "the text is not UTF-8"}
    assert fit(array.slice(2, 1), pa.large_string())[1] == {}
    with pytest.raises(pa.ArrowInvalid):
        fit(pa.ListArray.from_arrays([0, 5], array), pa.list_(pa.large_string()))


def test_offsets_that_lead_nowhere_are_a_broken_column() -> None:
    array = pa.Array.from_buffers(pa.string(), 2, [None, pa.array([0, 9, 3], pa.int32()).buffers()[1], pa.py_buffer(b"abc")])
    with pytest.raises(pa.ArrowInvalid):
        fit(array, pa.large_string())


def test_a_batch_has_the_schema_and_one_reason_a_row() -> None:
    schema = pa.schema({"a": pa.int8(), "b": pa.large_string(), "c": pa.float64()})
    batch, bad = conform(
        {"c": pa.array([1, 2]), "b": pa.array([1, None]), "a": pa.array([300, 1]), "z": pa.array([1, 1])}, 2, schema
    )
    assert batch.to_pylist() == [{"a": None, "b": None, "c": 1.0}, {"a": 1, "b": None, "c": 2.0}]
    assert batch.schema == schema
    assert bad == {0: "column 'a': int8 is wanted: Integer value 300 not in range: -128 to 127"}
    assert conform({}, 3, pa.schema({}))[0].num_rows == 3


PROMOTED = [
    (pa.int8(), pa.int32(), pa.int32()),
    (pa.uint8(), pa.int8(), pa.int16()),
    (pa.uint32(), pa.int8(), pa.int64()),
    (pa.uint64(), pa.int8(), pa.int64()),
    (pa.uint8(), pa.uint64(), pa.uint64()),
    (pa.int8(), pa.float32(), pa.float64()),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.null(), pa.bool_(), pa.bool_()),
    (pa.list_(pa.int8()), pa.list_(pa.int32()), pa.list_(pa.int32())),
    (pa.list_(pa.null()), pa.large_list(pa.int32()), pa.large_list(pa.int32())),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
    (pa.struct({"a": pa.int8()}), pa.struct({"b": pa.int8(), "a": pa.int16()}), pa.struct({"a": pa.int16(), "b": pa.int8()})),
    (pa.large_string(), pa.int8(), None),
    (pa.bool_(), pa.int8(), None),
    (pa.large_string(), pa.large_binary(), None),
    (pa.list_(pa.int8()), pa.int8(), None),
    (pa.list_(pa.int8()), pa.list_(pa.large_string()), None),
    (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.bool_()}), None),
    (pa.timestamp("s"), pa.timestamp("us"), None),
]


@pytest.mark.parametrize(("a", "b", "right"), PROMOTED)
def test_types_widen(a: pa.DataType, b: pa.DataType, right: pa.DataType | None) -> None:
    assert promote(a, b) == right
    assert promote(a, a) == a
    if right is None or not pa.types.is_struct(a):
        assert promote(b, a) == right


def test_one_type_stands_for_all_spellings() -> None:
    spelled = pa.struct(
        {
            "a": pa.dictionary(pa.int8(), pa.string()),
            "b": pa.list_view(pa.string_view()),
            "c": pa.large_list(pa.binary_view()),
            "d": pa.binary(2),
        }
    )
    plain = pa.struct(
        {"a": pa.large_string(), "b": pa.list_(pa.large_string()), "c": pa.large_list(pa.large_binary()), "d": pa.binary(2)}
    )
    assert canonical(spelled) == plain
    assert canonical(pa.map_(pa.string(), spelled)) == pa.map_(pa.large_string(), plain)
    assert canonical(pa.list_(pa.string(), 3)) == pa.list_(pa.large_string(), 3)
    assert canonical(pa.run_end_encoded(pa.int32(), pa.string())) == pa.large_string()
    tensor = pa.fixed_shape_tensor(pa.int8(), [2])
    assert canonical(tensor) == tensor
