"""`decode_audio`: formats, rates, channels, and files that are cut."""

import struct
import sys
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soxr

from tests.made_media import audio, tone
from tests.made_rows import made, run
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.decode_audio import DecodeAudio
from zephon_async.ragged import Ragged, ragged


def decoded(values: list[Any], kind: pa.DataType | None = None, **settings: Any) -> Ragged:
    records = made({"audio": pa.array(values, kind or pa.binary())})
    operator = DecodeAudio(**settings)
    out = operator.apply(records, Counter())
    assert out.columns.schema.equals(operator.output(records.columns.schema), check_metadata=True)
    return ragged(out.columns.column("audio"))


@pytest.mark.parametrize(("kind", "off"), [("WAV", 1e-4), ("FLAC", 1e-4), ("OGG", 0.05), ("MP3", 0.05)])
def test_formats(kind: str, off: float) -> None:
    wave = tone(0.5, 16_000, 2)
    found = decoded([audio(wave, 16_000, kind)], rate=16_000, mono=False)
    assert found.shapes.tolist() == [[8000, 2]]
    assert np.abs(found[0] - wave).max() < off


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_lengths_and_lists(kind: pa.DataType) -> None:
    files = [audio(tone(seconds, 8000), 8000, "FLAC") for seconds in (0.1, 0.2)]
    found = decoded([*files, None], kind, rate=8000, on_null="keep")
    assert (found.shapes.tolist(), found.row_offsets.tolist()) == ([[800], [1600]], [0, 1, 2, 2])
    assert decoded([files, [], files[1:]], pa.list_(kind), rate=8000).row_offsets.tolist() == [0, 2, 2, 3]


def test_mono_and_another_rate() -> None:
    wave = tone(0.5, 44_100, 3)
    file = audio(wave, 44_100, "WAV", subtype="FLOAT")
    mean = ((wave[:, 0] + wave[:, 1]) + wave[:, 2]) / np.float32(3)
    assert decoded([file], rate=44_100)[0].tolist() == mean.tolist()
    assert decoded([file], rate=16_000)[0].tolist() == soxr.resample(mean, 44_100, 16_000, quality="HQ").tolist()
    assert decoded([file], rate=16_000, mono=False).shapes.tolist() == [[8000, 3]]


def refused(value: bytes, **settings: Any) -> str:
    good = audio(tone(0.1, 8000), 8000)
    out, at, cause = run(DecodeAudio(rate=8000, **settings), made({"audio": [good, value]}))
    assert (out and len(out), at, type(cause)) == (1, 1, BadRecord)
    return str(cause)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_file_that_is_cut_is_a_bad_record(kind: str) -> None:
    file = audio(tone(3, 16_000, 2), 16_000, kind)
    for part in (0.03, 0.3, 0.6, 0.95):
        assert refused(file[: int(len(file) * part)]).startswith("decode_audio: column 'audio': ")


def test_a_wav_of_unknown_length_is_read_to_its_end() -> None:
    file = bytearray(audio(tone(0.1, 8000), 8000))
    file[4:8] = struct.pack("<I", 0xFFFFFFFF)
    at = file.find(b"data") + 4
    file[at : at + 4] = struct.pack("<I", 0xFFFFFFFF)
    assert decoded([bytes(file)], rate=8000).shapes.tolist() == [[800]]


def test_bytes_that_are_no_audio() -> None:
    assert refused(b"") == "decode_audio: column 'audio': 0 bytes"
    assert "no audio" in refused(b"no audio at all")
    assert "has no samples" in refused(audio(np.zeros((0, 1), np.float32), 8000))
    assert "take more than max_bytes=3,300" in refused(audio(tone(1, 8000), 8000), max_bytes=3300)
    assert "more than max_bytes=3,300 when resampled" in refused(audio(tone(0.1, 4000), 1000), max_bytes=3300)
    _, at, cause = run(DecodeAudio(rate=8000), made({"audio": pa.array([None], pa.binary())}))
    assert (at, str(cause)) == (0, "decode_audio: column 'audio': null; on_null='keep' lets nulls through")


@pytest.mark.parametrize(("settings", "words"), [({"rate": 0}, "rate is 0"), ({"rate": 1, "mono": "no"}, "mono is 'no'")])
def test_wrong_settings_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        DecodeAudio(**settings)


@pytest.mark.parametrize("library", ["soundfile", "soxr"])
def test_without_its_libraries_it_says_so_at_once(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(RecipeError, match=rf"decode_audio needs {library} \(.*\): pip install 'zephon-async\[audio\]'"):
        DecodeAudio(rate=16_000)


def test_contract() -> None:
    operator = DecodeAudio("sound", rate=16_000, field_out="samples")
    assert operator.settings() == {
        "field": "sound",
        "field_out": "samples",
        "on_null": "error",
        "max_bytes": 1 << 29,
        "rate": 16_000,
        "mono": True,
    }
    assert operator.reads(frozenset({"samples", "a"})) == frozenset({"sound", "a"})
    assert operator.row_bytes(10) == 10
