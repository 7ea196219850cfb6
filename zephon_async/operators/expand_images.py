"""`expand_images`: for every image as many placeholder tokens as the model will make of it.

Takes token rows with one placeholder an image, in the order of the images, and a column of encoded images or of lists of them (see
`media`); gives the tokens with each placeholder repeated, and

    image_grid   list<fixed_size_list<int32>[2]>: rows and columns of patches of each image, before they are merged

All other columns stay as they are, the images too. Nothing is decoded: the header of an image tells its size, EXIF whether it is
turned, and a `PatchGrid` the rest. `decode_image(size=grid)` of the same grid then makes the pixels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import column_names, whole, whole_or_none
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import is_integers, is_numbers, list_lengths
from zephon_async.operators.base import Columns, Operator, RecordFailed, Tally
from zephon_async.operators.image_files import check_pillow, opened, upright_size
from zephon_async.operators.media import MAX_BYTES, find_payloads, payload, payloads
from zephon_async.operators.patch_grid import PatchGrid
from zephon_async.operators.rows import find_field
from zephon_async.operators.tokenizer_files import load_tokenizer
from zephon_async.records import Records

GRID = pa.field("image_grid", pa.list_(pa.list_(pa.int32(), 2)))
LOSS_MASK = "loss_mask"


class ExpandImages(Operator):
    """Repeat the placeholder of every image as often as it has visual tokens.

    field: the column of images; a null is no image. tokens: the column of token ids.
    placeholder: the id of the token that stands for an image, or its text, which `tokenizer` (as for `tokenize`) then knows.
    grid: how images are cut into patches.
    aligned: columns of one number a token, which are lengthened in step; None: `loss_mask`, where there is one. What is repeated
        has the number of the placeholder, but 0 in `loss_mask`.
    max_bytes: an image of more bytes of RGB is a bad record. parallelism: workers at once.

    A record that has not one placeholder for each image, or an image of no size that can be read, is a bad record.
    """

    name = "expand_images"
    releases_gil = True  # not for long, but a header is read sooner than its file is sent to another process
    keeps_columns = True
    gives_views = False

    def __init__(
        self,
        field: str = "images",
        *,
        placeholder: int | str,
        tokenizer: Any = None,
        grid: PatchGrid | None = None,
        tokens: str = "input_ids",
        aligned: Sequence[str] | None = None,
        max_bytes: int = MAX_BYTES,
        parallelism: int | None = None,
    ) -> None:
        if not isinstance(field, str) or not isinstance(tokens, str):
            raise RecipeError(f"{self.name}: field= and tokens= must be names of columns, not {field!r:.80} and {tokens!r:.80}")
        if grid is not None and not isinstance(grid, PatchGrid):
            raise RecipeError(f"{self.name}: grid is {grid!r:.80}: give a PatchGrid(patch=14, merge=2, ...)")
        self.field, self.tokens, self.grid = field, tokens, PatchGrid() if grid is None else grid
        self.placeholder = _token(placeholder, tokenizer)
        self.aligned = None if aligned is None else column_names(f"{self.name}: aligned", aligned)
        if {field, tokens, GRID.name}.intersection(self.aligned or ()) or GRID.name in (field, tokens):
            raise RecipeError(f"{self.name}: field, tokens, aligned and {GRID.name!r}, which it makes, must be different columns")
        self.max_bytes = whole(f"{self.name}: max_bytes", max_bytes, 1)
        self.parallelism = whole_or_none(f"{self.name}: parallelism", parallelism)
        self.token_column = self.token_field = tokens
        check_pillow(self.name)

    def settings(self) -> Mapping[str, Any]:
        plain = {name: getattr(self, name) for name in ("field", "tokens", "placeholder", "max_bytes")}
        return {**plain, "grid": self.grid.settings(), "aligned": None if self.aligned is None else list(self.aligned)}

    def reads(self, wanted: Columns) -> Columns:
        return None if wanted is None else (wanted - {GRID.name}) | {self.field, self.tokens, *(self.aligned or ())}

    def requires(self) -> Mapping[str, str]:
        return {self.tokens: "integers", self.field: "any"} | dict.fromkeys(self.aligned or (), "any")

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        find_payloads(schema, self.field, self.name)
        for setting, name in (("tokens", self.tokens), *(("aligned", name) for name in self._aligned(schema))):
            field = find_field(schema, name, self.name)
            right = is_integers if setting == "tokens" else is_numbers
            if field is not None and (not right(field.type) or pa.types.is_fixed_size_list(field.type)):
                what = "of token ids" if setting == "tokens" else "of numbers, one for each token"
                raise RecipeError(
                    f"{self.name}({setting}={name!r}): the column is {field.type}, not a list {what}; it comes before packing"
                )
        if schema is None:
            return None
        at = schema.get_field_index(GRID.name)
        return schema.append(GRID) if at < 0 else schema.set(at, GRID)

    def _aligned(self, schema: pa.Schema | None) -> Sequence[str]:
        if self.aligned is None:
            masked = schema is not None and LOSS_MASK in schema.names and is_numbers(schema.field(LOSS_MASK).type)
            return (LOSS_MASK,) if masked else ()
        return self.aligned

    def apply(self, records: Records, tally: Tally) -> Records:
        columns = records.columns
        tokens = columns.column(self.tokens)
        lengths, values = list_lengths(tokens), tokens.flatten().to_numpy(zero_copy_only=False)
        row_of, places = np.repeat(np.arange(len(records)), lengths), np.flatnonzero(values == self.placeholder)
        wanted = np.bincount(row_of[places], minlength=len(records))
        others = {name: list_lengths(columns.column(name)) for name in self._aligned(columns.schema)}
        grids: list[tuple[int, int]] = []
        flat, begins, counts = payloads(columns.column(self.field))
        for row, (begin, count) in enumerate(zip(begins.tolist(), counts.tolist(), strict=True)):
            try:
                for name, numbers in others.items():
                    if numbers[row] != lengths[row]:
                        raise BadRecord(f"{numbers[row]} numbers in column {name!r} for {lengths[row]} tokens in {self.tokens!r}")
                if wanted[row] != count:
                    raise BadRecord(
                        f"{count} images, and {wanted[row]} placeholders (token {self.placeholder}) in column {self.tokens!r}: "
                        "there must be one for each image; what is written in a message is text (tokenize_chat: special_text)"
                    )
                for number in range(begin, begin + count):
                    with opened(payload(flat, number), self.max_bytes) as image:
                        grids.append(self.grid.patches(*upright_size(image)))
            except BadRecord as error:
                done = self.apply(records.slice(0, row), tally)  # headers alone are read again
                raise RecordFailed(row, done) from BadRecord(f"{self.name}: column {self.field!r}: {error}")
        sizes = np.array(grids, np.int32).reshape(-1, 2)
        repeats = np.ones(len(values), np.int64)
        repeats[places] = sizes.prod(axis=1) // self.grid.merge**2
        sums = np.bincount(row_of, weights=repeats, minlength=len(records)).astype(np.int64)
        made = self._lengthened(columns, np.concatenate(([0], np.cumsum(sums))), repeats, places)
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
        inner = pa.FixedSizeListArray.from_arrays(pa.array(sizes.reshape(-1)), type=GRID.type.value_type)
        return records.with_columns(_set(made, GRID, pa.ListArray.from_arrays(offsets, inner, type=GRID.type)))

    def _lengthened(
        self,
        columns: pa.RecordBatch,
        offsets: npt.NDArray[np.int64],
        repeats: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
    ) -> pa.RecordBatch:
        """The columns, those of a number a token with each number so many times."""
        for name in (self.tokens, *self._aligned(columns.schema)):
            column, field = columns.column(name), columns.schema.field(name)
            values = column.flatten().to_numpy(zero_copy_only=False)
            if name == LOSS_MASK:
                values = values.copy()
                values[places] = 0
            plain = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.repeat(values, repeats), field.type.value_type))
            columns = _set(columns, field, plain.cast(field.type))
        return columns


def _set(columns: pa.RecordBatch, field: pa.Field, column: pa.Array) -> pa.RecordBatch:
    at = columns.schema.get_field_index(field.name)
    return columns.append_column(field, column) if at < 0 else columns.set_column(at, field, column)


def _token(placeholder: Any, tokenizer: Any) -> int:
    """The id of the placeholder."""
    if not isinstance(placeholder, str):
        return whole("expand_images: placeholder", placeholder, 0, ", or a text, with tokenizer=")
    if tokenizer is None:
        raise RecipeError(f"expand_images: placeholder={placeholder!r} is a text: give tokenizer=, or the id of the token")
    found = load_tokenizer(tokenizer).copy.token_to_id(placeholder)
    if found is None:
        raise RecipeError(
            f"expand_images: the tokenizer has no token {placeholder!r}; placeholder= is the one that stands for an image"
        )
    return int(found)
