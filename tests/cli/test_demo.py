"""`zephon-async demo`: on little of its own text and on a user's data, and what it says where it cannot run."""

import json
from pathlib import Path
from typing import Any

import pytest

from zephon_async.cli import demo, main

TOKENIZER = Path(__file__).parent.parent / "laws" / "tokenizer.json"


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_LIVE", 60)
    monkeypatch.setattr(demo, "_MOST_BYTES", 300_000)


def verdicts(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    return [cells[-1].strip() for cells in lines]


@pytest.mark.usefixtures("little")
def test_every_way_gives_the_data_of_the_first_and_another_seed_gives_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "2"]) == 0
    assert verdicts(capsys) == ["equal"] * 7 + ["other"]


@pytest.mark.usefixtures("little")
def test_different_data_of_one_recipe_is_said_and_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_digests", lambda recipe, way, steps: ([str(way.workers)] * steps, 9))
    assert main(["demo", "--steps", "1"]) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT DATA" in out
    assert "equal" in out.split("4 workers")[0]
    assert "other" in out.split("4 workers")[1].splitlines()[0]


@pytest.mark.usefixtures("little")
def test_on_a_users_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "second", "third"):
        rows = (json.dumps({"body": f"{name} {n} " * 40}) + "\n" for n in range(60))
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    arguments = ["demo", "--data", str(tmp_path), "--tokenizer", str(TOKENIZER), "--field", "body", "--steps", "1"]
    assert main(arguments) == 0
    assert verdicts(capsys) == ["equal"] * 7 + ["other"]


def test_documents_are_short_and_nothing_of_the_text_is_lost() -> None:
    text = "".join(f"line {n}\n" + "\n" * (n % 7 == 0) for n in range(2000)) + "x" * 4000
    pieces = list(demo._pieces(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces[:-1])) < 700
    assert list(demo._pieces("")) == []
    assert [len(piece) for piece in demo._pieces("no blank line\n" * 300)] == [1512, 1512, 1176]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit, match="1"):
        main(["demo", *map(str, arguments)])
    return capsys.readouterr().err.strip()


def test_what_it_cannot_run_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    wanted = f"zephon-async demo: --data {empty} is empty: put a folder or a file into it for each dataset"
    assert refusal(capsys, "--data", empty, "--tokenizer", TOKENIZER) == wanted
    assert refusal(capsys, "--data", TOKENIZER, "--tokenizer", TOKENIZER) == f"zephon-async demo: --data {TOKENIZER} is no folder"
    assert refusal(capsys, "--data", tmp_path) == "zephon-async demo: --data and --tokenizer go together"
    wanted = "zephon-async demo: --steps is 0: there must be at least one global batch to compare"
    assert refusal(capsys, "--steps", 0) == wanted
    for name in ("one.jsonl", "one.txt.jsonl"):
        (tmp_path / name).write_text('{"text": "a"}\n')
    empty.rmdir()
    assert "two datasets are named 'one'" in refusal(capsys, "--data", tmp_path, "--tokenizer", TOKENIZER)
