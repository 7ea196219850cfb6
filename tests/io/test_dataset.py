"""Datasets: which files a path stands for, what is said where it stands for none, and in-memory rows. Cases A12, A13 and B08."""

import gzip
import json
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.whole import schema_of, whole
from zephon_async.errors import DatasetError, RecipeError, ShardError
from zephon_async.io import Dataset, InMemoryShard
from zephon_async.kinds import json_field

CASES = Path(__file__).parent.parent / "cases"
SUFFIXES = (
    ".array_record .arrayrecord .arrow .bin .csv .feather .ipc .jsonl .lance .mds .ndjson .parquet .pq .tar .tgz .tsv .txt "
    ".vortex, behind those of lines and .tar also .gz .zst .zstd .bz2 .xz"
)


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"text": name}) + "\n")


def names(dataset: Dataset) -> list[str]:
    return [shard.name for shard in dataset.shards]


def said(make: Any) -> str:
    with pytest.raises((DatasetError, RecipeError)) as caught:
        make()
    return str(caught.value)


# Listing


def test_litter_is_ignored_and_listed() -> None:  # A12
    right = json.loads((CASES / "A12/expected.json").read_text())
    dataset = Dataset.from_path("d", CASES / "A12/data")
    assert names(dataset) == right["shards"]
    assert whole(dataset).column("text") == right["texts"]
    assert dataset.ignored == dataset.catalog().ignored
    assert dataset.ignored == (
        ".DS_Store",
        "._part-00000.parquet",
        ".ipynb_checkpoints/",
        ".part-00000.parquet.crc",
        "README.md",
        "_SUCCESS",
        "_temporary/",
        "part-00002.parquet.tmp",
    )


def odd_names() -> list[str]:
    found: list[str] = json.loads((CASES / "A13/expected.json").read_text())["names"]
    return found


def test_odd_names_in_a_folder(tmp_path: Path) -> None:  # A13
    files(tmp_path, *odd_names())
    dataset = Dataset.from_path("d", tmp_path)
    found = whole(dataset)
    assert found.column("text") == names(dataset) == sorted(odd_names(), key=str.encode)
    assert [name for name, _ in found.places] == names(dataset)


@pytest.mark.parametrize("name", odd_names())
def test_a_path_that_exists_is_literal(name: str, tmp_path: Path) -> None:  # A13
    files(tmp_path, name, "0.jsonl", "50%.jsonl", "D/x.jsonl", "starry.jsonl", "a/b.jsonl", "a.jsonl")
    assert whole(Dataset.from_path("d", tmp_path / name)).column("text") == [name]
    folder = tmp_path / f"folder {Path(name).name}"
    files(folder, name)
    assert names(Dataset.from_path("d", folder)) == [name]


def test_shards_of_one_base_name_are_different_shards() -> None:  # A13
    found = whole(Dataset.from_path("d", CASES / "A13/same-base-names"))
    assert len(set(found.places)) == len(set(found.column("text"))) == 4


def test_shards_come_in_the_byte_order_of_their_names(tmp_path: Path) -> None:  # B08
    right = json.loads((CASES / "B08/expected.json").read_text())["sorted_by_name"]
    assert names(Dataset.from_path("d", CASES / "B08")) == right
    assert names(Dataset.from_path("d", CASES / "B08/*.jsonl")) == right
    files(tmp_path, "b/a.jsonl", "b-a.jsonl", "b.jsonl", "Z.jsonl", "é.jsonl", "\U0001f600.jsonl", "\uffee.jsonl")
    right = ["Z.jsonl", "b-a.jsonl", "b.jsonl", "b/a.jsonl", "é.jsonl", "\uffee.jsonl", "\U0001f600.jsonl"]
    assert names(Dataset.from_path("d", tmp_path)) == right


