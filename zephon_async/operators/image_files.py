"""Encoded images, as Pillow reads them: size from the header, pixels, which way is up, and colours. The owner file of Pillow.

The format is told from the first bytes: JPEG, PNG or WebP, of which a first frame is taken. Whatever Pillow refuses is a
`BadRecord` with its reason, and so is a header that tells of more than `max_bytes` of pixels, before memory is taken for them.
EXIF turns an image where it can be read; of a PNG that which stands before the pixels, so that a header is enough to know.

Colours: pixels of 16 bits keep their high 8; what is transparent is laid on the background; CMYK becomes RGB by Pillow's plain
rule. Colour profiles (ICC) are not applied.

Threads: an image belongs to the call that opens it. Pillow lets other threads run while it decodes and resizes.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.errors import BadRecord, RecipeError

_ORIENTATION, _SHORT = 0x0112, 3
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF's number to Pillow's Transpose


def check_pillow(who: str) -> None:
    """Refuse at the start what cannot be done later. `RecipeError` where Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise RecipeError(f"{who} needs Pillow ({error}): pip install 'zephon-async[images]'") from None


@contextmanager
def opened(payload: pa.Buffer, max_bytes: int) -> Iterator[Any]:
    """A Pillow image of which the header has been read. Raises `BadRecord`, also for what Pillow says inside of the block."""
    reader = _reader(payload)
    try:
        with reader(pa.BufferReader(payload)) as image:
            if image.width * image.height * 3 > max_bytes:
                raise BadRecord(f"an image of {image.width:,} x {image.height:,} pixels takes more than max_bytes={max_bytes:,}")
            yield image
    except (BadRecord, MemoryError):
        raise
    except Exception as error:  # Pillow raises whatever the bytes make it stumble on
        raise BadRecord(f"{len(payload):,} bytes that Pillow cannot decode ({type(error).__name__}: {error})") from error


def _reader(payload: pa.Buffer) -> Any:
    """The class of Pillow for what these bytes begin with."""
    from PIL.PngImagePlugin import PngImageFile
    from PIL.WebPImagePlugin import WebPImageFile

    start = payload.slice(0, min(len(payload), 16)).to_pybytes()
    if start.startswith(b"\xff\xd8\xff"):
        return _jpeg()
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return PngImageFile
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return WebPImageFile
    raise BadRecord(f"{len(payload):,} bytes that are no JPEG, PNG or WebP: they begin with {start!r}")


@cache
def _jpeg() -> Any:
    """Pillow's class, but for what it reads of EXIF: resolutions, which nobody wants, and it warns where it cannot."""
    from PIL.JpegImagePlugin import JpegImageFile

    return type("Jpeg", (JpegImageFile,), {"_read_dpi_from_exif": lambda image: None})


def orientation(image: Any) -> int:
    """EXIF's number for how an image is turned; 1, as it is, where there is none or it cannot be read.

    Pillow would decode a PNG for it, and warn of what it cannot read.
    """
    exif = image.info.get("exif", b"").removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    try:
        if order is not None:
            (begin,) = struct.unpack_from(f"{order}I", exif, 4)
            (entries,) = struct.unpack_from(f"{order}H", exif, begin)
            for entry in range(entries):
                tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, begin + 2 + 12 * entry)
                if (tag, kind) == (_ORIENTATION, _SHORT):
                    return int(value)
    except struct.error:  # it ends before
        pass
    return 1


def upright_size(image: Any) -> tuple[int, int]:
    """Height and width of an image when it has been turned."""
    height, width = image.height, image.width
    return (width, height) if orientation(image) in (5, 6, 7, 8) else (height, width)


def pixels(image: Any, mode: str, background: tuple[int, int, int]) -> Any:
    """Decode an opened image: upright, of mode "RGB" or "L"."""
    from PIL import Image

    turn = _TURNS.get(orientation(image))
    deep = any("16" in str(tile[3]) for tile in image.tile)  # the bits of what it is decoded from
    if deep and "transparency" in image.info:
        raise BadRecord("a PNG of 16 bits with a transparent colour: Pillow loses which; write it anew with an alpha channel")
    image.load()
    if image.mode.startswith("I"):  # of 16 bits: Pillow would make white of all that is more than 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.new("RGBA", above.size, (*background, 255))
        image.alpha_composite(above)
    if image.mode != mode:
        image = image.convert(mode)
    return image if turn is None else image.transpose(Image.Transpose(turn))
