"""What was parsed of index files is made once for each file as it is."""

import os
from pathlib import Path

from zephon_async.io.formats.remembered import Remembered
from zephon_async.io.stores import LocalStore, Source


def test_once_for_each_file_as_it_is(tmp_path: Path) -> None:
    made: list[str] = []

    def make(source: Source) -> bytes:
        made.append(source.where)
        return source.read(0, source.size)

    remembered = Remembered(make)
    (tmp_path / "x").mkdir()

    def read(name: str) -> bytes:
        store = LocalStore(str(tmp_path))
        return remembered.of(store.open("d", store.shard(name)))

    for text in (b"1", b"22"):
        for name in ("a", "x/a"):
            (tmp_path / name).write_bytes(text)
            assert read(name) == read(name) == text
    assert made == ["dataset 'd', shard 'a'", "dataset 'd', shard 'x/a'"] * 2


def test_two_places_of_one_dataset_are_two(tmp_path: Path) -> None:
    """Copies of another version may have the same names, sizes and times."""
    read = Remembered(lambda source: source.read(0, source.size))
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_text(folder)
        os.utime(tmp_path / folder / "a", ns=(0, 0))
    stores = [LocalStore(str(tmp_path / folder)) for folder in ("x", "y")]
    assert [read.of(store.open("d", store.shard("a"))) for store in stores] == [b"x", b"y"]


def test_only_the_last_few_are_kept(tmp_path: Path) -> None:
    made: list[str] = []
    remembered = Remembered(lambda source: made.append(source.name))
    for n in range(40):
        (tmp_path / f"{n}").write_bytes(b"1")
    store = LocalStore(str(tmp_path))
    for name in ["0", *map(str, range(32)), "32", "1", "0"]:
        remembered.of(store.open("d", store.shard(name)))
    assert made == [*map(str, range(33)), "0"]


def test_few_or_anew_where_that_is_said(tmp_path: Path) -> None:
    made: list[str] = []
    remembered = Remembered(lambda source: made.append(source.name), most=1)
    for name in "ab":
        (tmp_path / name).write_bytes(b"1")
    store = LocalStore(str(tmp_path))
    for name, anew in (("a", False), ("a", False), ("a", True), ("a", False), ("b", False), ("a", False)):
        remembered.of(store.open("d", store.shard(name)), anew)
    assert made == ["a", "a", "b", "a"]


def test_of_large_files_fewer_are_kept_but_always_the_last(tmp_path: Path) -> None:
    made: list[str] = []
    remembered = Remembered(lambda source: made.append(source.name), most_bytes=100)
    for name, size in {"a": 60, "b": 40, "c": 1, "d": 500}.items():
        (tmp_path / name).write_bytes(bytes(size))
    store = LocalStore(str(tmp_path))
    for name in "ababcbcaddd":
        remembered.of(store.open("d", store.shard(name)))
    assert "".join(made) == "abcad"
    remembered.of(store.open("d", store.shard("d")), anew=True)
    assert remembered.nbytes == 500
    for name in "bb":
        remembered.of(store.open("d", store.shard(name)))
    assert ("".join(made), remembered.nbytes) == ("abcaddb", 40)
