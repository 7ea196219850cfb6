"""Units that stand open and points to begin at again: what they give is what reading from the start gives, for far less."""

import bz2
import gzip
import io
import json
import lzma
import random
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from tests.whole import BytesSource, all_blocks, ones, schema_of
from zephon_async.errors import ShardError
from zephon_async.io import Dataset, Reader, pool
from zephon_async.io.formats import inflate, line_format, webdataset
from zephon_async.io.formats.csv_records import RecordScan
from zephon_async.io.formats.inflate import Inflated, codec_of, stream_of
from zephon_async.io.formats.shared import Shared
from zephon_async.io.formats.tar_scan import TarScan
from zephon_async.io.pool import Pool
from zephon_async.io.spill import Spill
from zephon_async.records import Block

MEMBER, APART, BLOCK, PIECE = 4_000, 10_000, 1_500, 700


def members(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda body: b"".join(pack(body[at : at + MEMBER]) for at in range(0, len(body), MEMBER))


WAYS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "one member of gzip": (".gz", lambda body: gzip.compress(body, 1)),
    "members of gzip": (".gz", members(lambda body: gzip.compress(body, 1) + b"\0" * 600)),
    "frames of zstd": (".zst", members(zstd.compress)),
    "streams of bzip2": (".bz2", members(bz2.compress)),
    "streams of xz": (".xz", members(lambda body: lzma.compress(body, preset=0))),
}
each_way = pytest.mark.parametrize("way", WAYS)


def lines(chance: random.Random) -> bytes:
    return b"".join(
        json.dumps({"n": n, "text": chance.randbytes(chance.randint(0, 90)).hex()}).encode() + b"\n" for n in range(700)
    )


def records(chance: random.Random) -> bytes:
    rows = (b'%d,"%s\n, ""%s"' % (n, b"x" * chance.randint(0, 40), chance.randbytes(40).hex().encode()) for n in range(700))
    return b"n,text\n" + b"\n".join(rows)


def files(chance: random.Random) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for n in range(60):
            for suffix in ("txt", "cls"):
                info = tarfile.TarInfo(f"{n}.{suffix}")
                content = b"%d" % n if suffix == "cls" else chance.randbytes(chance.randint(0, 900)).hex().encode()
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return body.getvalue()


FORMS: dict[str, Callable[[random.Random], bytes]] = {".jsonl": lines, ".csv": records, ".txt": records, ".tar": files}


@pytest.fixture(params=list(FORMS))
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    small(monkeypatch)
    return str(request.param)


def small(patch: pytest.MonkeyPatch) -> None:
    """All that is large."""
    patch.setattr(line_format, "COUNTED_BYTES", 0)
    patch.setattr(webdataset, "COUNTED_BYTES", 0)
    patch.setattr(inflate, "_TAKEN", 900)
    patch.setattr(inflate, "_FED", 250)
    patch.setattr(inflate, "_GIVEN", PIECE)
    patch.setattr("zephon_async.io.formats.tar_scan._RUN", PIECE)
    patch.setattr(pool, "APART", APART)


