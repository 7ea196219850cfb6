"""WebDataset tars: the files that real writers wrote, whatever tarfile writes, and what is broken."""

import gzip
import io
import json
import lzma
import tarfile
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.whole import Whole, ones, schema_of, whole
from zephon_async import Pipeline, StaticMixtureWorkSource, global_digest
from zephon_async.errors import DatasetError, ShardError
from zephon_async.io import Dataset, Reader
from zephon_async.io.formats import tar_scan, webdataset

WRITTEN = Path(__file__).parent.parent / "written" / "webdataset"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())
Files = Iterable[tuple[str, bytes]]


@pytest.fixture(params=["counted", "not counted"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Small data is measured in rows, large data in bytes; here both are small."""
    if request.param == "not counted":
        monkeypatch.setattr(webdataset, "COUNTED_BYTES", 0)
    return bool(request.param == "counted")


each_measure = pytest.mark.usefixtures("counted")
each_way = pytest.mark.parametrize("way", ["", ".gz"])


def packed(files: Files, form: int = tarfile.USTAR_FORMAT, time: float = 0) -> bytes:
    """A tar with nothing behind its end. time: of its files; where that is no whole number, pax headers say it."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=form) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), time
            tar.addfile(info, io.BytesIO(content))
        end = tar.offset
    return body.getvalue()[: end + 1024]


def of(folder: Path, body: bytes, way: str = "", schema: Any = None, **sizes: int) -> Dataset:
    path = folder / f"a.tar{way}"
    path.write_bytes(gzip.compress(body, 1) if way else body)
    return Dataset.from_path("d", path, schema=schema).with_sizes(**sizes)


def read(folder: Path, files: Files, schema: Any = None) -> Whole:
    return whole(of(folder, packed(files, tarfile.PAX_FORMAT), schema=schema))


def raw(rows: list[dict[str, str]]) -> pa.Schema:
    """All columns of samples as bytes."""
    names = sorted({name for row in rows for name in row} - {"__key__"})
    return pa.schema({"__key__": pa.large_string(), **dict.fromkeys(names, pa.large_binary())})


@each_measure
@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("unpacked", [False, True])
def test_what_real_writers_wrote(name: str, unpacked: bool, tmp_path: Path) -> None:
    path = WRITTEN / (name if name.endswith(".gz") else f"{name}.xz")
    if unpacked:
        packing = gzip if name.endswith(".gz") else lzma
        (tmp_path / "a.tar").write_bytes(packing.open(path).read())
        path = tmp_path / "a.tar"
    rows = EXPECTED[name]
    schema = raw(rows)
    found = whole(Dataset.from_path("d", path, schema=schema))
    wanted = [{key: value if key == "__key__" else value.encode("latin-1") for key, value in row.items()} for row in rows]
    assert found.rows == [{key: row.get(key) for key in sorted(schema.names)} for row in wanted]
    assert found.bad == []


def test_what_webdataset_wrote_decoded() -> None:
    found = whole(Dataset.from_path("d", WRITTEN / "writer.tar.xz"))
    for n, row in enumerate(found.rows):
        del row["__key__"]
        assert row == {
            "bin": b"\0\1" * n,
            "cls": n,
            "json": f'{{"n": {n}, "of": [1, 2]}}',
            "npy": list(range(n)),
            "txt": f"text {n} é",
        }
    assert len(found.rows) == 5


NAMES = st.lists(
    st.builds(
        lambda folder, key, extension: f"{folder}{key}{extension}",
        st.sampled_from(["", "", "a/", "b.c/", "d" * 120 + "/", "é/"]),
        st.sampled_from(["1", "2", "k" * 130, "", "_x", "__m__", "ü"]),
        st.sampled_from([".txt", ".JSON", ".a.b", "", "."]),
    ),
    max_size=12,
)
SIZES = st.lists(st.sampled_from([0, 1, 511, 512, 513, 3000]), min_size=12, max_size=12)


def as_told(body: bytes) -> list[dict[str, Any]]:
    """The samples by the rules, from tarfile."""
    rows: list[dict[str, Any]] = []
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        for info in tar:
            base = info.name.rpartition("/")[2]
            key, dot, extension = base.partition(".")
            if not dot or not key or info.name.startswith("__m__/") or not info.isreg():
                continue
            key = info.name[: len(info.name) - len(base) + len(key)]
            if not rows or rows[-1]["__key__"] != key:
                rows.append({"__key__": key})
            file = tar.extractfile(info)
            assert file is not None
            rows[-1].setdefault(extension.lower(), file.read())
    return rows


@each_measure
@each_way
@given(
    names=NAMES,
    sizes=SIZES,
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    time=st.sampled_from([0, 0.5, 1234567890.123]),
    run=st.sampled_from([1, 700, 5000, 1 << 20]),
)
@settings(max_examples=20)
def test_what_tarfile_writes(
    way: str, tmp_path_factory: pytest.TempPathFactory, names: list[str], sizes: list[int], form: int, time: float, run: int
) -> None:
    """Runs may end anywhere, and row blocks may be of any size."""
    folder = tmp_path_factory.mktemp("tar")
    body = packed([(name, bytes([65 + n]) * size) for n, (name, size) in enumerate(zip(names, sizes, strict=False))], form, time)
    rows = as_told(body)
    schema = raw(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar_scan, "_RUN", run)
        patch.setattr(tar_scan, "_SHORT", run // 2)
        for block_bytes in (1000, 1 << 20):
            found = whole(of(folder, body, way, schema, block_bytes=block_bytes))
            assert found.rows == [{name: row.get(name) for name in sorted(schema.names)} for row in rows]
            few = whole(of(folder, body, way, schema, block_bytes=block_bytes), needed=["__key__", "txt"])
            assert few.rows == [{"__key__": row["__key__"], "txt": row.get("txt")} for row in rows]


@each_measure
@each_way
def test_a_shard_that_is_cut_anywhere_is_never_taken_for_whole(way: str, tmp_path: Path) -> None:
    files = [("1.txt", b"one"), ("k" * 120 + ".txt", b"two")]
    body = packed(files, tarfile.PAX_FORMAT)
    path = of(tmp_path, body, way).store.path  # type: ignore[attr-defined]
    good = Path(path).read_bytes()
    assert whole(Dataset.from_path("d", path)).column("txt") == ["one", "two"]
    for cut in range(0, len(good), 1 if way else 3):
        Path(path).write_bytes(good[:cut])
        with pytest.raises((ShardError, DatasetError), match=rf"^dataset 'd'.*a\.tar{way}'"):
            whole(Dataset.from_path("d", path))


def broken(folder: Path, body: bytes) -> str:
    with pytest.raises(ShardError) as caught:
        whole(of(folder, body))
    return str(caught.value).removeprefix("dataset 'd', shard 'a.tar': ")


def header(name: bytes, kind: bytes, size: bytes = b"00000000000\0") -> bytes:
    """A header with a right checksum."""
    fields = (name.ljust(100, b"\0") + bytes(24) + size + bytes(12) + b" " * 8 + kind).ljust(512, b"\0")
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


END = bytes(1024)
ONE = packed([("1.txt", b"one")])[:-1024]


@each_measure
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "ends at byte 0, without the two blocks of zeros that end a tar; it was cut short, or is still being written"),
        (ONE, "ends at byte 1,024, without the two blocks of zeros that end a tar; it was cut short, or is still being written"),
        (b"PK" * 2000, "does not begin with a header of a tar: it is none, or is compressed and not named so"),
        (ONE + bytes(512) + ONE, "there is one block of zeros at byte 1,024, and two end a tar; the shard is broken"),
        (
            ONE + END + ONE + END,
            "the tar ends at byte 1,024, and what lies behind it is not zeros; "
            "if tars were put one behind the other, make them one with tar --concatenate",
        ),
        (ONE + header(b"2.txt", b"S") + END, "'2.txt', at byte 1,024, is a sparse file; make the shard anew without it"),
        (ONE + header(b"2.txt", b"M") + END, "'2.txt', at byte 1,024, goes on from another volume; make the shard anew without it"),
        (
            ONE + header(b"2.txt", b"0", b"-0000001000\0") + END,
            "'2.txt', at byte 1,024, has a size that is no number; make the shard anew without it",
        ),
        (
            header(b"x", b"g", b"00000000013\0") + b"11 path=ab\n".ljust(512, b"\0") + ONE + END,
            "'x', at byte 0, says path of all files at once; make the shard anew without it",
        ),
        (
            header(b"x", b"x", b"00000000013\0") + b"99 path=ab\n".ljust(512, b"\0") + ONE + END,
            "'x', at byte 0, is a pax header of which the record at byte 0 is broken; make the shard anew without it",
        ),
        (
            header(b"x", b"L", b"00000000013\0") + bytes(512) + END,
            "there is no file behind the extended header at byte 0; the shard is broken",
        ),
        (ONE + ONE[:100] + b"7" + ONE[101:] + END, "the header at byte 1,024 has a wrong checksum; the shard is broken there"),
        (
            ONE + header(b"2.txt", b"0", b"77777777777\0") + END,
            "ends at byte 2,560, inside the file before byte 8,589,936,128; it was cut short, or is still being written",
        ),
    ],
)
def test_what_is_broken(body: bytes, said: str, tmp_path: Path) -> None:
    found = broken(tmp_path, body)
    assert found == said or found.replace("inside what begins at byte 1,024", "inside the file before byte 8,589,936,128") == said


