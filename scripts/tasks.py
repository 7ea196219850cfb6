"""What `make` runs: one function per target, the same for people and for CI.

Each target sets up the environments that it needs (see bootstrap.py), says what it runs, and ends with the first failure.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile

from bootstrap import ROOT, Choice, SetUpError, choose, environment

NO_TESTS = 5  # pytest's exit code where nothing was selected
MADE_HERE = (".venv", ".venv-std", ".venv-tools", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "build", "dist")


def demo(arguments: list[str]) -> None:
    step(environment(next(choose())), "-m", "zephon_async", "demo", *arguments)


def test(arguments: list[str]) -> None:
    pythons = interpreters()
    check_with(pythons[-1])
    side_by_side(pythons, "-m", "pytest", "-m", "not slow", *arguments)


def slow(arguments: list[str]) -> None:
    """The tests marked slow, and every property once more over many examples."""
    pytest = ("-m", "pytest", "-m", "slow or hypothesis", "--hypothesis-profile=thorough")
    side_by_side(interpreters(), *pytest, *arguments, allow=NO_TESTS)


def soak(arguments: list[str]) -> None:
    """The laws with as many races as there can be, then drawn pipelines in every odd way for many minutes."""
    for python in interpreters():
        step(python, "-m", "pytest", "tests/laws", "--stress")
        step(python, "-m", "tests.soak", *arguments)


def check(arguments: list[str]) -> None:
    check_with(for_tests([*choose()][-1]))


def bench(arguments: list[str]) -> None:
    python = environment(next(choose()), frozenset({"bench"}))
    benchmarks = sorted((ROOT / "benchmarks").glob("bench_*.py"))
    if not benchmarks:
        raise SetUpError("there is no benchmarks/bench_*.py to run")
    for benchmark in benchmarks:
        step(python, str(benchmark.relative_to(ROOT)), *arguments)


def clean(arguments: list[str]) -> None:
    for name in MADE_HERE:
        shutil.rmtree(ROOT / name, ignore_errors=True)
    for cache in ROOT.rglob("__pycache__"):
        shutil.rmtree(cache, ignore_errors=True)


def interpreters() -> list[Path]:
    """The Python of every environment for tests, the standard one last."""
    return [for_tests(choice) for choice in choose()]


def for_tests(choice: Choice) -> Path:
    """The Python of an environment for tests, with the libraries of formats that there are for it."""
    libraries = "test-free-threaded" if choice.interpreter.free_threaded else "test-standard"
    return environment(choice, frozenset({"test", libraries}))


def check_with(python: Path) -> None:
    step(python, "-m", "ruff", "format", "--check", "--quiet", "--diff", ".")
    step(python, "-m", "ruff", "check", "--quiet", ".")
    step(python, "-m", "mypy")


def step(python: Path, *arguments: str, allow: int = 0, leaves: bool = True) -> int:
    """Say and run one command from the root of the project; leave with its exit code where it fails, or give that."""
    command = [str(python.relative_to(ROOT)), *arguments]
    print(f"+ {shlex.join(command)}", flush=True)
    code = subprocess.run(command, cwd=ROOT).returncode
    if leaves and code not in (0, allow):
        sys.exit(code if code > 0 else 1)
    return code


def side_by_side(pythons: list[Path], *arguments: str, allow: int = 0) -> None:
    """The same on several interpreters at once, each of which waits a good deal; what the others say comes behind the last's.

    allow: a return code that is no failure.
    """
    *others, last = pythons
    with ExitStack() as stack:
        begun = []
        for python in others:
            said = stack.enter_context(TemporaryFile())
            print(f"+ {shlex.join([str(python.relative_to(ROOT)), *arguments])}  (side by side, told below)", flush=True)
            begun.append((python, said, subprocess.Popen([python, *arguments], cwd=ROOT, stdout=said, stderr=said)))
            stack.callback(begun[-1][2].kill)
        codes = [step(last, *arguments, leaves=False)]
        for python, said, process in begun:
            codes.append(process.wait())
            print(f"+ {shlex.join([str(python.relative_to(ROOT)), *arguments])}", flush=True)
            said.seek(0)
            sys.stdout.write(said.read().decode("utf-8", "replace"))
    if failed := [code for code in codes if code not in (0, allow)]:
        sys.exit(max(*failed, 1))


TARGETS: dict[str, Callable[[list[str]], None]] = {
    "demo": demo,
    "test": test,
    "slow": slow,
    "soak": soak,
    "check": check,
    "bench": bench,
    "clean": clean,
}

if __name__ == "__main__":
    target = TARGETS.get(" ".join(sys.argv[1:2]))
    if target is None:
        sys.exit(f"usage: {os.path.basename(sys.argv[0])} {{{','.join(TARGETS)}}} [arguments]")
    try:
        target(sys.argv[2:])
    except SetUpError as error:
        sys.exit(f"zephon: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
