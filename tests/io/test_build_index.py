"""How an index is written: whole or not at all, over nothing that is another's, and of shards that are far away."""

import json
import os
from pathlib import Path

import pytest

from tests.system.fake_s3 import FakeS3
from zephon_async import build_index
from zephon_async.errors import DatasetError, RecipeError, ShardError
from zephon_async.io import Dataset
from zephon_async.io import build_index as module_of
from zephon_async.leftovers import OWNED


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"n": 1}\n' * 5)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_is_written_where_it_is_wanted(lines: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    told: list[tuple[int, int]] = []
    assert build_index("jsonl", lines, progress=lambda done, shards: told.append((done, shards))) == str(lines / "index.json")
    assert told == [(1, 2), (2, 2)]
    other = tmp_path_factory.mktemp("other") / "x.json"
    assert build_index("jsonl", str(lines), other) == str(other)
    assert other.read_bytes() == (lines / "index.json").read_bytes()
    assert names(lines) == ["a.jsonl", "b.jsonl", "index.json"]


def test_of_shards_far_away(lines: Path, tmp_path: Path) -> None:
    build_index("jsonl", lines)
    with FakeS3() as store:
        for path in lines.glob("*.jsonl"):
            store.put(f"x/{path.name}", path.read_bytes())
        with pytest.raises(RecipeError, match=r"x' is not on this machine: say with output_path= where its index is"):
            build_index("jsonl", f"{store.root}x", storage_options=store.options)
        build_index("jsonl", f"{store.root}x", tmp_path / "far", storage_options=store.options)
        assert (tmp_path / "far").read_bytes() == (lines / "index.json").read_bytes()
        store.put("x/index.json", (tmp_path / "far").read_bytes())
        far = Dataset.from_path("d", f"{store.root}x", storage_options=store.options)
        assert ([entry.rows for entry in far.index], far.ignored) == ([5, 5], ())
        store.put("x/a.jsonl", b'{"n": 1}\n')
        with pytest.raises(DatasetError, match=r"says that the shard 'a\.jsonl' has 45 bytes, and it has 9; "):
            Dataset.from_path("d", f"{store.root}x", storage_options=store.options)
        store.put("x/_index.json", (tmp_path / "far").read_bytes())
        store.put("x/a.jsonl", b'{"n": 1}\n' * 5)
        with store.lock:
            del store.objects["x/index.json"]
        assert len(Dataset.from_path("d", f"{store.root}x", storage_options=store.options).index) == 2


def test_what_cannot_be_made(lines: Path) -> None:
    with pytest.raises(RecipeError, match="format is 'tar': it must be one of 'jsonl', 'parquet', 'vortex', 'webdataset'"):
        build_index("tar", lines)
    with pytest.raises(DatasetError, match=r"a.jsonl' is no folder: an index is made of all shards in one$"):
        build_index("jsonl", lines / "a.jsonl")
    with pytest.raises(DatasetError, match="holds no shard of the format 'parquet'"):
        build_index("parquet", lines)
    with pytest.raises(DatasetError, match=r"none/x\.json' cannot be written: No such file or directory; give another file"):
        build_index("jsonl", lines, lines / "none/x.json")
    with pytest.raises(DatasetError, match=r"cannot be written: Is a directory; give another file as output_path$"):
        build_index("jsonl", lines, lines)
    (lines / "c.parquet").write_bytes(b"PAR1")
    with pytest.raises(ShardError, match=r"shard 'c\.parquet': cannot be read as parquet"):
        build_index("parquet", lines)
    assert names(lines) == ["a.jsonl", "b.jsonl", "c.parquet"]


@pytest.mark.parametrize("where", ["none/x.json", "s3://bucket/index.json", "."])
def test_what_cannot_be_written_is_found_out_before_anything_is_read(where: str, lines: Path) -> None:
    told: list[int] = []
    error, said = (
        (RecipeError, "is a URL: an index is written on this machine") if ":" in where else (DatasetError, "cannot be written")
    )
    with pytest.raises(error, match=said):
        build_index("jsonl", lines, where if ":" in where else lines / where, progress=lambda done, shards: told.append(done))
    assert (told, names(lines)) == ([], ["a.jsonl", "b.jsonl"])


def test_a_failure_leaves_the_old_one(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index("jsonl", lines)
    before = (lines / "index.json").read_bytes()
    (lines / "c.jsonl").write_text('{"n": 1}\n')

    def fails(source: str, target: str) -> None:
        assert OWNED.fullmatch(Path(source).name)  # what a crash leaves here is found by `zephon-async doctor`
        assert len(json.loads(Path(source).read_bytes())["shards"]) == 3
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(DatasetError, match="cannot be written: No space left on device"):
        build_index("jsonl", lines)
    assert (lines / "index.json").read_bytes() == before
    assert names(lines) == ["a.jsonl", "b.jsonl", "c.jsonl", "index.json"]
    assert module_of is build_index
