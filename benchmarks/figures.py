"""What every benchmark has in common: its arguments, alternating rounds, and how figures are shown.

A figure is `name, value, unit, target, met`; a target of None is none. A benchmark prints a table, writes JSON where asked, and
exits with 0 whether or not the targets are met.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter


@dataclass(frozen=True)
class Figure:
    """One number, and whether it reaches what it should (`at_most`: a target from above)."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


def arguments(description: str) -> argparse.Namespace:
    """--quick (at most 50 s) and --json PATH."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="little data, few rounds: at most 50 s")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def alternate(rounds: int, ways: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run each way once a round, in turn; each gives a rate. All rates by name."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for n in range(rounds):
        for name in list(ways)[:: 1 if n % 2 == 0 else -1]:
            rates[name].append(ways[name]())
    return rates


def ratio(over: list[float], under: list[float]) -> float:
    """The median of the ratios of rounds."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def timed(work: Callable[[], float]) -> float:
    """What `work` says it did, per second."""
    began = perf_counter()
    done = work()
    return done / (perf_counter() - began)


def show(figures: list[Figure], path: Path | None) -> None:
    """Print a table; write JSON where asked."""
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        words = {None: "", True: "met", False: "NOT met"}[figure.met]
        target = "" if figure.target is None else f"target {'<=' if figure.at_most else '>='} {figure.target:g}  {words}"
        print(f"{figure.name:<{width}}  {figure.value:>14,.3f} {figure.unit:<10} {target}")
    if path is not None:
        rows = [{**asdict(figure), "met": figure.met} for figure in figures]
        path.write_text(json.dumps({"figures": rows}, indent=1) + "\n", "utf-8")
