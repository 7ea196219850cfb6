"""Permutations that are worked out place by place."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import feistel
from zephon_async.randomness import permuted


@given(st.integers(1, 3000), st.lists(st.integers(-5, 1 << 63), max_size=3))
def test_every_number_has_one_place(n: int, words: list[int]) -> None:
    found = permuted(np.arange(n), n, *words)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(n))


@given(st.integers(1, 1 << 62), st.data())
def test_any_places_alone_are_those_of_the_oracle(n: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, n - 1), max_size=4))
    assert permuted(np.array(places, np.int64), n, 7, 1).tolist() == [feistel(place, n, 7, 1) for place in places]


def test_the_order_outlives_versions() -> None:
    assert permuted(np.arange(10), 10, 42).tolist() == [1, 2, 3, 5, 7, 9, 4, 0, 6, 8]
    assert permuted(np.array([0, 1, 10**12 - 1]), 10**12, 42, 3).tolist() == [352862804601, 381420613921, 498106274294]


@pytest.mark.parametrize("n", [2, 3, 5, 17])
def test_each_number_is_as_likely_at_each_place(n: int) -> None:
    keys = 1000
    orders = [permuted(np.arange(n), n, key).tolist() for key in range(keys)]
    for place in {0, n // 2, n - 1}:
        seen = Counter(order[place] for order in orders)
        expected = keys / n
        assert sum((seen[value] - expected) ** 2 / expected for value in range(n)) < n + 6 * n**0.5 + 4  # chi squared