@each_measure
def test_sizes_and_checksums_that_others_write(tmp_path: Path) -> None:
    """Base 256; no leading zeros; no end of a number; signed bytes in a checksum."""
    signed = header(b"\xc3\xa9.txt", b"0", b"00000000001\0")
    signed = signed[:148] + b"%06o\0 " % (int(signed[148:154], 8) - 512) + signed[156:]
    bodies = [header(b"1.txt", b"0", b"\x80".ljust(11, b"\0") + b"\1"), header(b"2.txt", b"\0", b"000000000001"), signed]
    bodies.append(header(b"3.txt", b"7", b" 1 ".ljust(12, b"\0")))
    found = whole(of(tmp_path, b"".join(body + b"x".ljust(512, b"\0") for body in bodies) + END))
    assert [tuple(row.values()) for row in found.rows] == [("1", "x"), ("2", "x"), ("é", "x"), ("3", "x")]


def with_prefix(file: bytes) -> bytes:
    """The file of a tar with one, in a folder `d` that its header has in the prefix of ustar."""
    at = len(file) - 1024
    fields = file[at : at + 345] + b"d".ljust(155, b"\0") + file[at + 500 : at + 512]
    return file[:at] + fields[:148] + b"%06o\0 " % (int(fields[148:154], 8) + ord("d")) + fields[156:] + file[at + 512 :]


