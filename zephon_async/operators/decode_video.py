"""`decode_video`: frames of a video at given times or at a rate, by PyAV (FFmpeg).

Takes a column of encoded videos, or of lists of them (see `media`); gives tensors [frames, height, width, channels]. The frame at a
time is the one that is shown then; time is counted from the first frame. A video is decoded from its start up to the last frame
that is wanted, so that frames are exact in every format, turned as its file says, made RGB by FFmpeg's exact rules, and then
resized and cropped as `decode_image` does it. What decoders give may differ between versions of PyAV, which are the user's to pin.

A video that ends more than half a second before its own header says so is a bad record, where the header says it and all of it
is decoded.
"""

import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import whole
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import is_list
from zephon_async.operators.framing import Framing
from zephon_async.operators.image_files import check_pillow
from zephon_async.operators.media import MAX_BYTES, DecodePayload
from zephon_async.operators.rows import find_field
from zephon_async.operators.video_frames import images_at
from zephon_async.randomness import mix, seed_of


class DecodeVideo(DecodePayload):
    """Decode a column of videos to tensors of frames.

    field: the column; field_out: the column that is made; None: in its place.
    fps, times: one of them: frames a second, from the first frame to the end, as a number or a text such as "30000/1001"; or the
        times in seconds, ascending, or the name of a column that has a list of them for each row. One behind the end is an error.
    size, shortest, crop, resample, mode, dtype, mean, std, channels: of each frame, as for `decode_image` (channels="first":
        [frames, channels, height, width]). A random crop is one for all frames.
    on_null: a null is an "error", or stays null ("keep"); in a list it is an error always.
    max_bytes: more of decoded frames are a bad record. seed: of the random crop; by default the source's.
    parallelism: workers at once.

    With size=(height, width) and times= the column is of fixed-shape tensors; otherwise, for lists, and with on_null="keep",
    `Batch.ragged(name)` shows them, and `to_training(extra_fields=[name])`.
    """

    name = "decode_video"
    _dimensions = 4

    def __init__(
        self,
        field: str = "video",
        *,
        fps: int | float | str | None = None,
        times: Sequence[float] | str | None = None,
        size: Any = None,
        shortest: int | None = None,
        crop: str | None = None,
        resample: str = "bicubic",
        mode: str = "RGB",
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
        if (fps is None) == (times is None):
            raise RecipeError(f"{self.name}: give either fps= or times=")
        self.fps = None if fps is None else _rate(fps)
        self.times = times if times is None or isinstance(times, str) else _seconds(times)
        self.seed = whole(f"{self.name}: seed", seed)
        fixed = self._framing.shape is not None and isinstance(self.times, tuple)
        self._shape = (len(self.times or ()), *(self._framing.shape or ())) if fixed else None
        self._numbers = pa.uint8() if dtype == "uint8" else pa.float32()
        self._key = mix(self.seed, seed_of(f"{self.name} {self.field_out}")) if crop == "random" else 0
        check_pillow(self.name)
        try:
            import_module("av")
        except ImportError as error:
            raise RecipeError(f"{self.name} needs PyAV ({error}): pip install 'zephon-async[video]'") from None

    def settings(self) -> Mapping[str, Any]:
        when = {"fps": None if self.fps is None else str(self.fps)}
        when["times"] = self.times if not isinstance(self.times, tuple) else " ".join(map(str, self.times))
        seed = {"seed": self.seed} if self._key else {}
        return {**super().settings(), **self._framing.settings(), **when, **seed}

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        if isinstance(self.times, str):
            field = find_field(schema, self.times, self.name)
            if field is not None and not (is_list(field.type) and _is_number(field.type.value_type)):
                raise RecipeError(f"{self.name}(times={self.times!r}): the column is {field.type}, not a list of seconds")
        return super().output(schema)

    def _inputs(self) -> Sequence[str]:
        return (self.field, self.times) if isinstance(self.times, str) else (self.field,)

    def _decoded(self, payload: pa.Buffer, columns: pa.RecordBatch, row: int, key: int) -> npt.NDArray[Any]:
        import av

        frames: list[npt.NDArray[Any]] = []
        try:
            with av.open(io.BytesIO(payload)) as container:
                wanted = self._wanted(columns, row)
                for image in images_at(container, wanted, self.fps is not None, self._framing.mode, self.max_bytes):
                    frames.append(self._framing.framed(image, key))
                    if len(frames) * frames[0].nbytes > self.max_bytes:
                        raise BadRecord(f"{len(frames)} frames of it take more than max_bytes={self.max_bytes:,}")
        except av.error.FFmpegError as error:
            raise BadRecord(f"{len(payload):,} bytes that PyAV cannot decode ({error.strerror})") from error
        return np.stack(frames)

    def _wanted(self, columns: pa.RecordBatch, row: int) -> Iterable[Fraction]:
        """The times of the frames of a row, ascending; without an end for a rate."""
        if self.fps is not None:
            return (number / self.fps for number in itertools.count())
        if not isinstance(self.times, str):
            return self.times or ()
        value = columns.column(self.times)[row].as_py()
        try:
            return _seconds(value)
        except RecipeError:
            raise BadRecord(f"times in column {self.times!r} are {value!r:.80}: there must be seconds, ascending") from None


def _rate(fps: Any) -> Fraction:
    try:
        rate = Fraction(0) if isinstance(fps, bool) else Fraction(str(fps))
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if rate <= 0:
        raise RecipeError(f"decode_video: fps is {fps!r:.80}: it must be a number above 0, or a text such as '30000/1001'")
    return rate


def _seconds(times: Any) -> tuple[Fraction, ...]:
    """Times, exact as they are written. `RecipeError`."""
    try:
        seconds = tuple(Fraction(str(time)) for time in times)
    except (TypeError, ValueError, ZeroDivisionError):
        seconds = ()
    if not seconds or seconds[0] < 0 or any(a > b for a, b in itertools.pairwise(seconds)):
        raise RecipeError(f"decode_video: times is {times!r:.80}: give seconds from 0 on, ascending, at least one")
    return seconds


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
