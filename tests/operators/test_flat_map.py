"""`flat_map`: children, their origins and types, and refusals."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.made_rows import made, placed, run, texts
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.flat_map import FlatMap


def words(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for word in row["text"].split():
        if word == "bad":
            raise ValueError(word)
        yield {"word": 5 if word == "five" else word}


def test_children_are_numbered() -> None:
    operator = FlatMap(words)
    operator.recall(operator.learn(texts(["a b", ""])))
    out = operator.apply(texts(["a b c", "", "d"]), Counter())
    assert placed(out) == [({"word": "a"}, 0, 0), ({"word": "b"}, 0, 1), ({"word": "c"}, 0, 2), ({"word": "d"}, 2, 0)]
    assert operator.apply(texts([]), Counter()).columns.schema == out.columns.schema == pa.schema({"word": pa.large_string()})
    again = operator.apply(operator.apply(texts(["", "x y"]), Counter()).with_columns(texts(["p q", "r"]).columns), Counter())
    assert placed(again) == [({"word": "p"}, 1, 0), ({"word": "q"}, 1, 1), ({"word": "r"}, 1, 1 << 20)]


def test_a_record_fails_as_a_whole() -> None:
    operator = FlatMap(words, schema={"word": pa.string()})
    out, at, cause = run(operator, texts(["a", "b c bad d", "e"]))
    assert (placed(out), at, type(cause)) == ([({"word": "a"}, 0, 0)], 1, ValueError)
    out, at, cause = run(operator, texts(["a", "", "b five", "bad"]))
    assert (placed(out), at, type(cause)) == ([({"word": "a"}, 0, 0)], 2, BadRecord)


@pytest.mark.parametrize("result", [None, {"word": "a"}, "text", 5, ["a"], [None]])
def test_a_function_that_gives_no_dicts(result: Any) -> None:
    _, at, cause = run(FlatMap(lambda row: result, schema={"word": pa.string()}), texts(["a"]))
    assert (at, type(cause)) == (0, TypeError)
    assert "wanted a" in str(cause)


def test_a_trial_without_a_record_asks_for_a_schema() -> None:
    with pytest.raises(RecipeError, match="gave no record for any of 2 in the trial; pass schema="):
        FlatMap(lambda row: []).learn(texts(["a", "b"]))
    assert FlatMap(lambda row: [{"x": 1 // 0}]).learn(texts(["a"])) is None


def test_a_record_that_becomes_too_many_is_an_error() -> None:
    operator = FlatMap(lambda row: [{"x": 1}] * row["number"], schema={"x": pa.int8()})
    with pytest.raises(ValueError, match="a record became 1,048,577 records"):
        operator.apply(made({"number": [2**20 + 1]}), Counter())
