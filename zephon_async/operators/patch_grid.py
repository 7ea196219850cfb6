"""How a model cuts images into patches: the size an image is brought to, and how many tokens it becomes.

The rule is `smart_resize` of Qwen2-VL, number for number as in transformers: sides are rounded to multiples of `patch * merge`,
and scaled, their ratio kept, where that gives more than `max_pixels` or fewer than `min_pixels`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from zephon_async.checks import whole
from zephon_async.errors import BadRecord, RecipeError

MOST_RATIO = 200  # of the sides of an image


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """Patches of `patch` x `patch` pixels, of which `merge` x `merge` become one visual token.

    min_pixels, max_pixels: of an image when it has been resized. The defaults are Qwen2-VL's. An image of which one side is more
    than 200 times the other is a bad record.
    """

    patch: int = 14
    merge: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            object.__setattr__(self, name, whole(f"PatchGrid: {name}", value, 1))
        if max(self.min_pixels, self.factor**2) > self.max_pixels:
            raise RecipeError(
                f"PatchGrid: max_pixels={self.max_pixels:,} is less than min_pixels={self.min_pixels:,} or than the "
                f"{self.factor**2:,} pixels of one visual token (patch * merge, squared); make it more"
            )

    @property
    def factor(self) -> int:
        """Pixels of a side of one visual token."""
        return self.patch * self.merge

    def settings(self) -> Mapping[str, int]:
        return asdict(self)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width, in pixels, that an image of this size is resized to. `BadRecord`."""
        if max(height, width) > MOST_RATIO * min(height, width):
            raise BadRecord(f"an image of {width:,} x {height:,} pixels: one side is more than {MOST_RATIO} times the other")
        factor = self.factor
        tall, wide = round(height / factor) * factor, round(width / factor) * factor
        if tall * wide > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            tall = max(factor, math.floor(height / shrink / factor) * factor)
            wide = max(factor, math.floor(width / shrink / factor) * factor)
        elif tall * wide < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            tall, wide = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
        return tall, wide

    def patches(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches, before they are merged, of an image of this size. `BadRecord`."""
        tall, wide = self.size(height, width)
        return tall // self.patch, wide // self.patch
