"""Bytes on the disk: what was put is what one gets, places are used again, and a disk without room is no error."""

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.io.spill import Spill


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.randoms(use_true_random=False)), max_size=40))
def test_what_was_put_is_what_one_gets_until_it_is_freed(steps: list[tuple[int, bool, object]]) -> None:
    spill, model, number = Spill(300), dict[int, bytes](), 0
    for size, frees, chance in steps:
        if frees and model:
            at = chance.choice(sorted(model))  # type: ignore[attr-defined]
            spill.free(at, len(model.pop(at)))
        else:
            number += 1
            piece = bytes([number]) * size
            edges = [0, *(edge for at in sorted(model) for edge in (at, at + len(model[at]))), 300]
            gaps = [stop - start for start, stop in zip(edges[::2], edges[1::2], strict=True)]
            at_or_none = spill.put(piece)
            if at_or_none is None:
                assert max(gaps) < size
            else:
                assert all(at_or_none + size <= at or at + len(other) <= at_or_none for at, other in model.items())
                model[at_or_none] = piece
        for at, piece in model.items():
            assert spill.get(at, len(piece)) == piece
            assert spill.get(at + len(piece) // 2, 1) == piece[:1]
    for at, piece in model.items():
        spill.free(at, len(piece))
    assert repr(spill) == "<Spill 0 bytes, 0 of them free>"
    spill.close()


def test_the_file_has_no_name_and_goes_with_the_spill() -> None:
    spill = Spill(1 << 20)
    at = spill.put(b"x" * 1000)
    assert at == 0
    assert [entry.name for entry in os.scandir(tempfile.gettempdir()) if entry.name.startswith("zephon")] == []
    before = len(os.listdir("/proc/self/fd"))
    spill.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    assert spill.put(b"y") is None
    with pytest.raises(OSError, match="has lost bytes"):
        spill.get(0, 1000)


def test_a_tenth_of_the_free_disk_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
    spill = Spill()
    assert spill.limit_bytes == 100
    assert spill.put(b"x" * 101) is None
    assert spill.put(b"x" * 100) == 0
    spill.close()


def full(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    spill = Spill(1 << 20)
    assert spill.put(b"good") == 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert spill.put(b"bad") is None
    assert spill.put(b"more") == 4  # its place is free again
    assert spill.get(0, 4) + spill.get(4, 4) == b"goodmore"
    spill.close()


def test_no_folder_for_temporary_files_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkstemp", full)
    assert Spill(1 << 20).put(b"x") is None


def test_whoever_reads_or_writes_while_it_is_closed_has_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of a descriptor that was closed may be another file's: nothing may be written to that."""
    spill, theirs = Spill(1 << 20), os.memfd_create("theirs")
    write: Callable[..., int] = os.pwrite
    assert spill.put(b"first") == 0

    def closed_before(number: int, *rest: object) -> int:
        thread = threading.Thread(target=spill.close)
        thread.start()
        thread.join()
        copies = [os.dup(theirs) for _ in range(20)]  # these get the lowest numbers that are free
        try:
            return write(number, *rest)
        finally:
            for copy in copies:
                os.close(copy)

    monkeypatch.setattr(os, "pwrite", closed_before)
    spill.put(b"second")
    assert os.fstat(theirs).st_size == 0
    os.close(theirs)