def test_suffixes_are_known_in_any_case(tmp_path: Path) -> None:
    files(tmp_path, "a.JSONL", "b.Ndjson", "c.jsonl.bak", "jsonl", "d.jsonl")
    dataset = Dataset.from_path("d", tmp_path)
    assert names(dataset) == ["a.JSONL", "b.Ndjson", "d.jsonl"]
    assert dataset.ignored == ("c.jsonl.bak", "jsonl")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.jsonl", ["a.jsonl", "b1.jsonl"]),
        ("*", ["a.jsonl", "b1.jsonl", "x/c.jsonl", "x/y/d.jsonl", "z/e.jsonl"]),
        ("**", ["a.jsonl", "b1.jsonl", "x/c.jsonl", "x/y/d.jsonl", "z/e.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "b1.jsonl", "x/c.jsonl", "x/y/d.jsonl", "z/e.jsonl"]),
        ("*/*.jsonl", ["x/c.jsonl", "z/e.jsonl"]),
        ("x/**/?.jsonl", ["c.jsonl", "y/d.jsonl"]),
        ("x/*", ["c.jsonl", "y/d.jsonl"]),
        ("b[0-9].jsonl", ["b1.jsonl"]),
        ("[xz]", ["x/c.jsonl", "x/y/d.jsonl", "z/e.jsonl"]),
        ("**/y/**", ["x/y/d.jsonl"]),
    ],
)
def test_patterns(pattern: str, found: list[str], tmp_path: Path) -> None:
    files(tmp_path, "a.jsonl", "b1.jsonl", "x/c.jsonl", "x/y/d.jsonl", "z/e.jsonl", ".h.jsonl", "x/_h/i.jsonl", "note.txt")
    assert names(Dataset.from_path("d", tmp_path / pattern)) == found


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path, "a.jsonl", "x/b.jsonl")
    monkeypatch.chdir(tmp_path)
    for path, found in (("a.jsonl", ["a.jsonl"]), ("*.jsonl", ["a.jsonl"]), (".", ["a.jsonl", "x/b.jsonl"]), ("x/*", ["b.jsonl"])):
        dataset = Dataset.from_path("d", path)
        assert names(dataset) == found
        assert len(whole(dataset).rows) == len(found)


def test_links(tmp_path: Path) -> None:
    files(tmp_path / "real", "a.jsonl", "x/b.jsonl")
    (tmp_path / "real/x/loop").symlink_to(tmp_path / "real")
    (tmp_path / "real/x/self").symlink_to(".")
    (tmp_path / "real/other").symlink_to(tmp_path / "elsewhere")
    files(tmp_path / "elsewhere", "c.jsonl")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    for path in ("real", "linked", "real/**/*.jsonl", "linked/**"):
        dataset = Dataset.from_path("d", tmp_path / path)
        assert names(dataset) == ["a.jsonl", "other/c.jsonl", "x/b.jsonl"]
        assert dataset.ignored == ("x/loop/", "x/self/")
    (tmp_path / "real/lost.jsonl").symlink_to(tmp_path / "nowhere")
    lost = str(tmp_path / "real/lost.jsonl")
    assert (
        said(lambda: Dataset.from_path("d", tmp_path / "real"))
        == f"dataset 'd': {lost!r} cannot be read: No such file or directory"
    )


def test_pipes_are_no_shards(tmp_path: Path) -> None:
    files(tmp_path, "a.jsonl")
    os.mkfifo(tmp_path / "b.jsonl")
    assert Dataset.from_path("d", tmp_path).ignored == ("b.jsonl",)
    pipe = str(tmp_path / "b.jsonl")
    assert said(lambda: Dataset.from_path("d", pipe)) == f"dataset 'd': {pipe!r} is neither a file nor a folder"


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    files(tmp_path, "a.jsonl", "b\udcff.txt")
    assert Dataset.from_path("d", tmp_path).ignored == ("b\\xff.txt",)
    files(tmp_path, "c\udcff.jsonl")
    assert said(lambda: Dataset.from_path("d", tmp_path)).endswith("is not UTF-8: rename the file")


# Errors


JSON = "; if a .json file is one JSON object a line, "
COMPRESSED = "; a file that is compressed as a whole is only read where it is lines or a tar: unpack it"


