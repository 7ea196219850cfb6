"""The rows of tokens of a batch, and the documents in them: what the tensors of a training step are derived from.

Takes packed rows (`pack_flat`: a list of fixed size, with `segment_lengths` and `next_token`) or ragged ones (a list of tokens
a row, each row one document), which are padded to the longest of the batch. Gives arrays of full length, B rows by S tokens, all
of them derived from the lengths of the documents.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import hint
from zephon_async.errors import RecipeError
from zephon_async.kinds import FILL, NO_TOKEN, is_list, list_lengths

if TYPE_CHECKING:
    from zephon_async.batch import Batch

TOKEN_FIELDS = ("input_ids", "tokens", "token_ids", "ids")


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
        values = extra_field(self._batch, name)
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


def _padded(column: pa.Array, lengths: npt.NDArray[np.int64], fill: int) -> npt.NDArray[Any]:
    """Lists as rows of the longest of them."""
    values = column.flatten().to_numpy(zero_copy_only=False)
    if values.dtype.kind in "iu" and not np.iinfo(values.dtype).min <= fill <= np.iinfo(values.dtype).max:
        raise RecipeError(f"to_training: pad_id is {fill}: the tokens are {values.dtype}, which cannot hold it; give a token id")
    padded = np.full((len(lengths), lengths.max(initial=0)), fill, values.dtype)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = values
    return padded


def extra_field(batch: "Batch", name: str) -> Any:
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
