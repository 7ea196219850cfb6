"""What every format promises: any block in any order from any thread, for any columns, and every row exactly once; near and far."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.system.fake_s3 import FakeS3
from tests.whole import block_numbers, ones, schema_of, whole
from tests.writers import WRITERS, Row, Writer
from tests.writers.base import TYPES, table
from zephon_async.errors import DatasetError, ShardError, StorageError
from zephon_async.io import Access, Catalog, Dataset, Reader
from zephon_async.io.formats import find_format
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
MEMORY = Writer("memory", "", lambda folder, shards: None)


def dataset_of(writer: Writer, folder: Path, block_bytes: int = 700) -> Dataset:
    if writer is MEMORY:
        tables = {name: table(rows) for name, rows in SHARDS.items()}
        return Dataset.from_arrow("d", tables).with_sizes(unit_bytes=4000, block_bytes=block_bytes)
    writer.write(folder, SHARDS)
    return Dataset.from_path("d", folder / writer.at, unit_bytes=4000, block_bytes=block_bytes)


@pytest.fixture(params=[*WRITERS, MEMORY], ids=str, scope="module")
def writer(request: pytest.FixtureRequest) -> Writer:
    wanted: Writer = request.param
    return wanted


@pytest.fixture(scope="module")
def written(writer: Writer, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return dataset_of(writer, tmp_path_factory.mktemp("data"))


@pytest.fixture
def dataset(written: Dataset) -> Iterator[Dataset]:
    yield written
    written.store.close()


each_written = pytest.mark.parametrize("writer", [one for one in WRITERS if not one.own_store], ids=str)


def test_the_catalog_knows_all_rows(writer: Writer, dataset: Dataset) -> None:
    catalog = dataset.catalog()
    assert catalog.measure == "rows"
    assert catalog.rows == dataset.total() == len(dataset) == len(ROWS)
    assert dataset.counts().tolist() == [97, 1, 233]
    assert [shard.name for shard in catalog.shards] == writer.names(SHARDS)
    assert (catalog.units["length"] > 0).all()
    assert (catalog.units["length"] > catalog.units["block"]).any() == writer.several
    assert dataset.catalog() is catalog
    for shard, rows in enumerate(SHARDS.values()):
        mine = catalog.units[catalog.units["shard"] == shard]
        assert mine["first"].tolist() == np.concatenate(([0], np.cumsum(mine["length"])))[:-1].tolist()
        assert mine["length"].sum() == len(rows)


def expected(writer: Writer, catalog: Catalog, unit: int, number: int) -> tuple[int, list[Row]]:
    place = catalog.units[unit]
    begin = number * int(place["block"])
    rows = list(SHARDS.values())[int(place["shard"])]
    first = int(place["first"]) + begin
    stop = int(place["first"]) + min(begin + int(place["block"]), int(place["length"]))
    return begin, [writer.given(row) for row in rows[first:stop]]


def check(block: Block, writer: Writer, catalog: Catalog, unit: int, number: int, names: list[str]) -> None:
    begin, rows = expected(writer, catalog, unit, number)
    assert block.columns.schema.names == names
    assert block.columns.num_rows == len(rows)
    assert block.columns.to_pylist() == [{name: row.get(name) for name in names} for row in rows]
    assert block.places.tolist() == list(range(begin, begin + len(rows)))
    assert block.shard == catalog.units["shard"][unit]
    assert block.bad == {}
    assert block.sizes.tolist() == [1] * len(rows)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(names=st.sets(st.sampled_from(TYPES.names)), random=st.randoms(use_true_random=False))
def test_any_blocks_in_any_order_for_any_columns(writer: Writer, dataset: Dataset, names: set[str], random: Any) -> None:
    catalog = dataset.catalog()
    reader = Reader([dataset], schema_of(dataset, needed=names), ones)
    numbers = block_numbers(catalog)
    random.shuffle(numbers)
    for unit, number in numbers:
        check(reader.read(0, unit, number), writer, catalog, unit, number, sorted(names))
    reader.close()


def test_rows_lie_where_the_origin_says(writer: Writer, dataset: Dataset) -> None:
    catalog = dataset.catalog()
    reader = Reader([dataset], schema_of(dataset, needed=["id"]), ones)
    found: dict[int, list[int]] = {}
    for unit, number in block_numbers(catalog):
        block = reader.read(0, unit, number)
        found.setdefault(block.shard, []).extend(block.rows.tolist())
    if writer.by_bytes:
        assert all(
            rows == sorted(set(rows)) and len(rows) == len(SHARDS[name]) for name, rows in zip(SHARDS, found.values(), strict=True)
        )
    else:
        assert found == {shard: list(range(len(rows))) for shard, rows in enumerate(SHARDS.values())}


def test_eight_threads_see_the_same(writer: Writer, dataset: Dataset) -> None:
    catalog = dataset.catalog()
    reader = Reader([dataset], schema_of(dataset), ones, open_bytes=10 << 20)
    numbers = block_numbers(catalog)

    def read_all(turn: int) -> None:
        for unit, number in numbers[turn * 5 :] + numbers[: turn * 5]:
            stop = min(number + 1 + turn % 3, 1 + max(n for u, n in numbers if u == unit))
            for other, block in reader.read_several(0, unit, range(number, stop)).items():
                check(block, writer, catalog, unit, other, sorted(writer.schema.names))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read_all, range(8)))


def test_the_types_are_those_of_the_data(writer: Writer, dataset: Dataset) -> None:
    assert schema_of(dataset).equals(pa.schema(sorted(writer.schema, key=lambda field: str(field.name))), check_metadata=True)


@pytest.mark.parametrize("writer", [*(one for one in WRITERS if one.schema is TYPES), MEMORY], ids=str)
def test_integers_become_tokens_and_text_stays_text(writer: Writer, tmp_path: Path) -> None:
    dataset = dataset_of(writer, tmp_path)
    schema = schema_of(dataset, needed=[], required={"input_ids": "integers", "text": "string", "flag": "any"})
    assert schema == pa.schema({"flag": pa.bool_(), "input_ids": pa.list_(pa.int32()), "text": pa.large_string()})
    block = Reader([dataset], schema, ones).read(0, 0, 0)
    _, rows = expected(writer, dataset.catalog(), 0, 0)
    assert block.columns.to_pylist() == [{name: row[name] for name in schema.names} for row in rows]
    assert block.columns.schema == schema


def test_what_kind_of_column_it_is_can_be_wrong(writer: Writer, dataset: Dataset) -> None:
    if "flag" not in writer.schema.names or writer.schema.field("flag").type != pa.bool_() or find_format(dataset.format).spelled:
        return
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


@each_written
def test_from_far_away(writer: Writer, tmp_path: Path) -> None:
    near = dataset_of(writer, tmp_path)
    with FakeS3() as store:
        for path in tmp_path.rglob("*"):
            if path.is_file():
                store.put(f"x/{path.relative_to(tmp_path).as_posix()}", path.read_bytes())
        far = Dataset.from_path("d", f"{store.root}x", storage_options=store.options, unit_bytes=4000, block_bytes=700)
        assert far.ignored == near.ignored
        with Access() as access:
            assert (far.catalog(access).units == near.catalog().units).all()
            assert whole(far, access=access) == whole(near)


@each_written
@pytest.mark.parametrize("change", ["longer", "shorter", "touched", "gone"])
def test_a_shard_that_changes_is_an_error(writer: Writer, change: str, tmp_path: Path) -> None:
    dataset = dataset_of(writer, tmp_path)
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
    with pytest.raises(StorageError) as caught:
        reader.read(0, len(units) - 1, 0)
    assert str(caught.value) == f"dataset 'd', shard {dataset.shards[2].name!r}: {said}"


def read_all(folder: Path, schema: pa.Schema | None = None) -> tuple[list[Row], str | None]:
    """The rows that are read before anything is wrong, and what is said of it."""
    try:
        dataset = Dataset.from_path("d", folder, schema=schema)
        found = whole(dataset)
    except (ShardError, DatasetError) as error:
        return [], str(error)
    return found.rows[: len(found.rows) - len(found.bad)], found.bad[0] if found.bad else None


def sorted_keys(rows: list[Row]) -> list[Row]:
    return [dict(sorted(row.items())) for row in rows]


@pytest.mark.slow
@each_written
def test_a_shard_that_is_cut_short(writer: Writer, tmp_path: Path) -> None:
    """At any byte, of a large one at many: an error that names it, or the rows up to there.

    These may be all where a shard does not say where it ends.
    """
    rows, schema = ROWS[21:27], None if writer.shows_cuts else writer.schema
    writer.write(tmp_path, {"a": rows})
    path = tmp_path / f"a{writer.suffix}"
    good, right = path.read_bytes(), [{name: writer.given(row)[name] for name in writer.schema.names} for row in rows]
    assert read_all(tmp_path) == (sorted_keys(right), None)
    for cut in range(0, len(good), len(good) // 4000 | 1):  # an odd number: blocks of any even size are cut anywhere
        path.write_bytes(good[:cut])
        found, said = read_all(tmp_path, schema)
        if said is None:
            assert not writer.ends or not found, cut
            if not writer.shows_cuts:
                found = found[:-1]
            assert sorted_keys(found) == sorted_keys(right[: len(found)]), cut
        else:
            assert path.name in said, cut


SPOILT = dict.fromkeys(("csv.xz", "jsonl.gz", "mds.gz", "text.bz2"), 0) | {"text": 2, "webdataset": 3}
SPOILT |= dict.fromkeys(("arrow", "arrow stream", "litdata arrow", "litdata batches", "litdata whole", "parquet", "vortex"), 30)
SPOILT |= dict.fromkeys(("csv", "tsv"), 30)  # the name of a column
"""How many of 30 rows one byte may change without a word: none under a checksum; by default the one that it is of."""


@each_written
def test_a_flipped_byte_is_an_error_or_spoils_what_it_is_of(writer: Writer, tmp_path: Path) -> None:
    rows = ROWS[:30]
    writer.write(tmp_path, {"a": rows})
    path = tmp_path / f"a{writer.suffix}"
    good = path.read_bytes()
    right = Counter(str({name: writer.given(row)[name] for name in writer.schema.names}) for row in rows)
    footer = int.from_bytes(good[-8:-4], "little") + 8 if writer.name == "parquet" else 0  # of which Arrow may abort
    end = len(good) - footer
    errors = spoilt = 0
    for at in range(0, end, max(end // 60, 1)):
        for mask in (0xFF, 0x01):
            path.write_bytes(good[:at] + bytes([good[at] ^ mask]) + good[at + 1 :])
            found, said = read_all(tmp_path, writer.schema)
            if said is not None:
                assert path.name in said, at
                errors += 1
                continue
            now = Counter(str({name: row.get(name) for name in writer.schema.names}) for row in found)
            changed = max((right - now).total(), (now - right).total())
            assert changed <= SPOILT.get(writer.name, 1), at
            spoilt += changed
    assert errors + spoilt > 60, "bytes of a shard count"


@pytest.mark.parametrize("writer", [one for one in WRITERS if one.name == "arrow stream"], ids=str)
def test_no_byte_of_a_small_stream_kills_the_process_or_asks_for_all_memory(writer: Writer, tmp_path: Path) -> None:
    writer.write(tmp_path, {"a": ROWS[:8]})
    path = tmp_path / f"a{writer.suffix}"
    good, said = path.read_bytes(), set[str]()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        said.add(str(read_all(tmp_path)[1]))
    assert any("it is broken: malloc of size" in each for each in said)
    assert all(each == "None" or "shard 'a.ipc': " in each for each in said)


@pytest.mark.parametrize("writer", [one for one in WRITERS if one.name in ("parquet", "arrow", "arrow stream")], ids=str)
def test_a_required_column_that_is_not_there(writer: Writer, tmp_path: Path) -> None:
    writer.write(tmp_path, {"a": ROWS[:3]})
    dataset = Dataset.from_path("d", tmp_path)
    with pytest.raises(ShardError) as caught:
        Reader([dataset], pa.schema({"body": pa.large_string()}), ones, required={"body"}).read(0, 0, 0)
    name, columns = f"a{writer.suffix}", "'id', 'text', 'score', 'input_ids', 'flag'"
    assert str(caught.value) == f"dataset 'd', shard {name!r}: there is no column 'body'; its columns are {columns}"
    with pytest.raises(ShardError, match=f"no column 'texts'; its columns are {columns}; did you mean 'text'"):
        Reader([dataset], pa.schema({"texts": pa.large_string()}), ones, required={"texts"}).read(0, 0, 0)
