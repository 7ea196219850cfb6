"""Encoded images, audio and video for tests, made on the spot."""

import io
import math
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import soundfile
from PIL import Image


def drawn(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Waves of three colours: uint8[height, width, 3]."""
    y, x = np.mgrid[:height, :width]
    waves = [127 + 120 * np.sin((x * (1 + c) + y * (3 - c)) / 9 + seed) for c in range(3)]
    return np.stack(waves, axis=-1).astype(np.uint8)


def encoded(image: Any, kind: str = "PNG", **settings: Any) -> bytes:
    """The file of an array, or of an image of Pillow."""
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **settings)
    return file.getvalue()


def turned(image: Any, orientation: int, kind: str = "JPEG") -> bytes:
    """A file of which EXIF says how it is turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, kind, exif=exif)


def tone(seconds: float, rate: int, channels: int = 1) -> npt.NDArray[np.float32]:
    """A tone of 440 Hz, half as loud in each further channel: float32[samples, channels]."""
    wave = np.sin(np.arange(round(seconds * rate)) * (2 * math.pi * 440 / rate)) / 2
    return np.stack([wave / 2**channel for channel in range(channels)], axis=1).astype(np.float32)


def audio(samples: npt.NDArray[np.float32], rate: int, kind: str = "WAV", **settings: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, **settings)
    return file.getvalue()


def video(frames: int = 20, rate: int = 10, kind: str = "mp4", height: int = 48, width: int = 64) -> bytes:
    """Frame n is gray, of about 12 * n; its left half is black."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            gray = np.full((height, width, 3), number * 12 % 256, np.uint8)
            gray[:, : width // 2] = 0
            container.mux(stream.encode(av.VideoFrame.from_ndarray(gray, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()
