"""How many rows a shard says that it has is no more than its bytes can hold: of others a run would never see the end."""

import gzip
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from tests.writers.mds import index, sample, shard
from zephon_async.errors import ShardError
from zephon_async.io import Dataset, check

WRITTEN = Path(__file__).parent.parent / "written"
ROWS, MANY = 77, 1 << 40
BATCH = pa.record_batch({"a": list(range(ROWS)), "text": ["x"] * ROWS})


def replaced(path: Path, old: bytes, new: bytes, count: int) -> None:
    """The same file with other numbers in its metadata: the first `count` of them."""
    body = path.read_bytes()
    assert body.count(old) >= count
    path.write_bytes(body.replace(old, new, count))


def a_stream(folder: Path, rows: int, count: int = 1) -> None:
    with pa.ipc.new_stream(folder / "a.arrow", BATCH.schema) as stream:
        stream.write(BATCH)
        stream.write(BATCH)
    replaced(folder / "a.arrow", struct.pack("<q", ROWS), struct.pack("<q", rows), count)


def a_stream_that_agrees(folder: Path) -> None:
    a_stream(folder, MANY, count=3)  # of the batch and of both of its columns


def varint(number: int) -> bytes:
    low = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([byte | 128 for byte in low[:-1]] + low[-1:])


def a_row_group(folder: Path, count: int | None) -> None:
    path = folder / "a.parquet"
    pq.write_table(pa.table(BATCH), path)
    body = path.read_bytes()
    size = int.from_bytes(body[-8:-4], "little")
    old, new = b"\x16" + varint(2 * ROWS), b"\x16" + varint(2 * MANY)
    head, sign, tail = body[-8 - size : -8].rpartition(old)
    footer = head + new + tail if count else (head + sign + tail).replace(old, new)
    path.write_bytes(body[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1")


def one_row_group(folder: Path) -> None:
    a_row_group(folder, 1)  # the last number is that of the group


def a_footer_that_agrees(folder: Path) -> None:
    a_row_group(folder, None)


def mds(folder: Path, changes: dict[str, Any], ending: str = "", pack: Callable[[bytes], bytes] = bytes) -> None:
    entry = shard(folder, "a", {"text": "str"}, [sample({"text": "str"}, {"text": "x"})] * ROWS, ending, pack)
    index(folder, [entry | changes | ({"raw_data": entry["raw_data"] | {"bytes": 1 << 44}} if ending and not changes else {})])


def samples_of_mds(folder: Path) -> None:
    mds(folder, {"samples": MANY})


def samples_of_compressed_mds(folder: Path) -> None:
    mds(folder, {"samples": MANY}, ".gz", gzip.compress)


def bytes_of_compressed_mds(folder: Path) -> None:
    mds(folder, {}, ".gz", gzip.compress)


def samples_of_litdata(folder: Path) -> None:
    shutil.copytree(WRITTEN / "litdata/zstd_chunk", folder, dirs_exist_ok=True)
    said = json.loads((folder / "index.json").read_text())
    said["chunks"][0] |= {"chunk_size": MANY, "chunk_bytes": 1 << 44}
    (folder / "index.json").write_text(json.dumps(said))


SHARDS = [
    a_stream_that_agrees,
    lambda folder: a_stream(folder, MANY),
    lambda folder: a_stream(folder, -1),
    lambda folder: a_stream(folder, ROWS + 1),
    a_footer_that_agrees,
    one_row_group,
    samples_of_mds,
    samples_of_compressed_mds,
    bytes_of_compressed_mds,
    samples_of_litdata,
]


@pytest.mark.parametrize("write", SHARDS)
def test_a_shard_says_more_rows_than_it_can_hold(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ShardError, match=r"dataset 'd', shard '(a|chunk-0-0)\..*(rows|samples|bytes)"):
        Dataset.from_path("d", tmp_path).catalog()
    dataset = Dataset.from_path("d", tmp_path)
    assert 0 in dataset.catalog(lenient=True).lost
    told = next(iter(check(dataset)))
    assert (told.rows, len(told.problems)) == (0, 1)


def test_rows_of_nothing_take_no_bytes(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {"n": pa.nulls(1_000_000), "r": pa.RunEndEncodedArray.from_arrays(pa.array([1_000_000], pa.int32()), ["x"])}
    )
    with pa.ipc.new_stream(tmp_path / "a.arrow", batch.schema) as stream:
        stream.write(batch)
    pq.write_table(pa.table({"n": pa.nulls(1_000_000)}), tmp_path / "a.parquet")
    for name in ("a.arrow", "a.parquet"):
        assert Dataset.from_path("d", tmp_path / name).catalog().rows == 1_000_000
