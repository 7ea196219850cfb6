"""Images as Pillow has them in memory, as PNGs that are not compressed: MDS and LitData store them in the same way.

Threads: functions of their arguments.
"""

import struct
import zlib
from collections.abc import Collection

import numpy as np

_MODES = {  # bits of a pixel, bits of a sample, colour type
    "1": (1, 1, 0),
    "L": (8, 8, 0),
    "P": (8, 8, 0),  # the palette is not stored
    "LA": (16, 8, 4),
    "RGB": (24, 8, 2),
    "RGBA": (32, 8, 6),
    "I;16": (16, 16, 0),
    "I;16L": (16, 16, 0),
    "I;16B": (16, 16, 0),
}


def png_of(value: bytes | memoryview, modes: Collection[str]) -> bytes:
    """The PNG of an image: width, height, length of its mode (uint32 each), mode, pixels.

    Raises `ValueError` where it is broken, or of none of these modes.
    """
    width, height, length = struct.unpack_from("<III", value) if len(value) >= 12 else (0, 0, 0)
    mode, pixels = bytes(value[12 : 12 + min(length, 20)]).decode("utf-8", "replace"), np.frombuffer(value, np.uint8)[12 + length :]
    if mode not in modes:
        raise ValueError(
            f"an image of the mode {mode!r} cannot be given as PNG; only {', '.join(modes)} can: store such images as PNG or JPEG"
        )
    pixel, sample, colour = _MODES[mode]
    stride = (width * pixel + 7) // 8
    if not 0 < width < 1 << 31 or not 0 < height < 1 << 31 or len(pixels) != stride * height:
        raise ValueError(f"{len(pixels):,} bytes are no image of {width:,} x {height:,} pixels of the mode {mode}")
    lines = np.zeros((height, 1 + stride), np.uint8)  # each begins with the number of a filter: 0 is none
    swapped = sample == 16 and mode != "I;16B"
    lines[:, 1:] = (pixels.view("<u2").byteswap().view(np.uint8) if swapped else pixels).reshape(height, stride)
    header = struct.pack(">IIBBBBB", width, height, sample, colour, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in parts
    )
