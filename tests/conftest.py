"""What every test gets: guards against leaks, and the hypothesis profiles. What those that ask for it get: `load`.

After each test there must be no new thread of ours (and no new thread at all that would keep the program from ending), no
child process, no open file descriptor, no temporary file and no shared memory that was not there before.
What ends by itself is given a moment: threads are joined for up to two seconds, garbage is collected, and then it is a leak.
"""

import gc
import importlib.util
import itertools
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, settings

from tests.by_processes import children
from zephon_async.engine.lane import Lane
from zephon_async.runners import ThreadRunner

pytest_plugins = ["tests.system.seaweed"]
collect_ignore = ["test_torch_tensors.py"] if importlib.util.find_spec("torch") is None else []
SETTLE_S = 2.0
Load: TypeAlias = Callable[[str], ModuleType]

settings.register_profile("quick", max_examples=25, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=250)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stress", action="store_true", help="16 workers, chunks of 2 rows, threads that switch at every moment")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Make a module of a text, as if it was imported: always of one name, but in a file of its own."""
    numbers = itertools.count()

    def loaded(text: str) -> ModuleType:
        path = tmp_path / f"made_{next(numbers)}.py"
        path.write_text(dedent(text), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("made_module", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "made_module", module)
        spec.loader.exec_module(module)
        return module

    return loaded


@pytest.fixture(scope="session", autouse=True)
def stressed(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--stress`: as many races as there can be. What a test says of workers and chunks does not count then."""
    if not request.config.getoption("stress"):
        yield
        return
    interval, begin = sys.getswitchinterval(), ThreadRunner.__init__

    def of_many(runner: ThreadRunner, workers: int | None = None, name: str = "zephon-worker") -> None:
        begin(runner, 16 if name == "zephon-worker" else workers, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lane, "_chunk_rows", lambda lane: 2)
        patch.setattr(ThreadRunner, "__init__", of_many)
        sys.setswitchinterval(1e-6)
        yield
        sys.setswitchinterval(interval)


@pytest.fixture(scope="session", autouse=True)
def on_threads() -> Iterator[None]:
    """Functions of tests note what they see in lists of the test, so they run in this process where no test says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zephon_async.engine.placement.gil_is_on", lambda: False)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Temporary files of the product go to an empty folder of this run, so that what stays behind is seen."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def nothing_left_behind(own_temporary_folder: Path) -> Iterator[None]:
    before, threads = held(own_temporary_folder), set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - threads:
        if not thread.daemon or "zephon" in thread.name:
            thread.join(SETTLE_S)
            assert not thread.is_alive(), f"the test left a thread running: {thread}"
    if held(own_temporary_folder) - before:
        gc.collect()
        left = sorted(held(own_temporary_folder) - before)
        assert not left, f"the test left behind: {left}"


def held(temporary_folder: Path) -> set[str]:
    """Name what this process holds: open descriptors, children, segments and temporary files."""
    return {
        *open_descriptors(),
        *(f"child process {pid}" for pid in children() - {tracker("_pid")}),
        *(f"shared memory at {line.split()[0]}" for line in maps() if "zephon" in line),
        *(f"temporary file {name}" for name in listed(str(temporary_folder))),
    }


def open_descriptors() -> set[str]:
    """Descriptors as "4 -> target", without pipes that have both ends here: libraries open such, once, to wake themselves."""
    targets: dict[str, str] = {}
    for number in listed("/proc/self/fd"):
        try:
            targets[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the descriptor of the listing itself
            continue
    targets.pop(str(tracker("_fd")), None)
    ends = Counter(targets.values())
    return {f"{number} -> {target}" for number, target in targets.items() if not target.startswith("pipe:") or ends[target] == 1}


def maps() -> list[str]:
    """What is mapped into this process."""
    try:
        return Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # no such file on this system
        return []


def tracker(attribute: str) -> object:
    """Something of the resource tracker of multiprocessing, which lives as long as this process."""
    return getattr(getattr(resource_tracker, "_resource_tracker", None), attribute, None)


def listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # no such folder on this system
        return []
