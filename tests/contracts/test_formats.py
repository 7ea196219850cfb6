"""What every format promises: any block in any order from any thread, for any columns, and every row exactly once."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.whole import block_numbers, ones, schema_of
from zephon_async.errors import DatasetError, ShardError
from zephon_async.io import Catalog, Dataset, Reader
from zephon_async.records import Block

ROWS = [
    {
        "id": n,
        "text": f"row {n} é" * (n % 7),
        "score": n / 4 if n % 3 else None,
        "input_ids": list(range(n % 5)),
        "flag": n % 2 == 0,
    }
    for n in range(331)
]
SHARDS = {"a": ROWS[:97], "b": ROWS[97:98], "c/d": ROWS[98:]}
TYPES = pa.schema(
    {
        "id": pa.int64(),
        "text": pa.large_string(),
        "score": pa.float64(),
        "input_ids": pa.list_(pa.int64()),
        "flag": pa.bool_(),
    }
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, TYPES)


def jsonl(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def parquet(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    pq.write_table(table(rows), folder / f"{name}.parquet", row_group_size=40)


def arrow_file(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    with pa.ipc.new_file(folder / f"{name}.arrow", TYPES) as writer:
        writer.write_table(table(rows), max_chunksize=50)


def arrow_stream(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Compressed, with a dictionary that grows on the way."""
    spelled = TYPES.set(1, pa.field("text", pa.dictionary(pa.int32(), pa.string())))
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True, compression="zstd")
    with pa.ipc.new_stream(folder / f"{name}.ipc", spelled, options=options) as writer:
        for first in range(0, len(rows), 50):
            writer.write_table(table(rows[first : first + 50]).cast(spelled))


WRITERS = [jsonl, parquet, arrow_file, arrow_stream]
MAKERS = [*WRITERS, "memory"]


def make(writer: Any, folder: Path, block_bytes: int = 700) -> Dataset:
    if writer == "memory":
        return Dataset.from_arrow("d", {name: table(rows) for name, rows in SHARDS.items()}).with_sizes(
            unit_bytes=4000, block_bytes=block_bytes
        )
    (folder / "c").mkdir()
    for name, rows in SHARDS.items():
        writer(folder, name, rows)
    return Dataset.from_path("d", folder, unit_bytes=4000, block_bytes=block_bytes)


@pytest.fixture(params=MAKERS, ids=lambda maker: getattr(maker, "__name__", maker), scope="module")
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make(request.param, tmp_path_factory.mktemp("data"))


def test_the_catalog_knows_all_rows(dataset: Dataset) -> None:
    catalog = dataset.catalog()
    assert catalog.measure == "rows"
    assert catalog.rows == dataset.total() == len(dataset) == len(ROWS)
    assert dataset.counts().tolist() == [97, 1, 233]
    assert [Path(shard.name).with_suffix("").as_posix() for shard in catalog.shards] == ["a", "b", "c/d"]
    assert (catalog.units["length"] > 0).all()
    assert (catalog.units["length"] > catalog.units["block"]).any() == (dataset.format != "jsonl")
    assert dataset.catalog() is catalog
    for shard, rows in enumerate(SHARDS.values()):
        mine = catalog.units[catalog.units["shard"] == shard]
        assert mine["first"].tolist() == np.concatenate(([0], np.cumsum(mine["length"])))[:-1].tolist()
        assert mine["length"].sum() == len(rows)


def expected(catalog: Catalog, unit: int, number: int) -> tuple[int, list[dict[str, Any]]]:
    place = catalog.units[unit]
    begin = number * int(place["block"])
    rows = list(SHARDS.values())[int(place["shard"])]
    first = int(place["first"]) + begin
    return begin, rows[first : int(place["first"]) + min(begin + int(place["block"]), int(place["length"]))]


