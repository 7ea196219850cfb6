"""The tensors of a training step: cases E01, E03, E05, E07, an oracle that goes token by token, and every option."""

import sys
from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.batch import Batch, fill_rows
from zephon_async.errors import RecipeError
from zephon_async.kinds import FILL
from zephon_async.operators.pack_flat import PackFlat
from zephon_async.records import ORIGIN, Names, Origins, Records

NAMES = Names(("d",), (("s",),))
E01 = [[11, 12, 13], [21, 22], [31, 32, 33]]


def documents(tokens: list[list[int]], columns: dict[str, pa.Array] | None = None) -> Records:
    origins = np.zeros(len(tokens), ORIGIN)
    origins["row"], origins["stop"] = np.arange(len(tokens)), -1
    named = {"input_ids": pa.array(tokens, pa.list_(pa.int32())), **(columns or {})}
    return Records(pa.RecordBatch.from_pydict(named), Origins(origins))


def batch_of(records: Records, filled: int = 0) -> Batch:
    if filled:
        records = Records.concat([records, fill_rows(records.columns.schema, filled)])
    return Batch(records, NAMES, step=0, lane=0, number=0, filled=filled)


def packed(tokens: list[list[int]], n: int, pad_id: int = 0, filled: int = 0) -> Batch:
    accumulator = PackFlat(n, pad_id=pad_id).accumulator(0, 0)
    out = [accumulator.push(documents(tokens), 0, Counter())[0], accumulator.flush(Counter())]
    return batch_of(Records.concat([records for records in out if records is not None]), filled)


def lists(made: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in made.items()}


def test_cases_e01_and_e07_documents_are_isolated_in_every_row() -> None:
    made = lists(packed([*E01, *E01], 8).to_training(framework="numpy"))
    assert made == {
        "input_ids": [[11, 12, 13, 21, 22, 31, 32, 33]] * 2,
        "labels": [[12, 13, -100, 22, -100, 32, 33, -100]] * 2,
        "loss_mask": [[1, 1, 0, 1, 0, 1, 1, 0]] * 2,
        "positions": [[0, 1, 2, 0, 1, 0, 1, 2]] * 2,
        "document_ids": [[0, 0, 0, 1, 1, 2, 2, 2]] * 2,
        "padding_mask": [[False] * 8] * 2,
        "cu_seqlens": [[0, 3, 5, 8]] * 2,
        "max_seqlen": [3, 3],
        "ids": [(0, 0, 0), (0, 0, 3)],
    }


def test_case_e07_labels_across_documents_when_asked() -> None:
    made = packed(E01, 8).to_training(labels_across_documents=True, framework="numpy")
    assert made["labels"].tolist() == [[12, 13, 21, 22, 31, 32, 33, -100]]


def test_case_e05_one_shift() -> None:
    made = lists(packed([list(range(1, 10))], 8).to_training(framework="numpy"))
    assert made["input_ids"][0] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert made["labels"][0] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert made["labels"][1] == [-100] * 8


@pytest.mark.parametrize("across", [False, True])
def test_case_e03_padding_is_a_masked_tail(across: bool) -> None:
    batch = packed([[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]], 4, pad_id=7, filled=1)
    made = lists(batch.to_training(labels_across_documents=across, return_num_valid_tokens=True, framework="numpy"))
    assert made == {
        "input_ids": [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 7, 7], [7, 7, 7, 7]],
        "labels": [[2, 3, 4 if across else -100, 5], [6, 7, 8, 9], [10, -100, -100, -100], [-100] * 4],
        "loss_mask": [[1, 1, int(across), 1], [1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]],
        "positions": [[0, 1, 2, 0], [0, 1, 2, 3], [0, 1, 0, 0], [0, 0, 0, 0]],
        "document_ids": [[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, -1, -1], [-1, -1, -1, -1]],
        "padding_mask": [[False] * 4, [False] * 4, [False, False, True, True], [True] * 4],
        "cu_seqlens": [[0, 3, 4], [0, 4, 4], [0, 2, 2], [0, 0, 0]],
        "max_seqlen": [3, 4, 2, 0],
        "num_valid_tokens": 8 + across,
        "ids": [(0, 0, 0), (0, 0, 1), (0, 0, 1), (-1, -1, -1)],
    }


