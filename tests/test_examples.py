"""Every example runs as a user runs it, small, and says what it should."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = {  # a size, and the last line it prints
    "train_asyncio": (1, r"step 0: loss [\d.]+, [\d,]+ bytes of state"),
    "resume_elsewhere": (3, r"(step \d: \w{16} equal\n?){3}"),
    "own_operator": (200, r"of \d texts, rows .*: [TAM].*\.\.\.\n\{'texts_changed': 200, 'rows_left': 10\}"),
    "vision_language": (4, r"step 3: \(4, 256\) tokens, \d+ images of \d+ visual tokens, loss on \d+ tokens"),
    "evaluate": (103, r"103 of 103 samples, 90\.3% right"),
}


def test_all_examples_are_run() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {"made", *EXAMPLES}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(name: str, tmp_path: Path) -> None:
    size, wanted = EXAMPLES[name]
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py"), str(size)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert re.search(wanted + r"\n*\Z", answer.stdout), answer.stdout
