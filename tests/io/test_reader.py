"""The reader over several datasets, and what is loaded when."""

import gc
import logging
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from tests.whole import QUARANTINE, ones, schema_of, whole
from zephon_async.errors import BadRecord
from zephon_async.io import Dataset, Reader, formats, row_sizes
from zephon_async.io.formats import find_format
from zephon_async.io.formats.jsonl import JsonlFormat

ROOT = Path(__file__).parent.parent.parent


def test_blocks_of_all_datasets_have_one_schema(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "aé", "n": 1}\n\n{"text": "b", "n": 2}\n')
    one = Dataset.from_path("one", tmp_path)
    two = Dataset.from_dict("two", {"text": ["xyz"], "lang": ["en"], "n": [0.5]})
    reader = Reader([one, two], schema_of(one, two), lambda batch: row_sizes(batch, ["text"]))
    first, second = reader.read(0, 0, 0), reader.read(1, 0, 0)
    assert first.columns.to_pylist() == [{"lang": None, "n": 1.0, "text": "aé"}, {"lang": None, "n": 2.0, "text": "b"}]
    assert second.columns.to_pylist() == [{"lang": "en", "n": 0.5, "text": "xyz"}]
    assert (first.sizes.tolist(), second.sizes.tolist()) == ([3, 1], [3])
    assert (first.rows.tolist(), first.places.tolist()) == ([0, 25], [0, 1])
    assert first.columns.schema.equals(second.columns.schema, check_metadata=True)
    assert [reader.in_order(n, 0) for n in (0, 1)] == [False, False]
    reader.close()


def test_what_workers_share_of_a_block_is_made_before_they_do() -> None:
    """pyarrow makes the schema of a batch when it is first asked for, without a lock: two threads at once broke the memory."""
    reader = Reader([Dataset.from_dict("d", {"n": [1, 2]})], pa.schema({"n": pa.int64()}), lambda batch: np.ones(2, np.int64))
    assert any(isinstance(held, pa.Schema) for held in gc.get_referents(reader.read(0, 0, 0).columns))
    fresh = pa.record_batch({"n": [1]})
    assert not any(isinstance(held, pa.Schema) for held in gc.get_referents(fresh.slice(0, 1)))  # else this test sees nothing


def test_no_columns_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n{}\n")
    for dataset in (Dataset.from_path("d", tmp_path), Dataset.from_dict("d", {"a": [1, 2]})):
        block = Reader([dataset], schema_of(dataset, needed=[]), ones).read(0, 0, 0)
        assert (block.columns.num_rows, block.columns.num_columns, block.sizes.tolist()) == (2, 0, [1, 1])


def test_a_bad_record_can_travel(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": "x"}\n')
    dataset = Dataset.from_path("d", tmp_path)
    (bad,) = Reader([dataset], pa.schema({"a": pa.int8()}), ones).read(0, 0, 0).bad.values()
    with pytest.raises(BadRecord) as caught:
        raise bad
    said = "dataset 'd', shard 'a.jsonl', line 2 (byte 9): Expected `int | null`, got `str` - at `$.a`" + QUARANTINE
    assert str(caught.value) == str(pickle.loads(pickle.dumps(bad))) == said
    assert type(pickle.loads(pickle.dumps(bad))) is BadRecord
    assert traceback.format_exception_only(bad) == [f"zephon_async.errors.BadRecord: {said}\n"]
    assert repr(bad).startswith("BadRecord(")


def test_libraries_of_formats_are_loaded_on_first_use() -> None:
    program = "import sys, zephon_async.io; print({'pyarrow.parquet', 'msgspec', 'pyarrow.ipc'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(eval(done.stdout)) - {"pyarrow.ipc"} == set()


def test_a_format_of_another_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Lines(JsonlFormat):
        name, suffixes = "lines", (".jsonl.lines",)

    class Point:
        name = "lines"
        load = staticmethod(Lines)

    monkeypatch.setattr("zephon_async.io.formats._foreign", lambda: {"lines": Point.load()})
    (tmp_path / "a.jsonl.lines").write_text('{"n": 7}')
    assert isinstance(find_format("lines"), Lines)
    assert Dataset.from_path("d", tmp_path).format == "lines"
    assert whole(Dataset.from_path("d", tmp_path)).rows == [{"n": 7}]


def test_a_format_of_another_package_that_is_broken_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One whose library is missing, one that is no Format, and one that is named as ours."""

    def missing() -> object:
        raise ImportError("no module named x")

    points = [
        SimpleNamespace(name="x", value="x:FORMAT", load=missing),
        SimpleNamespace(name="y", value="y:FORMAT", load=object),
        SimpleNamespace(name="jsonl", value="z:FORMAT", load=JsonlFormat),
    ]
    monkeypatch.setattr(formats, "entry_points", lambda group: points)
    formats._foreign.cache_clear()
    (tmp_path / "a.jsonl").write_text('{"n": 7}')
    with caplog.at_level(logging.WARNING, "zephon_async"):
        assert whole(Dataset.from_path("d", tmp_path)).rows == [{"n": 7}]
    formats._foreign.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        "the format 'x' of x:FORMAT cannot be loaded: ImportError('no module named x')",
        "the format 'y' of y:FORMAT is left out: it is no instance of a subclass of Format",
        "the format 'jsonl' of z:FORMAT is left out: there is one of that name",
    ]
