"""Weights as they are given, and as whole numbers whose sum is exactly 2**32."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from zephon_async.checks import checks_call
from zephon_async.errors import RecipeError

TOTAL = 1 << 32
Weight: TypeAlias = float | int | str
Weights: TypeAlias = Mapping[str, Any]
"""A weight for each dataset by name; or, for a group of them, (weight, weights), or weights alone, which is a weight of 1."""


@checks_call
@dataclass(frozen=True, slots=True)
class MixtureSpec:
    """Weights by dataset name: ratios of what `unit` says, in any scale. Zero leaves a dataset out.

    Datasets may be grouped, to any depth: `{"web": 3, "code": (1, {"py": 2, "rs": 1})}` gives a quarter to code, two thirds of
    it to py. A group without a number, `{"code": {"py": 2, "rs": 1}}`, weighs 1. The names of groups are only for the reader.
    """

    weights: Weights

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping) or not all(isinstance(name, str) for name in self.weights):
            raise RecipeError(f"the mixture is {self.weights!r:.80}: give a dict of a weight for each dataset by its name")
        if not self.weights:
            raise RecipeError("the mixture is empty: give each dataset a weight")
        found = [name for name, _ in _leaves(self.weights, Fraction(1))]
        if twice := [name for name in found if found.count(name) > 1]:
            raise RecipeError(f"the mixture gives {twice[0]!r} a weight twice, in different groups: give it one")

    @property
    def names(self) -> tuple[str, ...]:
        """The datasets that are given a weight, 0 too."""
        return tuple(name for name, _ in _leaves(self.weights, Fraction(1)))

    def exact(self) -> dict[str, int]:
        """Whole weights above 0 whose sum is exactly 2**32, by name in byte order: largest remainders, ties by name."""
        shares = dict(sorted(_leaves(self.weights, Fraction(1)), key=lambda leaf: leaf[0].encode()))
        shares = {name: share for name, share in shares.items() if share}
        whole = dict(zip(shares, largest_remainders([share * TOTAL for share in shares.values()], 1), strict=True))
        if tiny := [name for name, weight in whole.items() if not weight]:
            raise RecipeError(f"the weight of {tiny[0]!r} is less than 1 in {TOTAL:,} of the mixture: set it to 0 or raise it")
        return whole


def largest_remainders(shares: Sequence[Any], parts: int) -> list[int]:
    """Numbers whose sum is 2**32 `parts`, each in whole units of `parts`: rounded down, and the rest one each to the largest
    remainders, ties to the first."""
    whole = [int(share // parts) for share in shares]
    by_remainder = sorted(range(len(whole)), key=lambda n: whole[n] * parts - shares[n])
    for n in by_remainder[: TOTAL - sum(whole)]:
        whole[n] += 1
    return whole


def _leaves(weights: Weights, share: Fraction, group: str = "") -> Iterator[tuple[str, Fraction]]:
    """The datasets of a group that has a share, each with its own."""
    own = {name: _own(name, weight) for name, weight in weights.items()}
    total = sum(own.values())
    if not total and share:
        where = f"of the group {group!r}" if group else "of the mixture"
        raise RecipeError(f"all weights {where} are 0 ({', '.join(weights)}): at least one must be above 0")
    for name, weight in weights.items():
        part = share * own[name] / total if share else Fraction(0)
        inside = weight if isinstance(weight, Mapping) else weight[1] if _is_group(weight) else None
        if inside is None:
            yield name, part
        else:
            yield from _leaves(inside, part, name)


def _own(name: str, weight: Any) -> Fraction:
    """The weight of a dataset or a group among its like."""
    if isinstance(weight, Mapping):
        return Fraction(1)
    number = weight[0] if _is_group(weight) else weight
    try:
        exact = Fraction(str(number))
    except (ValueError, ZeroDivisionError):
        exact = Fraction(-1)
    if exact < 0 or isinstance(number, bool):
        raise RecipeError(f"the weight of {name!r} is {weight!r:.80}: weights are finite numbers of at least 0")
    return exact


def _is_group(weight: Any) -> bool:
    return isinstance(weight, list | tuple) and len(weight) == 2 and isinstance(weight[1], Mapping)
