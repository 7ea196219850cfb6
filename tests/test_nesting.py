"""A record is nested at most 200 levels deep, on every Python."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.whole import whole
from zephon_async.errors import RecipeError
from zephon_async.io import Dataset
from zephon_async.nesting import is_too_deep, levels


def of(folder: Path, text: bytes) -> Dataset:
    (folder / "a.jsonl").write_bytes(text)
    return Dataset.from_path("d", folder)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (b"", 0),
        (b"5", 0),
        (b"{}", 1),
        (b'{"a": [[], [[]]]}', 4),
        (b'["[[[", {"]]]": "{"}]', 2),
        (b'["\\"[[", "\\\\", [], "\\\\\\"["]', 2),
        (b"]]]]", 0),
        (b"[]" * 300, 1),
    ],
)
def test_levels(text: bytes, right: int) -> None:
    assert levels(text) == right


@pytest.mark.parametrize(("text", "right"), [("[" * 199, False), ("[" * 200, True), ("[]" * 300, False), ('"' + "[" * 300, False)])
def test_the_record_is_a_level_itself(text: str, right: bool) -> None:
    assert is_too_deep(text) is right


@pytest.mark.parametrize("kind", ["[]", '{"a":}', '["x[[\\\\",]'])
def test_a_record_is_nested_at_most_200_levels_deep(kind: str, tmp_path: Path) -> None:
    opened, closed = kind[:-1], kind[-1]

    def line(depth: int) -> str:
        return '{"v": ' + opened * (depth - 1) + "0" + closed * (depth - 1) + "}"

    found = whole(of(tmp_path, "\n".join([line(2), line(200), line(201), line(50_000), line(3)]).encode()))
    assert [None if v is None else '{"v": ' + v + "}" for v in found.column("v")] == [line(2), line(200), None, None, line(3)]
    assert [said.rpartition(": ")[2] for said in found.bad] == ["nested more than 200 levels deep"] * 2
    assert found.places[2][1] == int(found.bad[0].split("byte ")[1].split(")")[0].replace(",", ""))


def test_brackets_that_do_not_nest(tmp_path: Path) -> None:
    wide = {"v": [[{"a": []}]] * 300, "text": "[{" * 300 + '\\" \\' * 3 + '"' * 3 + "[" * 300}
    assert whole(of(tmp_path, msgspec.json.encode(wide)), needed=["text"]).rows == [{"text": wide["text"]}]


def test_nested_values_are_at_most_200_levels_deep_with_the_record() -> None:
    value: Any = {}
    for deep in range(2, 2001):
        if deep <= 200:
            assert Dataset.from_dict("d", [{"v": value}]).total() == 1
        elif deep in (201, 900, 2000):
            with pytest.raises(RecipeError, match=r"column 'v'.* a record is nested more than 200 levels deep"):
                Dataset.from_dict("d", [{"v": value}])
        value = [value]
