"""`zephon-async doctor` removes what belongs to nobody, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from zephon_async.cli import main
from zephon_async.leftovers import owned


def of_a_process_that_has_ended() -> str:
    command = [sys.executable, "-c", "from zephon_async.leftovers import owned; print(owned())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gone = of_a_process_that_has_ended()
    (tmp_path / f"{gone}abc").write_bytes(b"1234")
    (tmp_path / f"{gone}def").mkdir()
    (tmp_path / f"{gone}def" / "part").write_bytes(b"12345678")
    (tmp_path / f"{owned()}mine").write_bytes(b"12")
    (tmp_path / "zephon-notes-of-mine-x").write_bytes(b"12")
    (tmp_path / "other").write_bytes(b"12")
    (tmp_path / f"{owned().replace('zephon-', 'zephon-00')}boot").write_bytes(b"12")  # of another boot
    return tmp_path


def test_what_belongs_to_nobody_is_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == sorted(["other", "zephon-notes-of-mine-x", f"{owned()}mine"])
    said = capsys.readouterr().out
    assert "8 bytes" in said
    assert said.endswith("3 found, removed\n")
    assert main(["doctor", str(folder)]) == 0
    assert capsys.readouterr().out == "nothing was left behind\n"


def test_a_dry_run_only_says_what_there_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    assert main(["doctor", "--dry-run", str(folder)]) == 0
    assert sorted(folder.rglob("*")) == before
    assert capsys.readouterr().out.endswith("3 found, left as they are\n")


def test_what_a_process_number_was_given_to_again_is_no_owner(tmp_path: Path) -> None:
    boot, process, start, _ = owned().removeprefix("zephon-").split("-")
    (tmp_path / f"zephon-{boot}-{process}-{int(start) + 1}-x").write_bytes(b"")
    assert main(["doctor", str(tmp_path)]) == 0
    assert not list(tmp_path.iterdir())
