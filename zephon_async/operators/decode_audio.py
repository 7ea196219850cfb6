"""`decode_audio`: WAV, FLAC, Ogg, MP3 and what else libsndfile reads, to samples of one rate.

Takes a column of encoded audio, or of lists of it (see `media`); gives tensors of float32, [samples], or [samples, channels] with
`mono=False`, each of its own length. soundfile decodes (-1 to 1), soxr resamples, at its high quality. What they give may differ
between their versions, which are the user's to pin.

A file that is cut is a bad record: by what its header tells of samples, or, of WAV, of bytes; Ogg by the mark on its last page.
"""

import io
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import flag, whole
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.media import MAX_BYTES, DecodePayload

_CUT = re.compile(r"^data : (\d+) \(should be \d+\)", re.MULTILINE)  # what libsndfile says of a WAV's
_UNKNOWN = 0x7FFFFF00  # bytes or more of data: written before it was known how many there would be


class DecodeAudio(DecodePayload):
    """Decode a column of audio to tensors of samples.

    field: the column; field_out: the column that is made; None: in its place.
    rate: samples a second of all that comes out. mono: the mean of the channels, else all of them.
    on_null: a null is an "error", or stays null ("keep"); in a list it is an error always.
    max_bytes: more of decoded samples are a bad record. parallelism: workers at once.

    `Batch.ragged(name)` shows the column, and `to_training(extra_fields=[name])`.
    """

    name = "decode_audio"
    _numbers = pa.float32()

    def __init__(
        self,
        field: str = "audio",
        *,
        rate: int,
        mono: bool = True,
        field_out: str | None = None,
        on_null: str = "error",
        max_bytes: int = MAX_BYTES,
        parallelism: int | None = None,
    ) -> None:
        self._set(field, field_out, on_null, max_bytes, parallelism)
        self.rate, self.mono = whole(f"{self.name}: rate", rate, 1), flag(f"{self.name}: mono", mono)
        self._dimensions = 1 if mono else 2
        for library in ("soundfile", "soxr"):
            try:
                import_module(library)
            except (ImportError, OSError) as error:  # OSError: soundfile, where it has no libsndfile
                raise RecipeError(f"{self.name} needs {library} ({error}): pip install 'zephon-async[audio]'") from None

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "rate": self.rate, "mono": self.mono}

    def _decoded(self, payload: pa.Buffer, columns: pa.RecordBatch, row: int, key: int) -> npt.NDArray[Any]:
        import soxr

        samples, rate = self._read(payload)
        if self.mono:
            samples = _mean(samples)
        if rate != self.rate:
            if len(samples) * self.rate // rate * 4 * (samples.size // len(samples)) > self.max_bytes:
                raise BadRecord(
                    f"{len(samples):,} samples at {rate:,} Hz take more than max_bytes={self.max_bytes:,} when resampled"
                )
            samples = soxr.resample(samples, rate, self.rate, quality="HQ")
        return samples

    def _read(self, payload: pa.Buffer) -> tuple[npt.NDArray[np.float32], int]:
        """All samples, float32[samples, channels], and how many there are a second."""
        import soundfile

        try:
            with soundfile.SoundFile(io.BytesIO(payload)) as file:
                if file.frames * file.channels * 4 > self.max_bytes:
                    raise BadRecord(
                        f"{file.frames:,} samples of {file.channels} channels take more than max_bytes={self.max_bytes:,}"
                    )
                told, rate, format_, said = file.frames, file.samplerate, file.format, file.extra_info
                samples: npt.NDArray[np.float32] = file.read(dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            raise BadRecord(f"{len(payload):,} bytes that are no audio ({_reason(error)})") from error
        cut = _CUT.search(said) if format_ in ("WAV", "WAVEX") else None
        if len(samples) < told or (cut and int(cut[1]) < _UNKNOWN) or (format_ == "OGG" and not _ends(payload)):
            raise BadRecord(f"the {format_} is cut: there are {len(samples):,} samples, fewer than its header tells of")
        if not len(samples):
            raise BadRecord(f"the {format_} has no samples")
        return samples, rate


def _mean(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The mean of the channels, added one by one: a sum of numpy's own may have another order in another version."""
    total = samples[:, 0].copy()
    for channel in range(1, samples.shape[1]):
        total += samples[:, channel]
    return total / np.float32(samples.shape[1]) if samples.shape[1] > 1 else total


def _ends(payload: pa.Buffer) -> bool:
    """Whether the last page of an Ogg file is marked as its last."""
    tail = payload.slice(max(0, len(payload) - (1 << 17))).to_pybytes()  # a page has at most 64 KiB
    page = tail.rfind(b"OggS")
    return page >= 0 and len(tail) > page + 5 and bool(tail[page + 5] & 4)


def _reason(error: Exception) -> str:
    """What libsndfile says, without the address of the object that it was told to read."""
    return str(getattr(error, "error_string", error))
