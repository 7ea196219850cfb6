"""Lance: the version that is read, deletions, columns of every kind, what is far away, and what is not there."""

import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.system.fake_s3 import FakeS3
from tests.whole import ones, schema_of, whole
from zephon_async import Pipeline, StaticMixtureWorkSource
from zephon_async.errors import DatasetError, RecipeError, ShardError, StorageError
from zephon_async.io import Dataset, Reader, foreign
from zephon_async.io.stores import LanceStore, lance, lance_store
from zephon_async.kinds import is_json

lance_library = import_module("lance")


def numbers(first: int, stop: int) -> pa.Table:
    return pa.table({"n": list(range(first, stop)), "text": [f"row {n} é" for n in range(first, stop)]})


@pytest.fixture(scope="module", autouse=True)
def threads(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Those of the library, which hold descriptors as long as the process lives, have begun."""
    lance_library.write_dataset(numbers(0, 1), tmp_path_factory.mktemp("begun") / "d.lance")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three fragments of 20 rows, of which some are deleted."""
    path = tmp_path / "d.lance"
    written = lance_library.write_dataset(numbers(0, 60), path, max_rows_per_file=20)
    written.delete("n % 3 = 0 and n < 40")
    return path


LEFT = [n for n in range(60) if n % 3 or n >= 40]


def found(path: Any, **settings: Any) -> list[int]:
    return [row["n"] for row in whole(Dataset.from_path("d", path, **settings)).rows]


def test_rows_that_are_deleted_are_none(folder: Path) -> None:
    dataset = Dataset.from_path("d", folder, block_bytes=100)
    assert [shard.name for shard in dataset.shards] == ["fragment-0000000000", "fragment-0000000001", "fragment-0000000002"]
    assert dataset.counts().tolist() == [13, 13, 20]
    assert dataset.ignored == ()
    read = whole(dataset)
    assert read.rows == [{"n": n, "text": f"row {n} é"} for n in LEFT]
    assert read.places == [
        (shard.name, row) for shard, rows in zip(dataset.shards, (13, 13, 20), strict=True) for row in range(rows)
    ]


def test_the_version_is_that_of_the_listing(folder: Path) -> None:
    listed = Dataset.from_path("d", folder)
    lance_library.write_dataset(numbers(60, 70), folder, mode="append")
    lance_library.dataset(folder).delete("n < 20")
    assert [row["n"] for row in whole(listed).rows] == LEFT
    assert found(folder) == [n for n in LEFT if n >= 20] + list(range(60, 70))


@pytest.mark.parametrize("version", [2, "good"])
def test_a_version_can_be_said(version: int | str, folder: Path) -> None:
    before = Dataset.from_path("d", folder)
    lance_library.dataset(folder).tags.create("good", 2)
    lance_library.write_dataset(numbers(0, 5), folder, mode="overwrite")
    now = Dataset.from_path("d", folder)
    assert now.settings() != before.settings()
    assert now.guard() != before.guard()
    pinned = Dataset.from_path("d", folder, storage_options={"version": version})
    assert (pinned.settings(), pinned.guard()) == (before.settings(), before.guard())
    assert repr(pinned.store) == f"<LanceStore {str(folder)!r} version 2>"
    assert found(folder, storage_options={"version": version}) == LEFT
    assert found(folder, storage_options={"version": 1}) == list(range(60))


def test_any_format_may_be_said(folder: Path) -> None:
    folder.rename(folder.with_name("other"))
    assert found(folder.with_name("other"), format="lance") == LEFT


def test_a_dataset_without_rows(tmp_path: Path) -> None:
    lance_library.write_dataset(numbers(0, 0), tmp_path / "d.lance")
    dataset = Dataset.from_path("d", tmp_path / "d.lance")
    assert (dataset.shards, dataset.total(), whole(dataset).rows) == ((), 0, [])


def test_it_opens_again_in_another_process(folder: Path) -> None:
    dataset = pickle.loads(pickle.dumps(Dataset.from_path("d", folder)))
    lance_library.write_dataset(numbers(0, 5), folder, mode="overwrite")
    assert [row["n"] for row in whole(dataset).rows] == LEFT


def error_of(folder: Path) -> str | None:
    """What is said when all is read."""
    try:
        whole(Dataset.from_path("d", folder))
    except ShardError as error:
        return str(error)
    return None


def test_files_that_are_gone(folder: Path) -> None:
    dataset = Dataset.from_path("d", folder)
    dataset.catalog()
    fragment = lance_library.dataset(folder).get_fragment(2)
    (folder / "data" / fragment.data_files()[0].path).unlink()
    dataset = pickle.loads(pickle.dumps(dataset))
    with pytest.raises(
        ShardError, match=r"^dataset 'd', shard 'fragment-0000000002': cannot be read as Lance: .*Not found: .*\.lance$"
    ):
        Reader([dataset], pa.schema({"n": pa.int64()}), ones).read(0, 2, 0)
    assert Reader([dataset], pa.schema({"n": pa.int64()}), ones).read(0, 1, 0).columns.num_rows == 13


def test_another_dataset_in_its_place(folder: Path) -> None:
    """It has the same version, and fragments of the same names."""
    dataset = Dataset.from_path("d", folder)
    folder.rename(folder.with_name("old"))
    written = lance_library.write_dataset(numbers(100, 160), folder, max_rows_per_file=20)
    written.delete("n < 110")
    dataset = pickle.loads(pickle.dumps(dataset))
    with pytest.raises(StorageError) as caught:
        dataset.catalog()
    assert str(caught.value) == (
        "dataset 'd', shard 'fragment-0000000000': has changed since the catalog was made; start again, or put the dataset back"
    )


def test_a_file_that_is_gone_is_no_bad_data(folder: Path) -> None:
    """What cannot be had is never left out."""
    dataset = Dataset.from_path("d", folder)
    dataset.catalog()
    for path in sorted((folder / "data").iterdir())[:1]:
        path.unlink()
    source = StaticMixtureWorkSource([dataset], {"d": 1}, unit="samples")
    with (
        Pipeline(source).options(on_bad_record="quarantine").batch(1) as run,
        pytest.raises(StorageError, match="cannot be read as Lance"),
    ):
        list(run)


def test_a_file_that_is_cut_or_broken(folder: Path) -> None:
    """Whatever byte it is: an error that names the fragment, or the rows."""
    fragment = lance_library.dataset(folder).get_fragment(0)
    path = folder / "data" / fragment.data_files()[0].path
    good = path.read_bytes()
    for at in range(0, len(good), max(len(good) // 40, 1)):
        for broken in (good[:at], good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :]):
            path.write_bytes(broken)
            said = error_of(folder)
            assert said is None or said.startswith("dataset 'd', shard 'fragment-0000000000': ")
    path.write_bytes(good[: len(good) // 2])
    assert (error_of(folder) or "").startswith("dataset 'd', shard 'fragment-0000000000': cannot be read as Lance: ")


def test_columns_of_every_kind(tmp_path: Path) -> None:
    fields = {
        "blob": pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        "bytes": pa.field("bytes", pa.large_binary()),
        "kind": pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
        "nested": pa.field("nested", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])),
        "vector é": pa.field("vector é", pa.list_(pa.float32(), 2)),
        "when": pa.field("when", pa.timestamp("us")),
    }
    rows: list[dict[str, Any]] = [
        {
            "blob": None if n == 3 else b"b" * n * 1000,
            "bytes": bytes([n]),
            "kind": "uv"[n % 2],
            "nested": {"x": n, "y": ["a"] * n},
            "vector é": [n, n / 2],
            "when": None if n == 2 else np.datetime64(n, "us").item(),
        }
        for n in range(9)
    ]
    schema = pa.schema(list(fields.values()))
    lance_library.write_dataset(pa.Table.from_pylist(rows, schema), tmp_path / "d.lance", data_storage_version="2.0")
    dataset = Dataset.from_path("d", tmp_path / "d.lance", block_bytes=200)
    assert whole(dataset).rows == rows
    assert schema_of(dataset) == pa.schema(
        {
            "blob": pa.large_binary(),
            "bytes": pa.large_binary(),
            "kind": pa.large_string(),
            "nested": pa.struct([("x", pa.int32()), ("y", pa.list_(pa.large_string()))]),
            "vector é": pa.list_(pa.float32(), 2),
            "when": pa.timestamp("us"),
        }
    )


def test_json_is_marked_as_such(tmp_path: Path) -> None:
    table = pa.table({"meta": pa.array(['{"a": 1}', None], pa.json_(pa.utf8()))})
    lance_library.write_dataset(table, tmp_path / "d.lance")
    dataset = Dataset.from_path("d", tmp_path / "d.lance")
    assert is_json(schema_of(dataset).field("meta"))
    assert [None if row["meta"] is None else row["meta"].replace(" ", "") for row in whole(dataset).rows] == ['{"a":1}', None]


def test_a_required_column_that_is_not_there(folder: Path) -> None:
    dataset = Dataset.from_path("d", folder)
    with pytest.raises(ShardError) as caught:
        Reader([dataset], pa.schema({"texts": pa.large_string()}), ones, required={"texts"}).read(0, 0, 0)
    where = "dataset 'd', shard 'fragment-0000000000'"
    assert str(caught.value) == f"{where}: there is no column 'texts'; its columns are 'n', 'text'; did you mean 'text'?"


def test_from_far_away(folder: Path) -> None:
    with FakeS3() as store:
        for path in folder.rglob("*"):
            if path.is_file():
                store.put(f"x/d.lance/{path.relative_to(folder).as_posix()}", path.read_bytes())
        for scheme in ("s3", "s3a"):
            url = f"{scheme}{store.root[2:]}x/d.lance"
            far = Dataset.from_path("d", url, storage_options=store.options, block_bytes=100)
            assert whole(far) == whole(Dataset.from_path("d", folder, block_bytes=100))
            assert not far.store.remote
        assert {request.signed_by for request in store.requests} == {"a-key"}
        with pytest.raises(DatasetError, match=r"^dataset 'd': 's3://bucket-1/x/e.lance' cannot be read as a Lance dataset: "):
            Dataset.from_path("d", f"{store.root}x/e.lance", storage_options=store.options)


@pytest.mark.parametrize(
    ("scheme", "given", "right"),
    [
        (
            "s3",
            {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"region_name": "eu-1"}},
            {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_session_token": "t", "aws_region": "eu-1"},
        ),
        ("s3", {"anon": True}, {"aws_skip_signature": "true"}),
        (
            "s3",
            {"endpoint_url": "http://localhost:9000"},
            {"aws_endpoint": "http://localhost:9000", "aws_region": "us-east-1", "allow_http": "true"},
        ),
        ("s3", {"aws_virtual_hosted_style_request": True}, {"aws_virtual_hosted_style_request": "true"}),
        ("gs", {"token": "/k.json"}, {"google_service_account": "/k.json"}),
        ("az", {"account_name": "a", "sas_token": "x"}, {"azure_storage_account_name": "a", "azure_storage_sas_token": "x"}),
    ],
)
def test_settings_of_storages_are_translated(scheme: str, given: dict[str, Any], right: dict[str, str]) -> None:
    assert lance._translated(scheme, given) == right


@pytest.mark.parametrize(
    ("path", "options", "said"),
    [
        ("nothing.lance", {}, "'nothing.lance' does not exist: a Lance dataset is a folder"),
        ("file.lance", {}, "'file.lance' is a file: a Lance dataset is a folder"),
        ("d.lance", {"anon": True}, "storage_options (anon) are for URLs, and 'd.lance' is a path of this machine"),
        (
            "d.lance",
            {"version": 1.5},
            "version in storage_options is 1.5: it must be the number of a version of the dataset, or a tag",
        ),
        ("s3://b/d.lance", {"anom": True}, "storage_options of Lance know no 'anom' for s3://; did you mean 'anon'?"),
        ("s3://b/d.lance", {"key": b"k"}, "key in storage_options of Lance must be a text, a number, True or False, not bytes"),
        ("s3://b/d.lance", {"client_kwargs": 1}, "client_kwargs is 1: it must be a dictionary"),
        (
            ".",
            {},
            "'d.lance/data/a.lance' is a file of a Lance dataset, which is read as a whole: give the path of its folder, the one "
            "that has the folder _versions in it, and format='lance' where its name does not end in .lance",
        ),
    ],
)
def test_what_cannot_be_meant(path: str, options: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.lance").touch()
    (tmp_path / "d.lance" / "data").mkdir(parents=True)
    (tmp_path / "d.lance" / "data" / "a.lance").touch()
    with pytest.raises((DatasetError, RecipeError)) as caught:
        Dataset.from_path("d", path, storage_options=options)
    assert str(caught.value).partition("; known")[0] == f"dataset 'd': {said}"


def test_a_version_that_is_not_there(folder: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        Dataset.from_path("d", folder, storage_options={"version": 77})
    assert str(caught.value).startswith(f"dataset 'd': {str(folder)!r}, version 77 cannot be read as a Lance dataset: ")


ALONE = """
import os, sys, warnings
warnings.simplefilter("ignore")
from zephon_async.io import Dataset
dataset = Dataset.from_path("d", sys.argv[1])
print(os.environ["LANCE_IO_THREADS"], os.environ["LANCE_CPU_THREADS"], getattr(sys, "_is_gil_enabled", lambda: False)(), flush=True)
if (child := os.fork()) == 0:
    try:
        dataset.catalog()
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_in_a_process_of_its_own(folder: Path) -> None:
    """Its pools are small, where nothing else was said; a forked child is told what it cannot; the GIL stays off."""
    environment = {**os.environ, "LANCE_IO_THREADS": "3"}
    environment.pop("LANCE_CPU_THREADS", None)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder)], env=environment, cwd=root, capture_output=True, text=True, timeout=60
    )
    gil = not foreign.FREE_THREADED and hasattr(sys, "_is_gil_enabled")
    assert done.stdout.splitlines() == [
        f"3 2 {gil}",
        "Lance cannot be read in a forked process: start it by spawn, or read in the process that it was forked from",
    ], done.stderr


def test_a_store_is_one_line(folder: Path) -> None:
    store = lance_store(str(folder), {})
    assert isinstance(store, LanceStore)
    assert repr(store) == f"<LanceStore {str(folder)!r} version 2>"
    source = store.open("d", store.shard(store.names[0]))
    with pytest.raises(TypeError, match="a fragment has no bytes to read at 0:1"):
        source.read(0, 1)
    with pytest.raises(TypeError, match="nothing lies beside a fragment, and no 'x'"):
        source.beside("x")
