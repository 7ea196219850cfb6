"""Compressed JSON lines: the rows of what comes out, however it was compressed, cut and read; what is not whole is an error."""

import bz2
import gzip
import json
import lzma
import random
import struct
import sys
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from tests.whole import BytesSource, block_numbers, ones, schema_of, whole
from zephon_async.errors import DatasetError, ShardError
from zephon_async.io import Dataset, Reader
from zephon_async.io.formats import inflate, line_format, lines

WAYS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda body: gzip.compress(body, 1),
    ".zst": lambda body: zstd.compress(body, options={zstd.CompressionParameter.checksum_flag: 1}),
    ".bz2": bz2.compress,
    ".xz": lambda body: lzma.compress(body, preset=0),
}
each_way = pytest.mark.parametrize("way", WAYS)
SKIPPABLE = struct.pack("<II", 0x184D2A53, 5) + b"notes"


@pytest.fixture(params=["counted", "not counted"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Small data is measured in rows, large data in bytes; here both are small."""
    if request.param == "not counted":
        monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)
    return bool(request.param == "counted")


def of(folder: Path, body: bytes, way: str, schema: Any = None, **sizes: int) -> Dataset:
    path = folder / f"a.jsonl{way}"
    path.write_bytes(body)
    return Dataset.from_path("d", path, schema=schema).with_sizes(**sizes)


NUMBERS = {"n": pa.int64(), "text": pa.large_string()}
LINES = st.lists(
    st.one_of(
        st.builds(lambda n: json.dumps({"n": n}).encode(), st.integers(0, 99)),
        st.builds(lambda n: json.dumps({"n": 1, "text": "x" * n}).encode(), st.sampled_from([0, 50, 400])),
        st.sampled_from([b"", b"  \t", b"{}\r", b"no json", b'{"n": "no number"}']),
    ),
    max_size=8,
)


@pytest.mark.usefixtures("counted")
@each_way
@given(
    texts=LINES, bom=st.booleans(), ended=st.booleans(), cuts=st.lists(st.integers(0, 400), max_size=3), given=st.integers(1, 500)
)
@settings(max_examples=60)
def test_what_comes_out_is_read_as_the_lines_themselves(
    way: str,
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[bytes],
    bom: bool,
    ended: bool,
    cuts: list[int],
    given: int,
) -> None:
    """Members may begin anywhere, and pieces may come out of any length."""
    folder = tmp_path_factory.mktemp("lines")
    text = b"\xef\xbb\xbf" * bom + b"\n".join(texts) + b"\n" * ended
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    members = [text[a:b] for a, b in pairwise(edges)] or [b""]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_GIVEN", given)
        patch.setattr(inflate, "_TAKEN", max(given // 3, 1))
        for block_bytes in (30, 300, 1 << 20):
            sizes = {"block_bytes": block_bytes, "unit_bytes": 1 << 24}
            plain = whole(of(folder, text, "", NUMBERS, **sizes)) if texts else None
            packed = of(folder, b"".join(map(WAYS[way], members)), way, NUMBERS, **sizes)
            found = whole(packed)
            if plain is not None:
                assert found.rows == plain.rows
                assert [row for _, row in found.places] == [row for _, row in plain.places]
                assert len(found.bad) == len(plain.bad)
            else:
                assert found.rows == []


@pytest.mark.usefixtures("counted")
@each_way
def test_a_shard_that_is_cut_anywhere_is_never_taken_for_whole(way: str, tmp_path: Path) -> None:
    text = b"".join(b'{"n": %d}\n' % n for n in range(40))
    halves = [WAYS[way](text[:160]), WAYS[way](text[160:])]
    rows = whole(of(tmp_path, b"".join(halves), way)).rows
    for cut in range(sum(map(len, halves))):
        dataset = of(tmp_path, b"".join(halves)[:cut], way)
        if cut == len(halves[0]):  # what is left is a whole file
            assert whole(dataset).rows == rows[:17]
            continue
        with pytest.raises(ShardError, match=r"^dataset 'd', shard 'a.jsonl\.[a-z0-9]+'"):
            whole(dataset)


@pytest.mark.usefixtures("counted")
@each_way
def test_a_byte_that_differs_is_noticed(way: str, tmp_path: Path) -> None:
    """Every format here has a checksum of what comes out; of what does not change that, some bytes mean nothing."""
    text = b"".join(b'{"n": %d}\n' % n for n in range(40))
    body = WAYS[way](text)
    rows = whole(of(tmp_path, body, way)).rows
    for at in range(len(body)):
        dataset = of(tmp_path, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :], way)
        try:
            found = whole(dataset).rows
        except DatasetError:
            continue
        assert found == rows


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    ("way", "behind", "sound"),
    [
        (".gz", b"\0" * 700, True),
        (".xz", b"\0" * 8, True),
        (".zst", SKIPPABLE, True),
        (".gz", b"junk", False),
        (".gz", b"\0\0junk", False),
        (".zst", b"junk", False),
        (".bz2", b"junk", False),
        (".xz", b"junk", False),
    ],
)
def test_what_lies_behind_the_last_member(way: str, behind: bytes, sound: bool, tmp_path: Path) -> None:
    dataset = of(tmp_path, WAYS[way](b'{"n": 1}\n') + behind, way)
    if sound:
        assert whole(dataset).rows == [{"n": 1}]
    else:
        with pytest.raises(ShardError, match=r"cannot be decompressed as|ends inside"):
            whole(dataset)


def test_frames_that_are_skipped_may_lie_anywhere(tmp_path: Path) -> None:
    pack = WAYS[".zst"]
    body = SKIPPABLE + pack(b'{"n": 1}\n{"n"') + SKIPPABLE + SKIPPABLE + pack(b": 2}\n")
    assert whole(of(tmp_path, body, ".zst")).column("n") == [1, 2]


@pytest.mark.parametrize("way", [".zst", ".gz"])
def test_what_is_none_of_its_kind(way: str, tmp_path: Path) -> None:
    name = {".zst": "zstd", ".gz": "gzip"}[way]
    for body in (b'{"n": 1}\n', b"\0" * 100):
        with pytest.raises(ShardError, match=rf"^dataset 'd', shard 'a.jsonl{way}': cannot be decompressed as {name}: "):
            whole(of(tmp_path, body, way))
    with pytest.raises(ShardError, match=r"ends inside a .* member, at byte 0: it was cut short"):
        whole(of(tmp_path, b"", way))


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 10_000)
    long = b'{"n": 1}\n{"n": "' + b"x" * 30_000 + b'"}\n'
    for way, body in (("", long), (".gz", WAYS[".gz"](long))):
        monkeypatch.setattr(inflate, "_GIVEN", 1_000)
        monkeypatch.setattr(lines, "MORE", 1_000)
        with pytest.raises(ShardError, match="has a line of more than 10,000 bytes"):
            whole(of(tmp_path, body, way, block_bytes=100))


def test_more_than_can_be_meant_is_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "MOST_RATIO", 50)
    body = WAYS[".zst"](b'{"n": 1}\n' * 100_000)
    with pytest.raises(ShardError, match="more than 50 bytes come out of a byte of it"):
        whole(of(tmp_path, body, ".zst"))


def test_a_bad_line_is_named(tmp_path: Path, counted: bool) -> None:
    found = whole(of(tmp_path, WAYS[".zst"](b'{"n": 1}\n{"n": 2}\nnone\n'), ".zst"))
    (bad,) = found.bad
    assert bad.startswith("dataset 'd', shard 'a.jsonl.zst', line 3 (byte 18 of what comes out of it): ")


def test_units_and_what_is_known_of_them(tmp_path: Path, counted: bool) -> None:
    body = WAYS[".gz"](b'{"n": 1}\n' * 1_000)
    dataset = of(tmp_path, body, ".gz", block_bytes=900)
    catalog = dataset.catalog()
    (unit,) = catalog.units.tolist()
    assert unit == ((0, 0, len(body), 0, 1_000, 100, 1) if counted else (0, 0, len(body), 0, len(body), 900, 2))
    assert catalog.rows == (1_000 if counted else None)
    assert dataset.total() == 1_000


@pytest.mark.usefixtures("counted")
def test_row_blocks_in_any_order(tmp_path: Path) -> None:
    """Those behind the end are empty, and say so; what was passed on the way is given along."""
    dataset = of(tmp_path, WAYS[".gz"](b"".join(b'{"n": %2d}\n' % n for n in range(100))), ".gz", block_bytes=100)
    reader = Reader([dataset], schema_of(dataset), ones)
    for number in (3, 9, 0, 9, 5):
        block = reader.read(0, 0, number)
        assert block.columns.to_pydict() == {"n": list(range(number * 10, number * 10 + 10))}
    assert sorted(reader.read_several(0, 0, range(8, 9))) == [6, 7, 8]
    if dataset.catalog().measure == "bytes":
        assert [(len(reader.read(0, 0, n).rows), reader.read(0, 0, n).last) for n in (8, 9, 10, 500)] == [
            (10, False),
            (10, True),
            (0, True),
            (0, True),
        ]
    reader.close()


def test_plain_and_compressed_shards_are_one_dataset(tmp_path: Path, counted: bool) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n')
    for number, (way, pack) in enumerate(WAYS.items()):
        (tmp_path / f"b{number}.ndjson{way.upper()}").write_bytes(pack(b'{"n": 2}\n{"n": 3}\n'))
    dataset = Dataset.from_path("d", tmp_path)
    assert dataset.shard_count() == 5
    assert whole(dataset).column("n") == [1, *[2, 3] * 4]
    assert block_numbers(dataset.catalog())[0] == (0, 0)


def test_a_name_that_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "lines.gz").write_bytes(WAYS[".gz"](b'{"n": 1}\n'))
    with pytest.raises(DatasetError, match="holds no shard"):
        Dataset.from_path("d", tmp_path)
    assert whole(Dataset.from_path("d", tmp_path / "lines.gz", format="jsonl")).rows == [{"n": 1}]


def test_zlib_gives_all_that_it_has_before_it_wants_more(tmp_path: Path) -> None:
    """Of very few bytes very many: all have gone in when the first piece comes out."""
    body = b'{"n": 1}\n' * (3 << 17)
    packed = zlib.compressobj(9, wbits=31)
    assert len(whole(of(tmp_path, packed.compress(body) + packed.flush(), ".gz")).rows) == 3 << 17


def test_missing_columns_and_types_are_found(tmp_path: Path, counted: bool) -> None:
    text = b"".join(json.dumps(row).encode() + b"\n" for row in ({"a": 1}, {"a": None, "b": "x"}, {"b": "y", "c": [1, 2]}))
    found: list[dict[str, Any]] = whole(of(tmp_path, WAYS[".zst"](text), ".zst")).rows
    assert found == [{"a": 1, "b": None, "c": None}, {"a": None, "b": "x", "c": None}, {"a": None, "b": "y", "c": [1, 2]}]


def test_what_a_decompressor_of_zstd_holds() -> None:
    """A frame says how large its window is, or, where all that comes out is its window, how much that is."""

    def head(of: bytes) -> int:
        return inflate._zstd_bytes(of[: inflate._HEAD]) - inflate._STATE

    of_unknown_size = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 21})
    body = random.Random(1).randbytes(70_000)
    assert head(of_unknown_size.compress(body) + of_unknown_size.flush()) == 2 << 20
    for size in (1, 200, 300, 255, 256, 65_791, 65_792, 70_000):
        assert head(zstd.compress(body[:size])) == size
    assert head(SKIPPABLE + bytes(18)) == 0
    assert [head(b""), head(zstd.compress(b"")[:5])] == [0, 0]


def test_what_a_decompressor_of_xz_holds() -> None:
    """The first block of a stream says how large the dictionary is."""

    def head(of: bytes) -> int:
        return inflate._xz_bytes(of[: inflate._HEAD]) - inflate._STATE

    plain = lzma.compress(b"x", preset=0)
    assert [head(plain) >> 10, head(lzma.compress(b"x")) >> 20] == [256, 8]
    of_two = lzma.compress(b"x", filters=[{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "dict_size": 3 << 20}])
    assert head(of_two) == 3 << 20
    said = {0: 4 << 10, 28: 64 << 20, 29: 96 << 20, 40: 1 << 28}  # no more is allowed
    assert {code: head(plain[:16] + bytes([code]) + plain[17:]) for code in said} == said
    sized = bytearray(plain)
    sized[13:14] = b"\xc0\x85\x01\x01"  # with both lengths said
    assert head(bytes(sized)) == 256 << 10
    assert [head(lzma.compress(b"")), head(b""), head(bytes(sized[:16])), head(b"\xff" * 80)] == [0, 0, 0, 0]


@pytest.mark.parametrize("way", [".zst", ".xz"])
def test_a_member_that_begins_where_a_read_ends_is_looked_at_whole(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = random.Random(1).randbytes(5_000)
    large = {".zst": zstd.compress(body), ".xz": lzma.compress(body, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 16 << 20}])}[
        way
    ]
    first = WAYS[way](b"x")
    held = []
    for taken in (1 << 20, len(first) + 6, 5):
        monkeypatch.setattr(inflate, "_TAKEN", taken)
        stream = inflate.stream_of(BytesSource(f"a{way}", first + large))
        assert stream.read() == b"x"
        came = b""
        while len(came) < 5_000:
            came += stream.read()
        assert came == body
        held.append(stream._member_bytes)  # type: ignore[attr-defined]
    assert held == [{".zst": 5_000, ".xz": 16 << 20}[way] + inflate._STATE] * 3


@each_way
def test_what_a_decompressor_was_given_is_counted(way: str) -> None:
    """Of very few bytes very many come out, piece by piece."""
    stream = inflate.Inflated(BytesSource(f"a{way}", WAYS[way](bytes(5 << 20))), inflate._CODECS[way])
    stream.read()
    unused = stream.nbytes - stream._input.nbytes - stream._member_bytes
    assert unused == (len(stream._member._of.unconsumed_tail) if isinstance(stream._member, inflate._Gunzip) else inflate._FED)
    assert unused > 0


def test_where_lines_end_is_counted() -> None:
    scan = lines.LineScan(inflate.stream_of(BytesSource("a", b"\n" * 5_000)), blank=True)
    scan.rows(1)
    assert scan.nbytes == 5_000 + 9 * 4_999  # what was read, and of each line that waits its byte and where it ends


def test_a_shard_that_wants_too_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "_MOST_MEMORY", 1 << 16)
    with pytest.raises(ShardError, match="cannot be decompressed as xz: Memory usage limit exceeded"):
        whole(of(tmp_path, WAYS[".xz"](b'{"n": 1}\n'), ".xz"))


@pytest.mark.usefixtures("counted")
def test_a_shard_that_stands_open_is_read_on_from_the_source_that_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run has fetched of it may be dropped meanwhile, and fetched anew for another source."""
    monkeypatch.setattr(inflate, "_TAKEN", 100)
    chance = random.Random(1)
    text = b"".join(b'{"text": "%s"}\n' % chance.randbytes(50).hex().encode() for _ in range(60))
    dataset = of(tmp_path, WAYS[".gz"](text), ".gz", block_bytes=600)
    reader, sources = Reader([dataset], schema_of(dataset), ones), [dataset.open(0) for _ in range(2)]
    read = [0, 0]

    def counting(of: int) -> Any:
        def noted(offset: int, length: int) -> bytes:
            read[of] += length
            return sources[of].read(offset, length)

        return SimpleNamespace(where=sources[of].where, name=sources[of].name, size=sources[of].size, remote=False, read=noted)

    reader.read_several(0, 0, range(1), counting(0))
    before = read[0]
    reader.read_several(0, 0, range(1, 9), counting(1))
    assert read[0] == before
    assert read[1] > 0
