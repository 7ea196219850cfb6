"""The oracle itself, against values worked out by hand and against the properties that DESIGN section 4 promises.

The numbers of `mix`, `permutation` and `seed_of` were taken from the sketch of the design, not from the oracle.
"""

from fractions import Fraction
from itertools import chain as chained

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import (
    TICKS,
    Accumulator,
    Dataset,
    EmptyTurn,
    Oracle,
    Origin,
    Payload,
    Piece,
    Row,
    Rule,
    Serial,
    Stage,
    Unit,
    Window,
    Wrap,
    children,
    groups,
    mix,
    permutation,
    seed_of,
    whole_weights,
    window,
    wrap,
)

RULES: tuple[Rule, ...] = ("stop", "drop_out", "repeat")


def dataset(name: str, *sizes: int, weight: str | float = 1, ratio: tuple[int, int] = (1, 1)) -> Dataset:
    """A dataset of one unit and one row block."""
    return Dataset(name, [Unit(len(sizes), max(len(sizes), 1), sizes)], weight, ratio)


def told(rows: list[Row], names: str = "ab") -> str:
    """Rows as text: the name of the dataset and the row in it, with a quote for every epoch behind the first."""
    return " ".join(f"{names[row.origin.dataset]}{row.origin.row}" + "'" * row.origin.epoch for row in rows)


units = st.builds(
    lambda sizes, block: Unit(len(sizes), block, sizes), st.lists(st.integers(1, 40), min_size=1, max_size=7), st.integers(1, 10)
)
unit_lists = st.lists(units, min_size=1, max_size=4)
ratios = st.sampled_from([(1, 1), (2, 3), (5, 3)])


@st.composite
def mixtures(draw: st.DrawFn, even: bool = False) -> list[Dataset]:
    """Up to four datasets; even: of weights near enough that those which repeat do so a few times only."""
    names = draw(st.lists(st.text("abZé", min_size=1, max_size=3), min_size=1, max_size=4, unique=True))
    weights = st.sampled_from(["1", "2.5", "0.7"] if even else ["1", "2.5", "0.1", "1e-3", "7"])
    return [Dataset(name, draw(unit_lists), draw(weights), draw(ratios)) for name in names]


# ---- randomness and weights


def test_randomness_is_that_of_the_sketch() -> None:
    assert mix() == 11400714819323198485
    assert mix(0) == 5153396120588991192
    assert mix(1, 2, 3) == 12137764019763327488
    assert mix(-1) == mix(2**64 - 1) == 11122031299139223156
    assert permutation(8, 42) == (1, 6, 2, 3, 5, 7, 4, 0)
    assert seed_of("wiki") == 15115862129191003154


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        (["0.5", "0.5"], [2**31, 2**31]),
        ([5, 5], [2**31, 2**31]),
        ([0.3, 0.3], [2**31, 2**31]),
        ([1, 0], [2**32, 0]),
        ([1, 1, 1], [1431655766, 1431655765, 1431655765]),
        ([0.1, 0.2, 0.7], [429496730, 858993459, 3006477107]),  # remainders .6, .2, .2 of one tick
        ([1, 2, 4], [613566757, 1227133513, 2454267026]),  # 613566756 4/7, 1227133513 1/7, 2454267026 2/7
    ],
)
def test_weights_are_whole_by_largest_remainder(weights: list[str | float], whole: list[int]) -> None:
    assert whole_weights(Dataset(name, [], weight) for name, weight in zip("abc", weights, strict=False)) == whole


def test_a_weight_that_rounds_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="b: its weight is too small"):
        Oracle([dataset("a", 1), dataset("b", 1, weight="1e-12")], seed=1)


def test_datasets_are_numbered_by_the_bytes_of_their_names() -> None:
    oracle = Oracle([dataset("é", 1), dataset("a", 1), dataset("Z", 1), dataset("b", 1, weight=0)], seed=1)
    assert [d.name for d in oracle.datasets] == ["Z", "a", "b", "é"]
    assert [row.origin for row in oracle.rows(0)] == [Origin(0, 0, 0, 0), Origin(1, 0, 0, 0), Origin(3, 0, 0, 0)]


# ---- epochs