@pytest.fixture
def came_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each piece that is decompressed."""
    pieces, taken = list[int](), Inflated._piece

    def noted(self: Inflated) -> bytes:
        pieces.append(len(piece := taken(self)))
        return piece

    monkeypatch.setattr(Inflated, "_piece", noted)
    return pieces


def of(folder: Path, form: str, way: str) -> Dataset:
    suffix, pack = WAYS[way]
    (folder / f"a{form}{suffix}").write_bytes(pack(FORMS[form](random.Random(1))))
    return Dataset.from_path("d", folder / f"a{form}{suffix}").with_sizes(block_bytes=BLOCK)


def same(found: Block, wanted: Block) -> bool:
    return (found.columns, found.rows.tolist(), found.last) == (wanted.columns, wanted.rows.tolist(), wanted.last)


@each_way
def test_what_was_passed_is_entered_again_at_the_point_before_it(way: str, form: str, tmp_path: Path, came_out: list[int]) -> None:
    dataset = of(tmp_path, form, way)
    reader = Reader([dataset], schema_of(dataset), ones)
    came_out.clear()
    blocks = all_blocks(reader)
    whole = sum(came_out)
    assert whole > 5 * APART
    for number in range(len(blocks) - 1, -1, -7):  # what stands open stands behind it
        came_out.clear()
        assert same(reader.read(0, 0, number), blocks[number])
        largest = 3_000  # of a sample, with what a tar has beside it
        assert sum(came_out) <= APART + MEMBER + 2 * (BLOCK + PIECE + largest), number
    reader.close()


def test_of_what_cannot_be_entered_there_is_no_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    (tmp_path / "a.jsonl.zst").write_bytes(zstd.compress(lines(random.Random(1))))
    dataset = Dataset.from_path("d", tmp_path).with_sizes(block_bytes=BLOCK)
    reader = Reader([dataset], schema_of(dataset), ones)
    blocks = all_blocks(reader)
    assert repr(reader._pool) == "<Pool 0 units, 0 points, 0 of 67,108,864 bytes>"
    assert same(reader.read(0, 0, 30), blocks[30])
    reader.close()


@each_way
@given(order=st.lists(st.integers(0, 60), max_size=12), limit=st.sampled_from([0, 10_000, 200_000, 1 << 26]))
@settings(max_examples=6)
def test_whatever_stands_open_the_row_blocks_are_the_same(
    way: str, tmp_path_factory: pytest.TempPathFactory, order: list[int], limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        patch.setattr(pool, "APART", 1_000)
        for form in FORMS:
            dataset = of(tmp_path_factory.mktemp("a"), form, way)
            reader = Reader([dataset], schema_of(dataset), ones)
            blocks = all_blocks(reader)
            reader.close()
            reader = Reader([dataset], schema_of(dataset), ones, open_bytes=limit)
            for number in order:
                assert number >= len(blocks) or same(reader.read(0, 0, number), blocks[number])
            reader.close()


class Standing:
    """Something that stands somewhere."""

    def __init__(self, at: int, nbytes: int = 10) -> None:
        self.at, self.nbytes, self.restart, self.is_copy = at, nbytes, at * pool.APART, False

    def copy(self) -> Self:
        twin = type(self)(self.at, self.nbytes)
        twin.is_copy = True
        return twin


A, B = ("a", 0), ("b", 0)


def taken(of: Pool, key: Any, block: int) -> tuple[int, bool] | None:
    found = of.take(key, block)
    return found and (found.at, found.is_copy)


def test_what_stands_nearest_is_taken_and_a_point_is_copied() -> None:
    kept = Pool(1_000)
    for at in (1, 2, 3, 4):
        kept.mark(A, Standing(at))
    kept.put(A, Standing(3))
    assert [taken(kept, A, 3), taken(kept, A, 3), taken(kept, A, 3)] == [(3, False), (3, True), (3, True)]
    assert [taken(kept, A, 0), taken(kept, B, 9), taken(kept, A, 9)] == [None, None, (4, True)]
    kept.clear()
    assert taken(kept, A, 9) is None


def test_what_was_read_is_kept_where_more_follows() -> None:
    kept, unit = Pool(1_000), {"start": 0, "block": 10, "length": 25}

    def read(blocks: range) -> bool:
        """Whether it stood open."""
        made = Standing(0)
        with kept.opened("a", unit, blocks, lambda: made) as found:
            found.at = blocks.stop
        return found is not made

    assert [read(blocks) for blocks in (range(1), range(1, 2), range(2, 3), range(2, 3))] == [False, True, True, False]
    with pytest.raises(ShardError), kept.opened("a", unit, range(1), lambda: Standing(0)):
        raise ShardError("broken")
    assert repr(kept) == "<Pool 0 units, 0 points, 0 of 1,000 bytes>"


def test_a_point_that_is_taken_is_used() -> None:
    kept = Pool(80)  # two points
    kept.mark(A, Standing(1))
    kept.mark(B, Standing(1))
    assert taken(kept, A, 1) == (1, True)
    kept.mark(("c", 0), Standing(1))
    assert [taken(kept, key, 1) for key in (A, B)] == [(1, True), None]


def test_points_are_apart_and_thinned_where_they_have_no_room() -> None:
    kept = Pool(240)  # six points
    for at in (1, 1, 2, 3, 2, 4):
        kept.mark(A, Standing(at))
    assert repr(kept) == "<Pool 0 units, 4 points, 40 of 240 bytes>"
    for at in (1, 2, 3):
        kept.mark(B, Standing(at))
    assert repr(kept) == "<Pool 0 units, 5 points, 50 of 240 bytes>"  # every other one of A is gone
    assert [taken(kept, A, at) for at in (1, 2, 3, 4)] == [None, (2, True), (2, True), (4, True)]
    kept.put(A, Standing(7, 300))
    kept.put(A, Standing(8, 100))
    assert repr(kept) == "<Pool 1 units, 5 points, 150 of 240 bytes>"  # what stands open makes room for what does


def test_what_is_known_of_what_is_held_is_counted() -> None:
    """Of small files, records and members that is more than they are."""
    body = files(random.Random(1))
    tar = TarScan(BytesSource("a.tar", body), None, lambda name: True)
    tar.more()
    assert tar.nbytes - len(body) >= sum(sys.getsizeof(part) for member in tar.run.members for part in (member, *member))
    csv = RecordScan(stream_of(BytesSource("a.csv", b"n\n" + b"\r1\n" * 900)), b",")
    csv.rows(1)
    assert csv.nbytes >= 2_702 + 899 * (3 + 8 + sys.getsizeof(1 << 10))
    packed = b"".join(gzip.compress(b"%d" % n) for n in range(100, 600))
    codec = codec_of("a.gz")
    assert codec is not None
    shared = Shared(source := BytesSource("a.gz", packed), codec, Spill())
    assert shared.piece(1_499, source) == b"9"
    assert shared.nbytes >= len(packed) + 500 * sys.getsizeof((1, 2))
