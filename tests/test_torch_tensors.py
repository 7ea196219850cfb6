"""Tensors of torch: their types, their memory, and where they are. Without a GPU, so `meta` stands for another device."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.test_tensors import EXTRAS, with_extras
from tests.test_training import E01, batch_of, documents, packed
from zephon_async.errors import RecipeError


def tensors(made: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in made.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("settings", [{}, {"flatten": True}, {"dtype": torch.int32}, {"dtype": np.dtype(">i4")}], ids=str)
def test_they_are_those_of_numpy(settings: dict[str, Any]) -> None:
    for batch, extras in ((with_extras(), EXTRAS), (packed(E01, 5), ())):
        wanted = batch.to_training(framework="numpy", extra_fields=extras, **settings)
        made = batch.to_training(extra_fields=extras, **settings)
        assert {name for name, value in wanted.items() if isinstance(value, np.ndarray)} == set(tensors(made))
        for name, tensor in tensors(made).items():
            assert tensor.numpy().dtype == wanted[name].dtype
            assert np.array_equal(tensor.numpy(), wanted[name])
            assert np.array_equal(torch.from_dlpack(wanted[name]).numpy(), wanted[name])


def test_types() -> None:
    made = packed(E01, 8).to_training()
    assert (made["input_ids"].dtype, made["loss_mask"].dtype, made["cu_seqlens"].dtype) == (torch.int64, torch.float32, torch.int32)
    made = packed(E01, 8).to_training(dtype=torch.int32)
    assert {made[name].dtype for name in ("input_ids", "labels", "positions")} == {torch.int32}


def test_nothing_is_shared_with_the_batch() -> None:
    batch = with_extras()
    before = batch.digest()
    for tensor in tensors(batch.to_training(dtype="int32", extra_fields=EXTRAS, device="cpu")).values():
        tensor.zero_()
    assert batch.digest() == before


@pytest.mark.parametrize("device", ["meta", torch.device("meta")], ids=str)
def test_all_of_them_are_on_the_device_and_other_values_stay(device: Any) -> None:
    batch = batch_of(documents([[1, 2], [3]], {"text": pa.array(["a", "b"])}))
    made = batch.to_training(device=device, extra_fields=["text"], flatten=True)
    assert {tensor.device.type for tensor in tensors(made).values()} == {"meta"}
    assert (made["text"], made["ids"], made["max_seqlen"]) == (["a", "b"], [(0, 0, 0), (0, 0, 1)], 2)


def test_copies_do_not_block_and_come_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    to = torch.Tensor.to

    def pinned(tensor: Any) -> Any:
        calls.append("pin")
        return tensor

    def moved(tensor: Any, device: Any, non_blocking: bool = False) -> Any:
        calls.append((device, non_blocking))
        return to(tensor, device, non_blocking=non_blocking)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    monkeypatch.setattr(torch.Tensor, "to", moved)
    made = packed(E01, 8).to_training(pin_memory=True, device="meta", collate=lambda made: {"a": made["labels"], "b": 5})
    assert calls == ["pin", (torch.device("meta"), True)]
    assert (made["a"].device.type, made["b"]) == ("meta", 5)


def test_tensors_inside_of_what_collate_gives_are_moved_too() -> None:
    class Pair(NamedTuple):
        tokens: Any
        name: str

    def nested(made: dict[str, Any]) -> dict[str, Any]:
        tokens = made["input_ids"]
        return {
            "list": [tokens, "x"],
            "tuple": (tokens,),
            "dict": {"a": {"b": tokens}},
            "pair": Pair(tokens, "y"),
            "ids": made["ids"],
        }

    made = packed(E01, 8).to_training(device="meta", collate=nested)
    moved = [made["list"][0], *made["tuple"], made["dict"]["a"]["b"], made["pair"].tokens]
    assert {tensor.device.type for tensor in moved} == {"meta"}
    assert (type(made["tuple"]), made["list"][1], made["pair"].name) == (tuple, "x", "y")
    assert made["ids"] == packed(E01, 8).to_training(framework="numpy")["ids"]


@pytest.mark.parametrize("device", ["cdua", "cuda:77", 5.5], ids=str)
def test_a_device_that_is_not_there(device: Any) -> None:
    with pytest.raises(RecipeError, match=rf"to_training\(device={device!r}\): "):
        packed(E01, 8).to_training(device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator to pin memory for")
def test_memory_that_cannot_be_pinned() -> None:
    with pytest.raises(RecipeError, match=r"to_training\(pin_memory=True\): "):
        packed(E01, 8).to_training(pin_memory=True)