def test_lanes_own_even_parts_that_turn_with_the_epoch() -> None:
    oracle = Oracle([Dataset("a", [Unit(4, 3, [1] * 4), Unit(3, 3, [1] * 3)])], seed=1, lanes=2, shuffle=False, epochs=2)
    assert oracle.parts(0, 0, 0) == oracle.parts(0, 1, 1) == [(0, 0, 0, 3)]
    assert oracle.parts(0, 1, 0) == oracle.parts(0, 0, 1) == [(0, 1, 3, 4), (1, 0, 0, 3)]
    assert [row.origin for row in oracle.rows(1)][3:5] == [Origin(0, 0, 1, 2), Origin(0, 1, 0, 0)]


def test_one_row_reaches_every_lane_in_a_turn() -> None:
    oracle = Oracle([dataset("a", 5)], seed=1, lanes=3, epochs=3)
    assert [oracle.rows(lane) for lane in range(3)] == [[Row(Origin(0, epoch, 0, 0), 5)] for epoch in (2, 1, 0)]


def test_shuffling_permutes_units_and_the_rows_of_a_block() -> None:
    oracle = Oracle([Dataset("a", [Unit(5, 3, [1] * 5)] * 4)], seed=7)
    seed = mix(7, seed_of("a"))
    expected = []
    for unit in permutation(4, seed, 0):
        expected += [Origin(0, 0, unit, row) for row in permutation(3, seed, 0, unit, 0)]
        expected += [Origin(0, 0, unit, 3 + row) for row in permutation(2, seed, 0, unit, 1)]
    assert [row.origin for row in oracle.rows(0)] == expected


@given(mixtures(), st.integers(1, 7), st.integers(1, 3), st.booleans(), st.integers(0, 2**64 - 1))
def test_every_row_comes_once_an_epoch_over_the_lanes(
    datasets: list[Dataset], lanes: int, epochs: int, shuffle: bool, seed: int
) -> None:
    oracle = Oracle(datasets, seed=seed, lanes=lanes, shuffle=shuffle, epochs=epochs, on_exhausted="drop_out")
    drawn = list(chained.from_iterable(oracle.rows(lane) for lane in range(lanes)))
    expected = {
        Row(Origin(d, epoch, unit, row), size)
        for d, source in enumerate(oracle.datasets)
        for epoch in range(epochs)
        for unit, (_, _, sizes) in enumerate(source.units)
        for row, size in enumerate(sizes)
    }
    assert len(drawn) == len(expected)
    assert set(drawn) == expected
    counts = [[len(oracle.owned(d, lane, 0)) for lane in range(lanes)] for d in range(len(datasets))]
    assert all(max(count) - min(count) <= 1 for count in counts)


# ---- draw


@given(mixtures(), st.integers(1, 3), st.integers(0, 100), st.booleans())
def test_a_dataset_is_off_its_share_by_half_a_document(datasets: list[Dataset], lanes: int, seed: int, shuffle: bool) -> None:
    """At any row there is one time at which no dataset is ahead by half of its last or behind by half of its next document."""
    lane = seed % lanes
    oracle = Oracle(datasets, seed=seed, lanes=lanes, shuffle=shuffle, epochs=None)
    sources = range(len(datasets))
    scale = [Fraction(TICKS * d.ratio[0], w * d.ratio[1]) for d, w in zip(oracle.datasets, oracle.weights, strict=True)]
    alone = [Oracle([d], seed=seed, lanes=lanes, shuffle=shuffle, epochs=None).rows(lane, 61) for d in oracle.datasets]
    sizes = [[row.length for row in rows] for rows in alone]
    taken = [0 for _ in sources]
    for row in oracle.rows(lane, 60):
        d = row.origin.dataset
        assert row.origin[1:] == alone[d][taken[d]].origin[1:]
        taken[d] += 1
        ahead = [(sum(sizes[d][: taken[d]]) - Fraction(sizes[d][taken[d] - 1], 2)) * scale[d] for d in sources if taken[d]]
        behind = [(sum(sizes[d][: taken[d]]) + Fraction(sizes[d][taken[d]], 2)) * scale[d] for d in sources]
        assert max(ahead) < min(behind) + 1  # times are rounded down to whole ones