@pytest.mark.parametrize(
    ("path", "said_of_it"),
    [
        ("no/a.jsonl", "'no/a.jsonl' does not exist (seen from {here})"),
        ("*.jsonl", "the pattern '*.jsonl' matches nothing (seen from {here})"),
        ("no/*", "the pattern 'no/*' matches nothing: there is no folder 'no' (seen from {here})"),
        ("b.json", f"ignored: 'b.json'{JSON}format='jsonl' reads it"),
        ("c", f"ignored: 'x.parquet.gz'{COMPRESSED}"),
        ("c/*", f"ignored: 'x.parquet.gz'{COMPRESSED}"),
        ("c/x.parquet.gz", f"ignored: 'x.parquet.gz'{COMPRESSED}"),
    ],
)
def test_what_to_do_where_there_is_nothing(path: str, said_of_it: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path, "b.json", "c/x.parquet.gz")
    monkeypatch.chdir(tmp_path)
    assert said(lambda: Dataset.from_path("d", path)).endswith(said_of_it.format(here=tmp_path))
    assert Dataset.from_path("d", "b.json", format="jsonl").shard_count() == 1
    refused = f"dataset 'd': 'c/x.parquet.gz': 'x.parquet.gz' cannot be read as parquet, going by its name{COMPRESSED}"
    assert said(lambda: Dataset.from_path("d", "c/x.parquet.gz", format="parquet")) == refused


def test_what_is_said_where_there_is_nothing(tmp_path: Path) -> None:
    here = str(tmp_path)
    assert said(lambda: Dataset.from_path("d", here + "/no")) == f"dataset 'd': {here + '/no'!r} does not exist"
    assert said(lambda: Dataset.from_path("d", here + "/{a,b}.jsonl")) == f"dataset 'd': {here + '/{a,b}.jsonl'!r} does not exist"
    assert (
        said(lambda: Dataset.from_path("d", here + "/*.jsonl")) == f"dataset 'd': the pattern {here + '/*.jsonl'!r} matches nothing"
    )
    no = f"dataset 'd': the pattern {here + '/no/*'!r} matches nothing: there is no folder {here + '/no'!r}"
    assert said(lambda: Dataset.from_path("d", here + "/no/*")) == no
    assert said(lambda: Dataset.from_path("d", here)) == f"dataset 'd': {here!r} holds no shard; known suffixes: {SUFFIXES}"
    files(tmp_path, "a.md", "b.json", ".c.jsonl", "d/e.xls")
    ignored = f"dataset 'd': {here!r} holds no shard; known suffixes: {SUFFIXES}; ignored: 'a.md', 'b.json', 'd/e.xls'"
    assert said(lambda: Dataset.from_path("d", here)) == f"{ignored}{JSON}format='jsonl' reads it"
    nowhere = said(lambda: Dataset.from_path("d", "s4://bucket/x"))
    assert nowhere.startswith("dataset 'd': there is no storage 's4://'; did you mean 's3://'? known: ")


def test_lines_may_be_named_json_where_that_is_said(tmp_path: Path) -> None:
    files(tmp_path, "a.json", "c/d.JSON")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b'{"text": "b.json.gz"}\n'))
    dataset = Dataset.from_path("d", tmp_path, format="jsonl")
    assert (names(dataset), dataset.ignored) == (["a.json", "b.json.gz", "c/d.JSON"], ())
    assert dataset.counts().tolist() == [1, 1, 1]
    assert said(lambda: Dataset.from_path("d", tmp_path)).endswith(
        f"ignored: 'a.json', 'b.json.gz', 'c/d.JSON'{JSON}format='jsonl' reads it"
    )
    files(tmp_path, "e.jsonl")  # beside which the others are said to be something else
    assert Dataset.from_path("d", tmp_path).ignored == Dataset.from_path("d", tmp_path, format="jsonl").ignored
    assert names(Dataset.from_path("d", tmp_path, format="jsonl")) == ["e.jsonl"]


