"""Token files of Megatron: documents as the library gives their sequences; an index that is not of the tokens is an error."""

import json
import shutil
import struct
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.whole import block_numbers, ones, schema_of, whole
from tests.writers.megatron import CODES, index_of, write
from zephon_async.errors import DatasetError, ShardError
from zephon_async.io import Dataset, Reader
from zephon_async.io.stores import LocalStore

WRITTEN = Path(__file__).parent.parent / "written" / "megatron"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())
DOCUMENTS = [[[1, 2, 3]], [], [[4], [], [5, 6]], [[7]]]


def named(name: str, folder: Path) -> Dataset:
    """One of the files that the library wrote."""
    for suffix in (".bin", ".idx"):
        shutil.copy(WRITTEN / f"{name}{suffix}", folder)
    return Dataset.from_path("d", folder)


@pytest.mark.parametrize("name", [*CODES, "merged"])
def test_documents_are_their_sequences_end_to_end(name: str, tmp_path: Path) -> None:
    dataset = named(name, tmp_path)
    found = whole(dataset.with_sizes(unit_bytes=24, block_bytes=8))
    assert found.rows == [{"input_ids": [*chain(*sequences)]} for sequences in EXPECTED[name]]
    value = {"float64": "double", "float32": "float", "merged": "uint16"}.get(name, name)
    assert schema_of(dataset) == pa.schema({"input_ids": pa.list_(pa.field("item", pa.type_for_alias(value)))})


def test_modes_of_sequences(tmp_path: Path) -> None:
    found = whole(named("modes", tmp_path).with_sizes(unit_bytes=30, block_bytes=10))
    assert found.rows == [
        {
            "input_ids": [*chain(*(tokens for tokens, _ in document))],
            "lengths": [len(tokens) for tokens, _ in document],
            "modes": [mode for _, mode in document],
        }
        for document in EXPECTED["modes"]
    ]


def test_every_file_of_a_folder_is_a_shard() -> None:
    assert [shard.name for shard in Dataset.from_path("d", WRITTEN / "*int*").shards] == [
        f"{name}.bin" for name in sorted(CODES) if "int" in name
    ]


def test_one_file_is_read_by_the_name_of_the_format(tmp_path: Path) -> None:
    named("uint8", tmp_path)
    assert len(Dataset.from_path("d", tmp_path / "uint8.bin", format="megatron")) == 5
    with pytest.raises(DatasetError, match=r"name the folder, or the file with format=$"):
        Dataset.from_path("d", tmp_path / "uint8.bin")


@pytest.mark.parametrize("name", ["a.tokens", "a.b.bin", "tokens"])
def test_files_that_are_named_may_have_any_suffix(name: str, tmp_path: Path) -> None:
    write(tmp_path / "a.bin", DOCUMENTS)
    (tmp_path / "a.bin").rename(tmp_path / name)
    (tmp_path / "a.idx").rename((tmp_path / name).with_suffix(".idx"))
    for path in (name, f"{name[:-1]}[{name[-1]}]"):
        dataset = Dataset.from_path("d", tmp_path / path, format="megatron")
        assert whole(dataset).column("input_ids") == [[1, 2, 3], [], [4, 5, 6], [7]]


def said_of(folder: Path) -> str:
    with pytest.raises(ShardError) as caught:
        whole(Dataset.from_path("d", folder, format="megatron"))
    return str(caught.value)


