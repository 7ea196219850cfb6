"""Logical sizes against a slow Python oracle, for every Arrow type, sliced and with garbage under nulls."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.io import logical_bytes, row_sizes

T = pa.types


def slow(value: Any, kind: pa.DataType) -> int:
    """The logical size of one Python value of an Arrow type."""
    if value is None:
        return 0
    if T.is_boolean(kind):
        return 1
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if T.is_struct(kind):
        return sum(slow(value[field.name], field.type) for field in kind)
    if T.is_map(kind):
        return sum(slow(key, kind.key_type) + slow(item, kind.item_type) for key, item in value)
    if isinstance(value, list):
        return sum(slow(inner, kind.value_type) for inner in value)
    if T.is_dictionary(kind) or T.is_run_end_encoded(kind):
        return slow(value, kind.value_type)
    return int(kind.bit_width) // 8


texts, blobs, wholes = st.text(max_size=5), st.binary(max_size=5), st.integers(-100, 100)
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "null": (pa.null(), st.none()),
    "bool": (pa.bool_(), st.booleans()),
    "int16": (pa.int16(), wholes),
    "double": (pa.float64(), wholes.map(float)),
    "date": (pa.date32(), st.dates()),
    "string": (pa.string(), texts),
    "large_string": (pa.large_string(), texts),
    "string_view": (pa.string_view(), texts),
    "binary": (pa.binary(), blobs),
    "binary_view": (pa.binary_view(), blobs),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "list": (pa.list_(pa.int32()), st.lists(st.none() | wholes, max_size=4)),
    "large_list": (pa.large_list(pa.string()), st.lists(st.none() | texts, max_size=4)),
    "fixed_list": (pa.list_(pa.int16(), 2), st.lists(st.none() | wholes, min_size=2, max_size=2)),
    "empty_lists": (pa.list_(pa.int16(), 0), st.just([])),
    "list_view": (pa.list_view(pa.string()), st.lists(st.none() | texts, max_size=4)),
    "lists": (pa.list_(pa.list_(pa.binary())), st.lists(st.none() | st.lists(blobs, max_size=3), max_size=3)),
    "struct": (
        pa.struct({"a": pa.string(), "b": pa.list_(pa.int8())}),
        st.fixed_dictionaries({"a": st.none() | texts, "b": st.none() | st.lists(wholes, max_size=3)}),
    ),
    "map": (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(texts, st.none() | wholes), max_size=3)),
}


@pytest.mark.parametrize("name", KINDS)
@given(draw=st.data())
def test_sizes_are_those_of_the_oracle(name: str, draw: st.DataObject) -> None:
    kind, values = KINDS[name]
    given_values = draw.draw(st.lists(st.none() | values, max_size=12))
    array = pa.array(given_values, kind)
    start = draw.draw(st.integers(0, len(array)))
    piece = array.slice(start, draw.draw(st.integers(0, len(array))))
    for one in (array, piece):
        sizes = logical_bytes(one)
        assert sizes.dtype == np.int64
        assert sizes.tolist() == [slow(value, kind) for value in one.to_pylist()]


@pytest.mark.parametrize("encode", [pc.dictionary_encode, pc.run_end_encode], ids=["dictionary", "runs"])
def test_encoded_values_count_as_what_they_are(encode: Callable[[pa.Array], pa.Array]) -> None:
    array = encode(pa.array(["aa", "aa", None, "b", "aa"]))
    assert logical_bytes(array).tolist() == [2, 2, 0, 1, 2]
    assert logical_bytes(array.slice(2, 2)).tolist() == [0, 1]
    assert logical_bytes(pa.array([None, None], pa.dictionary(pa.int8(), pa.string()))).tolist() == [0, 0]


def test_garbage_under_nulls_does_not_count() -> None:
    mask = pa.array([False, True, False])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 5, 7], pa.int32()), pa.array([1] * 7, pa.int8()), mask=mask)
    assert logical_bytes(lists).tolist() == [1, 0, 2]
    assert logical_bytes(lists.slice(1)).tolist() == [0, 2]
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(["a", "bb", "c", "d", "e", "f"]), 2, mask=mask)
    assert logical_bytes(fixed).tolist() == [3, 0, 2]
    structs = pa.StructArray.from_arrays([pa.array(["a", "bb", "c"])], ["x"], mask=mask)
    assert logical_bytes(structs).tolist() == [1, 0, 1]
    validity = pa.py_buffer(b"\x05")
    text = pa.Array.from_buffers(pa.string(), 3, [validity, *pa.array(["a", "bbb", "cc"]).buffers()[1:]])
    assert logical_bytes(text).tolist() == [1, 0, 2]


def test_tensors_and_unions() -> None:
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int16(), [2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2))
    )
    assert logical_bytes(tensors).tolist() == [4, 4]
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(TypeError, match=r"^values of type sparse_union<0: int64=0> have no logical size$"):
        logical_bytes(union)


def test_a_row_has_at_least_one_byte() -> None:
    batch = pa.record_batch({"a": ["x", "", None], "b": [1, None, None]})
    assert row_sizes(batch, ["a", "b", "c"]).tolist() == [9, 1, 1]
    assert row_sizes(batch, ["a"]).tolist() == [1, 1, 1]
    assert row_sizes(batch, []).tolist() == [1, 1, 1]