def test_two_formats(tmp_path: Path) -> None:
    files(tmp_path, "a.jsonl", "z.jsonl", "b.ndjson")
    pq.write_table(pa.table({"text": ["p"]}), tmp_path / "c.pq")
    two = f"dataset 'd': {str(tmp_path)!r} holds more than one format (jsonl: 'a.jsonl'; parquet: 'c.pq'): say which with format="
    assert said(lambda: Dataset.from_path("d", tmp_path)) == two
    dataset = Dataset.from_path("d", tmp_path, format="parquet")
    assert (names(dataset), dataset.ignored) == (["c.pq"], ("a.jsonl", "b.ndjson", "z.jsonl"))
    assert len(Dataset.from_path("d", tmp_path, format="jsonl").shards) == 3
    no = f"dataset 'd': {str(tmp_path)!r} holds no shard of the format 'arrow': no name ends in .arrow .feather .ipc; "
    no += "ignored: 'a.jsonl', 'b.ndjson', 'c.pq', 'z.jsonl'"
    assert said(lambda: Dataset.from_path("d", tmp_path, format="arrow")) == no


@pytest.mark.parametrize("path", ["*.dat*", "**/*.dat*", "[x-z].dat*"])
def test_a_pattern_names_its_files_whatever_their_suffix_where_the_format_is_said(path: str, tmp_path: Path) -> None:
    files(tmp_path, "x.dat", "_x.dat", "a.md")
    (tmp_path / "y.dat.gz").write_bytes(gzip.compress(b'{"text": "y.dat.gz"}\n'))
    dataset = Dataset.from_path("d", tmp_path / path, format="jsonl")
    assert whole(dataset).column("text") == ["x.dat", "y.dat.gz"]
    assert said(lambda: Dataset.from_path("d", tmp_path / "x*")).endswith("ignored: 'x.dat'; say with format= what they are")
    files(tmp_path, "z.dat.lz4")
    refused = f"dataset 'd': {str(tmp_path / path)!r}: 'z.dat.lz4' cannot be read as jsonl, going by its name{COMPRESSED}"
    assert said(lambda: Dataset.from_path("d", tmp_path / path, format="jsonl")) == refused


def test_a_pattern_that_names_shards_takes_nothing_beside_them(tmp_path: Path) -> None:
    files(tmp_path, "part-0.jsonl", "part-1.jsonl.tmp", "part-2.crc")
    dataset = Dataset.from_path("d", tmp_path / "part-*", format="jsonl")
    assert (names(dataset), dataset.ignored) == (["part-0.jsonl"], ("part-1.jsonl.tmp", "part-2.crc"))


@pytest.mark.parametrize("path", ["", "*", "**", "d*", "*.d", "*/**"])
def test_files_of_a_folder_are_shards_by_their_suffixes(path: str, tmp_path: Path) -> None:
    files(tmp_path, "d.d/b.dat", "d.d/c")
    path = str(tmp_path / path)
    message = said(lambda: Dataset.from_path("d", path, format="jsonl"))
    looked_for = f"{path!r} holds no shard of the format 'jsonl': no name ends in .json .jsonl .ndjson, behind which "
    assert message.startswith(f"dataset 'd': {looked_for}.gz .zst .zstd .bz2 .xz may stand; ignored: ")
    assert message.endswith("b.dat', 'd.d/c'; what a pattern names is read whatever its suffix, such as '**/*.dat'")


@pytest.mark.parametrize("form", [None, "jsonl", "megatron"])
def test_a_file_that_is_named_without_its_suffix(form: str | None, tmp_path: Path) -> None:
    files(tmp_path, "x.bin", "x.idx", "xy.jsonl", "y/x.csv")
    message = f"dataset 'd': {str(tmp_path / 'x')!r} does not exist; there are 'x.bin', 'x.idx': a file is named with its suffix"
    assert said(lambda: Dataset.from_path("d", tmp_path / "x", format=form)) == message
    one = f"dataset 'd': {str(tmp_path / 'y/x')!r} does not exist; there is 'x.csv': a file is named with its suffix"
    assert said(lambda: Dataset.from_path("d", tmp_path / "y/x", format=form)) == one


