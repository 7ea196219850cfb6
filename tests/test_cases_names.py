"""Cases A12, A13 and B08 through a pipeline: litter beside shards, names with any character, one order on every machine."""

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.taken import CASES, WAYS, batches, column, expected, in_order, of, said, values, written
from zephon_async import Dataset, DatasetError, Pipeline, ZephonError


def said_at_once(*arguments: Any, **settings: Any) -> str:
    """What is said where the path is written, before anything is read."""
    with pytest.raises(ZephonError) as caught:
        Dataset.from_path("d", *arguments, **settings)
    return str(caught.value)


# A12


@pytest.mark.parametrize("way", WAYS)
def test_litter_is_ignored_and_listed(way: dict[str, Any]) -> None:
    right, made = expected("A12"), of(CASES / "A12/data")
    assert [shard.name for shard in made.shards] == right["shards"]
    with Pipeline(in_order(made)).options(**way).batch(1) as pipeline:
        found = list(pipeline)
        told = pipeline.explain()
    assert column(found, "text") == right["texts"]
    assert "ignored 8" in told
    assert all(name in told for name in made.ignored[:5])


def test_what_is_no_file_is_never_opened(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", {"text": "a"})
    for name in (
        "_SUCCESS",
        ".hidden.jsonl",
        "_metadata",
        "b.jsonl.tmp",
        "b.jsonl.crc",
        "b.jsonl~",
        "c.txt",
        "jsonl",
        "d.jsonl.swp",
    ):
        written(tmp_path / name, {"text": "no"})
    os.mkfifo(tmp_path / "pipe.jsonl")
    written(tmp_path / "folder.jsonl/inside.jsonl", {"text": "b"})
    (tmp_path / "empty.jsonl").mkdir()
    written(tmp_path / "__pycache__/x.jsonl", {"text": "no"})
    made = of(tmp_path)
    assert [shard.name for shard in made.shards] == ["a.jsonl", "folder.jsonl/inside.jsonl"]
    assert values(made) == ["a", "b"]
    assert {"_SUCCESS", ".hidden.jsonl", "pipe.jsonl", "b.jsonl~", "__pycache__/"} <= set(made.ignored)
    assert "neither a file nor a folder" in said_at_once(tmp_path / "pipe.jsonl")
    assert "holds no shard" in said_at_once(tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    "name", ["a.jsonl", "A.JSONL", "a.Ndjson", "a.parquet", "a.PARQUET", "a.Pq", "a.arrow", "a.IPC", "a.Feather"]
)
def test_suffixes_in_any_case(name: str, tmp_path: Path) -> None:
    kind = name.lower().rpartition(".")[2]
    table = pa.table({"text": ["x"]})
    if kind in ("jsonl", "ndjson"):
        written(tmp_path / name, {"text": "x"})
    elif kind in ("parquet", "pq"):
        pq.write_table(table, tmp_path / name)
    else:
        with pa.ipc.new_file(tmp_path / name, table.schema) as file:
            file.write_table(table)
    assert values(of(tmp_path)) == values(of(tmp_path / name)) == ["x"]


def test_paths_that_give_nothing(tmp_path: Path) -> None:
    written(tmp_path / "a.md", "x")
    (tmp_path / "none").mkdir()
    for path in ("no", "no/*.jsonl", "*.parquet", "none", "none/*", "", "a.md", "**/*.jsonl"):
        assert "dataset 'd'" in said_at_once(str(tmp_path / path))
    assert "does not exist" in said_at_once(tmp_path / "no.jsonl")
    assert "there is no storage 's4://'" in said_at_once("s4://bucket/x.jsonl")


def test_links_that_lead_nowhere_are_missed(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", {"text": "a"})
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    assert "b.jsonl" in said_at_once(tmp_path)
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "b.jsonl").symlink_to("b.jsonl")
    assert "b.jsonl" in said_at_once(tmp_path)
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    (tmp_path / "around").symlink_to(tmp_path)
    assert values(of(tmp_path)) == ["a", "a"]


@pytest.mark.parametrize("change", ["gone", "shorter", "longer", "other"])
def test_a_shard_that_changes_under_way_is_named(change: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *[{"text": "a" * 100}] * 100)
    with (
        Pipeline(in_order(of(tmp_path, block_bytes=200)))
        .options(prefetch=1, chunk_rows=1, memory_budget="1MiB")
        .batch(1) as pipeline
    ):
        next(iter(pipeline))
        state = pipeline.checkpoint()
        if change == "gone":
            path.unlink()
        else:
            path.write_bytes(
                {"shorter": b"", "longer": path.read_bytes() * 2, "other": path.read_bytes().replace(b"a", b"b")}[change]
            )
        pipeline.restore(state)
        with pytest.raises(DatasetError, match=r"dataset 'd', shard 'a\.jsonl'"):
            list(pipeline)


def test_a_shard_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", {"text": "a"})
    (tmp_path / "a.jsonl").chmod(0)
    if os.geteuid():
        assert "shard 'a.jsonl'" in said(Pipeline(in_order(of(tmp_path))).batch(1), DatasetError)
    else:  # root reads everything
        assert values(of(tmp_path)) == ["a"]


# A13


MORE = [
    "back\\slash.jsonl",
    "trailing space /a .jsonl",
    " leading.jsonl",
    "a\nb.jsonl",
    "tab\t.jsonl",
    "'quote\".jsonl",
    "$HOME.jsonl",
    "~.jsonl",
    "**.jsonl",
    "[!a].jsonl",
    "a.jsonl.jsonl",
    "s3:__bucket.jsonl",
    "\u202eright-to-left.jsonl",
    "\U0001f600.jsonl",
    "e\u0301.jsonl",
    "\u00e9.jsonl",
    "x=1/y=a%2Fb/part.jsonl",
    "a..jsonl",
    "…".join("ab") + ".jsonl",
    "n" * 240 + ".jsonl",
]
ODD = [*expected("A13")["names"], *MORE]


@pytest.mark.parametrize("way", WAYS)
def test_each_record_is_read_from_under_its_own_name(way: dict[str, Any], tmp_path: Path) -> None:
    for name in ODD:
        written(tmp_path / name, {"text": name})
    made = of(tmp_path)
    with Pipeline(in_order(made)).options(**way).batch(1) as pipeline:
        found = list(pipeline)
    assert column(found, "text") == sorted(set(ODD), key=str.encode)
    assert [batch.documents()[0][0].shard for batch in found] == column(found, "text")


@pytest.mark.parametrize("name", ODD)
def test_a_path_that_exists_is_literal(name: str, tmp_path: Path) -> None:
    for each in (name, "0.jsonl", "D/x.jsonl", "starry.jsonl", "qxmark.jsonl", "b.jsonl"):
        written(tmp_path / each, {"text": each})
    assert values(of(tmp_path / name)) == [name]
    folder = tmp_path / f"in {Path(name).stem[:100]}"
    written(folder / name, {"text": name})
    assert values(of(folder)) == [name]


def test_one_base_name_in_two_folders_is_two_shards() -> None:
    with Pipeline(in_order(of(CASES / "A13/same-base-names"))).batch(1) as pipeline:
        documents = [batch.documents()[0][0] for batch in pipeline]
    assert len({(d.shard, d.row) for d in documents}) == expected("A13")["same_base_names"]


def test_a_name_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"\xff.jsonl")
    with open(path, "wb") as file:
        file.write(b'{"text": "a"}\n')
    assert "not UTF-8" in said_at_once(tmp_path)