def test_the_merge_is_by_the_middle_of_documents() -> None:
    # a: middles at 2, 6; b: 1, 3, 5, 7, 9 (ticks are two a token, as each has half the share)
    assert told(Oracle([dataset("a", 2, 2), dataset("b", 1, 1, 1, 1, 1)], seed=1, shuffle=False).rows(0)) == "b0 a0 b1 b2 a1 b3 b4"
    # with half a token a byte a's are at 1, 3: even with b, and a comes first
    halved = [dataset("a", 2, 2, ratio=(1, 2)), dataset("b", 1, 1, 1, 1, 1)]
    assert told(Oracle(halved, seed=1, shuffle=False, on_exhausted="drop_out").rows(0)) == "a0 b0 a1 b1 b2 b3 b4"


# ---- the end


@pytest.mark.parametrize(
    ("rule", "ids"),
    [
        ("stop", [0, 10, 20, 1, 11, 21, 2, 12, 22]),
        ("drop_out", [0, 10, 20, 1, 11, 21, 2, 12, 22, 13, 23, 24]),
        ("repeat", [0, 10, 20, 1, 11, 21, 2, 12, 22, 0, 13, 23, 1, 10, 24]),
    ],
)
def test_case_f05(rule: Rule, ids: list[int]) -> None:
    sources = [dataset("d1", *[1] * 3), dataset("d2", *[1] * 4), dataset("d3", *[1] * 5)]
    oracle = Oracle(sources, seed=1, shuffle=False, on_exhausted=rule)
    assert [10 * row.origin.dataset + row.origin.row for row in oracle.rows(0)] == ids


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        ("stop", "b0 a0 b1 b2 a1 b3"),  # a ends at 8: b3 at 7 still comes, b4 at 9 does not
        ("drop_out", "b0 a0 b1 b2 a1 b3 b4 b5"),
        ("repeat", "b0 a0 b1 b2 a1 b3 b4 a0' b5"),  # b ends at 12: a0 at 10 comes again, a1 at 14 does not
    ],
)
def test_rules_of_the_end_by_hand(rule: Rule, rows: str) -> None:
    sources = [dataset("a", 2, 2), dataset("b", *[1] * 6)]
    assert told(Oracle(sources, seed=1, shuffle=False, on_exhausted=rule).rows(0)) == rows


def test_the_limit_is_exact_where_rounded_times_are_even() -> None:
    # shares of 1/3 and 2/3: a (weight 1431655765) has its only row at 1.5 * 2**32 / 1431655765 = 4.5 and a bit, and ends a bit
    # above 9, b's middles lie just below 0.75, 2.25, ..., 8.25, 9.75: all below 9 come, the one above does not
    sources = [dataset("a", 3, weight=1), dataset("b", *[1] * 20, weight=2)]
    rows = told(Oracle(sources, seed=1, shuffle=False, on_exhausted="stop").rows(0))
    assert rows == "b0 b1 b2 a0 b3 b4 b5"
    # b of half a token ends at 1 tick; the middle of a is at 1 tick exactly: not below it
    sources = [dataset("a", 1), dataset("b", 1, ratio=(1, 2))]
    assert told(Oracle(sources, seed=1, shuffle=False, on_exhausted="stop").rows(0)) == "b0"
    # one tick is one token here: b ends at 1.5 and a0 at 1.25 comes, although both round down to 1
    sources = [dataset("a", 1, ratio=(5, 4)), dataset("b", 1, ratio=(3, 4))]
    assert told(Oracle(sources, seed=1, shuffle=False, on_exhausted="stop").rows(0)) == "b0 a0"


def test_max_repeats_bounds_the_short_ones() -> None:
    sources = [dataset("a", 1), dataset("b", *[1] * 4)]
    rows = [told(Oracle(sources, seed=1, shuffle=False, max_repeats=n).rows(0)) for n in (0, 1, None)]
    assert rows == ["a0 b0 b1 b2 b3", "a0 b0 a0' b1 b2 b3", "a0 b0 a0' b1 a0'' b2 a0''' b3"]


