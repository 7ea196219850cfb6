"""What becomes of decoded pixels: resized, cropped, and made an array of the wanted numbers.

Takes an image of Pillow, gives an array [height, width, channels] (or channels first). Sides are rounded down where they come out
broken, as in torchvision. `shape` is known where every image gets the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_async.checks import one_of, whole, whole_or_none
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.patch_grid import PatchGrid
from zephon_async.randomness import mix

RESAMPLES = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4}
CHANNELS = {"RGB": 3, "L": 1}


class Framing:
    """The settings of it; see `DecodeImage`, which they are documented at."""

    def __init__(
        self,
        who: str,
        *,
        size: Any,
        shortest: int | None,
        crop: str | None,
        resample: str,
        mode: str,
        dtype: str,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        channels: str,
        max_bytes: int,
    ) -> None:
        for name, value, choices in (
            *(("resample", resample, RESAMPLES), ("mode", mode, CHANNELS), ("dtype", dtype, ("uint8", "float32"))),
            ("channels", channels, ("last", "first")),
        ):
            one_of(f"{who}: {name}", value, choices)
        if crop is not None:
            one_of(f"{who}: crop", crop, ("center", "random"))
        self.grid = size if isinstance(size, PatchGrid) else None
        self.size = None if self.grid is not None or size is None else _sides(who, size)
        self.shortest = whole_or_none(f"{who}: shortest", shortest)
        if self.size is None and crop is not None:
            raise RecipeError(f"{who}: crop={crop!r} needs size=(height, width), which is cut out")
        if (self.grid is not None or (self.size is not None and crop is None)) and shortest is not None:
            raise RecipeError(f"{who}: size= and shortest= both say how large an image becomes; give one, or crop='center'")
        if self.size is not None and shortest is not None and shortest < max(self.size):
            raise RecipeError(f"{who}: shortest={shortest} is less than a side of size={self.size}, which is cut out of it")
        self.crop, self.resample, self.mode, self.dtype, self.channels = crop, resample, mode, dtype, channels
        self.mean, self.std = _per_channel(who, "mean", mean, self), _per_channel(who, "std", std, self)
        if self.std is not None and 0 in self.std:
            raise RecipeError(f"{who}: std={self.std}: no number of it may be 0")
        self.max_bytes = max_bytes

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of every array; None where it differs."""
        if self.size is None:
            return None
        sides, depth = self.size, CHANNELS[self.mode]
        return (*sides, depth) if self.channels == "last" else (depth, *sides)

    def settings(self) -> Mapping[str, Any]:
        size = None if self.size is None else list(self.size)
        scale = {
            name: None if value is None else list(map(repr, value)) for name, value in (("mean", self.mean), ("std", self.std))
        }
        names = ("shortest", "crop", "resample", "mode", "dtype", "channels")
        return {
            "size": size if self.grid is None else self.grid.settings(),
            **{name: getattr(self, name) for name in names},
            **scale,
        }

    def framed(self, image: Any, key: int) -> npt.NDArray[Any]:
        """The array of an image of Pillow. key: decides where a random crop is. `BadRecord`."""
        wanted = self._resized(image.height, image.width)
        if wanted != (image.height, image.width):
            if wanted[0] * wanted[1] * CHANNELS[self.mode] > self.max_bytes:
                sides = f"{wanted[1]:,} x {wanted[0]:,} pixels"
                raise BadRecord(f"an image that would be resized to {sides}, more than max_bytes={self.max_bytes:,}")
            image = image.resize(wanted[::-1], RESAMPLES[self.resample])
        if self.crop is not None and self.size is not None:
            image = image.crop(self._box(image.height, image.width, *self.size, key))
        return self._numbers(np.asarray(image).reshape(image.height, image.width, CHANNELS[self.mode]))

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if self.grid is not None:
            return self.grid.size(height, width)
        if self.shortest is not None:
            return _covering(height, width, self.shortest, self.shortest)
        if self.size is None:
            return height, width
        return self.size if self.crop is None else _covering(height, width, *self.size)

    def _box(self, height: int, width: int, h: int, w: int, key: int) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the crop."""
        top, left = (height - h) // 2, (width - w) // 2
        if self.crop == "random":
            top, left = mix(key, 0) % (height - h + 1), mix(key, 1) % (width - w + 1)
        return left, top, left + w, top + h

    def _numbers(self, array: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        made: npt.NDArray[Any] = array
        if self.dtype == "float32":
            made = array.astype(np.float32)
            made /= np.float32(255)
            if self.mean is not None:
                made -= np.array(self.mean, np.float32)
            if self.std is not None:
                made /= np.array(self.std, np.float32)
        return np.ascontiguousarray(made if self.channels == "last" else made.transpose(2, 0, 1))


def _covering(height: int, width: int, h: int, w: int) -> tuple[int, int]:
    """The smallest size of this ratio that covers h x w."""
    return (h, width * h // height) if h * width >= w * height else (height * w // width, w)


def _sides(who: str, size: Any) -> tuple[int, int]:
    if not isinstance(size, Sequence) or isinstance(size, str) or len(size) != 2:
        raise RecipeError(f"{who}: size is {size!r:.80}: give (height, width) or a PatchGrid; shortest= for the shorter side alone")
    height, width = (whole(f"{who}: a side of size", side, 1) for side in size)
    return height, width


def _per_channel(who: str, name: str, value: Any, framing: Framing) -> tuple[float, ...] | None:
    if value is None:
        return None
    numbers = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    depth = CHANNELS[framing.mode]
    if len(numbers) != depth or not all(isinstance(each, int | float) and np.isfinite(each) for each in numbers):
        raise RecipeError(f"{who}: {name} is {value!r:.80}: give {depth} numbers, one a channel of mode={framing.mode!r}")
    if framing.dtype != "float32":
        raise RecipeError(f"{who}: {name}= is for dtype='float32'; bytes are given as they are")
    return tuple(float(each) for each in numbers)