def test_text_is_taken_where_there_is_nothing_else(tmp_path: Path) -> None:
    """Beside shards of another format it is their README and licence."""
    files(tmp_path, "README.txt", "x/b.txt", "c.txt.gz")
    assert names(Dataset.from_path("d", tmp_path)) == ["README.txt", "c.txt.gz", "x/b.txt"]
    assert names(Dataset.from_path("d", tmp_path / "**/*.txt")) == ["README.txt", "x/b.txt"]
    for other in ("a.csv", "a.jsonl"):
        files(tmp_path, other)
        dataset = Dataset.from_path("d", tmp_path)
        assert (names(dataset), dataset.ignored) == ([other], ("README.txt", "c.txt.gz", "x/b.txt"))
        assert names(Dataset.from_path("d", tmp_path, format="text")) == ["README.txt", "c.txt.gz", "x/b.txt"]
        (tmp_path / other).unlink()
    files(tmp_path, "a.csv", "a.jsonl")
    two = f"{str(tmp_path)!r} holds more than one format (csv: 'a.csv'; jsonl: 'a.jsonl'): say which with format="
    assert said(lambda: Dataset.from_path("d", tmp_path)) == f"dataset 'd': {two}"


def test_a_format_that_there_is_not(tmp_path: Path) -> None:
    files(tmp_path, "a.txt")
    known = "known: array_record, arrow, csv, jsonl, lance, litdata, mds, megatron, parquet, text, vortex, webdataset"
    for wrong, near in (("json", "jsonl"), ("Parquet", "parquet"), (".pq", "parquet"), ("ipc", "arrow")):
        right = f"dataset 'd': there is no format {wrong!r}; did you mean {near!r}? {known}"
        assert said(lambda wrong=wrong: Dataset.from_path("d", tmp_path / "a.txt", format=wrong)) == right
    for wrong in ("memory", "xyz"):
        right = f"dataset 'd': there is no format {wrong!r}; {known}"
        assert said(lambda wrong=wrong: Dataset.from_path("d", tmp_path / "a.txt", format=wrong)) == right
    assert whole(Dataset.from_path("d", tmp_path / "a.txt", format="jsonl")).column("text") == ["a.txt"]


def test_settings_that_cannot_be_meant(tmp_path: Path) -> None:
    files(tmp_path, "a.jsonl")
    assert said(lambda: Dataset.from_path("", tmp_path)) == "the name of a dataset is a text, not ''"
    for size in (0, True, 1.5, "1"):
        settings: Any = {"unit_bytes": size}
        wrong = f"dataset 'd': unit_bytes is {size!r}: it must be a whole number of at least 1"
        assert said(lambda settings=settings: Dataset.from_path("d", tmp_path, **settings)) == wrong
        assert said(lambda settings=settings: Dataset.from_path("d", tmp_path).with_sizes(**settings)) == wrong
    twice = pa.schema([("a", pa.int8()), ("a", pa.int8())])
    assert said(lambda: Dataset.from_path("d", tmp_path, schema=twice)) == "dataset 'd': schema= names the column 'a' twice"
    anything: Any = Dataset.from_path
    for pins in ({"a": "nonsense"}, {"a": int}, {3: pa.int8()}, ["a"], 3):
        assert "schema= is a pyarrow.Schema or pyarrow types by column name" in said(
            lambda pins=pins: anything("d", tmp_path, schema=pins)
        )
    for path in (3, None, b"a", ["a"], "a\0b"):
        told = said(lambda path=path: anything("d", path))
        assert told == f"dataset 'd': the path is a text or a pathlib.Path, not {path!r}"
    assert said(lambda: anything("d", tmp_path, format=3)).startswith("dataset 'd': format is 3: it must be the name of a format")
    assert said(lambda: anything("d", tmp_path, formt="jsonl")) == "from_path() knows no 'formt'; did you mean 'format'?"
    assert said(lambda: anything(tmp_path)) == "from_path() needs path="


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"a": 3}, "dataset 'd', column 'a': its values are a list or an array, not 3"),
        ({"a": "abc"}, "column 'a': its values are a list or an array, not 'abc'"),
        ({"a": {1, 2}}, "column 'a': its values are a list or an array, not {1, 2}"),
        ({"a": {"b": 1}}, "column 'a': its values are a list or an array, not {'b': 1}"),
        ({"a": [{1, 2}]}, "column 'a': a set has no order; give a list"),
        ({0: 3}, "dataset 'd', shard 0: its rows are a list of dicts, not 3"),
        ({0: "abc"}, "shard 0: its rows are a list of dicts, not 'abc'"),
        ({0: {"a": [1]}}, "shard 0: its rows are a list of dicts, not {'a': [1]}"),
        ([{"a": frozenset([1])}], "column 'a': a set has no order; give a list"),
    ],
)
def test_rows_that_are_none(rows: Any, words: str) -> None:
    assert words in said(lambda: Dataset.from_dict("d", rows))