def test_datasets_without_rows() -> None:
    nothing, rows = Dataset("a", []), dataset("b", 1, 1)
    assert told(Oracle([nothing, rows], seed=1, shuffle=False, on_exhausted="drop_out").rows(0)) == "b0 b1"
    assert Oracle([nothing, rows], seed=1, on_exhausted="stop").rows(0) == []
    assert Oracle([nothing], seed=1).rows(0) == []
    for epochs in (1, None):
        with pytest.raises(EmptyTurn, match="a: 2 epochs in a row gave lane 1 no row"):
            Oracle([nothing, rows], seed=1, lanes=2, epochs=epochs).rows(1, 1)
    unweighted = dataset("a", 1, weight=0)
    assert [told(Oracle([unweighted, rows], seed=1, shuffle=False, on_exhausted=rule).rows(0)) for rule in RULES] == ["b0 b1"] * 3


def test_without_epochs_there_is_no_end() -> None:
    oracle = Oracle([dataset("a", 2, 2), dataset("b", 1)], seed=1, shuffle=False, epochs=None)
    assert told(oracle.rows(0, 7)) == "b0 a0 b0' b0'' a1 b0''' b0''''"


@given(mixtures(even=True), st.integers(1, 3), st.integers(1, 2), st.integers(0, 100))
def test_rules_of_the_end_keep_the_order(datasets: list[Dataset], lanes: int, epochs: int, seed: int) -> None:
    """ "repeat" begins like the endless order, "drop_out" is that without the repeats, and "stop" begins like "drop_out"."""
    lane = seed % lanes
    endless = Oracle(datasets, seed=seed, lanes=lanes, epochs=None)
    stop, drop_out, repeat = (
        Oracle(datasets, seed=seed, lanes=lanes, epochs=epochs, on_exhausted=rule).rows(lane) for rule in RULES
    )
    assert repeat == endless.rows(lane, len(repeat))
    assert drop_out == [row for row in repeat if row.origin.epoch < epochs]
    assert stop == drop_out[: len(stop)]


# ---- chains


def tokens_of(*lengths: int) -> list[Row]:
    """Documents d of the given lengths, with tokens 10 * d, 10 * d + 1, ..."""
    return [Row(Origin(0, 0, 0, d), tuple(range(10 * d, 10 * d + n))) for d, n in enumerate(lengths, 1)]


def fed(accumulator: Accumulator, rows: list[Row]) -> list[Row]:
    return [out for row in rows for out in accumulator.push(row)] + accumulator.flush()


def test_wrap_cuts_the_stream_and_keeps_the_tail() -> None:
    rows = fed(Wrap(4), tokens_of(7, 2, 3, 1))  # case E02
    assert [row.payload for row in rows] == [(10, 11, 12, 13), (14, 15, 16, 20), (21, 30, 31, 32), (40,)]
    one, two, three, four = (Origin(0, 0, 0, d) for d in (1, 2, 3, 4))
    assert [row.origin for row in rows] == [
        (Piece(one, 0, 4),),
        (Piece(one, 4, 7), Piece(two, 0, 1)),
        (Piece(two, 1, 2), Piece(three, 0, 3)),
        (Piece(four, 0, 1),),
    ]
    lengths = Oracle([dataset("a", 10)], seed=1).outputs(0, [wrap(4)])  # case E03
    assert lengths == [Row((Piece(Origin(0, 0, 0, 0), a, b),), b - a) for a, b in ((0, 4), (4, 8), (8, 10))]
    assert fed(Wrap(2), [Row(one, 0), Row(two, 2), Row(two, 1)]) == [Row((Piece(two, 0, 2),), 2), Row((Piece(two, 0, 1),), 1)]


def test_window_permutes_by_the_number_of_its_first_output() -> None:
    rows = tokens_of(1, 1, 1, 1, 1, 1, 1)
    assert fed(Window(4, seed=42, lane=1), rows) == [rows[i] for i in (0, 1, 2, 3, 5, 4, 6)]
    assert Window(4, seed=42, lane=1).flush() == []


