"""The disk cache: what was put is found or is missing, never wrong, whatever happens to its files."""

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.entries import age, body, entry, file_of, files, start, temporary
from zephon_async.errors import InternalError
from zephon_async.io import cache as cache_module
from zephon_async.io.cache import BLOCK, CacheStatistics, DiskCache, Entry, blocks, opened
from zephon_async.io.cache_folder import CACHE, CacheFolder
from zephon_async.io.storage_options import CacheOptions

FULL = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES]
LIMITED = """
    import logging, resource, sys
    from pathlib import Path
    from zephon_async.io.cache import DiskCache, Entry
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
    cache = DiskCache(Path(sys.argv[1]), 1 << 20)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    for key in "small", "large", "other":
        size = {"small": 10}.get(key, 9000)
        cache.put(Entry("s", key, "t", size, 0, size), bytes(size))
    print(cache.get(Entry("s", "small", "t", 10, 0, 10)), cache.statistics().off)
"""


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path, 1 << 20)


def test_what_was_put_is_found_by_later_runs_too(tmp_path: Path, cache: DiskCache) -> None:
    assert cache.get(entry()) is None
    cache.put(entry(), body())
    assert cache.get(entry()) == body()
    assert cache.statistics() == CacheStatistics(hits=1, misses=1, read_bytes=40, put=1, put_bytes=40)
    assert repr(cache) == f"<DiskCache {str(tmp_path / CACHE)!r}: 1 hits, 1 misses>"
    assert DiskCache(tmp_path, 1 << 20).get(entry()) == body()
    assert temporary(tmp_path) == []


@pytest.mark.parametrize("aged", [False, True])
@pytest.mark.parametrize(("offset", "length"), [(0, 0), (0, 1), (7, 0), (7, 11), (39, 1), (40, 0), (20, None), (0, None)])
def test_a_part_of_an_entry(tmp_path: Path, cache: DiskCache, offset: int, length: int | None, aged: bool) -> None:
    cache.put(entry(), body())
    if aged:
        age(file_of(tmp_path, entry()))
    for _ in range(2):
        assert cache.get(entry(), offset, length) == body()[offset : None if length is None else offset + length]


def test_parts_of_an_entry_of_many_pieces(cache: DiskCache) -> None:
    long = body((2 << 20) + 5)
    larger = DiskCache(cache._folder.path.parent, 1 << 24)
    larger.put(entry(length=len(long)), long)
    for offset, length in ((0, len(long)), ((1 << 20) - 3, 7), ((2 << 20) - 1, 6), (5, 2 << 20)):
        assert larger.get(entry(length=len(long)), offset, length) == long[offset : offset + length]


def test_an_empty_entry(cache: DiskCache) -> None:
    cache.put(entry(length=0), b"")
    assert cache.get(entry(length=0)) == b""


def test_whatever_differs_is_another_entry() -> None:
    others = [Entry("s", "k", "t", 8, 0, 8), Entry("s2", "k", "t", 8, 0, 8), Entry("s", "k2", "t", 8, 0, 8)]
    others += [
        Entry("s", "k", "t2", 8, 0, 8),
        Entry("s", "k", "t", 9, 0, 8),
        Entry("s", "k", "t", 8, 1, 8),
        Entry("s", "k", "t", 8, 0, 7),
    ]
    others += [
        Entry("sk", "", "t", 8, 0, 8),
        Entry("s", "kt", "", 8, 0, 8),
        Entry("s", 'k","t', "", 8, 0, 8),
        Entry("s", "\udcff", "t", 8, 0, 8),
    ]
    assert len({each.name for each in others}) == len(others)