def test_thousands_of_shards_need_no_descriptors(tmp_path: Path) -> None:
    files(tmp_path, *(f"{n}.jsonl" for n in range(1500)))
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "from tests.whole import whole; from zephon_async.io import Dataset\n"
        "print(len(whole(Dataset.from_path('d', sys.argv[1])).rows))"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, cwd=CASES.parent.parent)
    assert (done.stdout, done.stderr) == ("1500\n", "")


# What a dataset says of itself


def test_what_decides_the_data(tmp_path: Path) -> None:
    files(tmp_path / "here", "b.jsonl", "x/a.jsonl")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    os.utime(tmp_path / "there/b.jsonl", (1, 1))
    here, there = (Dataset.from_path("d", tmp_path / place, schema={"text": pa.string()}) for place in ("here", "there"))
    assert here.settings() == there.settings()
    assert here.settings() == {
        "name": "d",
        "format": "jsonl",
        "shards": [["b.jsonl", 20, 1], ["x/a.jsonl", 22, 1]],
        "unit_bytes": 16 << 20,
        "block_bytes": 1 << 20,
        "schema": {"text": "large_string"},
    }
    nested = Dataset.from_path("d", tmp_path / "here", schema=pa.schema([json_field("text")]))
    assert nested.settings()["schema"] == {"text": "JSON text"}
    assert here.guard().keys() == {"b.jsonl", "x/a.jsonl"}
    assert here.guard()["b.jsonl"] != there.guard()["b.jsonl"]
    assert there.guard()["b.jsonl"] == "20/1000000000"
    assert (here.ids().tolist(), here.raw_bytes().tolist(), here.shard_count(), len(here)) == ([0, 1], [20, 22], 2, 2)


def test_the_catalog_is_made_once_and_not_carried_along(tmp_path: Path) -> None:
    files(tmp_path, "a.jsonl")
    dataset = Dataset.from_path("d", tmp_path)
    with ThreadPoolExecutor(8) as threads:
        assert len({id(catalog) for catalog in threads.map(lambda _: dataset.catalog(), range(32))}) == 1
    again = pickle.loads(pickle.dumps(dataset))
    assert again.settings() == dataset.settings()
    assert whole(again) == whole(dataset)
    assert dataset.with_sizes(block_bytes=5).catalog() is not dataset.catalog()
    assert repr(dataset) == "Dataset(name='d', format='jsonl', unit_bytes=16777216, block_bytes=1048576)"


def test_an_empty_dataset_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    dataset = Dataset.from_path("d", tmp_path)
    assert dataset
    assert (len(dataset), dataset.catalog().rows, len(dataset.catalog().units)) == (0, 0, 0)
    assert schema_of(dataset, needed=["text"], required={"text": "string"}) == pa.schema({"text": pa.large_string()})