def check(block: Block, catalog: Catalog, unit: int, number: int, names: list[str]) -> None:
    begin, rows = expected(catalog, unit, number)
    assert block.columns.schema.names == names
    assert block.columns.num_rows == len(rows)
    assert block.columns.to_pylist() == [{name: row[name] for name in names} for row in rows]
    assert block.places.tolist() == list(range(begin, begin + len(rows)))
    assert block.shard == catalog.units["shard"][unit]
    assert block.bad == {}
    assert block.sizes.tolist() == [1] * len(rows)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(names=st.sets(st.sampled_from(TYPES.names)), random=st.randoms(use_true_random=False))
def test_any_blocks_in_any_order_for_any_columns(dataset: Dataset, names: set[str], random: Any) -> None:
    catalog = dataset.catalog()
    reader = Reader([dataset], schema_of(dataset, needed=names), ones)
    numbers = block_numbers(catalog)
    random.shuffle(numbers)
    for unit, number in numbers:
        check(reader.read(0, unit, number), catalog, unit, number, sorted(names))
    reader.close()


def test_rows_lie_where_the_origin_says(dataset: Dataset) -> None:
    catalog = dataset.catalog()
    reader = Reader([dataset], schema_of(dataset, needed=["id"]), ones)
    found: dict[int, list[int]] = {}
    for unit, number in block_numbers(catalog):
        block = reader.read(0, unit, number)
        found.setdefault(block.shard, []).extend(block.rows.tolist())
        if dataset.format == "jsonl":
            source = dataset.open(block.shard)
            for row, record in zip(block.rows.tolist(), block.columns.to_pylist(), strict=True):
                line = source.read(row, source.size - row).partition(b"\n")[0]
                assert msgspec.json.decode(line)["id"] == record["id"]
    if dataset.format != "jsonl":
        assert found == {shard: list(range(len(rows))) for shard, rows in enumerate(SHARDS.values())}


def test_eight_threads_see_the_same(dataset: Dataset) -> None:
    catalog = dataset.catalog()
    reader = Reader([dataset], schema_of(dataset), ones, open_bytes=10 << 20)
    numbers = block_numbers(catalog)

    def read_all(turn: int) -> None:
        for unit, number in numbers[turn * 5 :] + numbers[: turn * 5]:
            stop = min(number + 1 + turn % 3, 1 + max(n for u, n in numbers if u == unit))
            for other, block in reader.read_several(0, unit, range(number, stop)).items():
                check(block, catalog, unit, other, sorted(TYPES.names))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read_all, range(8)))


def test_the_types_are_those_of_the_data(dataset: Dataset) -> None:
    assert schema_of(dataset).equals(pa.schema(sorted(TYPES, key=lambda field: str(field.name))))


def test_integers_become_tokens_and_text_stays_text(dataset: Dataset) -> None:
    schema = schema_of(dataset, needed=[], required={"input_ids": "integers", "text": "string", "flag": "any"})
    assert schema == pa.schema({"flag": pa.bool_(), "input_ids": pa.list_(pa.int32()), "text": pa.large_string()})
    block = Reader([dataset], schema, ones).read(0, 0, 0)
    _, rows = expected(dataset.catalog(), 0, 0)
    assert block.columns.to_pylist() == [{name: row[name] for name in schema.names} for row in rows]
    assert block.columns.schema == schema


def test_what_kind_of_column_it_is_can_be_wrong(dataset: Dataset) -> None:
    block = Reader([dataset], pa.schema({"flag": pa.large_string()}), ones).read(0, 0, 0)
    assert block.columns.column(0).null_count == len(block.rows)
    assert set(block.bad) == set(range(len(block.rows)))
    where = f"dataset 'd', shard {dataset.shards[0].name!r}"
    assert str(block.bad[0]).startswith(f"{where}, ")
    with pytest.raises(DatasetError, match=f"^{re.escape(where)} and 2 others: column 'flag' is bool, and an operator needs text"):
        schema_of(dataset, required={"flag": "string"})