def test_segments_flush_what_needs_it_and_the_run_all() -> None:
    oracle = Oracle([dataset("a", *[1] * 10)], seed=1, shuffle=False, flush_every=5)

    def lengths(*chain: Stage) -> list[Payload]:
        return [row.payload for row in oracle.outputs(0, chain)]

    assert lengths(groups(3)) == [3, 2, 3, 2]
    assert lengths(wrap(4), groups(2)) == [4, 6]  # a row by token 5; the last segment ends the run, so the tail joins the second
    assert lengths(groups(3), wrap(4)) == [4, 4, 2]
    assert lengths(groups(3), groups(4)) == [5, 5]  # what the first gives when flushed reaches the second before it is
    assert oracle.outputs(0, [groups(3)], 1)[0].origin == tuple(Piece(Origin(0, 0, 0, row), 0, -1) for row in range(3))


def test_fan_out_numbers_its_children() -> None:
    row = Row(Origin(0, 0, 0, 3, part=1), 7)
    assert children(row, [2, 5]) == [Row(Origin(0, 0, 0, 3, part=1 << 20 | j), n) for j, n in enumerate((2, 5))]
    packed = Row((Piece(Origin(0, 0, 0, 3), 0, 7),), 7)
    assert children(packed, [1]) == [Row(packed.origin, 1)]
    oracle = Oracle([dataset("a", 4, 1, 3)], seed=1, shuffle=False)
    outputs = oracle.outputs(0, [lambda row: children(row, [1] * (4 if row.payload == 4 else 0))])
    assert outputs == [Row(Origin(0, 0, 0, 0, part), 1) for part in range(4)]


@given(mixtures(even=True), st.integers(1, 20), st.integers(1, 5), st.integers(1, 3), st.integers(1, 9), st.integers(0, 99))
def test_chains_lose_no_token(datasets: list[Dataset], n: int, rows: int, lanes: int, flush_every: int, seed: int) -> None:
    oracle = Oracle(datasets, seed=seed, lanes=lanes, flush_every=flush_every)
    drawn = oracle.rows(0)
    packed = oracle.outputs(0, [wrap(n), window(rows, seed)])
    pieces = [piece for row in packed for piece in row.origin]
    spans = sorted((piece.origin, piece.start, piece.stop) for piece in pieces)
    tokens = [(origin, token) for origin, start, stop in spans for token in range(start, stop)]
    assert tokens == sorted((row.origin, token) for row in drawn for token in range(row.length))
    assert oracle.outputs(0, [window(rows, seed)], 5) == oracle.outputs(0, [window(rows, seed)])[:5]
    assert oracle.outputs(0, [Serial(lambda lane: Window(1, seed, lane))]) == drawn


# ---- steps and ranks


def test_case_f03() -> None:
    shards = [Unit(n, n, [1] * n) for n in (4, 5, 6, 7)]
    oracle = Oracle([Dataset("a", shards)], seed=1, lanes=2, shuffle=False)
    assert [len(oracle.rows(lane)) for lane in range(2)] == [11, 11]
    dropped = oracle.steps([], rows=2, microbatches=2)
    padded = oracle.steps([], rows=2, microbatches=2, on_end="pad")
    assert (len(dropped), len(padded)) == (5, 6)
    assert padded[:5] == dropped
    assert padded[5] == [[oracle.rows(0)[10], None], [oracle.rows(1)[10], None]]


def test_steps_are_in_lane_major_order() -> None:
    oracle = Oracle([dataset("a", *[1] * 24)], seed=1, lanes=2, shuffle=False, epochs=None)
    numbers = [
        [[row.origin.row for row in microbatch if row] for microbatch in step]
        for step in oracle.steps([], rows=3, microbatches=4, n=2)
    ]
    assert numbers == [
        [[0, 1, 2], [3, 4, 5], [12, 13, 14], [15, 16, 17]],
        [[6, 7, 8], [9, 10, 11], [18, 19, 20], [21, 22, 23]],
    ]
    assert oracle.steps([], rows=3, microbatches=4, n=3)[2][0] == oracle.rows(0, 15)[12:]


def test_ranks_share_a_step() -> None:
    assert [Oracle.numbers(rank, 3, 12) for rank in range(3)] == [range(4), range(4, 8), range(8, 12)]
    with pytest.raises(ValueError, match="divide"):
        Oracle.numbers(0, 3, 8)
    with pytest.raises(ValueError, match="multiple of the lanes"):
        Oracle([dataset("a", 1)], seed=1, lanes=2).steps([], rows=1, microbatches=3)
