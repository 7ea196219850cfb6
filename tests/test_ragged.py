"""Tensors of differing shapes: in a column, in a batch, and in what a training step gets."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.test_training import batch_of, documents, lists
from zephon_async.errors import RecipeError
from zephon_async.ragged import is_ragged, ragged, ragged_type, tensor_column

KIND = ragged_type(pa.int16(), 2)
TENSORS = st.lists(st.none() | arrays.arrays(np.int16, arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=4)))


@given(TENSORS, st.integers(0, 5), st.integers(0, 5))
def test_tensors_come_back(values: list[Any], cut: int, more: int) -> None:
    column = tensor_column([each for each in values if each is not None], np.array([v is not None for v in values], bool), KIND)
    column, values = column.slice(cut, more), values[cut : cut + more]
    there = [each for each in values if each is not None]
    found = ragged(column)
    assert [each.tolist() for each in found] == [each.tolist() for each in there]
    assert found.shapes.tolist() == [list(each.shape) for each in there]
    assert np.diff(found.row_offsets).tolist() == [int(each is not None) for each in values]
    padded = found.padded()
    assert padded.shape == (len(there), *(max((each.shape[d] for each in there), default=0) for d in range(2)))
    assert int(padded.sum()) == sum(int(each.sum(dtype=np.int64)) for each in there)
    assert all(np.array_equal(padded[n][: each.shape[0], : each.shape[1]], each) for n, each in enumerate(there))


def test_what_is_ragged() -> None:
    fixed = pa.fixed_shape_tensor(pa.uint8(), [2, 2])
    assert [is_ragged(kind) for kind in (KIND, pa.list_(KIND), pa.list_(fixed))] == [True] * 3
    others = [fixed, pa.list_(pa.int8()), pa.struct([("data", pa.list_(pa.int8()))]), pa.list_(pa.string()), pa.int8()]
    assert not any(map(is_ragged, others))
    text = pa.struct([("data", pa.list_(pa.string())), ("shape", pa.list_(pa.int32(), 2))])
    assert not is_ragged(text)


A, B, C = (np.arange(6).reshape(2, 3) + 1, np.full((1, 1), 7), np.array([[8], [9]]))


def batch(filled: int = 0) -> Any:
    single = tensor_column([A, B], np.array([True, False, True]), ragged_type(pa.int64(), 2))
    inner = tensor_column([A, B, C], np.ones(3, bool), ragged_type(pa.int64(), 2))
    several = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), inner)
    return batch_of(documents([[1, 2], [3, 4], [5, 6]], {"one": single, "several": several, "plain": pa.array([1, 2, 3])}), filled)


def test_a_batch_shows_them() -> None:
    found = batch(filled=1).ragged("several")
    assert [each.tolist() for each in found] == [A.tolist(), B.tolist(), C.tolist()]
    assert found.row_offsets.tolist() == [0, 2, 2, 3, 3]
    assert batch(filled=1).ragged("one").row_offsets.tolist() == [0, 1, 1, 2, 2]
    with pytest.raises(RecipeError, match=r"batch.ragged\('plain'\): the column is int64.*take batch.columns\['plain'\]"):
        batch().ragged("plain")
    with pytest.raises(KeyError, match="there is no column 'images'"):
        batch().ragged("images")


@pytest.mark.parametrize("flatten", [False, True])
def test_to_training_gives_values_and_offsets(flatten: bool) -> None:
    made = lists(batch(1).to_training(framework="numpy", extra_fields=["one", "several", "plain"], flatten=flatten))
    assert {name: made[name] for name in made if name.startswith(("one", "several", "plain"))} == {
        "one": [1, 2, 3, 4, 5, 6, 7],
        "one_offsets": [0, 6, 7],
        "one_shapes": [[2, 3], [1, 1]],
        "one_row_offsets": [0, 1, 1, 2, 2],
        "several": [1, 2, 3, 4, 5, 6, 7, 8, 9],
        "several_offsets": [0, 6, 7, 9],
        "several_shapes": [[2, 3], [1, 1], [2, 1]],
        "several_row_offsets": [0, 2, 2, 3, 3],
        "plain": [1, 2, 3, 0],
    }


def test_to_training_pads() -> None:
    settings: dict[str, Any] = {"framework": "numpy", "extra_fields": ["several"], "pad_fields": ["several"]}
    made = batch().to_training(**settings, rename_fields={"several": "pixels"}, exclude_fields=["several_row_offsets"])
    assert made["pixels"].tolist() == [A.tolist(), [[7, 0, 0], [0, 0, 0]], [[8, 0, 0], [9, 0, 0]]]
    assert made["pixels"].flags.writeable
    assert made["several_shapes"].tolist() == [[2, 3], [1, 1], [2, 1]]
    assert {"several_offsets", "several_row_offsets"}.isdisjoint(made)


@pytest.mark.parametrize("settings", [{"pad_fields": ["several"]}, {"pad_fields": ["plain"], "extra_fields": ["plain"]}])
def test_what_cannot_be_padded_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"pad_fields=.*is none of extra_fields with tensors to pad"):
        batch().to_training(framework="numpy", **settings)
