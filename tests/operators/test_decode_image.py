"""`decode_image`: sizes, colours, turns, crops, and bytes that are no image."""

import io
import struct
import sys
import threading
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tests.made_media import drawn, encoded, turned
from tests.made_rows import made, run
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.decode_image import DecodeImage
from zephon_async.operators.patch_grid import PatchGrid
from zephon_async.ragged import Ragged, ragged

KINDS = [pa.binary(), pa.large_binary(), pa.binary_view()]


def decoded(values: list[Any], kind: pa.DataType | None = None, **settings: Any) -> Ragged:
    """What becomes of images, which is as `output` said."""
    records = made({"image": pa.array(values, kind or pa.binary())})
    operator = DecodeImage(**settings)
    out = operator.apply(records, Counter())
    assert out.columns.schema.equals(operator.output(records.columns.schema), check_metadata=True)
    return ragged(out.columns.column("image"))


def one(value: Any, **settings: Any) -> Any:
    return decoded([value], **settings)[0]


def refused(value: bytes, **settings: Any) -> str:
    out, at, cause = run(DecodeImage(**settings), made({"image": [encoded(drawn(2, 2)), value]}))
    assert (out and len(out), at, type(cause)) == (1, 1, BadRecord)
    return str(cause)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_column(kind: pa.DataType) -> None:
    big, small = drawn(9, 5), drawn(2, 3, 1)
    files = [encoded(big), encoded(small)]
    both = decoded(files, kind)
    assert [each.tolist() for each in both] == [big.tolist(), small.tolist()]
    lists = decoded([files, [], files[:1]], pa.list_(kind))
    assert (lists.row_offsets.tolist(), lists.shapes.tolist()) == ([0, 2, 2, 3], [[9, 5, 3], [2, 3, 3], [9, 5, 3]])
    sliced = made({"image": pa.array([files, [], files[1:]], pa.large_list(kind))}).slice(1, 3)
    out = ragged(DecodeImage().apply(sliced, Counter()).columns.column("image"))
    assert (out.row_offsets.tolist(), out[0].tolist()) == ([0, 0, 1], small.tolist())


def test_structs_of_huggingface() -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    image = drawn(4, 4)
    out = decoded([{"bytes": encoded(image), "path": "a.png"}, None], kind, on_null="keep")
    assert (out.row_offsets.tolist(), out[0].tolist()) == ([0, 1, 1], image.tolist())
    assert len(decoded([[{"bytes": encoded(image), "path": None}] * 2], pa.list_(kind))) == 2


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_formats_have_the_pixels_of_pillow(kind: str) -> None:
    file = encoded(drawn(40, 30), kind)
    with Image.open(io.BytesIO(file)) as image:
        assert one(file).tolist() == np.asarray(image.convert("RGB")).tolist()
        assert one(file, mode="L")[..., 0].tolist() == np.asarray(image.convert("L")).tolist()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns(kind: str, orientation: int) -> None:
    file = turned(drawn(24, 16), orientation, kind)
    with Image.open(io.BytesIO(file)) as image:
        wanted = np.asarray(ImageOps.exif_transpose(image))
    assert one(file).tolist() == wanted.tolist()
    assert wanted.shape[:2] == ((16, 24) if orientation >= 5 else (24, 16))


@pytest.mark.parametrize(
    "exif", [b"MM\0*\xff\xff\xff\xff", b"garbage", b"", b"II*\0\x08\0\0\0\x05\0", b"MM\0*\0\0\0\x08\0\x01\x01\x12"]
)
def test_exif_that_cannot_be_read_turns_nothing(exif: bytes) -> None:
    assert one(encoded(drawn(4, 6), "JPEG", exif=b"Exif\0\0" + exif)).shape == (4, 6, 3)


def test_exif_of_either_byte_order() -> None:
    little = b"II*\0\x08\0\0\0\x02\0" + bytes(12) + b"\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"
    assert one(encoded(drawn(4, 6), "JPEG", exif=b"Exif\0\0" + little)).shape == (6, 4, 3)


