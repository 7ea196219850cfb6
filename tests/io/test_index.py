"""An index: made of every format that has one, read back, held against what is there; and what it changes, which is little."""

import gzip
import hashlib
import io
import json
import lzma
import os
import pickle
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contracts.test_formats import ROWS, SHARDS
from tests.system.fake_s3 import FakeS3
from tests.whole import schema_of, whole
from tests.writers import WRITERS, Writer
from zephon_async import CheckpointError, Pipeline, StaticMixtureWorkSource, build_index
from zephon_async.errors import DatasetError, RecipeError, ShardError
from zephon_async.io import Access, Dataset, check
from zephon_async.io.formats import find_format, line_format, webdataset
from zephon_async.io.formats.edges import Edges
from zephon_async.io.index_layout import index_of

WRITTEN = Path(__file__).parent.parent / "written"
INDEXED = [one for one in WRITERS if one.name in ("jsonl", "jsonl.gz", "parquet", "vortex", "webdataset")]
STARTS = [one for one in INDEXED if one.name in ("jsonl", "webdataset")]
ADVICE = "put the data right, build the index again with `zephon-async index {} DIR`, or remove it"
each_indexed = pytest.mark.parametrize("writer", INDEXED, ids=str)


@pytest.fixture(scope="module", autouse=True)
def started(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Some libraries start threads of their own when they are first used, that stay."""
    for writer in INDEXED:
        writer.write(folder := tmp_path_factory.mktemp("data"), {"a": ROWS[:1]})
        whole(Dataset.from_path("d", folder))


def form_of(writer: Writer) -> str:
    return writer.name.partition(".")[0]


def indexed(writer: Writer, folder: Path) -> Path:
    writer.write(folder, SHARDS)
    build_index(form_of(writer), folder)
    return folder


def dataset_of(folder: Path, **settings: Any) -> Dataset:
    return Dataset.from_path("d", folder, **{"unit_bytes": 4000, "block_bytes": 700, **settings})


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """As if the data were so large that nothing is counted, with rows and bytes of an index so far apart."""

    def make(apart: int = 2000) -> None:
        for module in (line_format, webdataset):
            monkeypatch.setattr(module, "COUNTED_BYTES", 0)
            monkeypatch.setattr(module, "APART", apart)

    return make


@pytest.fixture
def counting_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting the rows of lines and tars is an error."""

    def refuse(*args: object) -> None:
        raise AssertionError("rows are counted")

    monkeypatch.setattr(line_format, "_counted", refuse)
    monkeypatch.setattr(webdataset, "_counted", refuse)
    units = line_format.LineFormat.units

    def in_bytes(self: Any, source: Any, measure: str, *sizes: int) -> Any:
        return units(self, source, "bytes", *sizes) if measure == "bytes" else refuse()

    monkeypatch.setattr(line_format.LineFormat, "units", in_bytes)


# --- what is in one


@each_indexed
def test_it_has_names_sizes_rows_and_hashes_of_all_shards(writer: Writer, tmp_path: Path) -> None:
    indexed(writer, tmp_path)
    index = json.loads((tmp_path / "index.json").read_bytes())
    assert index["format_version"] == 1
    assert [(each["basename"], each["num_rows"]) for each in index["shards"]] == [
        (f"{name}{writer.suffix}", len(rows)) for name, rows in SHARDS.items()
    ]
    for each in index["shards"]:
        body = (tmp_path / each["basename"]).read_bytes()
        assert each["bytes"] == len(body)
        assert each["hashes"] == {"sha256": hashlib.sha256(body).hexdigest()}
    assert [path.name for path in tmp_path.iterdir() if path.is_file() and not path.name.endswith(writer.suffix)] == ["index.json"]
    assert (tmp_path / "index.json").stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_what_it_has_beside_them(tmp_path: Path, large: Callable[..., None]) -> None:
    extra: dict[str, Any] = {}
    large()
    for writer in INDEXED:
        indexed(writer, folder := tmp_path / writer.name)
        extra[writer.name] = json.loads((folder / "index.json").read_bytes())["shards"][2]["extra"]
    assert extra.get("vortex", {}) == {}
    assert extra["jsonl.gz"] == {"raw_bytes": (tmp_path / "jsonl/c/d.jsonl").stat().st_size}
    groups = extra["parquet"].pop("row_groups")
    assert extra["parquet"] == {"num_row_groups": len(groups)}
    assert sum(group["num_rows"] for group in groups) == len(SHARDS["c/d"])
    assert all(group["total_byte_size"] > 0 for group in groups)
    lines = (tmp_path / "jsonl/c/d.jsonl").read_bytes().splitlines(keepends=True)
    starts = np.cumsum([0, *map(len, lines)]).tolist()
    firsts = [next(start for start in starts if start >= at) for at in range(0, starts[-1], 2000)]
    assert extra["jsonl"] == {"edges": {"rows": [*map(starts.index, firsts), len(lines)], "offsets": [*firsts, starts[-1]]}}
    edges = extra["webdataset"]["edges"]
    assert len(edges["rows"]) == len(edges["offsets"]) > 100
    body = (tmp_path / "webdataset/c/d.tar").read_bytes()
    assert body[edges["offsets"][-1] :].strip(b"\0") == b""
    assert all(offset % 512 == 0 for offset in edges["offsets"])


def test_lines_of_any_kind_have_edges_that_lead_to_them(tmp_path: Path, large: Callable[..., None]) -> None:
    """Blank lines, a byte order mark, CR before LF, lines far longer than what lies between edges, and no end of the last line."""
    large(32)
    lines = [b"\xef\xbb\xbf", b'{"n": 0}\n\n\n  \n\n', b'{"n": 1, "s": "%s"}\r\n' % (b"x" * 200), b'{"n": 2}\n' * 9, b'{"n": 3}']
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    (tmp_path / "b.jsonl").write_bytes(b"")
    (tmp_path / "c.jsonl").write_bytes(b"\n\n")
    build_index("jsonl", tmp_path)
    dataset = dataset_of(tmp_path)
    wanted = [0, 1, *[2] * 9, 3]
    assert dataset.counts().tolist() == [12, 0, 0]
    assert dataset.read(0, columns=["n"]).column("n").to_pylist() == wanted
    for row, n in enumerate(wanted):
        assert dataset.read(0, [row], columns=["n"]).to_pylist() == [{"n": n}]
    assert dataset.read(1).num_rows == dataset.read(2).num_rows == 0


# --- what it changes


@each_indexed
@pytest.mark.parametrize("is_large", [False, True])
def test_order_and_recipe_are_those_without_it(writer: Writer, is_large: bool, tmp_path: Path, large: Callable[..., None]) -> None:
    if is_large and writer.name != "webdataset":  # of which see below
        large()
    writer.write(tmp_path, SHARDS)
    without = dataset_of(tmp_path)
    build_index(form_of(writer), tmp_path)
    dataset = dataset_of(tmp_path)
    assert (len(without.index), len(dataset.index)) == (0, 3)
    assert dataset.settings() == without.settings()
    assert (dataset.catalog().units == without.catalog().units).all()
    assert dataset.ignored == ()
    assert whole(dataset) == whole(without)


@each_indexed
def test_rows_are_known_without_a_count(
    writer: Writer, tmp_path: Path, large: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    large()
    indexed(writer, tmp_path)
    request.getfixturevalue("counting_fails")
    dataset = dataset_of(tmp_path, expect_rows=len(ROWS))
    assert dataset.counts().tolist() == [97, 1, 233]
    assert (dataset.total(), dataset.max_count()) == (331, 233)
    column = writer.schema.names[0]
    assert dataset.read(2, [200, 3, 3], columns=[column]).to_pylist() == [
        {column: writer.given(ROWS[98 + row])[column]} for row in (200, 3, 3)
    ]
    with pytest.raises(DatasetError, match=r"^dataset 'd': has 331 rows in 3 shards, and expect_rows says 332: "):
        dataset_of(tmp_path, expect_rows=332).catalog()


@pytest.mark.parametrize("writer", STARTS, ids=str)
def test_some_rows_are_read_by_a_few_bytes(writer: Writer, tmp_path: Path, large: Callable[..., None]) -> None:
    large(4000)
    writer.write(tmp_path, {"a": ROWS * 20})
    build_index(form_of(writer), tmp_path)
    with FakeS3() as store:
        for path in tmp_path.iterdir():
            store.put(f"x/{path.name}", path.read_bytes())
        far = Dataset.from_path("d", f"{store.root}x", storage_options=store.options, block_bytes=4000)
        schema_of(far, needed=["id"])
        store.requests.clear()
        rows = far.read(0, [5000], columns=["id"]).to_pylist()
        assert rows == [{"id": 5000 % 331}]
        asked = [request.headers["range"] for request in store.requests if request.method == "GET"]
        spans = [list(map(int, span.removeprefix("bytes=").split("-"))) for span in asked]
        assert sum(last - first + 1 for first, last in spans) < far.shards[0].size / 2


def test_large_tars_can_be_entered_where_it_says(tmp_path: Path, large: Callable[..., None]) -> None:
    writer = next(one for one in INDEXED if one.name == "webdataset")
    writer.write(tmp_path, SHARDS)
    counted = dataset_of(tmp_path, block_bytes=4000)
    counted_units, rows = counted.catalog().units, whole(counted)
    large()
    from_start = dataset_of(tmp_path, block_bytes=4000)
    build_index("webdataset", tmp_path)
    by_index = dataset_of(tmp_path, block_bytes=4000)
    assert from_start.catalog().units["entry"].tolist() == [2] * 3
    assert by_index.catalog().measure == "rows"
    assert (by_index.catalog().units == counted_units).all()  # as edges are 2,000 bytes apart
    assert whole(by_index) == rows
    finer = dataset_of(tmp_path, block_bytes=700)
    assert len(finer.catalog().units) > len(counted_units)
    assert whole(finer).rows == rows.rows
    assert pickle.loads(pickle.dumps(by_index)).settings() == by_index.settings()
    assert by_index.settings()["shards"] == [["a.tar", 524288, 97], ["b.tar", 6144, 1], ["c/d.tar", 1258496, 233]]
    assert "index" not in from_start.settings()
    large(8000)
    build_index("webdataset", tmp_path)
    coarser = dataset_of(tmp_path, block_bytes=4000)
    assert whole(coarser).rows == rows.rows
    assert {name for name, value in by_index.settings().items() if coarser.settings()[name] != value} == {"index"}
    large()
    build_index("webdataset", tmp_path)
    with FakeS3() as store:
        for path in (path for path in tmp_path.rglob("*") if path.is_file()):
            store.put(f"x/{path.relative_to(tmp_path).as_posix()}", path.read_bytes())
        far = Dataset.from_path("d", f"{store.root}x", storage_options=store.options, unit_bytes=4000, block_bytes=4000)
        assert far.settings() == by_index.settings()
        with Access() as access:
            assert whole(far, access=access) == rows


def test_a_compressed_tar_among_them_is_read_from_its_start(tmp_path: Path, large: Callable[..., None]) -> None:
    writer = next(one for one in INDEXED if one.name == "webdataset")
    writer.write(tmp_path, {"a": ROWS[:50], "b": ROWS[50:]})
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress((tmp_path / "b.tar").read_bytes()))
    (tmp_path / "b.tar").unlink()
    rows = whole(dataset_of(tmp_path))
    large()
    build_index("webdataset", tmp_path)
    dataset = dataset_of(tmp_path)
    units = dataset.catalog().units
    assert set(units["entry"][units["shard"] == 0].tolist()) == {0}
    assert units["entry"][units["shard"] == 1].tolist() == [1]
    assert whole(dataset) == rows
    assert dataset.counts().tolist() == [50, 281]


def test_tars_of_real_writers(tmp_path: Path, large: Callable[..., None]) -> None:
    """With long names, pax headers and folders before files."""
    for path in (WRITTEN / "webdataset").glob("*.tar.xz"):
        (tmp_path / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    counted = whole(dataset_of(tmp_path))
    large(512)
    build_index("webdataset", tmp_path)
    dataset = dataset_of(tmp_path, block_bytes=512)
    assert len(dataset.catalog().units) == dataset.total() == len(counted.rows)
    found = whole(dataset)
    assert (found.rows, found.places) == (counted.rows, counted.places)


def pipeline_of(dataset: Dataset) -> Pipeline:
    source = StaticMixtureWorkSource([dataset], {"d": 1}, unit="samples", seed=1, epochs=None)
    return Pipeline(source).options(lanes=4, workers=2).batch(2)


def test_a_checkpoint_without_it_is_refused_where_it_makes_the_units(tmp_path: Path, large: Callable[..., None]) -> None:
    writer = next(one for one in INDEXED if one.name == "webdataset")
    writer.write(tmp_path, SHARDS)
    large()
    states = []
    for index in (False, True):
        if index:
            build_index("webdataset", tmp_path)
        with pipeline_of(dataset_of(tmp_path)) as pipeline:
            batches = iter(pipeline)
            for _ in range(8):
                next(batches)
            states.append(pipeline.checkpoint())
    with pipeline_of(dataset_of(tmp_path)) as pipeline:
        pipeline.restore(states[1])
        next(iter(pipeline))
    with (
        pipeline_of(dataset_of(tmp_path)) as pipeline,
        pytest.raises(CheckpointError, match=r"\n  dataset d index: absent in the checkpoint, '[0-9a-f]{16}' here$"),
    ):
        pipeline.restore(states[0])


# --- held against what is there


def stale(folder: Path, said: str, form: str = "jsonl") -> None:
    with pytest.raises(DatasetError) as caught:
        Dataset.from_path("d", folder, format=form).catalog()
    assert str(caught.value) == f"dataset 'd': 'index.json' {said}; {ADVICE.format(form)}"


@each_indexed
def test_a_stale_one_is_an_error(writer: Writer, tmp_path: Path) -> None:
    folder, form, suffix = indexed(writer, tmp_path), form_of(writer), writer.suffix
    shard = folder / f"b{suffix}"
    body = shard.read_bytes()
    shutil.copy(shard, folder / f"new{suffix}")
    stale(folder, f"does not list the shard 'new{suffix}', which is there", form)
    (folder / f"new{suffix}").unlink()
    shard.unlink()
    stale(folder, f"lists the shard 'b{suffix}', which is not among those that are there", form)
    shard.write_bytes(body + b"\n")
    stale(folder, f"says that the shard 'b{suffix}' has {len(body):,} bytes, and it has {len(body) + 1:,}", form)
    shard.write_bytes(body)
    index = json.loads((folder / "index.json").read_bytes())
    index["shards"][1]["num_rows"] = 2
    index["shards"][1]["extra"] = {}
    (folder / "index.json").write_text(json.dumps(index))
    stale(folder, f"says that the shard 'b{suffix}' has 2 rows, and it has 1", form)
    build_index(form, folder)
    assert Dataset.from_path("d", folder).total() == 331


@each_indexed
def test_a_shard_that_is_cut_anywhere_is_an_error(writer: Writer, tmp_path: Path) -> None:
    writer.write(tmp_path, {"a": ROWS[21:27]})
    build_index(form_of(writer), tmp_path)
    path = tmp_path / f"a{writer.suffix}"
    good = path.read_bytes()
    for cut in range(0, len(good), len(good) // 2000 | 1):
        path.write_bytes(good[:cut])
        with pytest.raises(DatasetError, match=f"the shard '{path.name}' has {len(good):,} bytes, and it has {cut:,};"):
            Dataset.from_path("d", tmp_path)


def of_the_reference(folder: Path, name: str = "index.json", **change: Any) -> None:
    """As the reference writes one: no hashes, no edges, in other white space."""
    shards = [
        {"basename": path.name, "bytes": path.stat().st_size, "num_rows": path.read_bytes().count(b"\n"), "hashes": {}, "extra": {}}
        for path in sorted(folder.glob("*.jsonl"))
    ]
    (folder / name).write_text(json.dumps({"format_version": 1, "shards": shards, **change}, indent=2))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"n": 1}\n' * 5)
    return tmp_path


@pytest.mark.parametrize("name", ["index.json", "_index.json"])
def test_that_of_the_reference_is_read(name: str, lines: Path, request: pytest.FixtureRequest) -> None:
    of_the_reference(lines, name)
    dataset = Dataset.from_path("d", lines)
    assert ([entry.rows for entry in dataset.index], dataset.ignored) == ([5, 5], ())
    assert len(whole(dataset).rows) == 10
    (lines / "c.jsonl").touch()
    with pytest.raises(DatasetError, match=f"'{name}' does not list the shard 'c.jsonl'"):
        Dataset.from_path("d", lines)
    build_index("jsonl", lines)
    assert Dataset.from_path("d", lines).ignored == (() if name == "index.json" else (name,))  # one at a time


def test_only_that_of_the_folder_that_is_named_counts(lines: Path) -> None:
    of_the_reference(lines)
    (lines / "c.jsonl").write_text('{"n": 1}\n')
    (lines / "in/x").mkdir(parents=True)
    shutil.copy(lines / "index.json", lines / "in/x")
    (lines / "in/x/a.jsonl").write_text('{"n": 1}\n')
    for path in (lines / "a.jsonl", lines / "*.jsonl", lines / "index.json", lines / "in"):
        assert Dataset.from_path("d", path, format="jsonl").index == ()
    assert Dataset.from_path("d", lines / "in").ignored == ("x/index.json",)


def test_that_of_others_is_left_to_them(lines: Path) -> None:
    for text in ('{"version": 2, "shards": []}', "[]", "no JSON", "", '{"shards": [], "format_version": 1}'):
        (lines / "index.json").write_text(text)
        dataset = Dataset.from_path("d", lines)
        assert (dataset.index, dataset.ignored, dataset.total()) == ((), ("index.json",), 10)
    of_the_reference(lines)
    (lines / "text").mkdir()
    (lines / "text/a.txt").write_text("a\n")
    dataset = Dataset.from_path("d", lines, format="text")  # an index of shards of another format says nothing of these
    assert (dataset.index, dataset.total()) == ((), 1)
    (lines / "a.json").write_text('{"n": 1}\n')  # nor is it a shard itself, where .json files are
    for name in "ab":
        (lines / f"{name}.jsonl").unlink()
    stale(lines, "does not list the shard 'a.json', which is there")
    build_index("jsonl", lines)
    loose = Dataset.from_path("d", lines, format="jsonl")
    assert ([shard.name for shard in loose.shards], loose.total()) == (["a.json"], 1)


@pytest.mark.parametrize("kind", ["mds/scalars", "litdata/pair"])
def test_those_of_mds_and_litdata_go_on_as_they_are(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    shutil.copytree(WRITTEN / kind, folder)
    dataset = Dataset.from_path("d", folder)
    assert (dataset.index, dataset.ignored) == ((), ())
    assert len(whole(dataset).rows) == dataset.total() > 0
    before = (folder / "index.json").read_bytes()
    (folder / "a.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(DatasetError, match=r"' is there, and is no index of this kind: give another file as output_path$"):
        build_index("jsonl", folder)
    assert (folder / "index.json").read_bytes() == before


def test_a_broken_one_is_an_error(lines: Path) -> None:
    of_the_reference(lines)
    whole_text = (lines / "index.json").read_text()
    shard = json.loads(whole_text)["shards"][0]
    wrong: list[tuple[str, str]] = [
        (json.dumps({"format_version": 2, "shards": []}), "it is of version 2, not 1"),
        (json.dumps({"format_version": 1}), "Object missing required field `shards`"),
        (json.dumps({"format_version": 1, "shards": [shard, shard]}), "it lists a shard twice"),
        (json.dumps({"format_version": 1, "shards": [{**shard, "bytes": -1}]}), "Expected `int` >= 0 - at `$.shards[0].bytes`"),
        ('{"format_version": 1, "x": ' + "[" * 100_000, ""),
    ]
    edges: list[tuple[list[int], list[int]]] = [
        ([], []),
        ([5], [45]),
        ([1, 5], [9, 45]),
        ([0, 4], [0, 45]),
        ([0, 5], [45]),
        ([0, 3, 2, 5], [0, 9, 18, 45]),
        ([0, 3, 5], [0, 45, 45]),
    ]
    for rows, offsets in edges:
        entry = {**shard, "extra": {"edges": {"rows": rows, "offsets": offsets}}}
        said = "the edges of its shard 'a.jsonl' are not those of 5 rows in their order"
        wrong.append((json.dumps({"format_version": 1, "shards": [entry]}), said))
    for text, said in wrong:
        (lines / "index.json").write_text(text)
        with pytest.raises(DatasetError, match=f"^dataset 'd': 'index.json' is broken: {re.escape(said)}"):
            Dataset.from_path("d", lines)
    for cut in range(20, len(whole_text.rstrip())):
        (lines / "index.json").write_text(whole_text[:cut])
        with pytest.raises(DatasetError, match=r"^dataset 'd': 'index.json' is broken: .*; put the data right, build the index"):
            Dataset.from_path("d", lines)
    build_index("jsonl", lines)
    assert Dataset.from_path("d", lines).total() == 10


def test_any_byte_of_one_may_be_another(tmp_path: Path) -> None:
    writer = next(one for one in INDEXED if one.name == "webdataset")
    indexed(writer, tmp_path)
    good = (tmp_path / "index.json").read_bytes()
    broken = 0
    for at in range(20, len(good)):
        for byte in (good[at] ^ 0xFF, good[at] ^ 1, ord("9")):
            try:
                assert len(index_of("index.json", good[:at] + bytes([byte]) + good[at + 1 :]).entries) <= 3
            except DatasetError:
                broken += 1
    assert broken > len(good)


def test_edges_that_are_not_those_of_the_shard_are_an_error(tmp_path: Path, large: Callable[..., None]) -> None:
    """As in a shard that was written anew, of the same size."""
    large()
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 1000)
    build_index("jsonl", tmp_path)
    (tmp_path / "a.jsonl").write_text('{"n":11}\n\n' * 900)
    with pytest.raises(ShardError, match=r"'a.jsonl': has not the rows that the index says; build it again, or remove it$"):
        Dataset.from_path("d", tmp_path).read(0, [500])
    writer = next(one for one in INDEXED if one.name == "webdataset")
    writer.write(tmp_path / "tars", {"a": ROWS[:50]})
    build_index("webdataset", tmp_path / "tars")
    writer.write(tmp_path / "tars", {"a": ROWS[:50][::-1]})
    dataset = dataset_of(tmp_path / "tars")
    with pytest.raises(ShardError, match=r"shard 'a\.tar': "):
        whole(dataset)


def test_lint_compares_hashes_and_rows(tmp_path: Path, large: Callable[..., None]) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    (tmp_path / "b.jsonl").write_text('{"n": 3}\n')
    build_index("jsonl", tmp_path)
    dataset = Dataset.from_path("d", tmp_path)
    assert [(each.rows, each.problems) for each in check(dataset)] == [(2, []), (1, [])]
    stated = hashlib.sha256((tmp_path / "a.jsonl").read_bytes()).hexdigest()
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 7}\n')
    found = hashlib.sha256((tmp_path / "a.jsonl").read_bytes()).hexdigest()
    first, second = check(Dataset.from_path("d", tmp_path))
    assert [str(problem) for problem in first.problems] == [
        f"a.jsonl: has the sha256 {found}, but index.json says {stated}; it is damaged, or was written anew: copy it again, or "
        "build the index again"
    ]
    assert (first.rows, second.rows, second.problems) == (2, 1, [])
    large()
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\n{"n":2}\n')
    build_index("jsonl", tmp_path)
    (tmp_path / "a.jsonl").write_text('{"n": 1 , "m": 2}\n')
    first, _ = check(Dataset.from_path("d", tmp_path))
    assert [str(problem) for problem in first.problems] == [
        f"a.jsonl: 'index.json' says that the shard 'a.jsonl' has 2 rows, and it has 1; {ADVICE.format('jsonl')}"
    ]


# --- how many rows there must be


def many(folder: Path) -> Iterator[Dataset]:
    for name in "ab":
        (folder / f"{name}.jsonl").write_text('{"n": 1}\nno\n')
    for expected in (4, 3, 5):
        yield Dataset.from_path("d", folder, expect_rows=expected)


@pytest.mark.parametrize("is_large", [False, True])
def test_there_must_be_as_many_rows_as_expected(is_large: bool, tmp_path: Path, large: Callable[..., None]) -> None:
    if is_large:
        large()
    right, *wrong = many(tmp_path)
    assert right.total() == 4
    assert right.settings() == Dataset.from_path("d", tmp_path).settings()
    assert right.with_sizes().expect_rows == 4
    for dataset in wrong:
        for lenient in (False, True):
            with pytest.raises(DatasetError) as caught:
                dataset.catalog(lenient=lenient)
            assert str(caught.value) == (
                f"dataset 'd': has 4 rows in 2 shards, and expect_rows says {dataset.expect_rows}: look for shards that are "
                "missing, cut short or too many; if all is as it should be, say expect_rows=4"
            )
        with pytest.raises(DatasetError, match="expect_rows says"), pipeline_of(dataset) as pipeline:
            next(iter(pipeline))


@pytest.mark.parametrize("is_large", [False, True])
def test_of_shards_that_are_left_out_nobody_knows_the_rows(is_large: bool, tmp_path: Path, large: Callable[..., None]) -> None:
    if is_large:
        large()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 9))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 9)[:-3])
    right, more = (Dataset.from_path("d", tmp_path, expect_rows=rows) for rows in (18, 8))
    with pytest.raises(ShardError, match=r"shard 'b\.jsonl\.gz': ends inside a gzip member"):
        right.catalog()
    assert right.catalog(lenient=True) is right.catalog(lenient=True)
    for lenient in (False, True):
        with pytest.raises(DatasetError, match="has 9 rows in 2 shards, and expect_rows says 8"):
            more.catalog(lenient=lenient)