def test_positions_run_on_in_the_next_row_by_option() -> None:
    batch = packed([[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]], 4, filled=1)
    positions = {
        mode: batch.to_training(position_mode=mode, framework="numpy")["positions"].tolist()
        for mode in ("preserve", "document", "continue", "sequence")
    }
    assert positions["document"] == positions["preserve"] == [[0, 1, 2, 0], [0, 1, 2, 3], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert positions["continue"] == [[0, 1, 2, 0], [1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0]]
    assert positions["sequence"] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_flattened_rows_have_their_padding_in_segments_of_its_own() -> None:
    made = packed([[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]], 4, filled=1).to_training(flatten=True, framework="numpy")
    assert made["cu_seqlens"].tolist() == [0, 3, 4, 8, 10, 12, 16]
    assert made["max_seqlen"] == 4
    names = ("input_ids", "labels", "loss_mask", "positions", "document_ids", "padding_mask")
    assert [made[name].shape for name in names] == [(16,)] * len(names)


def test_ragged_rows_are_padded_to_the_longest() -> None:
    made = lists(batch_of(documents([[1, 2, 3], [], [4]]), filled=1).to_training(pad_id=9, framework="numpy"))
    assert made == {
        "input_ids": [[1, 2, 3], [9, 9, 9], [4, 9, 9], [9, 9, 9]],
        "labels": [[2, 3, -100], [-100] * 3, [-100] * 3, [-100] * 3],
        "loss_mask": [[1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
        "positions": [[0, 1, 2], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
        "document_ids": [[0, 0, 0], [-1] * 3, [0, -1, -1], [-1] * 3],
        "padding_mask": [[False] * 3, [True] * 3, [False, True, True], [True] * 3],
        "cu_seqlens": [[0, 3], [0, 0], [0, 1], [0, 0]],
        "max_seqlen": [3, 0, 1, 0],
        "ids": [(0, 0, 0), (0, 0, 1), (0, 0, 2), (-1, -1, -1)],
    }
    assert batch_of(documents([[]])).to_training(framework="numpy")["labels"].shape == (1, 0)


def test_the_pad_id_of_a_ragged_column_is_in_its_metadata() -> None:
    field = pa.field("input_ids", pa.list_(pa.int32()), metadata={FILL: b"5"})
    records = documents([[1], [2, 3]])
    records = records.with_columns(records.columns.cast(pa.schema([field])))
    assert batch_of(records).to_training(framework="numpy")["input_ids"].tolist() == [[1, 5], [2, 3]]


def test_rows_of_fixed_size_without_segments_are_one_document() -> None:
    records = documents([[1, 2], [3, 4]])
    records = records.with_columns(pa.RecordBatch.from_pydict({"tokens": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))}))
    made = lists(batch_of(records, filled=1).to_training(framework="numpy"))
    assert made["labels"] == [[2, -100], [4, -100], [-100, -100]]
    assert made["padding_mask"] == [[False, False], [False, False], [True, True]]
    assert made["cu_seqlens"] == [[0, 2], [0, 2], [0, 0]]


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=9), min_size=1, max_size=9), st.integers(1, 9), st.booleans())
def test_against_an_oracle(tokens: list[list[int]], n: int, across: bool) -> None:
    batch = packed(tokens, n, pad_id=51)
    made = lists(batch.to_training(labels_across_documents=across, position_mode="continue", framework="numpy"))
    stream = [(token, document, place) for document, of in enumerate(tokens) for place, token in enumerate(of)]
    for row in range(len(batch)):
        here = stream[row * n : row * n + n]
        labels = []
        for at, (_, document, _) in enumerate(here, row * n):
            inside = at + 1 < len(stream) and (stream[at + 1][1] == document or (across and at + 1 < row * n + n))
            labels.append(stream[at + 1][0] if inside else -100)
        padding = n - len(here)
        assert made["input_ids"][row] == [token for token, _, _ in here] + [51] * padding
        assert made["labels"][row] == labels + [-100] * padding
        assert made["positions"][row] == [place for _, _, place in here] + [0] * padding
        assert made["document_ids"][row] == [document - here[0][1] for _, document, _ in here] + [-1] * padding
        assert made["padding_mask"][row] == [False] * len(here) + [True] * padding
        ends = [end for end in range(1, len(here) + 1) if end == len(here) or here[end][1] != here[end - 1][1]]
        assert made["cu_seqlens"][row] == [0, *ends] + [len(here)] * (len(made["cu_seqlens"][row]) - len(ends) - 1)
        assert made["max_seqlen"][row] == max(b - a for a, b in zip([0, *ends], ends, strict=False))