@given(size=st.integers(0, 40 << 20), at=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_blocks_lie_on_the_grid_of_the_object(size: int, at: tuple[float, float]) -> None:
    begin, end = sorted(int(part * size) for part in at)
    found = list(blocks("s", "k", "t", size, begin, end - begin))
    assert all(each in list(blocks("s", "k", "t", size, 0, size)) for each in found)
    assert all(each.offset % BLOCK == 0 and each.length == min(BLOCK, size - each.offset) for each in found)
    covered = [byte for each in found for byte in (each.offset, each.offset + each.length)]
    assert covered[2::2] == covered[1:-1:2]
    assert not found if begin == end else covered[0] <= begin < covered[1] and covered[-2] < end <= covered[-1]


def test_an_object_without_a_tag_is_not_kept(tmp_path: Path, cache: DiskCache) -> None:
    cache.put(entry(tag=""), body())
    assert cache.get(entry(tag="")) is None
    assert files(tmp_path) == []


def test_what_is_no_part_of_an_entry_is_a_bug(cache: DiskCache) -> None:
    with pytest.raises(InternalError, match="a body of 39 bytes for a cache entry of 40"):
        cache.put(entry(), body(39))
    for offset, length in ((-1, 2), (0, 41), (41, 0), (41, None), (5, -1)):
        with pytest.raises(InternalError):
            cache.get(entry(), offset, length)


Harm = Callable[[bytes], bytes | None]
HARMS: dict[str, Harm] = {
    "first byte": lambda raw: bytes([raw[0] ^ 1]) + raw[1:],
    "last byte": lambda raw: raw[:-1] + bytes([raw[-1] ^ 128]),
    "cut": lambda raw: raw[:-1],
    "longer": lambda raw: raw + b"\0",
    "empty": lambda raw: b"",
    "zeros": lambda raw: bytes(len(raw)),
    "another text": lambda raw: b"notes of mine",
    "gone": lambda raw: None,
}


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "get", "part", "start", *HARMS]), st.integers(0, 3), st.integers(0, 2)),
        max_size=40,
    )
)
def test_it_gives_what_was_put_or_nothing(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, model = Path(folder), dict[int, bytes]()
        cache = DiskCache(root, 1 << 20)
        for step, key, seed in steps:
            each, path = entry(str(key), 40 + key), file_of(root, entry(str(key), 40 + key))
            if step == "put":
                model[key] = body(40 + key, seed)
                cache.put(each, model[key])
                if seed:
                    age(path)
            elif step == "get":
                assert cache.get(each) == model.get(key)
            elif step == "part":
                assert cache.get(each, key, 7) == (model[key][key : key + 7] if key in model else None)
            elif step == "start":
                cache = DiskCache(root, 1 << 20)
            elif path.exists():
                harmed = HARMS[step](path.read_bytes()) if path.stat().st_size else b""
                path.unlink() if harmed is None else path.write_bytes(harmed)
                model.pop(key, None)
                if harmed is None or seed:
                    continue
                cache.get(each)  # what was harmed once is not harmed back
                assert not path.exists()
        assert not cache.statistics().off


@pytest.mark.parametrize("checked", [False, True])
def test_no_changed_byte_is_trusted(tmp_path: Path, cache: DiskCache, checked: bool) -> None:
    path = file_of(tmp_path, entry())
    for at in range(40 + 32):
        cache.put(entry(), body())
        if checked:
            age(path)
            assert cache.get(entry()) == body()
        raw = bytearray(path.read_bytes())
        raw[at] ^= 1 + at
        path.write_bytes(raw)
        assert cache.get(entry(), 3, 2) is None
        assert not path.exists()
    assert cache.statistics().broken == 72


@pytest.mark.parametrize("validate", [False, True])
def test_no_other_length_is_trusted(tmp_path: Path, validate: bool) -> None:
    cache = DiskCache(tmp_path, 1 << 20, validate=validate)
    path = file_of(tmp_path, entry())
    for length in [*range(40 + 32), 73, 80, 144]:
        cache.put(entry(), body())
        path.write_bytes((path.read_bytes() * 2)[:length])
        assert cache.get(entry()) is None
        assert not path.exists()


@pytest.mark.parametrize("validate", [False, True])
def test_the_file_of_another_entry_is_not_trusted(tmp_path: Path, validate: bool) -> None:
    cache = DiskCache(tmp_path, 1 << 20, validate=validate)
    cache.put(entry("a"), body())
    cache.put(entry("b"), body(seed=1))
    shutil.copyfile(file_of(tmp_path, entry("a")), file_of(tmp_path, entry("b")))
    assert cache.get(entry("b")) is None
    assert cache.get(entry("a")) == body()


def test_an_entry_is_checked_once(tmp_path: Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[int] = []
    whole = cache_module._summed

    def noted(file: BinaryIO, size: int, offset: int, length: int) -> tuple[bytes, int]:
        summed.append(size)
        return whole(file, size, offset, length)

    monkeypatch.setattr(cache_module, "_summed", noted)
    cache.put(entry(), body())
    cache.get(entry())
    cache.get(entry())
    assert summed == [40, 40]  # of a file that was written just now the time would not tell that it was written again
    age(file_of(tmp_path, entry()))
    assert [cache.get(entry()) for _ in range(3)] == [body()] * 3
    assert summed == [40, 40, 40]
    monkeypatch.setattr(cache_module, "_MOST_CHECKED", 1)
    cache.put(entry("b"), body(seed=1))
    age(file_of(tmp_path, entry("b")))
    cache.get(entry("b"))
    cache.get(entry())
    assert len(summed) == 5
    assert len(cache._checked) == 1
    assert DiskCache(tmp_path, 1 << 20, validate=False).get(entry()) == body()
    assert len(summed) == 5


def test_what_cannot_be_opened_now_stays(tmp_path: Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    cache.put(entry(), body())
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "open", refuse, raising=False)
        assert cache.get(entry()) is None
    assert cache.get(entry()) == body()
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "_summed", refuse)  # the disk fails
        assert cache.get(entry()) is None
    assert files(tmp_path) == []
    assert cache.statistics().broken == 1


def test_using_an_entry_leaves_the_time_of_its_writing(tmp_path: Path, cache: DiskCache) -> None:
    cache.put(entry(), body())
    age(file_of(tmp_path, entry()))
    before = file_of(tmp_path, entry()).stat()
    cache.get(entry())
    after = file_of(tmp_path, entry()).stat()
    assert after.st_atime_ns > before.st_atime_ns + 50 * 10**9
    assert after.st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("number", FULL)
def test_a_disk_that_cannot_be_written_to_turns_it_off(
    tmp_path: Path, cache: DiskCache, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    cache.put(entry("a"), body())
    monkeypatch.setattr(CacheFolder, "publish", refuse)
    threads = [threading.Thread(target=cache.put, args=(entry(str(n)), body())) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    cache.put(entry("c"), body())
    assert cache.get(entry("a")) == body()
    assert cache.get(entry("c")) is None
    assert cache.statistics() == CacheStatistics(hits=1, misses=1, read_bytes=40, put=1, put_bytes=40, off=True)
    assert temporary(tmp_path) == []
    said = f"nothing more is put into the cache {tmp_path / CACHE}, the run goes on without: [Errno {number}] {os.strerror(number)}"
    assert caplog.record_tuples == [("zephon_async", 30, said)]
    assert repr(cache).endswith(", off>")


def test_a_system_that_refuses_to_write_more(tmp_path: Path) -> None:
    limited = start(LIMITED, tmp_path)
    said, failed = limited.communicate()
    assert failed == ""
    warning, found = said.splitlines()
    assert warning.startswith(f"zephon_async WARNING nothing more is put into the cache {tmp_path / CACHE}, ")
    assert warning.endswith("File too large")
    assert found == f"{bytes(10)!r} True"
    assert temporary(tmp_path) == []


def test_a_disk_that_is_full_from_the_start(tmp_path: Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Path:
        raise OSError(errno.ENOSPC, "no space left")

    cache.put(entry(), body())
    monkeypatch.setattr(CacheFolder, "_new", refuse)
    again = DiskCache(tmp_path, 1 << 20)
    again.put(entry("b"), body())
    assert again.get(entry()) == body()
    assert again.statistics().off


def test_a_forked_child_does_not_wait_for_a_thread_that_is_not_there(cache: DiskCache) -> None:
    cache.put(entry(), body())
    with cache._lock:
        cache.forked()
        assert cache.get(entry()) == body()


def test_it_is_opened_where_it_is_asked_for(tmp_path: Path) -> None:
    assert opened(CacheOptions(root=tmp_path)) is None
    assert list(tmp_path.iterdir()) == []
    cache = opened(CacheOptions(enabled=True, root=tmp_path / "new" / "root", limit_bytes=1 << 20))
    assert cache is not None
    assert cache.limit_bytes == 1 << 20