# B08


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", ["", "*.jsonl", "shard-*"])
def test_the_order_is_that_of_the_names(path: str, way: dict[str, Any]) -> None:
    right = expected("B08")["sorted_by_name"]
    with Pipeline(in_order(Dataset.from_path("d", str(CASES / "B08" / path)))).options(**way).batch(1) as pipeline:
        assert [batch.documents()[0][0].shard for batch in pipeline] == right


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_is_neither_that_of_the_listing_nor_of_making(
    order: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{a}/{b}{n}.jsonl" for a in ("b", "a", "Z", "é", "a.b", "a-b") for b in "yX_" for n in (2, 10, 1) if b != "_"]
    for name in names[::order]:
        written(tmp_path / name, {"text": name})
    there, real = of(tmp_path), os.scandir

    class Reversed:
        """A listing in another order, as another file system gives it."""

        def __init__(self, path: Any) -> None:
            with real(path) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=order > 0)

        def __enter__(self) -> list[Any]:
            return self.entries

        def __exit__(self, *error: object) -> None:
            self.entries = []

    monkeypatch.setattr(os, "scandir", Reversed)
    made = of(tmp_path)
    assert [shard.name for shard in made.shards] == [shard.name for shard in there.shards] == sorted(names, key=str.encode)
    monkeypatch.undo()
    assert values(made) == sorted(names, key=str.encode)


def test_the_order_does_not_depend_on_the_root(tmp_path: Path) -> None:
    shutil.copytree(CASES / "B08", tmp_path / "z/elsewhere")
    digests = []
    for root in (CASES / "B08", tmp_path / "z/elsewhere"):
        source = in_order(of(root), shuffle=True, seed=5, epochs=2)
        digests.append([batch.digest() for batch in batches(Pipeline(source).options(lanes=3).batch(2))])
    assert digests[0] == digests[1]
    assert threading.active_count() < 20
