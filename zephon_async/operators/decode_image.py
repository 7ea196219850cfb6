"""`decode_image`: JPEG, PNG and WebP to pixels, by Pillow.

Takes a column of encoded images, or of lists of them (see `media`); gives tensors [height, width, channels].

Pillow alone decodes, whatever else is installed: other decoders give other pixels, and the recipe decides the data. Pixels may
still differ between versions of Pillow, which are the user's to pin. A truncated file is a bad record; one with wrong bytes in the
middle often looks right to its decoder.

Decoded images are many times as large as their files: put this behind packing and shuffling, and let `chunk_rows` be small where
images are large.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import whole
from zephon_async.errors import RecipeError
from zephon_async.operators.framing import Framing
from zephon_async.operators.image_files import check_pillow, opened, pixels
from zephon_async.operators.media import MAX_BYTES, DecodePayload
from zephon_async.randomness import mix, seed_of


class DecodeImage(DecodePayload):
    """Decode a column of images to tensors.

    field: the column; field_out: the column that is made; None: in its place.
    size: (height, width) of every image, or a `PatchGrid`, which gives each the size that `expand_images` reckons with; None: as
        it is. shortest: pixels of the shorter side instead, the ratio kept. Without crop= an image is stretched to its `size`.
    crop: "center" or "random" cuts `size` out of the image, which is first scaled, its ratio kept, so that the shorter side is
        `shortest`, or, without that, so that it just covers `size`.
    resample: "nearest", "box", "bilinear", "bicubic" or "lanczos", as Pillow does them (all but nearest smooth when they shrink).
    mode: "RGB" or "L" (gray; one channel). background: the red, green and blue that lie behind transparent pixels.
    dtype: "uint8", or "float32": 0 to 1, of which `mean` is taken away and which is divided by `std`, a number a channel.
    channels: "last" or "first": [channels, height, width].
    on_null: a null is an "error", or stays null ("keep"); in a list it is an error always.
    max_bytes: an image of more bytes of RGB is a bad record, told from its header.
    seed: of the random crop; by default the source's. parallelism: workers at once.

    With size=(height, width) the column is of fixed-shape tensors, in a batch an array [rows, height, width, channels]; otherwise,
    for lists, and with on_null="keep", `Batch.ragged(name)` shows them, and `to_training(extra_fields=[name])`.
    """

    name = "decode_image"
    _dimensions = 3

    def __init__(
        self,
        field: str = "image",
        *,
        size: Any = None,
        shortest: int | None = None,
        crop: str | None = None,
        resample: str = "bicubic",
        mode: str = "RGB",
        background: Sequence[int] = (255, 255, 255),
        dtype: str = "uint8",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        channels: str = "last",
        field_out: str | None = None,
        on_null: str = "error",
        max_bytes: int = MAX_BYTES,
        seed: int = 0,
        parallelism: int | None = None,
    ) -> None:
        self._set(field, field_out, on_null, max_bytes, parallelism)
        self._framing = Framing(
            self.name,
            size=size,
            shortest=shortest,
            crop=crop,
            resample=resample,
            mode=mode,
            dtype=dtype,
            mean=mean,
            std=std,
            channels=channels,
            max_bytes=self.max_bytes,
        )
        red, green, blue = _colour(background)
        self.background = (red, green, blue)
        self.seed = whole(f"{self.name}: seed", seed)
        self._shape, self._numbers = self._framing.shape, pa.uint8() if dtype == "uint8" else pa.float32()
        self._key = mix(self.seed, seed_of(f"{self.name} {self.field_out}")) if crop == "random" else 0
        check_pillow(self.name)

    def settings(self) -> Mapping[str, Any]:
        seed = {"seed": self.seed} if self._key else {}
        return {**super().settings(), **self._framing.settings(), "background": list(self.background), **seed}

    def _decoded(self, payload: pa.Buffer, columns: pa.RecordBatch, row: int, key: int) -> npt.NDArray[Any]:
        with opened(payload, self.max_bytes) as image:
            decoded = pixels(image, self._framing.mode, self.background)
        return self._framing.framed(decoded, key)


def _colour(background: Any) -> tuple[int, ...]:
    if not isinstance(background, Sequence) or isinstance(background, str) or len(background) != 3:
        raise RecipeError(f"decode_image: background is {background!r:.80}: give red, green and blue, of 0 to 255 each")
    numbers = tuple(whole("decode_image: a number of background", each, 0) for each in background)
    if max(numbers) > 255:
        raise RecipeError(f"decode_image: background is {background!r:.80}: give red, green and blue, of 0 to 255 each")
    return numbers
