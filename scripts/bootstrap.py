"""Find the best interpreter that really runs, and make virtual environments from it.

Takes a machine with some Python >= 3.11, pip and a package registry; gives `.venv` (the best interpreter) and, where that is a
free-threaded one, `.venv-std` (standard CPython). In this order:

1. what the environment variable PYTHON says, and that alone;
2. CPython 3.14t, on PATH, in pyenv, or provided by uv, which comes from the package registry where it is not installed;
3. the newest standard CPython from 3.14 down to 3.11, on PATH or in pyenv; at last `python3`, whatever its version.

Every candidate is run and asked what it is: a shim on PATH may stand for nothing. A uv that cannot download gives up within
seconds, and is not asked again for a day. An environment carries a stamp of what it was made from (interpreter, place,
pyproject.toml, extras); where the stamp is right, nothing is done. What pip has to say is shown only when it fails.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".venv-tools"
PYTHONS = TOOLS / "pythons"
REFUSAL = TOOLS / "no-free-threaded"  # why uv could not provide one; asked again when the file is a day old
DAY_S = 86_400
FREE_THREADED = "3.14t"
STANDARD = ("3.14", "3.13", "3.12", "3.11")
OLDEST = (3, 11)
QUICK_TO_GIVE_UP = {"UV_HTTP_TIMEOUT": "5", "UV_HTTP_CONNECT_TIMEOUT": "3", "UV_HTTP_RETRIES": "0", "NO_COLOR": "1"}
# A user's settings that would send pip elsewhere than it is told.
PLAIN_PIP = {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

PROBE = """
import json, ssl, sys, sysconfig, venv
print(json.dumps({
    "path": getattr(sys, "_base_executable", None) or sys.executable,
    "version": ".".join(map(str, sys.version_info[:3])),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "usable": sys.implementation.name == "cpython" and sys.version_info >= %r,
}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A CPython that was run. `path` is the installed one, also where a virtual environment's was asked."""

    path: str
    version: str
    free_threaded: bool

    def __str__(self) -> str:
        return f"CPython {self.version}{' free-threaded' if self.free_threaded else ''} ({self.path})"


@dataclass(frozen=True, slots=True)
class Choice:
    """An interpreter, the folder of its environment, and why it was taken."""

    folder: Path
    interpreter: Interpreter
    why: str


class SetUpError(Exception):
    """The set-up cannot go on; the message says what to change."""


# Interpreters


def probe(command: str) -> Interpreter | None:
    """Run `command` and ask what it is; None where it does not run, is no CPython >= 3.11, or could not use pip."""
    try:
        answer = subprocess.run([command, "-I", "-c", PROBE % (OLDEST,)], capture_output=True, timeout=30, check=True)
        facts = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(facts["path"], facts["version"], facts["free_threaded"]) if facts["usable"] else None


def candidates(version: str) -> Iterator[str]:
    """Give every place where `version` ("3.13", "3.14t") may be: all of PATH, pyenv's versions, what uv brought here."""
    name = f"python{version}"
    for folder in os.get_exec_path():
        command = shutil.which(name, path=folder)
        if command:
            yield command
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for base in (pyenv, PYTHONS):
        yield from map(str, sorted(base.glob(f"*/bin/{name}"), reverse=True))


def first_running(versions: Iterable[str], free_threaded: bool) -> Interpreter | None:
    for version in versions:
        for command in candidates(version):
            found = probe(command)
            if found and found.free_threaded == free_threaded:
                return found
    return None


def from_uv() -> tuple[Interpreter | None, str]:
    """Have uv find or download a free-threaded CPython; return it, or None, and how it came or why it did not."""
    if REFUSAL.exists() and 0 <= time.time() - REFUSAL.stat().st_mtime < DAY_S:
        return None, REFUSAL.read_text()
    say(f"no python{FREE_THREADED} here; asking uv for one")
    try:
        uv = shutil.which("uv") or str(registry_tool("uv") / "bin" / "uv")
        answer = subprocess.run([uv, "python", "find", "--quiet", FREE_THREADED], capture_output=True, text=True, timeout=30)
        found = probe(answer.stdout.strip()) if answer.returncode == 0 else None
        if not found:
            install = [uv, "python", "install", "--no-bin", FREE_THREADED]
            run(install, {**QUICK_TO_GIVE_UP, "UV_PYTHON_INSTALL_DIR": str(PYTHONS)}, timeout_s=600)
            found = first_running([FREE_THREADED], free_threaded=True)
    except (SetUpError, OSError, subprocess.SubprocessError) as error:
        reason = str(error).strip().splitlines()[-1].strip().removeprefix("cause: ")
    else:
        if found and found.free_threaded:
            return found, "a free-threaded 3.14 is the first choice, and uv has one"
        reason = "what it has does not run"
    TOOLS.mkdir(exist_ok=True)
    REFUSAL.write_text(f"no python{FREE_THREADED} on PATH, and uv could not provide it (asked once a day): {reason}")
    return None, REFUSAL.read_text()


def choose() -> Iterator[Choice]:
    """Give the best interpreter, and then, where that one is free-threaded, the best standard one; say which and why.

    Raises SetUpError where PYTHON does not run, or nothing does.
    """
    given = os.environ.get("PYTHON")
    if given:
        found = probe(given)
        if not found:
            raise SetUpError(f"PYTHON={given} does not run, or is no CPython >= 3.11 with ssl and venv; name another one")
        yield said(Choice(ROOT / ".venv", found, "PYTHON says so"))
        return
    free, why = first_running([FREE_THREADED], free_threaded=True), "a free-threaded 3.14 is the first choice"
    if not free:
        free, why = from_uv()
    if free:
        yield said(Choice(ROOT / ".venv", free, why))
    standard = first_running((*STANDARD, "3"), free_threaded=False)
    if standard:
        folder, reason = (".venv-std", "the newest standard one") if free else (".venv", f"the newest standard one; {why}")
        yield said(Choice(ROOT / folder, standard, reason))
    elif not free:
        raise SetUpError("no CPython >= 3.11 with ssl and venv runs here; install one, or say PYTHON=/path/to/python")


# Environments


def environment(choice: Choice, extras: frozenset[str] = frozenset()) -> Path:
    """Bring the environment of `choice` up to date, with the project (editable) and `extras`, and return its Python.

    Extras that were there before stay. Raises SetUpError with pip's words where something cannot be installed.
    """
    stamp, python = choice.folder / "zephon-stamp.json", choice.folder / "bin" / "python"
    origin = {"root": str(ROOT), **asdict(choice.interpreter)}
    pyproject = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    present = json.loads(stamp.read_text()) if stamp.exists() else {}
    usable = present.get("origin") == origin and probe(str(python)) is not None
    if usable:
        extras = extras.union(present["extras"])
    made_from = {"origin": origin, "pyproject": pyproject, "extras": sorted(extras)}
    if usable and present == made_from:
        return python
    wanted = f"{ROOT}[{','.join(sorted(extras))}]" if extras else str(ROOT)
    say(f"installing {wanted.replace(str(ROOT), 'the project')} into {choice.folder.name} (up to a minute or two)")
    stamp.unlink(missing_ok=True)
    if not usable:
        make_venv(choice)
    run([str(python), "-m", "pip", "install", "--quiet", "--editable", wanted], PLAIN_PIP)
    stamp.write_text(json.dumps(made_from, indent=1))
    return python


def make_venv(choice: Choice) -> None:
    """Make an empty environment with pip, also where a distribution leaves `ensurepip` out of its Python."""
    venv = [choice.interpreter.path, "-m", "venv", "--clear", str(choice.folder)]
    try:
        run(venv)
    except SetUpError:
        run([*venv, "--without-pip"])
        elsewhere = {**PLAIN_PIP, "PYTHONPATH": str(registry_tool("pip"))}
        run([str(choice.folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--ignore-installed", "pip"], elsewhere)


def registry_tool(name: str) -> Path:
    """Install `name` from the package registry into a folder of its own, with the pip at hand, and return the folder."""
    folder = TOOLS / name
    if not folder.exists():
        part = TOOLS / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        base: str = getattr(sys, "_base_executable", "") or sys.executable
        try:
            run([base, "-m", "pip", "install", "--quiet", "--target", str(part), name], PLAIN_PIP)
        except SetUpError as error:
            advice = f"{name} cannot be installed with {base} -m pip; is the package python3-venv or python3-pip missing?"
            raise SetUpError(f"{error}\n{advice}") from error
        part.replace(folder)
    return folder


# Commands


def say(line: str) -> None:
    print(f"zephon: {line}", flush=True)


def said(choice: Choice) -> Choice:
    say(f"{choice.folder.name} is {choice.interpreter}: {choice.why}")
    return choice


def run(command: Sequence[str], settings: Mapping[str, str] | None = None, timeout_s: float | None = None) -> None:
    """Run `command` without a word; SetUpError with all that it said where it fails."""
    surroundings = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    surroundings |= settings or {}
    answer = subprocess.run(
        command, env=surroundings, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s
    )
    if answer.returncode:
        raise SetUpError(f"{' '.join(command)} failed:\n{answer.stdout}")
