"""What comes out of one frame, for slices that push one another out: it is decompressed once more for all, and no oftener."""

import gc
import random
import sys
from pathlib import Path

import pytest

from tests.io.test_pool import FORMS, came_out, form, lines, same, small
from tests.whole import all_blocks, ones, schema_of
from zephon_async import Dataset
from zephon_async.errors import RecipeError, ShardError
from zephon_async.io import Reader, StorageOptions
from zephon_async.io.formats import inflate
from zephon_async.records import Block

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["came_out", "form"]  # fixtures
BLOCK = 1_500


def one_frame(folder: Path, body: bytes, form: str = ".jsonl") -> Dataset:
    (folder / f"a{form}.zst").write_bytes(body)
    return Dataset.from_path("d", folder).with_sizes(block_bytes=BLOCK)


def whole_of(dataset: Dataset) -> list[Block]:
    reader = Reader([dataset], schema_of(dataset), ones)
    blocks = all_blocks(reader)
    reader.close()
    return blocks


def by_turns(dataset: Dataset, blocks: list[Block], spill_bytes: int | None) -> Reader:
    """Three slices that go on in turn, where one can stand open."""
    reader = Reader([dataset], schema_of(dataset), ones, open_bytes=1, spill_bytes=spill_bytes)
    third = len(blocks) // 3
    for n in range(third):
        for number in (n, third + n, 2 * third + n):
            assert same(reader.read(0, 0, number), blocks[number])
    return reader


def test_a_unit_that_was_thrown_out_is_decompressed_once_more(form: str, tmp_path: Path, came_out: list[int]) -> None:
    dataset = one_frame(tmp_path, zstd.compress(FORMS[form](random.Random(1))), form)
    blocks = whole_of(dataset)
    whole = sum(came_out)
    came_out.clear()
    by_turns(dataset, blocks, None).close()
    assert sum(came_out) <= 3 * whole  # the first two slices to come, and all of them
    came_out.clear()
    by_turns(dataset, blocks, 0).close()
    assert sum(came_out) > 6 * whole


@pytest.mark.parametrize("room", [1, 20_000, 50_000])
def test_a_spill_may_be_too_small(room: int, form: str, tmp_path: Path) -> None:
    dataset = one_frame(tmp_path, zstd.compress(FORMS[form](random.Random(1))), form)
    blocks = whole_of(dataset)
    by_turns(dataset, blocks, room).close()


def test_disk_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    dataset = one_frame(tmp_path, zstd.compress(lines(random.Random(1))))
    reader = by_turns(dataset, whole_of(dataset), None)
    assert repr(reader._pool._spill) != "<Spill 0 bytes, 0 of them free>"
    reader.close()
    gc.collect()
    assert repr(reader._pool._spill) == "<Spill 0 bytes, 0 of them free>"


def test_what_is_broken_is_so_for_every_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before is right, and the error is that of a slice by itself."""
    small(monkeypatch)
    text, packer = lines(random.Random(1)), zstd.ZstdCompressor()
    parts = [packer.compress(text[at : at + 2_000], packer.FLUSH_BLOCK) for at in range(0, len(text), 2_000)]
    body = b"".join([*parts, packer.flush()])  # so that what comes before a cut comes out
    blocks = whole_of(one_frame(tmp_path, body))
    (tmp_path / "a.jsonl.zst").write_bytes(body[: len(body) * 9 // 10])
    monkeypatch.setattr(inflate, "_FED", 100)
    dataset = Dataset.from_path("d", tmp_path).with_sizes(block_bytes=BLOCK)
    reader = Reader([dataset], schema_of(dataset), ones, open_bytes=1)
    half = len(blocks) // 2
    for n in range(5):
        for number in (n, half + n):
            assert same(reader.read(0, 0, number), blocks[number])
    for _ in range(3):
        with pytest.raises(ShardError, match="ends inside a zstd member"):
            reader.read(0, 0, len(blocks) - 1)
        assert same(reader.read(0, 0, 6), blocks[6])
    reader.close()


def test_the_limit_is_a_setting() -> None:
    assert StorageOptions.of({"spill_limit": "2GiB"}).spill_limit == 2 << 30
    assert StorageOptions.of({}).spill_limit is None
    with pytest.raises(RecipeError, match="spill_limit"):
        StorageOptions.of({"spill_limit": -1})
