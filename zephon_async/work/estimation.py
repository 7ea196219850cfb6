"""Tokens per byte: how a row's bytes are turned into tokens before it is tokenized.

The ratio of a dataset is a whole-number pair (tokens, bytes), pinned by the user or measured on a small sample that a hash
chooses from its catalog. It is recorded in the checkpoint, so every rank and every resume uses the same.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from zephon_async.checks import checks_call, nearest, whole
from zephon_async.errors import EstimationError, RecipeError

_LARGEST = 4096  # of a denominator: keeps the whole numbers of the draw short; a ratio is right to about 1 in 16 million


@checks_call
@dataclass(frozen=True, slots=True)
class TokenEstimation:
    """How tokens per byte are found. Added special tokens count.

    primer: "measure", one number for all datasets, or a number for each by name (all others are measured).
    blocks, rows: how much of each dataset is looked at: up to `blocks` row blocks, up to `rows` rows of each.
    """

    primer: Literal["measure"] | float | str | Mapping[str, float | str] = "measure"
    blocks: int = 8
    rows: int = 32

    def __post_init__(self) -> None:
        for name in ("blocks", "rows"):
            object.__setattr__(self, name, whole(f"TokenEstimation: {name}", getattr(self, name), 1))
        if self.primer != "measure":
            pins = self.primer.values() if isinstance(self.primer, Mapping) else [self.primer]
            for pin in pins:
                ratio_of(pin)

    def check_names(self, datasets: Collection[str]) -> None:
        """Refuse pins of datasets that there are not."""
        pins = self.primer if isinstance(self.primer, Mapping) else {}
        for name in pins:
            if name not in datasets:
                raise RecipeError(f"TokenEstimation pins {name!r}, which is no dataset of the mixture; {nearest(name, datasets)}")

    def pinned(self, dataset: str) -> tuple[int, int] | None:
        """The pinned ratio of a dataset; None: measure it."""
        if self.primer == "measure":
            return None
        if not isinstance(self.primer, Mapping):
            return ratio_of(self.primer)
        pin = self.primer.get(dataset)
        return None if pin is None else ratio_of(pin)


def ratio_of(pin: float | str) -> tuple[int, int]:
    """A pinned number as a whole-number pair, from its decimal text."""
    try:
        value = Fraction(str(pin))
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if value <= 0:
        raise RecipeError(f'tokens per byte must be a positive number or "measure", not {pin!r}')
    return _pair(value)


def measured(dataset: str, tokens: int, size: int) -> tuple[int, int]:
    """The ratio of a sample of `size` bytes that became `tokens` tokens."""
    if tokens <= 0 or size <= 0:
        raise EstimationError(
            f"dataset {dataset!r}: the sample of {size} bytes gave {tokens} tokens, so tokens per byte cannot be measured; "
            f"pin them: TokenEstimation({{{dataset!r}: 0.25}})"
        )
    return _pair(Fraction(tokens, size))


def _pair(value: Fraction) -> tuple[int, int]:
    short = value.limit_denominator(_LARGEST)
    if short <= 0:
        short = Fraction(1, _LARGEST)
    return short.numerator, short.denominator
