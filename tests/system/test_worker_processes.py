"""However a program ends, its worker processes end with it, and nothing of them is left (D01, D02, D03)."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = {"workers": "runner='processes'", "isolated": "isolate=True", "both": "runner='processes', isolate=True"}
each_place = pytest.mark.parametrize("place", ["workers", *(pytest.param(p, marks=pytest.mark.slow) for p in ("isolated", "both"))])
BEGIN = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs this in the background has it ignored
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

def pid(record):
    time.sleep(0.001)
    return {"pid": os.getpid()}

source = StaticMixtureWorkSource([Dataset.from_dict("d", {"n": list(range(10_000))})], {"d": 1}, epochs=None)
pipeline = Pipeline(source).options(PLACE, workers=2, version=1).map(pid).batch(1)
batches = iter(pipeline)
print(*{next(batches).to_pylist("pid")[0] for _ in range(200)}, flush=True)
"""


def begun(program: str, place: str = "workers") -> tuple["subprocess.Popen[str]", set[int]]:
    """A program of a script without a main guard, and its workers, which it has told."""
    command = [sys.executable, "-W", "error", "-c", BEGIN.replace("PLACE", PLACES[place]) + textwrap.dedent(program)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, set(map(int, process.stdout.readline().split()))


def gone(pids: set[int]) -> bool:
    """Whether processes end within ten seconds."""
    until = time.monotonic() + 10
    while any(alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        threading.Event().wait(0.05)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


ENDS = {
    "break": ("for batch in pipeline:\n    break", 0),
    "to be left": ("", 0),
    "closed": ("pipeline.close()", 0),
    "exit": ("sys.exit(3)", 3),
    "hard exit": ("os._exit(4)", 4),
    "an exception": ("raise ValueError", 1),
}


@each_place
@pytest.mark.parametrize("program", ENDS)
def test_workers_end_with_their_program(program: str, place: str) -> None:
    text, code = ENDS[program]
    process, workers = begun(text, place)
    with process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert workers
    assert gone(workers)
    assert ("ValueError" in err) if code == 1 else err == ""


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("waits", ["time.sleep(60)", "while True: next(batches)"])
@each_place
def test_workers_end_with_a_program_that_is_killed(by: int, waits: str, place: str) -> None:
    process, workers = begun(waits, place)
    with process:
        process.send_signal(by)
        _, err = process.communicate(timeout=30)
    assert process.returncode != 0
    assert gone(workers)
    if by == signal.SIGINT:
        assert err.count("Traceback") == 1  # the program's own


@pytest.mark.parametrize("place", PLACES)
def test_a_program_without_stdin_stdout_and_stderr(place: str, tmp_path: Path) -> None:
    """Their numbers must not become those of shared memory, to which workers then print."""
    program = f"""
import os
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

def prints(record):
    print("HELLO" * 20, flush=True)
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"x" * 300)
        except OSError:
            pass
    return record

data = Dataset.from_dict("d", {{"n": list(range(300))}})
made = Pipeline(StaticMixtureWorkSource([data], {{"d": 1}}, shuffle=False)).options({PLACES[place]}, workers=2, chunk_rows=16)
with made.map(prints, schema={{"n": __import__("pyarrow").int64()}}).batch(1) as pipeline:
    rows = [n for batch in pipeline for n in batch.to_pylist("n")]
with open("rows", "w") as file:
    file.write(str(rows == list(range(300))))
"""
    (tmp_path / "program.py").write_text(program)
    command = f"exec {sys.executable} program.py <&- >&- 2>&-"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, timeout=60, check=False)
    assert (tmp_path / "rows").read_text() == "True"


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_workers_that_are_not_wanted_any_more_say_nothing(place: str) -> None:
    """They find a closed socket wherever they are: still starting, or in the middle of a call."""
    program = """
    for n in range(8):
        other = Pipeline(source).options(PLACE, workers=2, version=1).map(pid).batch(1)
        it = iter(other)
        time.sleep(0.1 * n)
        other.close()
    """
    process, workers = begun(program.replace("PLACE", PLACES[place]), place)
    with process:
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert gone(workers)


def test_what_a_worker_has_started_ends_with_it() -> None:
    program = """
    import subprocess

    def sleeper(record):
        return {"pid": subprocess.Popen(["sleep", "60"]).pid}

    other = Pipeline(source).options(runner="processes", workers=1, version=1).map(sleeper, schema={"pid": "int64"}).batch(1)
    print(next(iter(other)).to_pylist("pid")[0], flush=True)
    other.close()
    """
    process, _ = begun(program.replace('{"pid": "int64"}', '__import__("pyarrow").schema([("pid", "int64")])'))
    with process:
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert gone({int(out)})


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_forked_child_does_not_keep_workers_alive(place: str) -> None:
    program = """
    child = os.fork()
    if not child:
        time.sleep(5)
        os._exit(0)
    os._exit(0)
    """
    process, workers = begun(program, place)
    process.wait(30)
    assert workers
    assert gone(workers)
    process.communicate(timeout=30)


STARTS_WHERE_IT_IS_IMPORTED = """
import os
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

depth = int(os.environ.get("DEPTH", "0"))
if depth > 1:
    os._exit(7)  # a child of a child: without a word against it they would be more and more
os.environ["DEPTH"] = str(depth + 1)

def same(record):
    return record

source = StaticMixtureWorkSource([Dataset.from_dict("d", {"n": [1, 2, 3, 4]})], {"d": 1})
with Pipeline(source).options(PLACE, workers=1, lanes=1).map(same).batch(1) as pipeline:
    next(iter(pipeline))
"""


@pytest.mark.parametrize("place", PLACES.values())
def test_a_module_that_starts_workers_where_it_is_imported_is_refused_by_them(tmp_path: Path, place: str) -> None:
    """They import it for its function: each would start workers of its own, and these would too."""
    (tmp_path / "starts.py").write_text(STARTS_WHERE_IT_IS_IMPORTED.replace("PLACE", place))
    path = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    process = subprocess.run(
        [sys.executable, "-c", "import starts"], env=os.environ | path, capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 1
    assert (
        "it would start processes without end: put what it runs behind `if __name__ == '__main__':` or into a function"
        in process.stderr
    )