@each_measure
def test_a_prefix_behind_a_header_that_says_the_time(tmp_path: Path) -> None:
    """As libarchive writes them; whatever else the extended header says."""
    plain, timed, other = (packed([(f"{n}.txt", b"1")], tarfile.PAX_FORMAT, n / 2)[:-1024] for n in (2, 3, 5))
    body = with_prefix(plain) + with_prefix(timed) + with_prefix(other.replace(b"mtime=", b"atime=")) + END
    assert [body.count(word) for word in (b"mtime=1.5\n", b"atime=2.5\n")] == [1, 1]
    assert [row["__key__"] for row in whole(of(tmp_path, body)).rows] == ["d/2", "d/3", "d/5"]


@each_measure
def test_a_tar_in_a_tar_is_one_file(tmp_path: Path) -> None:
    inner = packed([("2.txt", b"two"), ("3.txt", b"three")], tarfile.PAX_FORMAT, 0.5)
    found = whole(of(tmp_path, packed([("1.bin", inner), ("1.txt", b"one")])))
    assert found.rows == [{"__key__": "1", "bin": inner, "txt": "one"}]


def test_what_is_passed_over(tmp_path: Path) -> None:
    names = ["a.txt", "__meta__/x.txt", "README", "d/.hidden", ".b.c", "a.json", "__x__", "_y.txt", "a.txt"]
    body = packed([(name, b"1") for name in names])[:-1024] + header(b"a.cls", b"2") + header(b"a.d/", b"5") + END
    found = whole(of(tmp_path, body))
    assert found.rows == [
        {"__key__": "a", "json": "1", "txt": "1"},
        {"__key__": "_y", "json": None, "txt": "1"},
        {"__key__": "a", "json": None, "txt": "1"},
    ]
    assert [row for _, row in found.places] == [0, 7168, 8192]


def test_rows_that_are_bad(tmp_path: Path) -> None:
    files = [
        ("1.txt", b"a"),
        ("1.TXT", b"b"),
        ("2.txt", b"\xff"),
        ("3.cls", b"x"),
        ("4.json", b'{"a": NaN}'),
        ("5.json", b"[" * 300 + b"]" * 300),
        ("6.json", b" null\n"),
        ("7.cls", b" 007\n"),
        ("8.json", b'{"a":  1}\n'),
        ("9.npy", b"no array"),
    ]
    found = read(tmp_path, files)
    dataset = Dataset.from_path("d", tmp_path)
    block = Reader([dataset], schema_of(dataset), ones).read(0, 0, 0)
    told = {row: error.start for row, error in block.bad.items()}  # type: ignore[attr-defined]
    assert told == {row: b"%d" % (row + 1) for row in range(5)}
    where = "dataset 'd', shard 'a.tar', sample"
    assert found.bad == [
        f"{where} '1' (byte 0): has two files 'txt'",
        f"{where} '2' (byte 2,048): column 'txt': the text is not UTF-8",
        f"{where} '3' (byte 3,072): column 'cls': int64 is wanted: invalid literal for int() with base 10: b'x'",
        f"{where} '4' (byte 4,096): column 'json': JSON is malformed: invalid character (byte 6); one whole JSON value is wanted",
        f"{where} '5' (byte 5,120): column 'json': nested more than 200 levels deep",
    ]
    assert [row["cls"] for row in found.rows] == [None] * 6 + [7, None, None]
    assert [row["json"] for row in found.rows][5:] == [None, None, '{"a":  1}', None]
    assert found.rows[8]["npy"] == b"no array"


