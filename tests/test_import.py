"""Importing the package: nothing heavy with the face alone, and the GIL stays off with all of it."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import zephon_async
import zephon_async.errors

ROOT = Path(__file__).resolve().parent.parent
# fmt: off
HEAVY = {
    "PIL", "aiobotocore", "av", "fsspec", "huggingface_hub", "msgspec", "pyarrow", "ray", "rich", "soundfile", "soxr", "tokenizers",
    "torch", "uvloop",
}
# fmt: on

EVERYTHING = """
import importlib, json, pkgutil, sys
import zephon_async

names = [module.name for module in pkgutil.walk_packages(zephon_async.__path__, "zephon_async.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
gil = getattr(sys, "_is_gil_enabled", lambda: True)()
print(json.dumps({"names": names, "gil": gil}))
"""


def run(code: str) -> str:
    """Run `code` in a new interpreter, with warnings as errors, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    answer = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_face_loads_no_heavy_library() -> None:
    loaded = json.loads(run("import json, sys, zephon_async; print(json.dumps(sorted(sys.modules)))"))
    assert {name.split(".")[0] for name in loaded} & HEAVY == set()


def test_every_public_name_is_there() -> None:
    assert set(zephon_async.__all__) == {*zephon_async._WHERE, "__version__"}
    assert {getattr(zephon_async, name).__name__ for name in zephon_async._WHERE} == set(zephon_async._WHERE)
    errors = {name for name, found in vars(zephon_async.errors).items() if isinstance(found, type)}
    assert errors <= set(zephon_async.__all__)


def test_all_modules_import_and_leave_the_gil_as_it_was() -> None:
    answer = json.loads(run(EVERYTHING))
    assert "zephon_async.errors" in answer["names"]
    assert answer["gil"] is not bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
