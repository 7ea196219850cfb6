"""Vortex: columns of every kind, shards of many chunks, and what is broken. Collected where there is a library for it."""

import os
import random
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.whole import BytesSource, ones, schema_of, whole
from zephon_async.errors import RecipeError, ShardError
from zephon_async.io import Dataset, Reader
from zephon_async.io.formats import vortex
from zephon_async.io.pool import Pool

library = import_module("vortex")
ROWS = 40_000


def write(path: Path, table: pa.Table) -> None:
    library.io.write(table, str(path))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shard of several chunks."""
    chance = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("large") / "a.vortex"
    columns: dict[str, Any] = {
        "n": list(range(ROWS)),
        "x": chance.random(ROWS),
        "bytes": [chance.bytes(20 + n % 40) for n in range(ROWS)],
        "list": [list(range(n % 5)) for n in range(ROWS)],
    }
    write(path, pa.table(columns))
    return path


def test_units_are_the_chunks_of_a_shard(large: Path) -> None:
    dataset = Dataset.from_path("d", large, unit_bytes=1, block_bytes=50_000)
    units = dataset.catalog().units
    assert list(zip(units["start"].tolist(), units["stop"].tolist(), strict=True)) == list(library.open(str(large)).splits())
    assert len(units) > 1
    whole_one = Dataset.from_path("d", large, unit_bytes=1 << 30).catalog().units
    assert [(unit["start"], unit["stop"], unit["first"], unit["length"]) for unit in whole_one] == [(0, ROWS, 0, ROWS)]
    assert [row["n"] for row in whole(dataset).rows] == list(range(ROWS))


def test_a_unit_is_read_once(large: Path) -> None:
    """Its row blocks come one after the other; what is read of it stays in the pool, counted, with what is unpacked at once."""
    source = BytesSource("a.vortex", large.read_bytes())
    units = Dataset.from_path("d", large, unit_bytes=1, block_bytes=50_000).catalog().units
    decoder = vortex.FORMAT.decoder(pa.schema({"n": pa.int64(), "bytes": pa.large_binary()}), (), pool := Pool(10 << 20))
    unit = units[1]
    blocks = -(-int(unit["length"]) // int(unit["block"]))
    assert blocks > 2
    decoder.read(source, unit, range(1, 2))
    first = source.taken
    start, rows = int(unit["start"]), min(int(unit["length"]), vortex._AT_ONCE * int(unit["block"]))
    unpacked = library.open(str(large)).to_repeated_scan(["n", "bytes"]).execute(row_range=(start, start + rows))
    held = first - footer_bytes(large) + unpacked.to_arrow().read_all().nbytes
    assert repr(pool) == f"<Pool 1 units, 0 points, {held:,} of {10 << 20:,} bytes>"
    for block in (0, 2, blocks - 1):
        decoder.read(source, unit, range(block, block + 1))
    assert source.taken == first
    assert repr(pool) == f"<Pool 0 units, 0 points, 0 of {10 << 20:,} bytes>"


def footer_bytes(path: Path) -> int:
    """What is read to open a shard for the first time."""
    source = BytesSource("b.vortex", path.read_bytes())
    vortex._know(source)
    return source.taken


def test_a_row_block_holds_its_own_bytes(large: Path) -> None:
    dataset = Dataset.from_path("d", large, block_bytes=20_000)
    reader = Reader([dataset], schema_of(dataset), ones)
    for block in reader.read_several(0, 0, range(3)).values():
        assert block.columns.get_total_buffer_size() < 3 * block.columns.nbytes


def test_columns_of_every_kind(tmp_path: Path) -> None:
    schema = pa.schema(
        {
            "bool": pa.bool_(),
            "bytes": pa.binary(),
            "date": pa.date32(),
            "float": pa.float32(),
            "int": pa.uint8(),
            "list": pa.list_(pa.string()),
            "nested": pa.struct([("x", pa.int32()), ("y", pa.string())]),
            "text": pa.large_string(),
            "when": pa.timestamp("us", "UTC"),
        }
    )
    moment = np.datetime64(1_700_000_000_000_000, "us").item()
    rows: list[dict[str, Any]] = [
        {
            "bool": n % 2 == 0,
            "bytes": bytes([n]) * n,
            "date": moment.date(),
            "float": n / 2,
            "int": n,
            "list": [f"é{n}"] * n,
            "nested": {"x": n, "y": f"a{n}"},
            "text": None if n == 3 else f"text {n}" * n,
            "when": None,
        }
        for n in range(9)
    ]
    write(tmp_path / "a.vortex", pa.Table.from_pylist(rows, schema))
    dataset = Dataset.from_path("d", tmp_path, block_bytes=2_000)
    assert whole(dataset).rows == rows
    assert schema_of(dataset) == pa.schema(
        {
            "bool": pa.bool_(),
            "bytes": pa.large_binary(),
            "date": pa.date32(),
            "float": pa.float32(),
            "int": pa.uint8(),
            "list": pa.list_(pa.large_string()),
            "nested": pa.struct([("x", pa.int32()), ("y", pa.large_string())]),
            "text": pa.large_string(),
            "when": pa.timestamp("us", "UTC"),
        }
    )


def test_a_shard_without_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.vortex", pa.table({"n": pa.array([], pa.int64())}))
    write(tmp_path / "b.vortex", pa.table({"n": [1, 2]}))
    dataset = Dataset.from_path("d", tmp_path)
    assert dataset.counts().tolist() == [0, 2]
    assert whole(dataset).rows == [{"n": 1}, {"n": 2}]


def test_a_required_column_that_is_not_there(large: Path) -> None:
    with pytest.raises(ShardError) as caught:
        Reader([Dataset.from_path("d", large)], pa.schema({"m": pa.int64()}), ones, required={"m"}).read(0, 0, 0)
    said = "dataset 'd', shard 'a.vortex': there is no column 'm'; its columns are 'n', 'x', 'bytes', 'list'"
    assert str(caught.value).startswith(said)


def test_a_library_that_is_too_old(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = shutil.copytree(large, tmp_path / "d") if large.is_dir() else shutil.copy(large, tmp_path)  # nothing is known of it
    monkeypatch.delattr(library, "open_readable")
    vortex._capped.cache_clear()
    with pytest.raises(RecipeError) as caught:
        Dataset.from_path("old", copied).catalog()
    assert str(caught.value) == "this vortex-data has no vortex.open_readable: Vortex is read with vortex-data 0.93 or newer"


def test_threads_of_the_library_are_two_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(library, "worker_threads", lambda: 7)
    monkeypatch.setattr(library, "set_worker_threads", asked.append)
    vortex._capped.cache_clear()
    vortex._vortex()
    assert asked == [2]
    vortex._capped.cache_clear()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "a.vortex"
    write(path, pa.table({"n": list(range(50)), "text": [f"row {n}" * (n % 5) for n in range(50)]}))
    return path.read_bytes()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_whatever_the_bytes_are(seed: int, small: bytes, tmp_path: Path) -> None:
    """An error of ours that names the shard, or rows."""
    chance, body = random.Random(seed), bytearray(small)
    for _ in range(chance.randint(1, 4)):
        begin = chance.randrange(len(body))
        match chance.randrange(3):
            case 0:
                body[begin] = chance.randrange(256)
            case 1:
                del body[begin : begin + chance.randint(1, 40)]
            case _:
                body[begin:begin] = body[: chance.randint(1, 40)]
    path = tmp_path / f"{seed}.vortex"
    path.write_bytes(body)
    try:
        whole(Dataset.from_path("d", path))
    except ShardError as error:
        said = str(error)
    else:
        said = f"dataset 'd', shard {path.name!r}: "
    finally:
        os.unlink(path)
    assert said.startswith(f"dataset 'd', shard {path.name!r}: ")
    assert "\n" not in said