@each_measure
def test_a_file_that_would_be_the_key(tmp_path: Path) -> None:
    found = read(tmp_path, [("0.txt", b"a"), ("0.__key__", b"b"), ("1.__KEY__", b"c"), ("2.txt", b"d")])
    where = "dataset 'd', shard 'a.tar', sample"
    assert found.bad == [
        f"{where} '0' (byte 0): has a file '__key__', and that column is the key of the sample",
        f"{where} '1' (byte 2,048): has a file '__key__', and that column is the key of the sample",
    ]


def saved(array: Any) -> bytes:
    body = io.BytesIO()
    np.save(body, array)
    return body.getvalue()


def test_arrays(tmp_path: Path) -> None:
    arrays = [np.arange(6, dtype="<i2").reshape(2, 3), np.zeros((0, 3), ">i2"), np.asfortranarray([[1, 2], [3, 4]]).astype("<i2")]
    files = [(f"{n}.npy", saved(array)) for n, array in enumerate(arrays)]
    files += [("3.txt", b""), ("4.npy", saved(np.float32(1))), ("5.npy", saved(np.array([[70_000]]))), ("6.npy", saved([[1]]))]
    files += [("7.npy", saved(np.zeros((1, 1), "<i2")).replace(b"(1, 1)", b"(9, 9)"))]
    found = read(tmp_path, files)
    nested = pa.list_(pa.list_(pa.int16()))
    assert schema_of(of(tmp_path, packed(files))).field("npy").type == nested
    assert found.column("npy") == [[[0, 1, 2], [3, 4, 5]], [], [[1, 2], [3, 4]], None, None, None, [[1]], None]
    assert [said.partition("column 'npy': ")[2] for said in found.bad] == [
        f"{nested} is wanted, not an array of 0 dimensions",
        f"{nested} is wanted, and a number of int64 does not fit",
        "an array of the shape (9, 9) of int16 is stated, and there are 2 bytes of it",
    ]
    pinned = read(tmp_path, [("1.npy", saved([1, 2])), ("2.npy", saved(np.array([[0.5]])))], {"npy": pa.list_(pa.int32())})
    assert pinned.column("npy") == [[1, 2], None]
    scalars = read(tmp_path, [("1.npy", saved(1.5)), ("2.txt", b""), ("3.npy", saved(2.5))])
    assert scalars.column("npy") == [1.5, None, 2.5]


def test_types_that_are_pinned(tmp_path: Path) -> None:
    files = [("1.txt", b"a"), ("1.score", b"0.5"), ("1.ids", b"[1, 2]"), ("1.html", b"<p>"), ("1.n", b"300"), ("2.score", b"x")]
    pins = {"txt": pa.large_binary(), "score": pa.float64(), "ids": pa.list_(pa.int32()), "html": pa.large_string(), "n": pa.int8()}
    found = read(tmp_path, files, pins)
    assert found.rows[0] == {"__key__": "1", "html": "<p>", "ids": [1, 2], "n": None, "score": 0.5, "txt": b"a"}
    assert [said.partition(": ")[2] for said in found.bad] == [
        "column 'n': int8 is wanted: Value 300 too large to fit in C integer type",
        "column 'score': double is wanted: JSON is malformed: invalid character (byte 0)",
    ]


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    body = header(b"a\xff.txt", b"0") + header(b"b.t\xff", b"0") + header(b"c.txt", b"0") + END
    found = whole(of(tmp_path, body), needed=["__key__", "txt"])
    assert found.bad == ["dataset 'd', shard 'a.tar', sample 'a\\\\xff' (byte 0): column '__key__': the text is not UTF-8"]
    assert found.column("__key__") == [None, "b", "c"]
    assert schema_of(of(tmp_path, body)).names == ["__key__", "txt"]


