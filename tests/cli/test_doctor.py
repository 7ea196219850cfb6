"""`zephon-async doctor` removes what belongs to nobody, and nothing else."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from zephon_async.cli import main
from zephon_async.leftovers import owned

OTHERS = [
    "zephon-notes",
    "zephon-data-2024-10-backup",
    "zephon-7b-100-200-300-400-ckpt",
    "zephon-00000000-00000000-00000000-1-1-abcdefgh",  # of another machine
    "other",
]


def of_a_process_that_has_ended() -> str:
    command = [sys.executable, "-c", "from zephon_async.leftovers import owned; print(owned())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two of a process that has ended, one of another boot; and what is not to be touched."""
    gone = of_a_process_that_has_ended()
    Path(tempfile.mkdtemp(prefix=gone, dir=tmp_path), "part").write_bytes(b"12345678")
    for prefix in (gone, with_part(owned(), 2, "00000000"), owned(), with_part(gone, 3, "00000000")):  # 3: another container
        with tempfile.NamedTemporaryFile(prefix=prefix, dir=tmp_path, delete=False) as file:
            file.write(b"1234")
    for name in OTHERS:
        (tmp_path / name).mkdir()
    return tmp_path


def with_part(name: str, number: int, part: str) -> str:
    parts = name.split("-")
    return "-".join([*parts[:number], part, *parts[number + 1 :]])


def test_what_belongs_to_nobody_is_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name for path in folder.iterdir()}
    assert main(["doctor", str(folder)]) == 0
    left = {path.name for path in folder.iterdir()}
    assert len(before - left) == 3
    assert left >= set(OTHERS)
    assert sum(name.startswith(owned()) for name in left) == 1
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
    start = int(owned().split("-")[5])
    tempfile.mkdtemp(prefix=with_part(owned(), 5, str(start + 1)), dir=tmp_path)
    assert main(["doctor", str(tmp_path)]) == 0
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", str(tmp_path / "absent")])
    assert "there is no folder" in capsys.readouterr().err