def test_a_shard_that_shrank_before_the_catalog_was_made(tmp_path: Path) -> None:
    files(tmp_path, "a.jsonl")
    dataset = Dataset.from_path("d", tmp_path)
    (tmp_path / "a.jsonl").write_text("")
    change = "has changed since the catalog was made (it had 20 bytes and has 0); start again, or put the file back"
    with pytest.raises(ShardError) as caught:
        dataset.catalog()
    assert str(caught.value) == f"dataset 'd', shard 'a.jsonl': {change}"


# In memory


def test_columns_rows_and_shards() -> None:
    rows = [{"text": "a", "n": 1}, {"text": "b"}, {"text": None, "n": 3}]
    right = [{"n": 1, "text": "a"}, {"n": None, "text": "b"}, {"n": 3, "text": None}]
    assert whole(Dataset.from_dict("d", rows)).rows == right
    assert whole(Dataset.from_dict("d", {"text": ["a", "b", None], "n": np.array([1, 2, 3])})).column("n") == [1, 2, 3]
    shards = Dataset.from_dict("d", {12: InMemoryShard(rows=rows[1:]), 3: rows[:1]})
    assert whole(shards).rows == right
    assert names(shards) == ["03", "12"]
    assert (shards.counts().tolist(), len(shards), shards.shard_count()) == ([1, 2], 3, 2)
    assert len(InMemoryShard(rows)) == 3
    assert InMemoryShard(rows)[1] == {"text": "b"}


def test_nested_values_come_back_as_they_were() -> None:
    rows = [{"meta": {"a": 1}, "ids": [1, 2], "tags": ["é"]}, {"meta": {"b": [None]}, "ids": [], "tags": None}, {}]
    found = whole(Dataset.from_dict("d", rows))
    assert found.column("meta") == ['{"a":1}', '{"b":[null]}', None]
    assert found.column("ids") == [[1, 2], [], None]
    assert found.column("tags") == ['["é"]', None, None]


def test_pinned_columns_in_memory() -> None:
    dataset = Dataset.from_dict("d", {"v": [[1.5], []], "t": [1, 2]}, schema={"v": pa.list_(pa.float32()), "t": pa.int8()})
    assert schema_of(dataset) == pa.schema({"t": pa.int8(), "v": pa.list_(pa.float32())})
    assert whole(dataset).column("v") == [[1.5], []]


def test_tables() -> None:
    table = pa.table({"a": pa.chunked_array([["x"], ["y", "z"]])})
    assert whole(Dataset.from_arrow("d", table)).column("a") == ["x", "y", "z"]
    assert whole(Dataset.from_arrow("d", table.slice(1, 1).to_batches()[0])).column("a") == ["y"]
    assert names(Dataset.from_arrow("d", {"b": table, "a": table})) == ["a", "b"]
    assert len(Dataset.from_arrow("d", table.slice(0, 0))) == 0


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        ({"a": [1, "x"]}, "column 'a': its values cannot be of one type: "),
        ({"a": [1], "b": [1, 2]}, "its columns have different lengths: {'a': 1, 'b': 2}"),
        ([{"a": 1}, 5], "row 1: a row is a dict of values by column name, not 5"),
        ([{}], "its rows have no columns"),
        ({"a": [{"x": float("nan")}]}, "column 'a': its values cannot be of one type: "),
        ({"a": [{"x": (1.5, 2)}]}, "column 'a': its values cannot be of one type: it does not come back from JSON as it was"),
        ({"a": [{1: "a", "1": "b"}]}, "column 'a': its values cannot be of one type: it does not come back from JSON as it was"),
        ({}, "give columns by name, a list of rows, or rows by the number of a shard, not {}"),
        ("text", "give columns by name, a list of rows, or rows by the number of a shard, not 'text'"),
        ({-1: []}, "give columns by name, a list of rows, or rows by the number of a shard, not {-1: []}"),
    ],
)
def test_rows_that_cannot_be(rows: Any, right: str) -> None:
    assert right in said(lambda: Dataset.from_dict("d", rows))
    assert "give a pyarrow Table" in said(lambda: Dataset.from_arrow("d", rows))
