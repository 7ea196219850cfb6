"""Reads through the cache on the disk, over storage in memory. Case C07."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.asked import BODY, T_S, cached, fetched, held, reads, wanted
from tests.entries import files
from tests.fake_storage import FakeScheme, Storage
from zephon_async.io import access as module
from zephon_async.io import cache as cache_module
from zephon_async.io.access import NOW
from zephon_async.io.stores import Fault, Kind, Object


@pytest.fixture
def scheme(monkeypatch: pytest.MonkeyPatch) -> FakeScheme:
    scheme = FakeScheme({"b": Storage({"a": BODY, "z": BODY[::-1], "empty": b""})})
    monkeypatch.setattr(module, "scheme_of", lambda url: scheme)
    return scheme


@pytest.fixture
def storage(scheme: FakeScheme) -> Storage:
    return scheme.buckets["b"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 100 bytes, a grid of 1,000, and no more than 300 of a read remembered."""
    monkeypatch.setattr(module, "_PART", 100)
    monkeypatch.setattr(cache_module, "BLOCK", 1_000)
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 300)


@pytest.mark.usefixtures("small")
def test_what_is_asked_for_is_kept_as_it_is(tmp_path: Path, storage: Storage) -> None:
    with cached(tmp_path) as access:
        for _ in range(2):
            assert fetched(access, wanted(storage, 250, 90), wanted(storage, 0, 5)) == [BODY[250:340], BODY[:5]]
        assert fetched(access, wanted(storage, 251, 10)) == [BODY[251:261]]
        assert reads(storage) == [(0, 5), (250, 90), (251, 10)]
        assert access.statistics() | {"requests": 3, "cache_hits": 2, "cache_misses": 3} == access.statistics()


@pytest.mark.usefixtures("small")
def test_on_a_grid_whole_blocks_are_kept(tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART", 1_000)
    with cached(tmp_path) as access:
        assert fetched(access, wanted(storage, 1_500, 10), on_grid=True) == [BODY[1_500:1_510]]
        assert fetched(access, wanted(storage, 1_000, 1_000), on_grid=True) == [BODY[1_000:2_000]]
        assert reads(storage) == [(1_000, 1_000)]
        assert fetched(access, wanted(storage, 999, 3_002), on_grid=True) == [BODY[999:4_001]]
        assert reads(storage) == [(n, 1_000) for n in range(0, 5_000, 1_000)]
    with cached(tmp_path) as access:
        for offset, length in ((0, 5_000), (4_999, 1), (0, 1), (999, 2), (1_000, 1), (0, 0), (2_000, 0)):
            assert fetched(access, wanted(storage, offset, length), on_grid=True) == [BODY[offset:][:length]]
        assert access.statistics()["requests"] == 0
    assert len(storage.calls) == 5


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5_000), st.integers(0, 5_000)), max_size=12), st.integers(1, 5_000))
def test_the_cache_never_lies(tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[bool, int, int]], size: int) -> None:
    storage = Storage({"a": BODY[:size]})
    scheme = FakeScheme({"b": storage})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "scheme_of", lambda url: scheme)
        patch.setattr(module, "_PART", 300)
        patch.setattr(cache_module, "BLOCK", 1_000)
        with cached(tmp_path_factory.mktemp("cache")) as access:
            for on_grid, begin, end in asked:
                begin, end = sorted((begin % (size + 1), end % (size + 1)))
                assert fetched(access, wanted(storage, begin, end - begin), on_grid=on_grid) == [BODY[begin:end]]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("on_grid", [False, True])
def test_many_who_miss_at_once_cause_one_request(
    on_grid: bool, tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def here(call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    monkeypatch.setattr(module, "_PART", 1_000)
    monkeypatch.setattr(asyncio, "to_thread", here)
    all_stopped, leave = held(storage, 1)
    with cached(tmp_path) as access:
        futures = [access.submit(access.fetch(wanted(storage, 1_000, 1_000), NOW, on_grid)) for _ in range(16)]
        futures[0].cancel()  # whoever gives up does not spoil it for others
        all_stopped()
        access.submit(leave()).result(T_S)
        assert [future.result(T_S) for future in futures[1:]] == [BODY[1_000:2_000]] * 15
        assert reads(storage) == [(1_000, 1_000)]
        assert access.submit(access.fetch(wanted(storage, 1_000, 1_000), NOW, on_grid)).result(T_S) == BODY[1_000:2_000]
        assert reads(storage) == [(1_000, 1_000)]


def test_a_miss_that_fails_is_an_error_for_all_and_is_tried_again(tmp_path: Path, storage: Storage) -> None:
    storage.faults.append(Fault(Kind.FORBIDDEN, "no"))
    with cached(tmp_path) as access:
        first = access.submit(access.fetch(wanted(storage), NOW))
        assert str(first.exception(T_S)) == "shard 'a': fake://b/a may not be read with these credentials: no"
        assert fetched(access, wanted(storage)) == [BODY]
        assert len(storage.calls) == 2


@pytest.mark.parametrize("change", ["flip", "cut", "longer", "empty", "gone"])
def test_a_broken_entry_is_fetched_again(change: str, tmp_path: Path, storage: Storage) -> None:  # C07
    with cached(tmp_path) as access:
        assert fetched(access, wanted(storage)) == [BODY]
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    flipped = bytes([whole[77] ^ 1])
    file.write_bytes(
        {"flip": whole[:77] + flipped + whole[78:], "cut": whole[:-1], "longer": whole + b"x", "empty": b"", "gone": b""}[change]
    )
    if change == "gone":
        file.unlink()
    with cached(tmp_path) as access:
        for _ in range(2):
            assert fetched(access, wanted(storage)) == [BODY]
        assert len(storage.calls) == 2
        assert access.statistics()["cache_broken"] == (change != "gone")
    assert file.read_bytes() == whole


def test_a_changed_object_is_another_entry(tmp_path: Path, storage: Storage) -> None:
    with cached(tmp_path) as access:
        fetched(access, wanted(storage))
        storage.objects["a"] = BODY[::-1]
        assert fetched(access, wanted(storage)) == [BODY[::-1]]
        assert len(storage.calls) == 2
        storage.objects["a"] = b"new"
        assert access.submit(access.fetch(wanted(storage), NOW)).result(T_S) == b"new"


def test_an_object_without_a_tag_is_not_kept(tmp_path: Path, storage: Storage) -> None:
    with cached(tmp_path) as access:
        untagged = wanted(storage)._replace(found=Object("a", len(BODY), ""))
        for _ in range(2):
            assert fetched(access, untagged) == [BODY]
        assert len(storage.calls) == 2
    assert files(tmp_path) == []


def test_a_full_disk_turns_the_cache_off_and_nothing_else(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # C07
    with cached(tmp_path) as access:
        assert fetched(access, wanted(storage, 0, 10)) == [BODY[:10]]

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(cache_module.DiskCache, "_write", full)
        for _ in range(2):
            assert fetched(access, wanted(storage, 10, 20), wanted(storage, 0, 10)) == [BODY[10:30], BODY[:10]]
        assert reads(storage) == [(0, 10), (10, 20), (10, 20)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
