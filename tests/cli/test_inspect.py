"""`zephon-async inspect` and `zephon-async lint`."""

import gzip
from pathlib import Path

import pytest

from zephon_async.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "text": "one"}\n{"n": 2, "text": "two"}\n')
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "notes.md").write_text("")
    return tmp_path


def test_what_is_there_is_said_in_short(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--rows", "1"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "format   jsonl",
        "shards   2",
        "bytes    48",
        "units    1",
        "rows     2",
        "column   n: int64",
        "column   text: large_string",
        "row      n=1, text='one'",
        "ignored  notes.md",
        "problem  shard 'b.jsonl': is empty",
    ]


def test_all_is_read_and_what_is_bad_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(folder)]) == 0
    assert capsys.readouterr().out == "2 shards, 2 rows, 0 problems\n"
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(b'{"n": 3}\nno\n'))
    assert main(["lint", str(folder), "--format", "jsonl"]) == 1
    reason = "Input data was truncated; a line must be one whole JSON object"
    assert capsys.readouterr().out.splitlines() == [
        f"c.jsonl.gz, line 2 (byte 9 of what comes out of it): {reason}",
        "3 shards, 4 rows, 1 problems",
    ]


def test_what_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(tmp_path / "none")])
    assert ended.value.code == 1
    assert "does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["lint", str(tmp_path), "--storage-option", "anon"])
    assert "--storage-option is NAME=VALUE, not 'anon'" in capsys.readouterr().err
