"""Make the tensors of a training step of a batch of token rows.

Gives arrays of full length, B rows by S tokens (see `token_rows`): labels are shifted once, here, and nowhere else. What is
behind the documents of a row is padding: it belongs to no document, to no segment of a row's `cu_seqlens`, and to no loss.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from zephon_async.checks import checks_call, column_names, flag, hint, one_of, whole
from zephon_async.errors import RecipeError
from zephon_async.ragged import Ragged, is_ragged
from zephon_async.tensors import FRAMEWORKS, Delivery
from zephon_async.token_rows import TokenRows, extra_field

if TYPE_CHECKING:
    from zephon_async.batch import Batch

POSITION_MODES = ("preserve", "document", "continue", "sequence")


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
    pad_fields: Sequence[str] = (),
    rename_fields: Mapping[str, str] | None = None,
    exclude_fields: Sequence[str] = (),
    flatten: bool = False,
    framework: Literal["auto", "torch", "numpy"] = "auto",
    collate: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    pin_memory: bool = False,
    device: Any = None,
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

    Of extra_fields, a column x of tensors that differ in shape (decoded images, audio, video) or in number (lists of them) becomes

    x              the numbers of all n tensors of the batch, end to end; with x in pad_fields [n, ...], padded with 0
    x_offsets      [n + 1] int64: tensor i is x[x_offsets[i]:x_offsets[i + 1]], reshaped to x_shapes[i]; not where it is padded
    x_shapes       [n, d] int32
    x_row_offsets  [B + 1] int64: row r has the tensors x_row_offsets[r]:x_row_offsets[r + 1]

    collate: a function that is given all of this by name, tensors in the memory of the host, and gives what takes its place, a
    dict too. Then, of torch alone: pin_memory puts tensors into page-locked memory, and device= (a name or a torch.device) copies
    them there, which from page-locked memory goes on while your code does. That is done to tensors in dicts, lists and tuples of
    the result too, and to none inside of other objects. Behind `to_training` nothing of the batch is shared.

    For JAX: framework="numpy", dtype="int32". All arrays are contiguous and writable, so jax.dlpack.from_dlpack takes them.
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
        *(("return_num_valid_tokens", return_num_valid_tokens), ("pin_memory", pin_memory)),
    ):
        flag(f"to_training: {name}", value)
    if ignore_index >= 1 << 63:
        raise RecipeError(f"to_training: ignore_index is {ignore_index}: labels of 64 bits cannot hold it; give a smaller one")
    delivery = Delivery(framework, dtype is None, collate, pin_memory, device)
    extra_fields = column_names("to_training: extra_fields", extra_fields)
    exclude_fields = column_names("to_training: exclude_fields", exclude_fields)
    pad_fields = column_names("to_training: pad_fields", pad_fields)
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
    several = [name for name in extra_fields if name in batch.columns and is_ragged(batch.records.columns.column(name).type)]
    if wrong := [name for name in pad_fields if name not in several]:
        raise RecipeError(f"to_training(pad_fields={list(pad_fields)}): {wrong[0]!r} is none of extra_fields with tensors to pad")
    for name in extra_fields:
        if name not in several:
            made[name] = extra_field(batch, name)
    if flatten:
        made = {name: _flat(value, rows.shape) for name, value in made.items()}
    for name in several:
        made |= _tensors(batch.ragged(name), name, name in pad_fields)
    if return_cu_seqlens:
        made["cu_seqlens"], made["max_seqlen"] = rows.flat_cu_seqlens() if flatten else rows.cu_seqlens()
    if return_num_valid_tokens:
        made["num_valid_tokens"] = int(np.count_nonzero(labels != ignore_index))
    made["ids"] = rows.ids()
    return delivery.deliver(_renamed(made, rename_fields or {}, exclude_fields))


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
    return chosen.newbyteorder("=")


def _cast(values: npt.NDArray[Any], dtype: np.dtype[Any], copy: bool = False) -> npt.NDArray[Any]:
    cast = values.astype(dtype, copy=copy)
    if not np.can_cast(values.dtype, dtype) and not np.array_equal(cast, values):
        raise RecipeError(f"to_training(dtype={dtype}): it cannot hold all of {values.min()} to {values.max()}; give a wider one")
    return cast


def _flat(value: Any, shape: tuple[int, ...]) -> Any:
    rows = isinstance(value, np.ndarray) and value.shape[:2] == shape
    return value.reshape(-1, *value.shape[2:]) if rows else value


def _tensors(ragged: Ragged, name: str, padded: bool) -> dict[str, npt.NDArray[Any]]:
    """What comes of a column of tensors of differing shapes."""
    values = {name: ragged.padded()} if padded else {name: ragged.values, f"{name}_offsets": ragged.offsets}
    return values | {f"{name}_shapes": ragged.shapes, f"{name}_row_offsets": ragged.row_offsets}


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
