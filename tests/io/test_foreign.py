"""Formats that are read with libraries of their own: what is said where one is not there, and what its errors become."""

import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from zephon_async.errors import RecipeError, ShardError
from zephon_async.io import Dataset, foreign
from zephon_async.io.foreign import FREE_THREADED, calling, said
from zephon_async.io.formats import vortex

WANTED = {
    "lance": "pip install " + ("pylance-free-threading" if FREE_THREADED else "'zephon-async[lance]'"),
    "vortex": "there is none for free-threaded Python: use standard CPython for it, or write the data as Parquet"
    if FREE_THREADED
    else "pip install 'zephon-async[vortex]'",
    "array_record": "pip install array_record, which has wheels for standard CPython on Linux",
}


@pytest.fixture
def loaded_anew() -> Iterator[None]:
    """Nothing is known of libraries, before and after."""
    for cached in (foreign._loaded, vortex._capped) * 2:
        cached.cache_clear()
    yield
    for cached in (foreign._loaded, vortex._capped):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("form", "module", "named"),
    [
        ("lance", "lance", "Lance"),
        ("vortex", "vortex", "Vortex"),
        ("array_record", "array_record.python.array_record_module", "ArrayRecord"),
    ],
)
def test_a_library_that_is_not_there(
    form: str, module: str, named: str, tmp_path: Path, loaded_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / f"a.{form}"
    path.mkdir() if form == "lance" else path.touch()
    with pytest.raises(RecipeError) as caught:
        Dataset.from_path("d", path).catalog()
    version = f"3.{sys.version_info.minor}{'t' * FREE_THREADED}"
    begin = re.escape(f"{named} is read with a library that is not there on this Python {version} (")
    assert re.fullmatch(f"(dataset 'd': )?{begin}.*{re.escape(f'): {WANTED[form]}')}", str(caught.value))


def test_which_libraries_are_here() -> None:
    """Those that the extra `test` brings along: the others have no wheel for this Python."""
    assert find_spec("lance") is not None
    assert (find_spec("vortex") is None) == (find_spec("array_record") is None) == FREE_THREADED


def test_only_what_the_library_raises_is_a_broken_shard() -> None:
    panic = type("PanicException", (BaseException,), {})
    for raised, right in (
        (ValueError("no such\nthing"), "no such"),
        (OSError("Not found: x.lance, /home/runner/a.rs:12:34, /b.rs:5:6"), "Not found: x.lance"),
        (RuntimeError("too short\nBacktrace:\n 0: <unknown>"), "too short"),
        (panic("out of bounds"), "out of bounds"),
        (KeyError(), "KeyError"),
    ):
        assert said(raised) == right
        with pytest.raises(ShardError) as caught, calling("dataset 'd', shard 'a'", "Lance"):
            raise raised
        assert str(caught.value) == f"dataset 'd', shard 'a': cannot be read as Lance: {right}"
        assert caught.value.__cause__ is raised
    for passed in (ShardError("x"), MemoryError(), KeyboardInterrupt()):
        with pytest.raises(type(passed)) as kept, calling("dataset 'd', shard 'a'", "Lance"):
            raise passed
        assert kept.value is passed
