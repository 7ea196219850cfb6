"""Where operators run when nobody says."""

from pathlib import Path
from typing import Any

import pytest

from zephon_async.engine import placement
from zephon_async.errors import RecipeError
from zephon_async.operators import Filter, Map, Operator, Shuffle, Tokenize
from zephon_async.options import Options

TOKENIZER = Path(__file__).parent / "laws" / "tokenizer.json"


def places(*operators: Operator, **options: Any) -> list[str]:
    return [each.runner for each in placement.place(operators, Options(**options))]


@pytest.mark.parametrize(
    ("gil", "wanted"), [(True, ["threads", "processes", "users' loop"]), (False, ["threads", "threads", "users' loop"])]
)
def test_functions_that_hold_the_gil_go_to_processes(gil: bool, wanted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "gil_is_on", lambda: gil)

    async def waits(record: dict[str, Any]) -> dict[str, Any]:
        return record

    assert places(Tokenize(str(TOKENIZER), field="text"), Map(dict), Map(waits)) == wanted


def test_what_a_user_says_comes_first() -> None:
    own = Map(dict)
    own.runner = "threads"
    assert places(own, Map(dict), Filter(bool), runner="processes", per_stage_runner={"filter": "threads"}) == [
        "threads",
        "processes",
        "threads",
    ]
    with pytest.raises(RecipeError, match="per_stage_runner: the name is 'mpa'"):
        places(Map(dict), per_stage_runner={"mpa": "threads"})
    with pytest.raises(RecipeError, match="per_stage_runner: the name is 'shuffle'"):
        places(Map(dict), Shuffle(3, seed=1), per_stage_runner={"shuffle": "threads"})
    own.runner = "somewhere"
    with pytest.raises(RecipeError, match="map: runner is 'somewhere'"):
        places(own)
