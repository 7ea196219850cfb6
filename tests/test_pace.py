"""How many rows a chunk has, for functions that cost so much a chunk and so much a row; seconds are made up."""

import random
from statistics import median

import pytest

from zephon_async.engine.pace import Pace

MOST = 1_024  # rows of a chunk, as the budget has it


def settled(own_s: float, row_s: float, *, in_flight: int = 3, first_s: float = 0.0, unevenness: float = 0.2) -> float:
    """Rows of a chunk in the end; the first chunk takes longer, as one does that imports something."""
    pace, chance = Pace(), random.Random(1)
    running: list[int] = []
    sizes: list[int] = []
    for n in range(400):
        running.append(min(MOST, pace.next()))
        sizes.append(running[-1])
        if len(running) == in_flight:
            rows = running.pop(0)
            seconds = (own_s + row_s * rows) * chance.uniform(1 - unevenness, 1 + unevenness)
            pace.add(rows, seconds + (first_s if n == in_flight - 1 else 0.0))
    return median(sizes[200:])


@pytest.mark.parametrize("first_s", [0.0, 2.0])
@pytest.mark.parametrize("in_flight", [1, 3, 9])
def test_a_chunk_takes_a_moment(in_flight: int, first_s: float) -> None:
    assert 100 <= settled(0.0001, 0.0003, in_flight=in_flight, first_s=first_s) <= 300
    assert 10 <= settled(0.0001, 0.002, in_flight=in_flight, first_s=first_s) <= 40


@pytest.mark.parametrize("first_s", [0.0, 2.0])
def test_of_a_slow_function_it_has_few_rows(first_s: float) -> None:
    assert settled(0.0, 0.2, first_s=first_s) <= 2
    assert settled(0.0001, 0.02, first_s=first_s) <= 4


@pytest.mark.parametrize("own_s", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("row_s", [0.0001, 0.001])
def test_what_a_chunk_costs_by_itself_is_a_small_part(own_s: float, row_s: float) -> None:
    """It was the greater part of chunks of one or two rows of 600 columns in worker processes."""
    rows = settled(own_s, row_s)
    assert rows * row_s >= min(2 * own_s, MOST / 2 * row_s)


def test_no_function_is_too_quick() -> None:
    assert settled(0.0, 0.0) >= MOST / 2


def test_chunks_without_a_row_tell_nothing() -> None:
    pace = Pace()
    pace.add(0, 1.0)
    assert {pace.next() for _ in range(4)} == {4, 8}