def test_blocks_hold_only_their_own_bytes(dataset: Dataset) -> None:
    reader = Reader([dataset], schema_of(dataset, needed=["text"]), ones)
    block = reader.read(0, 0, 0)
    if dataset.format != "memory":
        assert block.columns.get_total_buffer_size() < 4000


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
@pytest.mark.parametrize("change", ["longer", "shorter", "touched", "gone"])
def test_a_shard_that_changes_is_an_error(writer: Any, change: str, tmp_path: Path) -> None:
    dataset = make(writer, tmp_path)
    schema, units = schema_of(dataset), dataset.catalog().units
    reader = Reader([dataset], schema, ones)
    path = tmp_path / dataset.shards[2].name
    size = path.stat().st_size
    if change == "touched":
        path.write_bytes(path.read_bytes()[::-1])
        said = "has changed since the catalog was made (it was written to); start again, or put the file back"
    elif change == "gone":
        path.unlink()
        said = f"{str(path)!r} cannot be read: No such file or directory"
    else:
        path.write_bytes(b"x" * (size + (10 if change == "longer" else -10)))
        new = f"{path.stat().st_size:,}"
        said = f"has changed since the catalog was made (it had {size:,} bytes and has {new}); start again, or put the file back"
    with pytest.raises(ShardError) as caught:
        reader.read(0, len(units) - 1, 0)
    assert str(caught.value) == f"dataset 'd', shard {dataset.shards[2].name!r}: {said}"


def read_all(path: Path) -> tuple[int, str | None]:
    """How many rows a file gives, and what is said if it gives none."""
    dataset = Dataset.from_path("d", path)
    try:
        reader = Reader([dataset], schema_of(dataset), ones)
        return sum(len(reader.read(0, *numbers).rows) for numbers in block_numbers(dataset.catalog())), None
    except ShardError as error:
        return 0, str(error)


@pytest.mark.parametrize("writer", [parquet, arrow_file, arrow_stream], ids=lambda writer: writer.__name__)
def test_a_broken_shard_is_an_error_that_names_it(writer: Callable[..., None], tmp_path: Path) -> None:
    writer(tmp_path, "a", ROWS[:50])
    path = next(tmp_path.iterdir())
    good = path.read_bytes()
    for cut in sorted({0, 1, 7, 12, len(good) // 3, len(good) // 2, len(good) - 11, len(good) - 1}):
        if writer is arrow_stream and cut == 0:
            continue
        path.write_bytes(good[:cut])
        rows, said = read_all(path)
        if said is None:  # only the mark behind the end of the stream was cut
            assert (writer, rows) == (arrow_stream, 50)
        else:
            assert said.startswith(f"dataset 'd', shard {path.name!r}: ")


@pytest.mark.parametrize("writer", [parquet, arrow_file, arrow_stream], ids=lambda writer: writer.__name__)
def test_flipped_bytes_give_an_error_or_rows(writer: Callable[..., None], tmp_path: Path) -> None:
    writer(tmp_path, "a", ROWS[:30])
    path = next(tmp_path.iterdir())
    good = path.read_bytes()
    for at in range(0, len(good), max(len(good) // 60, 1)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        _, said = read_all(path)
        assert said is None or said.startswith(f"dataset 'd', shard {path.name!r}: ")


@pytest.mark.parametrize("writer", [parquet, arrow_file, arrow_stream], ids=lambda writer: writer.__name__)
def test_a_required_column_that_is_not_there(writer: Callable[..., None], tmp_path: Path) -> None:
    writer(tmp_path, "a", ROWS[:3])
    path = next(tmp_path.iterdir())
    dataset = Dataset.from_path("d", tmp_path)
    with pytest.raises(ShardError) as caught:
        Reader([dataset], pa.schema({"body": pa.large_string()}), ones, required={"body"}).read(0, 0, 0)
    columns = "'id', 'text', 'score', 'input_ids', 'flag'"
    assert str(caught.value) == f"dataset 'd', shard {path.name!r}: there is no column 'body'; its columns are {columns}"
    with pytest.raises(ShardError, match=f"no column 'texts'; its columns are {columns}; did you mean 'text'"):
        Reader([dataset], pa.schema({"texts": pa.large_string()}), ones, required={"texts"}).read(0, 0, 0)