@pytest.mark.parametrize("wrong", [-1, 1.5, "9", True])
def test_rows_that_are_expected_are_a_whole_number(wrong: Any, lines: Path) -> None:
    with pytest.raises(RecipeError, match="dataset 'd': expect_rows"):
        Dataset.from_path("d", lines, expect_rows=wrong)


def test_edges_are_thinned_to_the_first_of_each_block() -> None:
    edges = Edges(np.arange(6), np.array([3, 9, 10, 31, 32, 40]))
    assert [each.tolist() for each in edges.thinned(10)] == [[0, 2, 3, 5], [3, 10, 31, 40]]
    assert [each.tolist() for each in edges.thinned(1000)] == [[0, 5], [3, 40]]
    nothing = Edges(np.array([0]), np.array([7]))
    assert [each.tolist() for each in nothing.thinned(10)] == [[0], [7]]
    assert find_format("parquet").entered_by_index is False


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_rows_that_an_index_does_not_know_are_not_lost(ending: str, tmp_path: Path, large: Callable[..., None]) -> None:
    def write(rows: int) -> None:
        path = tmp_path / "a.tar"
        with tarfile.open(path, "w") as tar:
            for row in range(rows):
                info = tarfile.TarInfo(f"{row}.txt")
                info.size = 5
                tar.addfile(info, io.BytesIO(b"12345"))
        if ending == "tar.gz":
            path.with_name("a.tar.gz").write_bytes(gzip.compress(path.read_bytes(), 0))
            path.unlink()

    large(apart=1)
    write(6)
    build_index("webdataset", tmp_path)
    size = (tmp_path / f"a.{ending}").stat().st_size
    assert len(whole(dataset_of(tmp_path)).rows) == 6
    write(7)
    assert (tmp_path / f"a.{ending}").stat().st_size == size
    with pytest.raises(
        ShardError, match=r"dataset 'd', shard 'a\.tar.*: its rows (do not end at byte 6,144|are not 6), as was counted"
    ):
        whole(dataset_of(tmp_path))