def test_colours_that_are_no_rgb() -> None:
    rgb = drawn(8, 8)
    image = Image.fromarray(rgb)
    for mode in ("L", "1", "P", "CMYK", "LA", "RGBA"):
        kind = "JPEG" if mode == "CMYK" else "PNG"
        off = np.abs(
            one(encoded(image.convert(mode), kind)).astype(int) - np.asarray(image.convert(mode).convert("RGB")).astype(int)
        )
        assert off.max() <= (16 if kind == "JPEG" else 0), mode
    palette = image.convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
    assert one(encoded(palette)).tolist() == np.asarray(palette.convert("RGB")).tolist()


def test_sixteen_bits_keep_the_high_eight() -> None:
    deep = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    assert one(encoded(deep))[..., 0].tolist() == (deep >> 8).tolist()
    assert one(encoded(deep), mode="L")[..., 0].tolist() == (deep >> 8).tolist()
    rgb = np.repeat(deep[..., None], 3, axis=-1)
    assert one(png(rgb, 2)).tolist() == (rgb >> 8).tolist()
    assert "16 bits with a transparent colour" in refused(png(deep[..., None], 0, b"\x00\x00"))


def png(array: Any, colours: int, transparent: bytes = b"") -> bytes:
    """A PNG of 16 bits, which Pillow does not write in all ways."""
    height, width, _ = array.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    header = struct.pack(">IIBBBBB", width, height, 16, colours, 0, 0, 0)
    chunks = [(b"IHDR", header), *([(b"tRNS", transparent)] if transparent else []), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


def test_what_is_transparent_lies_on_the_background() -> None:
    rgba = np.dstack([drawn(6, 6), np.full((6, 6), 255, np.uint8)])
    rgba[0, 0] = (1, 2, 3, 0)
    rgba[0, 1] = (200, 100, 0, 51)
    for kind, settings in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True})):
        pixels = one(encoded(rgba, kind, **settings), background=(0, 50, 250))
        assert (pixels[0, 0].tolist(), pixels[1:].tolist()) == ([0, 50, 250], rgba[1:, :, :3].tolist())
        assert pixels[0, 1].tolist() == [40, 60, 200]
        assert one(encoded(rgba, kind, **settings))[0, 0].tolist() == [255, 255, 255]
    palette = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    palette.putpalette([9, 9, 9, 20, 30, 40])
    assert one(encoded(palette, transparency=0), background=(1, 2, 3)).tolist() == [[[1, 2, 3], [20, 30, 40]]]


def test_sizes() -> None:
    image = drawn(60, 40)
    file = encoded(image)
    stretched = np.asarray(Image.fromarray(image).resize((30, 20), Image.Resampling.BICUBIC))
    assert one(file, size=(20, 30)).tolist() == stretched.tolist()
    assert one(file, size=[20, 30], resample="box").tolist() != stretched.tolist()
    assert one(file, shortest=20).shape == (30, 20, 3)
    assert one(encoded(drawn(40, 61)), shortest=20).shape == (20, 30, 3)  # 30.5
    whole = np.asarray(Image.fromarray(image).resize((20, 30), Image.Resampling.BICUBIC))
    assert one(file, size=(20, 20), crop="center").tolist() == whole[5:25].tolist()
    large = np.asarray(Image.fromarray(image).resize((26, 39), Image.Resampling.BICUBIC))
    assert one(file, size=(20, 20), crop="center", shortest=26).tolist() == large[9:29, 3:23].tolist()
    assert one(file, size=PatchGrid(14, 2, 1, 28 * 28 * 4)).shape == (56, 28, 3)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.integers(1, 40), st.sampled_from(["center", "random"]))
def test_a_crop_fits_every_image(height: int, width: int, h: int, w: int, crop: str) -> None:
    assert one(encoded(drawn(height, width)), size=(h, w), crop=crop).shape == (h, w, 3)


