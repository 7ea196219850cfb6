"""`decode_video`: frames at times and at a rate, turned and resized, and videos that are cut."""

import struct
import sys
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.made_media import video
from tests.made_rows import made, run
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.decode_video import DecodeVideo
from zephon_async.ragged import Ragged, ragged

TEN_A_SECOND = video(20, 10)
KINDS = [pa.binary(), pa.large_binary(), pa.binary_view()]


def decoded(columns: dict[str, Any], **settings: Any) -> pa.Array:
    records = made(columns)
    operator = DecodeVideo(**settings)
    out = operator.apply(records, Counter())
    assert out.columns.schema.equals(operator.output(records.columns.schema), check_metadata=True)
    return out.columns.column("video")


def numbers(frames: Any) -> list[int]:
    """Which frames they are, by their gray."""
    return [round(float(frame[frame.shape[0] // 2, -4, 0]) / 12) for frame in frames]


@pytest.mark.parametrize("kind", ["mp4", "matroska"])
@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"fps": 10}, list(range(20))),
        ({"fps": 2}, [0, 5, 10, 15]),
        ({"fps": "20/3"}, [0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19]),
        ({"fps": 0.1}, [0]),
        ({"fps": 20}, [number // 2 for number in range(40)]),
        ({"times": [0, 0.05, 0.1, 0.1, 1.949, "1.95", 1.99]}, [0, 0, 1, 1, 19, 19, 19]),
    ],
)
def test_frames(kind: str, settings: dict[str, Any], wanted: list[int]) -> None:
    found: Ragged = ragged(decoded({"video": [video(20, 10, kind)]}, **settings))
    assert (numbers(found[0]), found.shapes.tolist()) == (wanted, [[len(wanted), 48, 64, 3]])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_times_of_a_column_and_lists(kind: pa.DataType) -> None:
    times = pa.array([[0.3], [0.1, 1.2]], pa.list_(pa.float32()))
    found = ragged(decoded({"video": pa.array([TEN_A_SECOND] * 2, kind), "at": times}, times="at"))
    assert [numbers(each) for each in found] == [[3], [1, 12]]
    lists = decoded({"video": pa.array([[TEN_A_SECOND, video(3, 10)], []], pa.list_(kind))}, fps=5)
    assert [numbers(each) for each in ragged(lists)] == [[0, 2, 4, 6, 8, 10, 12, 14, 16, 18], [0, 2]]
    for value in (None, [], [1.0, 0.5], [-1.0], [float("nan")]):
        records = made({"video": [TEN_A_SECOND], "at": pa.array([value], pa.list_(pa.float64()))})
        _, at, cause = run(DecodeVideo(times="at"), records)
        assert (at, type(cause)) == (0, BadRecord)
        assert f"times in column 'at' are {value}" in str(cause)


def test_frames_of_a_fixed_shape() -> None:
    column = decoded({"video": [TEN_A_SECOND]}, times=[0.5, 1], size=(12, 20), channels="first", dtype="float32")
    assert column.type == pa.fixed_shape_tensor(pa.float32(), [2, 3, 12, 20])
    half = column.to_numpy_ndarray()[0, 0, :, 6, -2]
    assert np.abs(half - 60 / 255).max() < 0.02
    crops = ragged(decoded({"video": [TEN_A_SECOND] * 6}, fps=1, size=(4, 4), crop="random", shortest=48, mode="L"))
    assert crops.shapes.tolist() == [[2, 4, 4, 1]] * 6
    assert len({each[1].tobytes() for each in crops}) > 1  # left of the middle, on it, right of it
    assert all((each[0] == 0).all() for each in crops)


def test_a_video_is_turned_as_it_says() -> None:
    file = bytearray(TEN_A_SECOND)
    at = file.find(b"tkhd") + 4 + 40  # its matrix, here of a quarter turn clockwise
    file[at : at + 16] = struct.pack(">4i", 0, 1 << 16, 0, -1 << 16)
    file[at + 16 : at + 20] = struct.pack(">i", 0)
    frames = ragged(decoded({"video": [bytes(file)]}, fps=1))[0]
    plain = ragged(decoded({"video": [TEN_A_SECOND]}, fps=1))[0]
    assert frames.shape == (2, 64, 48, 3)
    assert frames.tolist() == np.rot90(plain, -1, axes=(1, 2)).tolist()


def refused(value: bytes, **settings: Any) -> str:
    out, at, cause = run(DecodeVideo(**(settings or {"fps": 2})), made({"video": [TEN_A_SECOND, value]}))
    assert (out and len(out), at, type(cause)) == (1, 1, BadRecord)
    return str(cause)


@pytest.mark.parametrize("kind", ["mp4", "matroska"])
def test_a_video_that_is_cut_is_a_bad_record(kind: str) -> None:
    file = video(20, 10, kind)
    for part in (0.02, 0.3, 0.6):
        assert refused(file[: int(len(file) * part)]).startswith("decode_video: column 'video': ")


def test_bytes_that_are_no_video() -> None:
    assert refused(b"") == "decode_video: column 'video': 0 bytes"
    assert "12 bytes that PyAV cannot decode" in refused(b"no video....")
    assert "the video ends at 0.500 s, before a frame at 1.000 s" in refused(video(5, 10), times=[0, 1])
    assert "22 frames of it take more than max_bytes=200,000" in refused(video(40, 10), fps=10, max_bytes=200_000)
    assert "a video of 128 x 96 pixels takes more than max_bytes=20,000" in refused(
        video(2, 10, "mp4", 96, 128), times=[0], max_bytes=20_000
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "give either fps= or times="),
        ({"fps": 1, "times": [0]}, "give either fps= or times="),
        ({"fps": 0}, "fps is 0: it must be a number above 0"),
        ({"fps": "1/0"}, "fps is '1/0'"),
        ({"fps": True}, "fps is True"),
        ({"times": []}, "at least one"),
        ({"times": [2, 1]}, "ascending"),
        ({"times": [-1]}, "from 0 on"),
        ({"fps": 1, "size": 5}, "size is 5"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        DecodeVideo(**settings)


def test_wrong_columns_are_refused_at_the_start() -> None:
    with pytest.raises(RecipeError, match=r"times='at'.*not a list of seconds"):
        DecodeVideo(times="at").output(pa.schema([("video", pa.binary()), ("at", pa.string())]))


def test_without_pyav_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(RecipeError, match=r"decode_video needs PyAV \(.*\): pip install 'zephon-async\[video\]'"):
        DecodeVideo(fps=1)


def test_contract() -> None:
    operator = DecodeVideo("clip", fps="30000/1001", field_out="frames")
    assert operator.fps == Fraction(30000, 1001)
    assert {name: operator.settings()[name] for name in ("field", "field_out", "fps", "times")} == {
        "field": "clip",
        "field_out": "frames",
        "fps": "30000/1001",
        "times": None,
    }
    assert DecodeVideo(times=[0, 0.5]).settings()["times"] == "0 1/2"
    timed = DecodeVideo(times="at")
    assert timed.reads(frozenset({"video"})) == frozenset({"video", "at"})
    assert timed.requires() == {"video": "any", "at": "any"}
