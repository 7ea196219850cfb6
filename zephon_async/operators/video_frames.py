"""The frames of a video that are shown at given times, as PyAV decodes them.

Time is counted from the first frame. A frame is shown until the next one, the last as long as it says. Everything is decoded from
the start up to the last frame that is wanted: where one can enter differs by format, and would differ by version.

Threads: a container belongs to the call that opened it; FFmpeg's own threads are off, since workers are the parallelism.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from zephon_async.errors import BadRecord

_LATE = Fraction(1, 2)  # seconds that a header may say too much


def images_at(container: Any, wanted: Iterable[Fraction], endless: bool, mode: str, max_bytes: int) -> Iterator[Any]:
    """An image of Pillow for each wanted time, ascending. endless: there is no last, they end with the video. `BadRecord`."""
    times = iter(wanted)
    due, image, end = next(times), None, Fraction(0)
    for shown, end in _shown(container, max_bytes):
        image = None
        while due < end:
            image = _image(shown, mode) if image is None else image
            yield image
            following = next(times, None)
            if following is None:
                return
            due = following
    if not endless:
        raise BadRecord(f"the video ends at {float(end):.3f} s, before a frame at {float(due):.3f} s")
    _check_end(container, end)


def _shown(container: Any, max_bytes: int) -> Iterator[tuple[Any, Fraction]]:
    """Every frame, and when the next takes its place, or, behind the last, when that ends: seconds from the first."""
    stream = next(iter(container.streams.video), None)
    if stream is None:
        raise BadRecord("there is no video in it")
    if stream.width * stream.height * 3 > max_bytes:
        raise BadRecord(f"a video of {stream.width:,} x {stream.height:,} pixels takes more than max_bytes={max_bytes:,}")
    stream.thread_type = "NONE"  # workers are the parallelism
    held, begin = None, None
    for frame in container.decode(stream):
        if frame.pts is None:
            raise BadRecord("a frame of it has no time")
        time = frame.pts * frame.time_base
        if held is not None:
            yield held, time - begin
        held, begin = frame, time if begin is None else begin
    if held is None:
        raise BadRecord("the video has no frame")
    lasts = held.duration * held.time_base if held.duration else 1 / (stream.average_rate or Fraction(25))
    yield held, held.pts * held.time_base - begin + lasts


def _check_end(container: Any, end: Fraction) -> None:
    """Refuse a video that ends before its header says so."""
    stream = container.streams.video[0]
    told = stream.duration * stream.time_base if stream.duration else Fraction(0)
    if not told and container.duration and len(container.streams) == 1:
        told = Fraction(container.duration, 1_000_000)
    if end < told - _LATE:
        raise BadRecord(f"the video is cut: it ends at {float(end):.3f} s, its header says {float(told):.3f} s")


def _image(frame: Any, mode: str) -> Any:
    """A frame as an image of Pillow, upright."""
    from av.video.reformatter import Interpolation
    from PIL import Image

    exact = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT | Interpolation.FULL_CHR_H_INT
    array = frame.to_ndarray(format="rgb24", interpolation=exact)
    return Image.fromarray(np.ascontiguousarray(np.rot90(array, round(frame.rotation / 90)))).convert(mode)
