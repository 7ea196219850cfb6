"""Make the tensors of a training step of a batch of token rows.

Takes packed rows (`pack_flat`: a list of fixed size, with `segment_lengths` and `next_token`) or ragged ones (a list of tokens
a row, each row one document), which are padded to the longest of the batch. Gives arrays of full length, B rows by S tokens:
labels are shifted once, here, and nowhere else. What is behind the documents of a row is padding: it belongs to no document,
to no segment of a row's `cu_seqlens`, and to no loss. All of it is derived from the lengths of the segments.

torch is loaded on first use, where it is installed; without it everything is numpy.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import checks_call, column_names, flag, hint, one_of, whole
from zephon_async.errors import RecipeError
from zephon_async.kinds import FILL, NO_TOKEN, is_list, list_lengths

if TYPE_CHECKING:
    from zephon_async.batch import Batch

TOKEN_FIELDS = ("input_ids", "tokens", "token_ids", "ids")
POSITION_MODES = ("preserve", "document", "continue", "sequence")
FRAMEWORKS = ("auto", "torch", "numpy")


@checks_call
def to_training(
    batch: "Batch",
    *,
    labels_across_documents: bool = False,
    tokens_field: str = "auto",
    return_labels: bool = True,
    return_loss_mask: bool = True,
    return_cu_seqlens: bool = True,
    return_padding_mask: bool = True,
    return_document_ids: bool = True,
    return_num_valid_tokens: bool = False,
    dtype: Any = "auto",
    ignore_index: int = -100,
    pad_id: int | None = None,
    position_mode: Literal["preserve", "document", "continue", "sequence"] = "preserve",
    eos_mask_loss: bool = False,
    eos_token_id: int | None = None,
    extra_fields: Sequence[str] = (),
    rename_fields: Mapping[str, str] | None = None,
    exclude_fields: Sequence[str] = (),
    flatten: bool = False,
    framework: Literal["auto", "torch", "numpy"] = "auto",
) -> dict[str, Any]:
    """Tensors by name, of torch where it is installed, else of numpy (`framework` says which).

    input_ids        [B, S]
    labels           [B, S]: the next token; ignore_index at the last token of a document (with labels_across_documents the next
                     in the row, whatever its document), in the padding, where the column `loss_mask`, if there is one, is 0 for
                     the next token, and with eos_mask_loss behind an eos_token_id. A row cut inside a document ends in the token
                     that follows there.
    loss_mask        [B, S] float32: 1 where there is a label
    positions        [B, S]: 0, 1, ... in each document ("document"), from the place in the document on where it began in an
                     earlier row ("continue"), or in each row ("sequence"); "preserve": the column `positions` where there is
                     one, else "document". 0 in the padding.
    document_ids     [B, S] int32: 0, 1, ... in each row; -1 in the padding
    cu_seqlens       [B, K] int32: 0 and the end of each document, the last repeated up to K. max_seqlen: [B] int32
    padding_mask     [B, S] bool: True in the padding (all of a filler row)
    num_valid_tokens int: labels that are not ignored
    ids              B triples of numbers: dataset, shard, row of the first document; -1 in filler rows

    dtype: of input_ids, labels and positions; "auto" is int64; None gives lists in place of tensors. pad_id: for ragged rows;
    None takes that of the column, else 0. extra_fields: further columns as they are (ragged numbers padded with 0, text as
    lists). rename_fields, then exclude_fields: names of the result. flatten: [B, S, ...] becomes [B * S, ...]; then cu_seqlens
    has one dimension, in which a padded end of a row is a segment of its own, and max_seqlen is the longest of all, an int.
    """
    one_of("to_training: position_mode", position_mode, POSITION_MODES)
    one_of("to_training: framework", framework, FRAMEWORKS)
    if eos_mask_loss and eos_token_id is None:
        raise RecipeError("to_training(eos_mask_loss=True) needs eos_token_id=")
    for name, number in (("ignore_index", ignore_index), ("pad_id", pad_id or 0), ("eos_token_id", eos_token_id or 0)):
        whole(f"to_training: {name}", number)
    for name, value in (
        *(("labels_across_documents", labels_across_documents), ("eos_mask_loss", eos_mask_loss), ("flatten", flatten)),
        *(("return_labels", return_labels), ("return_loss_mask", return_loss_mask), ("return_cu_seqlens", return_cu_seqlens)),
        *(("return_padding_mask", return_padding_mask), ("return_document_ids", return_document_ids)),
        ("return_num_valid_tokens", return_num_valid_tokens),
    ):
        flag(f"to_training: {name}", value)
    if ignore_index >= 1 << 63:
        raise RecipeError(f"to_training: ignore_index is {ignore_index}: labels of 64 bits cannot hold it; give a smaller one")
    extra_fields = column_names("to_training: extra_fields", extra_fields)
    exclude_fields = column_names("to_training: exclude_fields", exclude_fields)
    rows = TokenRows(batch, tokens_field, pad_id)
    integers = _integers(dtype, ignore_index)
    labels = rows.labels(labels_across_documents, ignore_index)
    if eos_mask_loss:
        labels[rows.tokens == eos_token_id] = ignore_index
    made: dict[str, Any] = {"input_ids": _cast(rows.tokens, integers, copy=True)}
    if return_labels:
        made["labels"] = _cast(labels, integers)
    if return_loss_mask:
        made["loss_mask"] = (labels != ignore_index).astype(np.float32)
    made["positions"] = _cast(rows.positions(position_mode), integers)
    if return_document_ids:
        made["document_ids"] = rows.document_ids
    if return_padding_mask:
        made["padding_mask"] = ~rows.real
    for name in extra_fields:
        made[name] = _extra(batch, name)
    if flatten:
        made = {name: _flat(value, rows.shape) for name, value in made.items()}
    if return_cu_seqlens:
        made["cu_seqlens"], made["max_seqlen"] = rows.flat_cu_seqlens() if flatten else rows.cu_seqlens()
    if return_num_valid_tokens:
        made["num_valid_tokens"] = int(np.count_nonzero(labels != ignore_index))
    made["ids"] = rows.ids()
    return _delivered(_renamed(made, rename_fields or {}, exclude_fields), framework, dtype is None)


class TokenRows:
    """The rows of a batch, B by S, and the documents in them. `real` is False in the padding; `lengths` has one entry a
    document, `begins` its first column, `counts` the documents of each row."""

    def __init__(self, batch: "Batch", tokens_field: str, pad_id: int | None) -> None:
        self._batch = batch
        self.field = _token_field(batch, tokens_field)
        column = batch.records.columns.column(self.field)
        if isinstance(face := batch.columns[self.field], np.ndarray) and face.ndim == 2 and face.dtype.kind in "iu":
            self.tokens, self.lengths, self.counts = face, *self._segments(face)
        elif is_list(column.type) and pa.types.is_integer(column.type.value_type):
            lengths = list_lengths(column)
            self.tokens = _padded(column, lengths, self._pad_id() if pad_id is None else pad_id)
            self.lengths, self.counts = lengths[lengths > 0], (lengths > 0).astype(np.int64)
        else:
            raise RecipeError(f"to_training(tokens_field={self.field!r}): the column is {column.type}, not a list of token ids")
        self.shape = self.tokens.shape
        self.offsets = np.concatenate(([0], np.cumsum(self.counts)))
        ends = np.concatenate(([0], np.cumsum(self.lengths)))
        self.ends = ends  # of documents, in all tokens end to end
        self.row_lengths = np.diff(ends[self.offsets])
        self.begins = ends[:-1] - np.repeat(ends[self.offsets[:-1]], self.counts)
        self.real = np.arange(self.shape[1]) < self.row_lengths[:, None]

    def _segments(self, face: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Lengths of documents and how many a row has; without segment_lengths a row is one document, a filler row none."""
        if "segment_lengths" in self._batch.columns:
            column = self._batch.records.columns.column("segment_lengths")
            return column.flatten().to_numpy().astype(np.int64), list_lengths(column)
        counts = self._batch.mask.astype(np.int64) * (face.shape[1] > 0)
        return np.full(counts.sum(), face.shape[1]), counts

    def _pad_id(self) -> int:
        metadata = self._batch.records.columns.schema.field(self.field).metadata or {}
        return int(metadata.get(FILL, b"0"))

    def labels(self, across: bool, ignore_index: int) -> npt.NDArray[np.int64]:
        b, s = self.shape
        labels = np.full((b, s), ignore_index, np.int64)
        labels[:, :-1] = self.tokens[:, 1:]
        supervised = self._batch.columns.get("loss_mask")
        if supervised is not None:
            labels[:, :-1][self._like_tokens("loss_mask")[:, 1:] == 0] = ignore_index
        last = np.zeros((b, s), bool)
        last[np.repeat(np.arange(b), self.counts), self.begins + self.lengths - 1] = True
        if across:
            last &= np.arange(s) == self.row_lengths[:, None] - 1
        labels[last | ~self.real] = ignore_index
        if "next_token" in self._batch.columns:
            follows = np.asarray(self._batch.columns["next_token"])
            cut = (follows != NO_TOKEN) & (self.row_lengths > 0)
            labels[cut, self.row_lengths[cut] - 1] = follows[cut]
        return labels

    def positions(self, mode: str) -> npt.NDArray[np.int64]:
        if mode == "preserve" and "positions" in self._batch.columns:
            return self._like_tokens("positions")
        places = np.where(self.real, np.arange(self.shape[1]), 0)
        if mode == "sequence":
            return places
        shifts = -self.begins
        if mode == "continue":
            origins = self._batch.origins
            if not np.array_equal(np.diff(origins.bounds())[self.counts > 0], self.counts[self.counts > 0]):
                raise RecipeError("to_training(position_mode='continue'): a row's origins are not its documents; use 'document'")
            owned = np.repeat(self.counts > 0, np.diff(origins.bounds()))
            shifts = shifts + origins.segments["start"][owned]
        places[self.real] += np.repeat(shifts, self.lengths)
        return places

    @cached_property
    def document_ids(self) -> npt.NDArray[np.int32]:
        ids = np.full(self.shape, -1, np.int32)
        number = np.arange(len(self.lengths)) - np.repeat(self.offsets[:-1], self.counts)
        ids[self.real] = np.repeat(number, self.lengths)
        return ids

    def cu_seqlens(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        b = len(self.counts)
        row, number = np.repeat(np.arange(b), self.counts), np.arange(len(self.lengths)) - np.repeat(self.offsets[:-1], self.counts)
        ends = np.repeat(self.row_lengths[:, None], self.counts.max(initial=0) + 1, axis=1)
        ends[:, 0] = 0
        longest = np.zeros(b, np.int64)
        ends[row, number + 1] = self.begins + self.lengths
        np.maximum.at(longest, row, self.lengths)
        return ends.astype(np.int32), longest.astype(np.int32)

    def flat_cu_seqlens(self) -> tuple[npt.NDArray[np.int32], int]:
        b, s = self.shape
        row = np.repeat(np.arange(b), self.counts)
        ends = np.union1d(row * s + self.begins + self.lengths, np.arange(b + 1) * s)
        return ends.astype(np.int32), int(np.diff(ends).max(initial=0))

    def ids(self) -> list[tuple[int, int, int]]:
        segments, bounds = self._batch.origins.segments, self._batch.origins.bounds()
        rows = np.full((len(bounds) - 1, 3), -1, np.int64)
        owned = np.diff(bounds) > 0
        first = segments.take(bounds[:-1][owned])
        rows[owned] = np.column_stack([first[name] for name in ("dataset", "shard", "row")])
        return list(zip(*rows.T.tolist(), strict=True))

    def _like_tokens(self, name: str) -> npt.NDArray[Any]:
        """A column that has a number for each token."""
        values = _extra(self._batch, name)
        if not isinstance(values, np.ndarray) or values.shape != self.shape:
            raise RecipeError(f"column {name!r} must have one number for each token of {self.field!r}; leave it out of the batch")
        return values


def _token_field(batch: "Batch", name: str) -> str:
    wanted = TOKEN_FIELDS if name == "auto" else (name,)
    found = next((field for field in wanted if field in list(batch.columns)), None)
    if found is None:
        raise RecipeError(
            f"to_training(tokens_field={name!r}): no column {' or '.join(map(str, wanted))}, there are {list(batch.columns)}"
            f"{hint(name, batch.columns)}"
        )
    return found


def _integers(dtype: Any, ignore_index: int) -> np.dtype[Any]:
    """The numpy type for what was asked for, which may be one of torch."""
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        return np.dtype(np.int64)
    try:
        chosen = np.dtype(str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype)
    except TypeError as error:
        raise RecipeError(f"to_training(dtype={dtype!r:.80}): give a type of whole numbers such as 'int64' ({error})") from None
    if chosen.kind not in "iu" or not np.iinfo(chosen).min <= ignore_index <= np.iinfo(chosen).max:
        raise RecipeError(f"to_training(dtype={dtype}): give a type of whole numbers that can hold ignore_index={ignore_index}")
    return chosen


def _cast(values: npt.NDArray[Any], dtype: np.dtype[Any], copy: bool = False) -> npt.NDArray[Any]:
    cast = values.astype(dtype, copy=copy)
    if not np.can_cast(values.dtype, dtype) and not np.array_equal(cast, values):
        raise RecipeError(f"to_training(dtype={dtype}): it cannot hold all of {values.min()} to {values.max()}; give a wider one")
    return cast


def _padded(column: pa.Array, lengths: npt.NDArray[np.int64], fill: int) -> npt.NDArray[Any]:
    """Lists as rows of the longest of them."""
    values = column.flatten().to_numpy(zero_copy_only=False)
    if values.dtype.kind in "iu" and not np.iinfo(values.dtype).min <= fill <= np.iinfo(values.dtype).max:
        raise RecipeError(f"to_training: pad_id is {fill}: the tokens are {values.dtype}, which cannot hold it; give a token id")
    padded = np.full((len(lengths), lengths.max(initial=0)), fill, values.dtype)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = values
    return padded


def _extra(batch: "Batch", name: str) -> Any:
    if name not in batch.columns:
        there = list(batch.columns)
        raise RecipeError(f"to_training(extra_fields=...): there is no column {name!r}, there are {there}{hint(name, there)}")
    face = batch.columns[name]
    if isinstance(face, np.ndarray):
        return face
    column = batch.records.columns.column(name)
    if is_list(column.type):
        kind = column.type.value_type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return _padded(column, list_lengths(column), 0)
    return batch.to_pylist(name)


def _flat(value: Any, shape: tuple[int, ...]) -> Any:
    rows = isinstance(value, np.ndarray) and value.shape[:2] == shape
    return value.reshape(-1, *value.shape[2:]) if rows else value


def _renamed(made: dict[str, Any], names: Mapping[str, str], excluded: Sequence[str]) -> dict[str, Any]:
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names.values()):
        raise RecipeError(f"to_training(rename_fields={names!r:.80}): give a dict of a new name for each name")
    if missing := [name for name in names if name not in made]:
        raise RecipeError(
            f"to_training(rename_fields=...): there is no {missing[0]!r}, there are {list(made)}{hint(missing[0], made)}"
        )
    renamed = [names.get(name, name) for name in made]
    if len(set(renamed)) < len(renamed):
        raise RecipeError(f"to_training(rename_fields={dict(names)}): two fields would have one name: {renamed}")
    return {name: value for name, value in zip(renamed, made.values(), strict=True) if name not in excluded}


def _delivered(made: dict[str, Any], framework: str, lists: bool) -> dict[str, Any]:
    arrays = {name: value for name, value in made.items() if isinstance(value, np.ndarray)}
    if lists:
        return made | {name: array.tolist() for name, array in arrays.items()}
    if framework == "numpy" or (framework == "auto" and find_spec("torch") is None):
        return made
    try:
        import torch
    except ImportError as error:
        raise RecipeError(f"to_training(framework='torch'): {error}; install torch, or use framework='numpy'") from error
    return made | {name: torch.from_numpy(array if array.flags.writeable else array.copy()) for name, array in arrays.items()}