def test_units(tmp_path: Path, counted: bool) -> None:
    body = packed([(f"{n:03}.txt", b"x" * 100) for n in range(100)])
    dataset = of(tmp_path, body, block_bytes=10_240)
    units = dataset.catalog().units.tolist()
    if counted:
        assert units == [(0, n * 10_240, (n + 1) * 10_240, n * 10, 10, 10, 0) for n in range(10)]
    else:
        assert units == [(0, 0, len(body), 0, len(body), 10_240, 2)]
    assert dataset.total() == 100
    assert (dataset.catalog().rows is None) != counted


@each_measure
@each_way
def test_row_blocks_in_any_order(way: str, tmp_path: Path) -> None:
    dataset = of(tmp_path, packed([(f"{n:03}.id", b"%d" % n) for n in range(100)]), way, block_bytes=10_240)
    several = dataset.catalog().measure == "rows" and not way
    reader = Reader([dataset], schema_of(dataset, needed=["id"]), ones)
    for number in (3, 9, 0, 9, 5):
        block = reader.read(0, number, 0) if several else reader.read(0, 0, number)
        assert block.columns.to_pydict() == {"id": list(range(number * 10, number * 10 + 10))}
    if dataset.catalog().measure == "bytes":
        assert [(len(reader.read(0, 0, n).rows), reader.read(0, 0, n).last) for n in (8, 9, 10, 500)] == [
            (10, False),
            (10, True),
            (0, True),
            (0, True),
        ]
    reader.close()


@each_measure
@each_way
@pytest.mark.parametrize("shuffle", [False, True])
def test_lanes_share_the_samples(way: str, shuffle: bool, tmp_path: Path) -> None:
    """Each comes once an epoch, and a run that was stopped goes on with the same."""
    for shard in range(2):
        body = packed([(f"{n}.id", b"%d" % n) for n in range(shard * 100, shard * 100 + 100)])
        (tmp_path / f"{shard}.tar{way}").write_bytes(gzip.compress(body) if way else body)

    def pipeline() -> Pipeline:
        made = Dataset.from_path("d", tmp_path, block_bytes=10_000)
        source = StaticMixtureWorkSource([made], {"d": 1}, seed=3, unit="samples", epochs=2, shuffle=shuffle)
        return Pipeline(source).options(lanes=3, workers=2, on_end="pad").batch(4)

    with pipeline() as run:
        batches = list(run)
    found = [n for batch in batches for n, real in zip(batch.to_pylist("id"), batch.mask.tolist(), strict=True) if real]
    assert Counter(found) == dict.fromkeys(range(200), 2)
    expected = [global_digest([batch]) for batch in batches]
    with pipeline() as run:
        begun = [global_digest([batch]) for batch in islice(run, 20)]
        state = run.checkpoint()
    with pipeline() as run:
        assert [*begun, *(global_digest([batch]) for batch in run.restore(state))] == expected


def test_what_is_not_wanted_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files are skipped, in counting and where others are wanted."""
    monkeypatch.setattr(tar_scan, "_RUN", 10_000)
    monkeypatch.setattr(tar_scan, "_SHORT", 2_000)
    monkeypatch.setattr(webdataset, "COUNTED_BYTES", 0)
    dataset = of(
        tmp_path, packed([(f"{n}.{kind}", b"x" * size) for n in range(5) for kind, size in (("bin", 100_000), ("txt", 10))])
    )
    taken = list[int]()
    source = type(dataset.open(0))
    before = source.read

    def noted(self: Any, offset: int, length: int) -> bytes:
        taken.append(length)
        return before(self, offset, length)

    monkeypatch.setattr(source, "read", noted)
    assert whole(dataset, needed=["txt"]).column("txt") == ["x" * 10] * 5
    assert sum(taken) < 100_000
    assert whole(dataset).column("bin") == [b"x" * 100_000] * 5


@each_measure
@given(
    changes=st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 9_000),
    moved=st.integers(0, 9_000),
)
@settings(max_examples=80)
def test_what_was_changed_gives_rows_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int, moved: int
) -> None:
    body = bytearray(
        packed(
            [("1.txt", b"a" * 600), ("k" * 120 + ".json", b"[1]"), ("2.npy", saved([1, 2])), ("2.cls", b"1")], tarfile.PAX_FORMAT
        )
    )
    for at, byte in changes:
        body[at % len(body)] = byte
    if cut % 3 == 0:
        body = body[: moved % len(body)] + body[cut % len(body) :]
    try:
        found = whole(of(tmp_path_factory.mktemp("tar"), bytes(body))).rows
    except (ShardError, DatasetError):
        found = []
    assert len(found) <= 8