def test_numbers() -> None:
    image = drawn(4, 5)
    file, unit = encoded(image), image.astype(np.float32) / np.float32(255)
    assert one(file, dtype="float32").tolist() == unit.tolist()
    mean, std = (0.5, 0.25, 0.125), (0.5, 2, 4)
    wanted = (unit - np.array(mean, np.float32)) / np.array(std, np.float32)
    assert one(file, dtype="float32", mean=mean, std=std).tolist() == wanted.tolist()
    assert one(file, channels="first").tolist() == image.transpose(2, 0, 1).tolist()
    assert one(file, mode="L", channels="first", size=(2, 2)).shape == (1, 2, 2)


def test_a_random_crop_is_decided_by_seed_column_and_origin() -> None:
    files = [encoded(np.arange(10_000, dtype=np.uint16).reshape(100, 100))] * 8  # every place has a value of its own, nearly

    def crops(start: int = 0, stop: int = 8, epoch: int = 0, **settings: Any) -> list[Any]:
        records = made({"image": files, "other": files})
        records.origins.segments["epoch"] = epoch
        operator = DecodeImage(size=(20, 20), shortest=100, crop="random", **settings)
        operator.told(["a"])
        out = operator.apply(records.slice(start, stop), Counter()).columns.column("image")
        return out.to_numpy_ndarray().tolist()  # type: ignore[no-any-return]

    first = crops(seed=1)
    assert len({str(crop) for crop in first}) > 4
    assert crops(seed=1) == first == crops(0, 3, seed=1) + crops(3, 8, seed=1)
    assert crops(seed=2) != first
    assert crops(seed=1, epoch=1) != first


def test_images_of_one_row_are_cropped_each_by_itself() -> None:
    file = encoded(drawn(64, 64))
    out = decoded([[file] * 8], pa.list_(pa.binary()), size=(8, 8), crop="random", shortest=64)
    assert len({each.tobytes() for each in out}) > 4


def test_nulls() -> None:
    file = encoded(drawn(3, 3))
    out, at, cause = run(DecodeImage(), made({"image": pa.array([file, None], pa.binary_view())}))
    assert (out and len(out), at) == (1, 1)
    assert str(cause) == "decode_image: column 'image': null; on_null='keep' lets nulls through"
    kept = decoded([None, file, None], pa.binary_view(), on_null="keep", size=(2, 2))
    assert (kept.row_offsets.tolist(), kept.shapes.tolist()) == ([0, 0, 1, 1], [[2, 2, 3]])
    assert decoded([None, [file], []], pa.list_(pa.binary()), on_null="keep", size=(2, 2)).row_offsets.tolist() == [0, 0, 1, 1]
    _, at, cause = run(DecodeImage(on_null="keep"), made({"image": pa.array([[file], [file, None]])}))
    assert (at, str(cause)) == (1, "decode_image: value 1 of column 'image': a null in the place of bytes")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_file_that_is_cut_is_a_bad_record(kind: str) -> None:
    file = encoded(drawn(64, 64), kind)
    for length in (*range(12, len(file) // 2, 97), len(file) - 40):
        assert "bytes that" in refused(file[:length])


def test_bytes_that_are_no_image() -> None:
    assert refused(b"") == "decode_image: column 'image': 0 bytes"
    assert refused(b"GIF89a.......") == (
        "decode_image: column 'image': 13 bytes that are no JPEG, PNG or WebP: they begin with b'GIF89a.......'"
    )
    assert "that Pillow cannot decode" in refused(b"\xff\xd8\xff\xe0" + bytes(50))


@given(st.sampled_from(["JPEG", "PNG", "WEBP"]), st.data())
def test_broken_bytes_give_pixels_or_a_bad_record(kind: str, chosen: st.DataObject) -> None:
    file = bytearray(encoded(drawn(16, 16), kind))
    for place in chosen.draw(st.lists(st.integers(0, len(file) - 1), min_size=1, max_size=5)):
        file[place] = chosen.draw(st.integers(0, 255))
    out, at, cause = run(DecodeImage(max_bytes=1 << 20), made({"image": [bytes(file)]}))
    assert (out is not None and len(out) == 1 and at is None) or isinstance(cause, BadRecord)


def test_a_bomb_is_told_from_its_header() -> None:
    small = png(np.zeros((2, 2, 3), np.uint16), 2)
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + small[24:29]
    bomb = small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:]
    assert "an image of 60,000 x 60,000 pixels takes more than max_bytes=536,870,912" in refused(bomb)
    assert "more than max_bytes=100" in refused(encoded(drawn(6, 6)), max_bytes=100)
    thin = encoded(drawn(1, 4000))
    assert "would be resized to 896,000 x 224 pixels" in refused(thin, shortest=224)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 224}, r"size is 224: give \(height, width\) or a PatchGrid; shortest="),
        ({"size": (0, 5)}, "a side of size is 0"),
        ({"crop": "center"}, r"crop='center' needs size="),
        ({"crop": "left", "size": (2, 2)}, "crop is 'left'"),
        ({"size": (4, 4), "shortest": 4}, "both say how large"),
        ({"size": PatchGrid(), "shortest": 4}, "both say how large"),
        ({"size": PatchGrid(), "crop": "center"}, "needs size="),
        ({"size": (4, 5), "shortest": 4, "crop": "center"}, r"shortest=4 is less than a side of size=\(4, 5\)"),
        ({"mean": [0.5] * 3}, "mean= is for dtype='float32'"),
        ({"mean": [0.5], "dtype": "float32"}, "give 3 numbers, one a channel of mode='RGB'"),
        ({"std": [1, 0, 1], "dtype": "float32"}, "no number of it may be 0"),
        ({"background": (0, 0, 256)}, "red, green and blue"),
        ({"background": "white"}, "red, green and blue"),
        ({"on_null": "skip"}, "on_null is 'skip'"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"field": ["image"]}, "must be names of columns"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        DecodeImage(**settings)


