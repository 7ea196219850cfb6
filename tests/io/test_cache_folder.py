"""The folder of the disk cache: its limit, who goes first, several processes, and what is not its own."""

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.entries import age, body, entry, file_of, files, start, temporary
from zephon_async.cli import main
from zephon_async.errors import RecipeError
from zephon_async.io import cache_folder
from zephon_async.io.cache import DiskCache, Entry
from zephon_async.io.cache_folder import CACHE, CacheFolder
from zephon_async.leftovers import owned

GIB = 1 << 30
CLUSTER = 4096
WORKER = """
    import random, sys
    from pathlib import Path
    from zephon_async.io import cache_folder
    from zephon_async.io.cache import DiskCache, Entry
    root, limit, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    cache, chance = DiskCache(root, limit), random.Random(number)
    for _ in range(300):
        n = chance.randrange(30)
        entry, body = Entry("s3://b", str(n), "t", 3000 + n, 0, 3000 + n), bytes([n]) * (3000 + n)
        assert cache.get(entry) in (None, body)
        cache.put(entry, body)
    done = cache.statistics()
    print(done.put, done.broken, done.off)
"""
DYING = """
    import os, signal, sys
    from pathlib import Path
    from zephon_async.io.cache import DiskCache, Entry
    from zephon_async.io.cache_folder import CacheFolder
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    def room(folder, nbytes, limit, whole=CacheFolder.room):
        found = whole(folder, nbytes, limit)
        return die() if nbytes else found
    setattr(CacheFolder, sys.argv[2], {"room": room, "publish": die}[sys.argv[2]])
    DiskCache(Path(sys.argv[1]), 1 << 20).put(Entry("s", "k", "t", 5000, 0, 5000), bytes(5000))
"""


def test_those_used_longest_ago_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * CLUSTER)
    each = {n: entry(str(n), 4000) for n in range(12)}
    for n in range(10):
        cache.put(each[n], body(4000, n))
    for n in range(10):
        age(file_of(tmp_path, each[n]), used_s=1000 - 10 * (n * 7 % 10))  # n * 7 % 10 is how recent it is: 0, 3, 6, 9, 2, ...
    assert cache.get(each[0]) == body(4000, 0)
    cache.put(each[10], body(4000, 10))
    assert {n for n in each if file_of(tmp_path, each[n]).exists()} == {*range(11)} - {
        3,
        6,
    }  # one more than needed, so as to be free
    assert cache.statistics().evicted == 2
    assert cache.statistics().evicted_bytes == 2 * CLUSTER


def test_an_entry_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 2 * CLUSTER)
    cache.put(entry("a"), body())
    cache.put(entry("b", 2 * CLUSTER - 31), bytes(2 * CLUSTER - 31))
    assert files(tmp_path) == [file_of(tmp_path, entry("a"))]
    cache.put(entry("b", 2 * CLUSTER - 32), bytes(2 * CLUSTER - 32))
    assert files(tmp_path) == [file_of(tmp_path, entry("b", 2 * CLUSTER - 32))]