def test_without_its_index(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", DOCUMENTS)
    (tmp_path / "a.idx").unlink()
    path = str(tmp_path / "a.idx")
    assert said_of(tmp_path) == (
        f"dataset 'd', shard 'a.bin': {path!r}, which must lie beside it, cannot be read: No such file or directory"
    )


def test_an_index_that_is_cut_short_anywhere(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", DOCUMENTS)
    path = tmp_path / "a.idx"
    good = path.read_bytes()
    for cut in range(len(good)):
        path.write_bytes(good[:cut])
        said = said_of(tmp_path)
        assert said.startswith("dataset 'd', shard 'a.idx': ")
        if cut >= 34:
            assert said.endswith(
                f"has {cut} bytes, and {len(good)} are wanted for 5 sequences and 4 documents: it was cut short, or is broken"
            )


END = ", by its .idx: one of the two was cut short, or is of other data"
ORDER = "do not lie in it one behind the other"


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (index_of([3, 1, 0, 2], [1, 0, 3]), "a.bin': has 56 bytes, and 48"),
        (index_of([3, 1, 0, 2, 2], [1, 0, 3, 1]), "a.bin': has 56 bytes, and 64"),
        (index_of([3, 1, 0, 2, 1], [1, 0, 3]), "a.bin': 5 sequences are in it, and 4 of them in documents"),
        (index_of([3, 1, -1, 3, 1], [1, 0, 3, 1]), f"a.bin': sequences 0 to 5 {ORDER}"),
        (index_of([3, 1, 0, 2, 1], [1, 4, -1, 1]), f"a.bin': documents 0 to 4 {ORDER}"),
        (
            index_of([3, 1, 0, 2, 1], [1, 0, 3, 1]).replace(struct.pack("<q", 32), struct.pack("<q", 16)),
            f"a.bin': sequences 0 to 5 {ORDER}",
        ),
    ],
)
def test_an_index_that_is_of_other_tokens(index: bytes, said: str, tmp_path: Path) -> None:
    write(tmp_path / "a.bin", DOCUMENTS)
    (tmp_path / "a.idx").write_bytes(index)
    assert said_of(tmp_path) == f"dataset 'd', shard '{said}{END}"


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"MMIDXXX", "does not begin as an index of Megatron does"),
        (struct.pack("<9sQ", b"MMIDIDX", 2), "is of version 2, with tokens of type 5 and 5 documents: it is broken"),
        (struct.pack("<9sQB", b"MMIDIDX", 1, 9), "is of version 1, with tokens of type 9 and 5 documents: it is broken"),
    ],
)
def test_an_index_of_another_kind(head: bytes, said: str, tmp_path: Path) -> None:
    write(tmp_path / "a.bin", DOCUMENTS)
    path = tmp_path / "a.idx"
    path.write_bytes(head + path.read_bytes()[len(head) :])
    assert said_of(tmp_path) == f"dataset 'd', shard 'a.idx': {said}"


def test_gaps_between_units_are_found(tmp_path: Path) -> None:
    """Each unit knows only its own part of the index, and the sequence before."""
    write(tmp_path / "a.bin", [[[n]] for n in range(10)])
    path = tmp_path / "a.idx"
    starts = 34 + 4 * 10
    good = path.read_bytes()
    path.write_bytes(good[: starts + 8 * 5] + struct.pack("<q", 48) + good[starts + 8 * 6 :])
    with pytest.raises(ShardError, match="sequences 5 to 6 do not lie in it one behind the other"):
        whole(Dataset.from_path("d", tmp_path, unit_bytes=8, block_bytes=8))


def test_only_parts_of_the_index_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.bin", [[[n] * 5] for n in range(2000)])
    dataset = Dataset.from_path("d", tmp_path, unit_bytes=4000, block_bytes=1000)
    store = LocalStore(str(tmp_path))
    kind = type(store.open("d", store.shard("a.bin")))
    read: list[tuple[str, int]] = []
    original = kind.read

    def noted(source: Any, offset: int, length: int) -> bytes:
        read.append((source.path[-3:], length))
        return original(source, offset, length)

    monkeypatch.setattr(kind, "read", noted)
    schema, catalog = schema_of(dataset), dataset.catalog()
    assert (len(catalog.units), sum(length for _, length in read)) == (20, 34 + 8 + 8 + 4)
    read.clear()
    reader = Reader([dataset], schema, ones)
    for unit, number in block_numbers(catalog):
        reader.read(0, unit, number)
    assert [length for name, length in read if name == "bin"] == [1000] * 80
    assert sum(length for name, length in read if name == "idx") == 2000 * 20 + 20 * 8 + 19 * 12


@settings(max_examples=150)
@example(cut=1, edits=[(251, b"\x01\x00\x00\x00\x00\x00\x00\x00\x81")], unit_bytes=8)  # differences that overflow
@given(
    cut=st.integers(0, 600),
    edits=st.lists(st.tuples(st.integers(0, 600), st.binary(min_size=1, max_size=9)), min_size=1, max_size=3),
    unit_bytes=st.sampled_from([8, 1 << 20]),
)
def test_broken_indexes_give_rows_or_errors_of_ours(
    tmp_path_factory: pytest.TempPathFactory, cut: int, edits: list[tuple[int, bytes]], unit_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("broken")
    write(folder / "a.bin", DOCUMENTS)
    body = bytearray((folder / "a.idx").read_bytes())
    for at, new in edits:
        at %= len(body)
        body[at : at + len(new)] = new[: len(body) - at]
    (folder / "a.idx").write_bytes(body[:cut] if cut % 3 == 0 else body)
    try:
        found = whole(Dataset.from_path("d", folder, unit_bytes=unit_bytes))
    except ShardError as error:
        assert str(error).startswith("dataset 'd', shard 'a.")  # noqa: PT017
    else:
        assert sum(len(row["input_ids"]) for row in found.rows) <= 56
