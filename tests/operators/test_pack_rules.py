"""Which documents share a row, against an oracle that follows the words of the rules with lists and loops."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.operators import pack_rules
from zephon_async.operators.pack_rules import RULES, Piece, Row

SMALL_POOL, SMALL_AGE = 3, 7


def placed(name: str, lengths: Sequence[int], size: int, most: int, bins: int) -> list[Row]:
    rule = RULES[name](size, most, bins)
    half = len(lengths) // 2
    return rule.add(0, lengths[:half]) + rule.add(half, lengths[half:]) + rule.rest()


def whole_rows(number: int, length: int, size: int) -> tuple[list[Row], Piece | None]:
    rows = []
    start = 0
    while length - start >= size:
        rows.append([(number, start, start + size)])
        start += size
    return rows, (number, start, length) if start < length else None


def tokens(row: Row) -> int:
    return sum(stop - start for _, start, stop in row)


def by_bins(name: str, lengths: Sequence[int], size: int, most: int, bins: int) -> list[Row]:
    """first_fit and best_fit: the open rows, the oldest first."""
    out: list[Row] = []
    rows: list[Row] = []
    for number, length in enumerate(lengths):
        whole, piece = whole_rows(number, length, size)
        out += whole
        if piece is None:
            continue
        need = piece[2] - piece[1]
        fits = [row for row in rows if size - tokens(row) >= need]
        if not fits:
            if len(rows) == bins:
                fullest = max(rows, key=tokens)  # of several the first, which is the oldest
                rows.remove(fullest)
                out.append(fullest)
            fits = [[]]
            rows.append(fits[0])
        chosen = fits[0] if name == "first_fit" else max(fits, key=tokens)
        chosen.append(piece)
        if tokens(chosen) == size or len(chosen) == most:
            rows = [row for row in rows if row is not chosen]
            out.append(chosen)
    return out + rows


def by_stream(lengths: Sequence[int], size: int, most: int) -> list[Row]:
    """wrap: token by token."""
    out: list[Row] = [[]]
    for number, length in enumerate(lengths):
        for token in range(length):
            row = out[-1]
            goes_on = bool(row) and row[-1][0] == number and row[-1][2] == token
            if tokens(row) == size or (not goes_on and len(row) == most):
                out.append(row := [])
                goes_on = False
            if goes_on:
                row[-1] = (number, row[-1][1], token + 1)
            else:
                row.append((number, token, token + 1))
    return [row for row in out if row]


def by_pool(lengths: Sequence[int], size: int, most: int) -> list[Row]:
    """best_fit_wrap: waiting documents with the number of their arrival, the oldest first."""
    out: list[Row] = []
    waiting: list[tuple[int, Piece]] = []
    came = 0

    def length_of(item: tuple[int, Piece]) -> int:
        return item[1][2] - item[1][1]

    def one() -> Row:
        row: Row = []
        while waiting and tokens(row) < size and len(row) < most:
            room = size - tokens(row)
            fits = [item for item in waiting if length_of(item) <= room]
            if came - waiting[0][0] > SMALL_AGE:
                chosen = waiting[0]
            elif fits:
                chosen = max(fits, key=length_of)
            else:
                shortest = min(map(length_of, waiting))
                chosen = next(item for item in waiting if length_of(item) == shortest)
            number, start, stop = chosen[1]
            end = min(stop, start + room)
            row.append((number, start, end))
            at = waiting.index(chosen)
            waiting[at : at + 1] = [(chosen[0], (number, end, stop))] if end < stop else []
        return row

    for number, length in enumerate(lengths):
        whole, piece = whole_rows(number, length, size)
        out += whole
        if piece is None:
            continue
        waiting.append((came, piece))
        came += 1
        while len(waiting) > SMALL_POOL and sum(map(length_of, waiting)) >= size:
            out.append(one())
    while waiting:
        out.append(one())
    return out


LENGTHS = st.lists(st.integers(1, 30), max_size=60)


@given(LENGTHS, st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.sampled_from(["first_fit", "best_fit"]))
def test_open_rows(lengths: list[int], size: int, most: int, bins: int, name: str) -> None:
    assert placed(name, lengths, size, most, bins) == by_bins(name, lengths, size, most, bins)


@given(LENGTHS, st.integers(1, 12), st.integers(1, 5))
def test_wrap(lengths: list[int], size: int, most: int) -> None:
    assert placed("wrap", lengths, size, most, 1) == by_stream(lengths, size, most)


@given(LENGTHS, st.integers(1, 12), st.integers(1, 5))
def test_best_fit_wrap(lengths: list[int], size: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_rules, "POOL", SMALL_POOL)
        patch.setattr(pack_rules, "AGE", SMALL_AGE)
        assert placed("best_fit_wrap", lengths, size, most, 1) == by_pool(lengths, size, most)


@given(LENGTHS, st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.sampled_from(sorted(RULES)))
def test_every_token_has_one_place_and_no_row_too_many(lengths: list[int], size: int, most: int, bins: int, name: str) -> None:
    rows = placed(name, lengths, size, most, bins)
    found = sorted((number, token) for row in rows for number, start, stop in row for token in range(start, stop))
    assert found == [(number, token) for number, length in enumerate(lengths) for token in range(length)]
    assert all(0 < tokens(row) <= size and len(row) <= most for row in rows)


def test_best_fit_fills_rows() -> None:
    """99 % of them, with 64 open rows of 4,096 tokens, flushed every 8,192 documents."""
    lengths = np.maximum(np.random.default_rng(0).lognormal(np.log(400), 1.0, 3 * 8192).astype(int), 1).tolist()
    rows = [row for at in range(0, len(lengths), 8192) for row in placed("best_fit", lengths[at : at + 8192], 4096, 4096, 64)]
    assert sum(lengths) >= 0.99 * 4096 * len(rows)