def test_types() -> None:
    batch = packed(E01, 8)
    made = batch.to_training(framework="numpy")
    assert {name: value.dtype.name for name, value in made.items() if isinstance(value, np.ndarray)} == {
        "input_ids": "int64",
        "labels": "int64",
        "loss_mask": "float32",
        "positions": "int64",
        "document_ids": "int32",
        "padding_mask": "bool",
        "cu_seqlens": "int32",
        "max_seqlen": "int32",
    }
    for dtype in (np.int32, "int32", np.dtype("int32")):
        made = batch.to_training(dtype=dtype, framework="numpy")
        assert {made[name].dtype.name for name in ("input_ids", "labels", "positions")} == {"int32"}
    made = batch.to_training(dtype=None)
    assert made["input_ids"] == [[11, 12, 13, 21, 22, 31, 32, 33]]
    with pytest.raises(RecipeError, match="can hold ignore_index=-100"):
        batch.to_training(dtype=np.uint16)
    assert batch.to_training(dtype=np.uint16, ignore_index=65535, framework="numpy")["labels"][0, 2] == 65535
    with pytest.raises(RecipeError, match="give a wider one"):
        packed([[1000, 2]], 2).to_training(dtype=np.int8, framework="numpy")
    with pytest.raises(RecipeError, match="type of whole numbers"):
        batch.to_training(dtype=np.float32)


def test_inputs_are_not_shared_with_the_batch() -> None:
    batch = packed(E01, 8)
    made = batch.to_training(dtype=np.int32, framework="numpy")
    made["input_ids"][:] = 0
    assert batch.columns["input_ids"][0, 0] == 11


def test_what_is_left_out_renamed_and_added() -> None:
    batch = batch_of(
        documents(
            [[1, 2], [3]], {"score": pa.array([0.5, 1.5]), "text": pa.array(["a", "b"]), "weights": pa.array([[0.1, 0.2], [0.3]])}
        )
    )
    made = batch.to_training(
        return_labels=False,
        return_loss_mask=False,
        return_cu_seqlens=False,
        return_padding_mask=False,
        return_document_ids=False,
        extra_fields=["score", "text", "weights"],
        rename_fields={"input_ids": "positions", "positions": "input_ids"},
        exclude_fields=["ids"],
        framework="numpy",
    )
    assert lists(made) == {
        "positions": [[1, 2], [3, 0]],
        "input_ids": [[0, 1], [0, 0]],
        "score": [0.5, 1.5],
        "text": ["a", "b"],
        "weights": [[0.1, 0.2], [0.3, 0.0]],
    }
    with pytest.raises(RecipeError, match="two fields would have one name"):
        batch.to_training(rename_fields={"labels": "input_ids"})
    with pytest.raises(RecipeError, match=r"there is no 'lables', there are .*; did you mean 'labels'\?$"):
        batch.to_training(rename_fields={"lables": "targets"})
    with pytest.raises(RecipeError, match="there is no column 'other'"):
        batch.to_training(extra_fields=["other"])


def test_eos_and_ignored_labels() -> None:
    batch = packed([[5, 0, 6, 7]], 4)
    made = batch.to_training(eos_mask_loss=True, eos_token_id=0, ignore_index=-1, return_num_valid_tokens=True, framework="numpy")
    assert made["labels"].tolist() == [[0, -1, 7, -1]]
    assert made["num_valid_tokens"] == 2
    with pytest.raises(RecipeError, match="needs eos_token_id"):
        batch.to_training(eos_mask_loss=True)


