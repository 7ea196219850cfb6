"""What is said of calls that cannot be made."""

import pickle
from typing import Any

import numpy as np
import pytest

from zephon_async.checks import (
    check_version,
    checked,
    checks_call,
    column_names,
    different_names,
    flag,
    hint,
    nearest,
    one_of,
    refuse_unknown,
    shown,
    whole,
    whole_or_none,
)
from zephon_async.errors import RecipeError


@checks_call
def bake(flour: int, *, sugar: int, salt: int = 1) -> int:
    """Bake."""
    return len(flour) if flour < 0 else flour + sugar + salt  # type: ignore[arg-type]


@checks_call
class Cake:
    def __init__(self, layers: int, **settings: int) -> None:
        self.layers, self.settings = layers, settings

    @checks_call
    def cut(self, pieces: int = 8) -> int:
        return pieces


anything: Any = bake
any_cake: Any = Cake


def said(call: Any, *given: Any, **settings: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        call(*given, **settings)
    return str(caught.value)


def test_calls_that_can_be_made_are_made() -> None:
    assert bake(1, sugar=2) == 4
    assert (bake.__name__, bake.__doc__) == ("bake", "Bake.")
    assert (Cake(2, cream=1).settings, Cake(2).cut(), Cake(layers=3).cut(pieces=4)) == ({"cream": 1}, 8, 4)
    assert pickle.loads(pickle.dumps(Cake(2))).layers == 2


def test_what_is_wrong_with_a_call() -> None:
    assert said(anything, 1, suger=2) == "bake() knows no 'suger'; did you mean 'sugar'?"
    assert said(anything, 1, yeast=2) == "bake() knows no 'yeast'; there are: flour, salt, sugar"
    assert said(anything, 1, num_workers=2) == "bake() knows no 'num_workers'; here it is options(workers=...)"
    assert said(anything) == "bake() needs flour= and sugar="
    assert said(anything, 1) == "bake() needs sugar="
    assert said(anything, 1, 2, sugar=1) == "bake(): too many positional arguments; it takes flour, sugar, salt"
    assert said(anything, 1, flour=1, sugar=1) == "bake(): multiple values for argument 'flour'; it takes flour, sugar, salt"
    assert said(any_cake) == "Cake() needs layers="
    assert said(any_cake, 1, 2) == "Cake(): too many positional arguments; it takes layers, settings by name"
    assert said(any_cake(1).cut, piece=1) == "cut() knows no 'piece'; did you mean 'pieces'?"
    assert said(checked("bread", lambda flour: flour), 1, 2) == "bread(): too many positional arguments; it takes flour"


def test_what_python_said_is_not_said_as_well() -> None:
    with pytest.raises(RecipeError) as caught:
        anything(1)
    assert caught.value.__suppress_context__


def test_a_type_error_from_inside_stays_one() -> None:
    with pytest.raises(TypeError, match="has no len"):
        bake(-1, sugar=1)


def test_values_are_shown_in_short() -> None:
    assert [shown("a"), shown("a" * 78), shown("a" * 79)] == ["'a'", f"'{'a' * 78}'", f"'{'a' * 76}..."]
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "..."


def test_names() -> None:
    assert nearest("texd", ["text", "id"]) == "did you mean 'text'?"
    assert nearest(3, ["b", "a"]) == "there are: a, b"
    assert [hint("texd", ["text", "id"]), hint("texd", ["id"])] == ["; did you mean 'text'?", ""]
    assert nearest("x", []) == "there are: none"
    refuse_unknown("f", ["a"], ["a", "b"])
    assert column_names("names", iter(["a", "b"])) == ("a", "b")
    for wrong in ("a", 3, [3], None):
        assert said(column_names, "names", wrong) == f"names is {wrong!r}: it must be a list of names"


def test_whole_numbers_have_at_most_64_bits() -> None:
    assert [whole("n", -(1 << 63)), whole("n", (1 << 64) - 1)] == [-(1 << 63), (1 << 64) - 1]
    for wrong in (-(1 << 63) - 1, 1 << 64):
        assert said(whole, "n", wrong) == f"n is {wrong}: it must be a whole number of at most 64 bits"
        assert said(check_version, "v", wrong) == f"v is {wrong}: it must be a whole number of at most 64 bits"


def test_whole_numbers_or_none() -> None:
    assert [whole_or_none("n", right) for right in (None, 1, np.int64(7))] == [None, 1, 7]
    assert said(whole_or_none, "n", 0) == "n is 0: it must be a whole number of at least 1, or None"
    assert (
        said(whole_or_none, "n", -1, 0, ", or None for all") == "n is -1: it must be a whole number of at least 0, or None for all"
    )


def test_choices() -> None:
    one_of("c", "a", {"a": 1, "b": 2})
    for wrong in ("c", None, ["a"]):
        assert said(one_of, "c", wrong, ("a", "b")) == f"c is {wrong!r}: it must be one of 'a', 'b'"


def test_versions() -> None:
    for right in (None, "1.0", 0):
        check_version("v", right)
    for wrong in (1.5, True, ["1"]):
        assert said(check_version, "v", wrong) == f"v is {wrong!r}: it must be a text or a whole number"


def test_different_names() -> None:
    assert [different_names("n", ["b", "a"]), different_names("n", (), 0)] == [("b", "a"), ()]
    for wrong in ([], ["a", "a"]):
        assert said(different_names, "n", wrong) == f"n is {wrong!r}: it must be a list of different names, at least 1"
    assert said(different_names, "n", "a") == "n is 'a': it must be a list of names"


def test_flags() -> None:
    assert [flag("f", True), flag("f", False)] == [True, False]
    for wrong in ("no", 0, None):
        assert said(flag, "f", wrong) == f"f is {wrong!r}: it must be True or False"


@pytest.mark.parametrize("right", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers(right: Any) -> None:
    assert (whole("n", right, 3), type(whole("n", right))) == (3, int)


@pytest.mark.parametrize("wrong", [2, -3, True, 3.0, "3", None, [3], np.float64(3), np.bool_(True)])
def test_what_is_no_whole_number_of_at_least_three(wrong: Any) -> None:
    assert said(whole, "n", wrong, 3, ", or None") == f"n is {wrong!r}: it must be a whole number of at least 3, or None"