def test_a_column_that_holds_no_bytes_is_refused_at_the_start() -> None:
    with pytest.raises(RecipeError, match="column 'image' is string, wanted bytes, structs with a field 'bytes', or lists"):
        DecodeImage().output(pa.schema([("image", pa.string())]))


def test_without_pillow_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(RecipeError, match=r"decode_image needs Pillow \(.*\): pip install 'zephon-async\[images\]'"):
        DecodeImage()


def test_contract() -> None:
    operator = DecodeImage("photo", field_out="pixels", size=(2, 3), dtype="float32", std=(1, 2, 3))
    assert operator.settings() == {
        "field": "photo",
        "field_out": "pixels",
        "on_null": "error",
        "max_bytes": 1 << 29,
        "size": [2, 3],
        "shortest": None,
        "crop": None,
        "resample": "bicubic",
        "mode": "RGB",
        "dtype": "float32",
        "channels": "last",
        "mean": None,
        "std": ["1.0", "2.0", "3.0"],
        "background": [255, 255, 255],
    }
    assert DecodeImage(size=(2, 2), crop="random", seed=3).settings()["seed"] == 3
    assert operator.reads(None) is None
    assert operator.reads(frozenset({"pixels", "a"})) == frozenset({"photo", "a"})
    assert operator.requires() == {"photo": "any"}
    schema = operator.output(pa.schema([("photo", pa.binary()), ("a", pa.int8())]))
    assert schema == pa.schema(
        [("photo", pa.binary()), ("a", pa.int8()), ("pixels", pa.fixed_shape_tensor(pa.float32(), [2, 3, 3]))]
    )
    assert operator.row_bytes(100) == 100 + 2 * 3 * 3 * 4


def test_threads_decode_at_once() -> None:
    files = [encoded(drawn(50 + n, 40, n), kind) for n in range(12) for kind in ("JPEG", "PNG", "WEBP")]
    wanted = [each.tobytes() for each in decoded(files)]
    found: list[list[bytes]] = []

    def work() -> None:
        found.extend([each.tobytes() for each in decoded(files)] for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 12