def test_a_smaller_limit_holds_from_the_start(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    for n in range(10):
        cache.put(entry(str(n)), body(seed=n))
    assert len(files(tmp_path)) == 10
    assert DiskCache(tmp_path, 4 * CLUSTER).statistics().evicted == 7
    assert len(files(tmp_path)) == 3


@pytest.mark.parametrize("locks", [True, False])
def test_four_threads_keep_the_limit(tmp_path: Path, locks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not locks:
        monkeypatch.setattr(cache_folder, "fcntl", None)
    limit = 20 * CLUSTER
    cache = DiskCache(tmp_path, limit)

    def fill(number: int) -> None:
        for n in range(60):
            each, right = entry(f"{number}-{n}", 3000), body(3000, n)
            cache.put(each, right)
            assert cache.get(each) in (None, right)

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slack = 0 if locks else 4 * CLUSTER
    assert len(files(tmp_path)) * CLUSTER <= limit + slack
    assert temporary(tmp_path) == []
    assert not cache.statistics().broken
    assert not cache.statistics().off
    if locks:
        assert CacheFolder(tmp_path).space()[1] == len(files(tmp_path)) * CLUSTER


@pytest.mark.parametrize("limit", [1 << 20, 12 * CLUSTER])
def test_processes_share_a_folder(tmp_path: Path, limit: int) -> None:
    running = [start(WORKER, tmp_path, limit, number) for number in range(3)]
    for each in running:
        said, failed = each.communicate()
        assert failed == ""
        put, broken, off = said.split()
        assert (int(put) > 100, broken, off) == (True, "0", "False")
    assert len(files(tmp_path)) * CLUSTER <= limit
    assert temporary(tmp_path) == []


@pytest.mark.parametrize("by", ["start", "doctor"])
@pytest.mark.parametrize("at", ["room", "publish"])
def test_a_killed_process_leaves_nothing_that_counts(tmp_path: Path, at: str, by: str) -> None:
    killed = start(DYING, tmp_path, at)
    assert (*killed.communicate(), killed.returncode) == ("", "", -signal.SIGKILL)
    assert [path.stat().st_size for path in temporary(tmp_path)] == [5032]
    assert files(tmp_path) == []
    if by == "doctor":
        assert main(["doctor", str(tmp_path)]) == 0
    else:
        assert DiskCache(tmp_path, 1 << 20).get(Entry("s", "k", "t", 5000, 0, 5000)) is None
    assert temporary(tmp_path) == []
    assert CacheFolder(tmp_path).space()[1] == 0


def test_what_is_being_written_has_its_room(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 4 * CLUSTER)
    living = CacheFolder(tmp_path).room(3 * CLUSTER, 4 * CLUSTER).path
    assert living is not None
    cache.put(entry("a"), body())
    cache.put(entry("b"), body(seed=1))
    assert cache.get(entry("a")) is None
    assert cache.get(entry("b")) == body(seed=1)
    cache.put(entry("c", 2 * CLUSTER), bytes(2 * CLUSTER))  # there is no room for it, whatever goes
    assert cache.get(entry("c", 2 * CLUSTER)) is None
    assert temporary(tmp_path) == [living]
    of_another_machine = living.with_name("zephon-00000000-00000000-00000000-1-1-abcdefgh")
    living.rename(of_another_machine)
    DiskCache(tmp_path, 4 * CLUSTER)
    assert temporary(tmp_path) == [of_another_machine]
    age(of_another_machine, used_s=3700)
    DiskCache(tmp_path, 4 * CLUSTER)
    assert temporary(tmp_path) == []


def test_a_number_that_is_wrong_is_counted_anew(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 3 * CLUSTER)
    for wrong in (b"", b"?", b"\xff" * 8, b"\0" * 20):
        (tmp_path / CACHE / "taken").write_bytes(wrong)
        cache.put(entry(), body())
        assert cache.get(entry()) == body()
    assert not cache.statistics().off


def snapshot(root: Path) -> dict[str, tuple[bytes | None, int]]:
    return {
        str(path): (path.read_bytes() if path.is_file() else None, path.lstat().st_mtime_ns) for path in sorted(root.rglob("*"))
    }


def test_other_peoples_files_are_left_alone(tmp_path: Path) -> None:
    root, own = tmp_path / "root", tmp_path / "root" / CACHE
    DiskCache(root, 1 << 20)
    fan = own / "3f"
    named = fan / ("3f" + "0" * 38)
    for folder in (
        root / "3f",
        root / "temporary",
        fan,
        own / "mine",
        own / "temporary" / (owned() + "abcdefgh") / "inside",
        named,
    ):
        folder.mkdir(parents=True)
        for name in ("notes.txt", "3f" + "1" * 39, owned() + "notes of mine", "zephon-7b-1-2-3-4-checkpoint"):
            (folder / name).write_text("mine")
            age(folder / name, used_s=10**6)
    (fan / ("3f" + "2" * 38)).symlink_to(root / "3f" / "notes.txt")
    before = snapshot(root)
    cache = DiskCache(root, 4 * CLUSTER)
    for n in range(40):
        cache.put(entry(str(n)), body(seed=n))
    assert cache.statistics().evicted == 36
    after = snapshot(root)
    assert {path: after.get(path) for path in before if before[path][0] is not None and not path.endswith("taken")} == {
        path: found for path, found in before.items() if found[0] is not None and not path.endswith("taken")
    }
    assert not set(before) - set(after)


def test_a_folder_of_the_same_name_that_is_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / CACHE).mkdir()
    DiskCache(tmp_path, 1 << 20)  # an empty one is as good as none
    (tmp_path / CACHE / "CACHEDIR.TAG").unlink()
    before = snapshot(tmp_path)
    with pytest.raises(RecipeError, match=r"is not of this package .CACHEDIR.TAG is missing.; move it away, or give another root"):
        DiskCache(tmp_path, 1 << 20)
    assert snapshot(tmp_path) == before


def test_a_root_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for root, reason in (
        ("file", "Not a directory"),
        ("file/below", "Not a directory"),
        ("a\0b", "null"),
        ("x" * 300, "File name too long"),
    ):
        with pytest.raises(RecipeError, match=rf"the cache cannot use the folder .*{reason}.*; give another root"):
            DiskCache(tmp_path / root, 1 << 20)
    with pytest.raises(RecipeError, match="the cache cannot use the folder '/proc/cache'"):
        DiskCache(Path("/proc/cache"), 1 << 20)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_limit_that_the_disk_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskCache(tmp_path, 1 << 20).put(entry(), body())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100 * GIB, 70 * GIB, 30 * GIB))
    assert DiskCache(tmp_path, 30 * GIB + CLUSTER).limit_bytes == 30 * GIB + CLUSTER
    said = f"the cache's limit is 32,212,258,817 bytes and the disk of {str(tmp_path)!r} has room for 32,212,258,816: "
    said += "32,212,254,720 that are free and 4,096 that the cache has; give a limit below that, or a root on another disk"
    with pytest.raises(RecipeError) as refused:
        DiskCache(tmp_path, 30 * GIB + CLUSTER + 1)
    assert str(refused.value) == said
    assert DiskCache(tmp_path).limit_bytes == (30 * GIB + CLUSTER) // 10
    for free, limit in ((5 * GIB, GIB), (GIB, (GIB + CLUSTER) // 2)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(100 * GIB, 0, free))
        assert DiskCache(tmp_path).limit_bytes == limit


def test_a_folder_that_is_removed_is_made_again(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.put(entry(), body())
    shutil.rmtree(tmp_path / CACHE)
    assert cache.get(entry()) is None
    cache.put(entry(), body())
    assert cache.get(entry()) == body()
    assert DiskCache(tmp_path, 1 << 20).get(entry()) == body()


@pytest.mark.parametrize(("error", "kept"), [(FileNotFoundError, True), (PermissionError, False)])
def test_entries_that_vanish_or_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError], kept: bool) -> None:
    cache = DiskCache(tmp_path, 2 * CLUSTER)
    cache.put(entry("a"), body())
    cache.put(entry("b"), body())

    def unlink(path: Any) -> None:
        raise error

    monkeypatch.setattr(os, "unlink", unlink)
    cache.put(entry("c"), body())
    assert (cache.get(entry("c")) is not None) is kept
    assert not cache.statistics().off
