"""`expand_images` and the grid of patches: sizes of Qwen2-VL, from headers alone."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made_media import drawn, encoded, turned
from tests.made_rows import byte_tokenizer, made, placed, run
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.decode_image import DecodeImage
from zephon_async.operators.expand_images import ExpandImages
from zephon_async.operators.patch_grid import PatchGrid
from zephon_async.ragged import ragged

PAD = 7
SMALL = PatchGrid(patch=2, merge=2, min_pixels=16, max_pixels=1024)
GRID = ExpandImages(placeholder=PAD, grid=SMALL)
KINDS = [pa.binary(), pa.large_binary(), pa.binary_view()]


@pytest.mark.parametrize(
    ("image", "grid", "wanted"),
    [  # by smart_resize of transformers 5.24
        ((224, 224), PatchGrid(), (224, 224)),
        ((480, 640), PatchGrid(), (476, 644)),
        ((1, 1), PatchGrid(), (56, 56)),
        ((10, 2000), PatchGrid(), (28, 812)),
        ((3000, 4000), PatchGrid(), (840, 1148)),
        ((4000, 30), PatchGrid(), (4004, 28)),
        ((42, 70), PatchGrid(min_pixels=1), (56, 56)),  # halves are rounded to even
        ((500, 700), PatchGrid(16, 1, 1, 65_536), (208, 288)),
    ],
)
def test_the_size_of_an_image(image: tuple[int, int], grid: PatchGrid, wanted: tuple[int, int]) -> None:
    assert grid.size(*image) == wanted
    assert grid.patches(*image) == (wanted[0] // grid.patch, wanted[1] // grid.patch)


@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 16), st.integers(1, 4), st.integers(1, 64), st.integers(0, 5000))
def test_a_grid_keeps_its_limits(height: int, width: int, patch: int, merge: int, tokens: int, more: int) -> None:
    unit = (patch * merge) ** 2
    grid = PatchGrid(patch, merge, unit * tokens, unit * tokens * 4 + more)
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(BadRecord, match="one side is more than 200 times the other"):
            grid.size(height, width)
        return
    tall, wide = grid.size(height, width)
    assert tall % grid.factor == wide % grid.factor == 0
    assert grid.min_pixels <= tall * wide
    assert tall * wide <= grid.max_pixels or grid.factor in (tall, wide)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_placeholders_grow(kind: pa.DataType) -> None:
    files = [encoded(drawn(8, 12)), encoded(drawn(4, 4), "JPEG"), encoded(drawn(16, 8), "WEBP")]  # 6, 1 and 8 tokens
    records = made(
        {
            "images": pa.array([files[:2], [], files[2:], None], pa.list_(kind)),
            "input_ids": pa.array([[1, PAD, 2, PAD], [3, 4], [PAD], []], pa.list_(pa.int32())),
            "loss_mask": pa.array([[0, 1, 1, 1], [0, 1], [1], []], pa.list_(pa.int8())),
            "weights": pa.array([[1, 2, 3, 4], [5, 6], [7], []], pa.large_list(pa.float32())),
        }
    )
    operator = ExpandImages(placeholder=PAD, grid=SMALL, aligned=["loss_mask", "weights"])
    out = operator.apply(records, Counter())
    assert out.columns.schema.equals(operator.output(records.columns.schema), check_metadata=True)
    rows = [row for row, _, _ in placed(out)]
    assert [row["input_ids"] for row in rows] == [[1, *[PAD] * 6, 2, PAD], [3, 4], [PAD] * 8, []]
    assert [row["loss_mask"] for row in rows] == [[0, *[0] * 6, 1, 0], [0, 1], [0] * 8, []]
    assert [row["weights"] for row in rows] == [[1, *[2] * 6, 3, 4], [5, 6], [7] * 8, []]
    assert [row["image_grid"] for row in rows] == [[[4, 6], [2, 2]], [], [[8, 4]], []]
    assert out.columns.column("images").equals(records.columns.column("images"))
    cut = operator.apply(records.slice(1, 4), Counter())
    assert placed(cut) == placed(out)[1:]


def test_one_image_a_row_and_no_loss_mask() -> None:
    records = made({"image": [encoded(drawn(8, 8)), None], "ids": pa.array([[PAD], [1]], pa.list_(pa.int64()))})
    out = ExpandImages("image", placeholder=PAD, grid=SMALL, tokens="ids").apply(records, Counter())
    assert out.columns.column("ids").to_pylist() == [[PAD] * 4, [1]]
    assert out.columns.column("image_grid").to_pylist() == [[[4, 4]], []]


def test_the_pixels_have_the_size_that_was_reckoned_with() -> None:
    files = [turned(drawn(30, 50), orientation) for orientation in range(1, 9)]
    files += [encoded(drawn(99, 13), "PNG"), encoded(drawn(3, 77), "WEBP"), turned(drawn(20, 60), 6, "PNG")]
    records = made({"images": pa.array([[file] for file in files]), "input_ids": [[PAD]] * len(files)})
    expanded = GRID.apply(records, Counter())
    pixels = ragged(DecodeImage("images", size=SMALL).apply(expanded, Counter()).columns.column("images"))
    grids = [grid[0] for grid in expanded.columns.column("image_grid").to_pylist()]
    assert [[side // SMALL.patch for side in shape[:2]] for shape in pixels.shapes.tolist()] == grids
    assert list(map(len, expanded.columns.column("input_ids").to_pylist())) == [rows * columns // 4 for rows, columns in grids]


@pytest.mark.parametrize(
    ("images", "ids", "words"),
    [
        (
            [encoded(drawn(4, 4))],
            [1, 2],
            "1 images, and 0 placeholders (token 7) in column 'input_ids': there must be one for each image",
        ),
        ([], [PAD], "0 images, and 1 placeholders"),
        (None, [PAD], "0 images, and 1 placeholders"),
        ([b"no image"], [PAD], "8 bytes that are no JPEG, PNG or WebP"),
        ([None], [PAD], "a null in the place of bytes"),
        ([encoded(drawn(1, 201))], [PAD], "one side is more than 200 times the other"),
        ([encoded(drawn(30, 30))], [PAD], "more than max_bytes=2,000"),
    ],
)
def test_bad_records(images: Any, ids: list[int], words: str) -> None:
    good = [encoded(drawn(4, 4))]
    records = made({"images": pa.array([good, images, good]), "input_ids": [[PAD], ids, [PAD]]})
    out, at, cause = run(ExpandImages(placeholder=PAD, grid=SMALL, max_bytes=2000), records)
    assert (out and out.columns.column("input_ids").to_pylist(), at, type(cause)) == ([[PAD]], 1, BadRecord)
    assert words in str(cause)


def test_a_mask_of_another_length_is_a_bad_record() -> None:
    records = made({"images": pa.array([[], []], pa.list_(pa.binary())), "input_ids": [[1], [1, 2]], "loss_mask": [[1], [1]]})
    out, at, cause = run(GRID, records)
    assert (out and len(out), at) == (1, 1)
    assert "1 numbers in column 'loss_mask' for 2 tokens in 'input_ids'" in str(cause)


def test_a_placeholder_by_its_text() -> None:
    assert ExpandImages(placeholder="<s>", tokenizer=byte_tokenizer()).placeholder == 257
    with pytest.raises(RecipeError, match="the tokenizer has no token '<image>'"):
        ExpandImages(placeholder="<image>", tokenizer=byte_tokenizer())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"placeholder": "<image>"}, "give tokenizer=, or the id"),
        ({"placeholder": -1}, "placeholder is -1"),
        ({"placeholder": 1, "grid": 14}, r"grid is 14: give a PatchGrid"),
        ({"placeholder": 1, "aligned": ["images"]}, "must be different columns"),
        ({"placeholder": 1, "tokens": "image_grid"}, "must be different columns"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        ExpandImages(**settings)


def test_wrong_grids_are_refused_at_once() -> None:
    with pytest.raises(RecipeError, match="PatchGrid: patch is 0"):
        PatchGrid(patch=0)
    with pytest.raises(RecipeError, match="max_pixels=100 is less than min_pixels=1"):
        PatchGrid(min_pixels=1, max_pixels=100)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"input_ids": pa.string()}, "tokens='input_ids'.*not a list of token ids"),
        ({"input_ids": pa.list_(pa.int32(), 8)}, "it comes before packing"),
        ({"input_ids": pa.list_(pa.float32())}, "tokens='input_ids'.*not a list of token ids"),
        ({"images": pa.list_(pa.string())}, "column 'images' is list.*wanted bytes"),
    ],
)
def test_wrong_columns_are_refused_at_the_start(changed: dict[str, pa.DataType], words: str) -> None:
    kinds = {"images": pa.list_(pa.binary()), "input_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.int8())}
    assert GRID.output(pa.schema(kinds)) is not None
    with pytest.raises(RecipeError, match=words):
        GRID.output(pa.schema(kinds | changed))


def test_contract() -> None:
    assert GRID.settings() == {
        "field": "images",
        "tokens": "input_ids",
        "placeholder": PAD,
        "max_bytes": 1 << 29,
        "grid": {"patch": 2, "merge": 2, "min_pixels": 16, "max_pixels": 1024},
        "aligned": None,
    }
    assert GRID.reads(frozenset({"image_grid", "input_ids", "loss_mask"})) == frozenset({"images", "input_ids", "loss_mask"})
    assert GRID.requires() == {"input_ids": "integers", "images": "any"}
    assert (GRID.token_column, GRID.token_field) == ("input_ids", "input_ids")