def test_a_loss_mask_and_positions_of_ones_own() -> None:
    columns = {"loss_mask": pa.array([[1, 0, 1], [0, 1]]), "positions": pa.array([[7, 8, 9], [3, 4]])}
    batch = batch_of(documents([[1, 2, 3], [4, 5]], columns))
    made = batch.to_training(framework="numpy")
    assert made["labels"].tolist() == [[-100, 3, -100], [5, -100, -100]]
    assert made["loss_mask"].tolist() == [[0, 1, 0], [1, 0, 0]]
    assert made["positions"].tolist() == [[7, 8, 9], [3, 4, 0]]
    assert batch.to_training(position_mode="document", framework="numpy")["positions"].tolist() == [[0, 1, 2], [0, 1, 0]]
    with pytest.raises(RecipeError, match="one number for each token"):
        batch_of(documents([[1, 2, 3]], {"loss_mask": pa.array([[1, 0]])})).to_training()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"return_lables": True}, "knows no 'return_lables'; did you mean 'return_labels'"),
        ({"position_mode": "reset"}, "it must be one of 'preserve', 'document', 'continue', 'sequence'"),
        ({"framework": "jax"}, "it must be one of 'auto', 'torch', 'numpy'"),
        ({"tokens_field": "words"}, r"no column words, there are \['input_ids', 'text'\]$"),
        ({"tokens_field": "input_id"}, r"no column input_id, there are .*; did you mean 'input_ids'\?$"),
        ({"extra_fields": ["texts"]}, r"no column 'texts', there are .*; did you mean 'text'\?$"),
        ({"tokens_field": "text"}, "string, not a list of token ids"),
        ({"tokens_field": 5}, "no column 5"),
        ({"tokens_field": ["input_ids"]}, "no column .'input_ids'., there are"),
        ({"dtype": "int33"}, "give a type of whole numbers such as 'int64'"),
        ({"dtype": 3.5}, "give a type of whole numbers such as 'int64'"),
        ({"dtype": "bfloat16"}, "give a type of whole numbers such as 'int64'"),
        ({"flatten": "no"}, "flatten is 'no': it must be True or False"),
        ({"labels_across_documents": None}, "labels_across_documents is None: it must be True or False"),
        ({"return_num_valid_tokens": 0}, "return_num_valid_tokens is 0: it must be True or False"),
        ({"extra_fields": "text"}, "extra_fields is 'text': it must be a list of names"),
        ({"exclude_fields": "labels"}, "exclude_fields is 'labels': it must be a list of names"),
        ({"rename_fields": ["labels"]}, "give a dict of a new name for each name"),
        ({"rename_fields": {"labels": 3}}, "give a dict of a new name for each name"),
        ({"pin_memory": 1}, "pin_memory is 1: it must be True or False"),
        ({"framework": "numpy", "pin_memory": True}, r"pin_memory=True\): that needs tensors of torch, with framework='numpy'"),
        ({"framework": "numpy", "device": "cpu"}, r"device='cpu'\): that needs tensors of torch, with framework='numpy'"),
        ({"dtype": None, "device": "cpu"}, r"device='cpu', dtype=None\): lists have no memory"),
        ({"collate": 5}, r"collate=5\): give a function"),
        ({"collate": len}, r"collate=...\): it gave int 9, wanted a dict of tensors by name"),
        ({"ignore_index": None}, "ignore_index is None: it must be a whole number"),
        ({"ignore_index": 1.5}, "ignore_index is 1.5"),
        ({"ignore_index": 1 << 63}, "ignore_index is 9223372036854775808: labels of 64 bits cannot hold it"),
        ({"pad_id": "x"}, "pad_id is 'x'"),
        ({"pad_id": 1 << 40}, r"pad_id is 1099511627776: the tokens are int32, which cannot hold it; give a token id"),
        ({"eos_mask_loss": True, "eos_token_id": "x"}, "eos_token_id is 'x'"),
    ],
)
def test_refusals(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        batch_of(documents([[1]], {"text": pa.array(["a"])})).to_training(**settings)


def test_no_tokens_at_all() -> None:
    records = documents([[1]])
    with pytest.raises(RecipeError, match="no column input_ids or tokens or token_ids or ids"):
        batch_of(records.with_columns(pa.RecordBatch.from_pydict({"n": [1]}))).to_training()


def test_torch_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RecipeError, match=r"framework='torch'\): .*; install torch, or use framework='numpy'"):
        batch_of(documents([[1]])).to_training(framework="torch")


def test_names_that_there_are_not() -> None:
    to_training: Any = batch_of(documents([[1]])).to_training
    for name in ("label", "labels"):
        with pytest.raises(RecipeError, match=rf"to_training\(\) knows no '{name}'; did you mean 'return_labels'\?"):
            to_training(**{name: False})
    with pytest.raises(RecipeError, match=r"to_training\(\) knows no 'collate_fn'; did you mean 'collate'\?"):
        to_training(collate_fn=dict)
    with pytest.raises(RecipeError, match=r"to_training\(\) knows no 'x'; there are: collate, device, dtype"):
        to_training(x=1)
    with pytest.raises(RecipeError, match="too many positional arguments; it takes labels_across_documents"):
        to_training(1)


def test_torch_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor:
        def __init__(self, array: npt.NDArray[Any]) -> None:
            assert array.flags.writeable  # torch warns of the others
            self.array = array

    torch = ModuleType("torch")
    torch.from_numpy = Tensor  # type: ignore[attr-defined]
    torch.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "torch", torch)

    class Long:
        def __str__(self) -> str:
            return "torch.int32"

    Long.__module__ = "torch"
    batch = batch_of(documents([[1, 2], [3]], {"score": pa.array([0.5, 1.5])}))
    made = batch.to_training(dtype=Long(), extra_fields=["score"])
    assert {name for name, value in made.items() if not isinstance(value, Tensor)} == {"ids"}
    assert made["input_ids"].array.dtype == np.int32
    assert made["score"].array.tolist() == [0.5, 1.5]
    assert isinstance(batch.to_training(framework="numpy")["input_ids"], np.ndarray)
