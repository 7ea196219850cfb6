"""What the tensors of numpy are like: of their own memory, fit for DLPack, as `collate` gives them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.test_training import E01, batch_of, documents, packed
from zephon_async.batch import Batch

IMAGES = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4))


def with_extras() -> Batch:
    columns = {
        "score": pa.array([0.5, 1.5]),
        "flag": pa.array([True, False]),
        "image": IMAGES,
        "weights": pa.array([[0.1, 0.2], [0.3]]),
        "positions": pa.array([[7, 8], [9]]),
    }
    return batch_of(documents([[1, 2], [3]], columns))


EXTRAS = ("score", "flag", "image", "weights")
SETTINGS: tuple[dict[str, Any], ...] = ({}, {"flatten": True}, {"dtype": "int32"}, {"dtype": np.dtype(">i4")})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_array_goes_through_dlpack_without_a_copy(settings: dict[str, Any]) -> None:
    for batch, extras in ((with_extras(), EXTRAS), (packed(E01, 5), ())):
        made = batch.to_training(framework="numpy", extra_fields=extras, **settings)
        arrays = {name: value for name, value in made.items() if isinstance(value, np.ndarray)}
        assert {*extras, "input_ids", "labels", "positions", "cu_seqlens"} <= set(arrays)
        for array in arrays.values():
            assert array.flags.c_contiguous
            assert array.flags.writeable
            consumed = np.from_dlpack(array)
            assert np.shares_memory(consumed, array)
            assert np.array_equal(consumed, array)


def test_nothing_is_shared_with_the_batch() -> None:
    batch = with_extras()
    before = batch.digest()
    for value in batch.to_training(framework="numpy", dtype="int32", extra_fields=EXTRAS).values():
        if isinstance(value, np.ndarray):
            value[...] = 0
    assert batch.digest() == before


def test_collate_takes_what_is_made_and_its_result_is_given() -> None:
    def collated(made: dict[str, Any]) -> dict[str, Any]:
        assert all(isinstance(made[name], np.ndarray) for name in ("tokens", "labels"))
        return {"inputs": made["tokens"], "pairs": made["tokens"].sum(), "ids": made["ids"]}

    made = packed(E01, 8).to_training(framework="numpy", rename_fields={"input_ids": "tokens"}, collate=collated)
    assert list(made) == ["inputs", "pairs", "ids"]
    assert made["pairs"] == sum(map(sum, E01))


def test_collate_of_lists() -> None:
    made = packed(E01, 8).to_training(dtype=None, collate=lambda made: {"first": made["input_ids"][0][0]})
    assert made == {"first": 11}
