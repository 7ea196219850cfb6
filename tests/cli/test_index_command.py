"""`zephon-async index`."""

import subprocess
import sys
from pathlib import Path

import pytest

from zephon_async.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    return tmp_path


def test_it_is_written_and_then_held_against_what_is_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "jsonl", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'index.json'}\n"
    assert main(["inspect", str(folder)]) == 0
    assert "rows     2\n" in capsys.readouterr().out
    assert main(["lint", str(folder)]) == 0
    assert capsys.readouterr().out == "1 shards, 2 rows, 0 problems\n"
    (folder / "a.jsonl").write_text('{"n": 1}\n{"n": 7}\n')
    assert main(["lint", str(folder)]) == 1
    assert "a.jsonl: has the sha256 " in capsys.readouterr().out
    (folder / "a.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(SystemExit) as ended:
        main(["lint", str(folder)])
    assert ended.value.code == 1
    said = "'index.json' says that the shard 'a.jsonl' has 18 bytes, and it has 9; put the data right, build the index again with"
    assert said in capsys.readouterr().err


def test_as_a_module_into_another_file(folder: Path) -> None:
    command = [sys.executable, "-m", "zephon_async", "index", "jsonl", str(folder), "--output", str(folder / "x")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{folder / 'x'}\n"
    assert (folder / "x").read_text().startswith('{"format_version": 1, "shards": [\n{"basename":"a.jsonl","bytes":18,')
    assert not (folder / "index.json").exists()


@pytest.mark.parametrize(("arguments", "said"), [(["jsonl", "none"], "'none' is no folder"), (["mds", "."], "format is 'mds'")])
def test_what_cannot_be_meant(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["index", *arguments])
    assert ended.value.code == 1
    assert f"zephon-async index: {said}" in capsys.readouterr().err
