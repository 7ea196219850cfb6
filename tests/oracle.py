"""The order of the data, worked out slowly: an oracle of DESIGN section 4, written apart from the product's code.

It takes plain values (datasets with the sizes of their rows, weights, lanes) and gives the rows of a lane in draw order, what
a chain of operators makes of them, and the global batches. One row at a time, one token at a time, exact fractions, no numpy,
nothing imported from the package: it is for comparing with, not for running. What it holds to:

Numbers. Datasets are numbered in the byte order of their names (UTF-8), those of weight 0 too. Weights become whole numbers that
sum to exactly 2**32: Fraction(str(weight)) / sum * 2**32, rounded down, the rest given one each to the largest remainders, ties
by name. A dataset of weight 0 takes no part in the draw and counts in no rule; a weight so small that it rounds to 0 is refused.
The seed of a dataset is mix(seed, seed_of(name)).

Epochs. The units of a dataset, sorted stably by mix(dataset seed, epoch, unit) when shuffling, else in catalog order, are laid
end to end: N rows. Lane l of L owns part p = (l + epoch) % L, the rows [p*N//L, (p+1)*N//L) of that line. Position k*B + i of a
unit of row blocks of B rows holds its row k*B + permutation(rows in block k, dataset seed, epoch, unit, k)[i] when shuffling,
else row k*B + i. shuffle="blocks": likewise, but the line is that of row blocks, numbered through all units and sorted as units
are. shuffle="rows": place p of the line holds row feistel(p, N, dataset seed, epoch) of the catalog order, and nothing else is
permuted.

Draw. A row of size s of dataset d has the real time (2*given + s) * a / (2*b): given is the size of all rows of d before it in
this lane, over all epochs; a = 2**32 * num, b = weight * den, num/den the dataset's tokens per byte. Rows come in the order of
(real time rounded down, dataset number).

End. With epochs=None every dataset goes on from epoch to epoch; L epochs in a row without a row for the lane are an error. With
E epochs a dataset ends when the last row of its first E epochs has been given, before any other row is looked at (at once
where there is none), at S = given * a / b. "drop_out": it gives no more, the others go on. "stop": likewise, and from then on
only rows whose real time is below the least S so far are given. "repeat": it begins again with epoch E, E + 1, ... (at most
max_repeats of them; L in a row without a row are an error) until all have ended; then only rows below the greatest S are given.
A dataset that already stands at that limit is not looked at any more, so a run without any row is empty and no error.

Segments. Behind every flush_every rows drawn by a lane a segment ends; behind its last row the run ends, and only the run, also
where a segment would end there. At the end of a segment the accumulators that need it are flushed, at the end of the run all,
each behind what came down from those before it. Flushing one that holds nothing gives nothing.

Batches. Microbatch j of a lane is its outputs [j*B, (j+1)*B). A step has G = k*L microbatches: number m of step s belongs to
lane m // k and is its microbatch s*k + m % k. Rank r of R yields the numbers [r*G//R, (r+1)*G//R) of each step. on_end="drop"
keeps the steps that every lane fills, "pad" those that any lane begins, with None for the rows that are missing.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import groupby, islice
from math import ceil, floor
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

TICKS = 2**32


class Unit(NamedTuple):
    """A unit of a dataset: its rows, the rows of one of its row blocks, and the size of each row (at least 1)."""

    length: int
    block: int
    sizes: Sequence[int]


class Dataset(NamedTuple):
    """A dataset: its units in catalog order, its weight as it was given, its tokens per byte as (num, den)."""

    name: str
    units: Sequence[Unit]
    weight: str | float | Fraction = 1
    ratio: tuple[int, int] = (1, 1)


class Origin(NamedTuple):
    """Where a row comes from: `row` counts in its unit, `part` numbers the children of a fan-out."""

    dataset: int
    epoch: int
    unit: int
    row: int
    part: int = 0


class Piece(NamedTuple):
    """Tokens `start:stop` of the record at `origin`; stop is -1 for a whole record."""

    origin: Any
    start: int
    stop: int


Payload: TypeAlias = int | tuple[int, ...]
Rule: TypeAlias = Literal["stop", "drop_out", "repeat"]


class Row(NamedTuple):
    """What travels: an Origin, or the Pieces of a packed row, and a payload: a length (as drawn, the size), or tokens."""

    origin: Any
    payload: Payload

    @property
    def length(self) -> int:
        return self.payload if isinstance(self.payload, int) else len(self.payload)


class EmptyTurn(Exception):
    """A whole turn of epochs gave a lane no row of a dataset that has to go on."""


def mix(*words: int) -> int:
    """Hash whole numbers to 64 bits: one round of splitmix64 a word."""
    state = 0x9E3779B97F4A7C15
    for word in words:
        state = (state ^ word % 2**64) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 31) * 0x94D049BB133111EB % 2**64
        state = state ^ state >> 29
    return state


@cache
def permutation(n: int, *words: int) -> tuple[int, ...]:
    """The numbers below n, sorted stably by their hash."""
    return tuple(sorted(range(n), key=lambda i: mix(*words, i)))


def feistel(place: int, n: int, *words: int) -> int:
    """What stands at a place of a permutation of the numbers below n: eight rounds on two halves of as few bits as hold n - 1,
    again for as long as the result is n or more."""
    half = 1
    while 4**half < n:
        half += 1
    while True:
        left, right = divmod(place, 2**half)
        for number in range(8):
            left, right = right, left ^ mix(*words, number, right) % 2**half
        place = left * 2**half + right
        if place < n:
            return place


def seed_of(name: str) -> int:
    """A 64-bit number for a name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def whole_weights(datasets: Iterable[Dataset]) -> list[int]:
    """Weights over 2**32, in the order of the datasets, which are sorted by name."""
    given = [Fraction(str(dataset.weight)) for dataset in datasets]
    exact = [weight / sum(given) * TICKS for weight in given]
    whole = [floor(weight) for weight in exact]
    by_remainder = sorted(range(len(exact)), key=lambda d: whole[d] - exact[d])
    for d in by_remainder[: TICKS - sum(whole)]:
        whole[d] += 1
    return whole


class Accumulator:
    """The serial half of an operator in one lane: holds n rows and gives them on. Subclass it for others."""

    needs_flush: ClassVar[bool] = False

    def __init__(self, n: int) -> None:
        self.n = n
        self.held: list[Row] = []

    def push(self, row: Row) -> list[Row]:
        self.held.append(row)
        return self.flush() if len(self.held) == self.n else []

    def flush(self) -> list[Row]:
        rows, self.held = self.held, []
        return rows


class Wrap(Accumulator):
    """Cut the token stream into rows of n tokens; the tail at the end of the run is a row of fewer (its padding is not shown)."""

    def push(self, row: Row) -> list[Row]:
        packed = []
        for at in range(row.length):
            payload = 1 if isinstance(row.payload, int) else row.payload[at : at + 1]
            packed += super().push(Row((Piece(row.origin, at, at + 1),), payload))
        return packed

    def flush(self) -> list[Row]:
        pieces: list[Piece] = []
        ids: tuple[int, ...] = ()
        tokens = super().flush()
        for (piece,), payload in tokens:
            if pieces and pieces[-1].origin == piece.origin and pieces[-1].stop == piece.start:
                pieces[-1] = pieces[-1]._replace(stop=piece.stop)
            else:
                pieces.append(piece)
            ids += () if isinstance(payload, int) else payload
        return [Row(tuple(pieces), ids or len(tokens))] if tokens else []


class Window(Accumulator):
    """Permute every n rows, the last short window too, keyed by seed, lane and the number of the window's first output; not the
    rows themselves but runs of `together` of them."""

    def __init__(self, n: int, seed: int, lane: int, together: int = 1) -> None:
        super().__init__(n)
        self.seed, self.lane, self.together, self.given = seed, lane, together, 0

    def flush(self) -> list[Row]:
        rows = super().flush()
        first, self.given = self.given, self.given + len(rows)
        runs = [rows[i : i + self.together] for i in range(0, len(rows), self.together)]
        return [row for i in permutation(len(runs), self.seed, self.lane, first) for row in runs[i]]


class Groups(Accumulator):
    """Make one row of every n; flushed at the end of a segment, where a group comes out early."""

    needs_flush = True

    def flush(self) -> list[Row]:
        rows = super().flush()
        pieces: list[Piece] = []
        for origin, _ in rows:
            pieces += [Piece(origin, 0, -1)] if isinstance(origin, Origin) else origin
        return [Row(tuple(pieces), sum(row.length for row in rows))] if rows else []


class Mixture(Accumulator):
    """Documents by windows of n tokens, counted for each dataset by its share; at most `buffer` tokens wait.

    The middle of a document, and so its window, is given by the tokens of its dataset that came before; these are counted on over
    a flush. A document goes out when every dataset has filled the windows before its own, by window and arrival, or as the oldest
    where too much waits.
    """

    needs_flush = True

    def __init__(self, n: int, buffer: int, weights: Sequence[int]) -> None:
        super().__init__(n)
        self.buffer, self.shares = buffer, [Fraction(weight, sum(weights)) for weight in weights]
        self.tokens = [0] * len(weights)
        self.windows: list[int] = []  # of those held

    def push(self, row: Row) -> list[Row]:
        d = row.origin.dataset
        self.held.append(row)
        self.windows.append(floor((self.tokens[d] + Fraction(row.length, 2)) / self.shares[d] / self.n))
        self.tokens[d] += row.length
        filled = min(floor(tokens / share / self.n) for tokens, share in zip(self.tokens, self.shares, strict=True))
        due = sorted((window, i) for i, window in enumerate(self.windows) if window <= filled)
        out = [self.held[i] for _, i in due]
        for i in sorted((i for _, i in due), reverse=True):
            del self.held[i], self.windows[i]
        while sum(row.length for row in self.held) > self.buffer:
            out.append(self.held.pop(0))
            del self.windows[0]
        return out

    def flush(self) -> list[Row]:
        self.windows = []
        return super().flush()


class Serial(NamedTuple):
    """An accumulator, made anew for every lane by its number."""

    make: Callable[[int], Accumulator]


Function: TypeAlias = Callable[[Row], Iterable[Row]]  # stateless: makes any number of rows of one
Stage: TypeAlias = Function | Serial


def wrap(n: int) -> Serial:
    return Serial(lambda lane: Wrap(n))


def window(n: int, seed: int, together: int = 1) -> Serial:
    return Serial(lambda lane: Window(n, seed, lane, together))


def mixture(n: int, buffer: int, weights: Sequence[int]) -> Serial:
    return Serial(lambda lane: Mixture(n, buffer, weights))


def groups(n: int) -> Serial:
    return Serial(lambda lane: Groups(n))


def children(row: Row, payloads: Iterable[Payload]) -> list[Row]:
    """The rows that a fan-out makes of one: child j of part p has part (p << 20) | j; packed rows have no parts."""
    if not isinstance(row.origin, Origin):
        return [Row(row.origin, payload) for payload in payloads]
    first = row.origin.part << 20
    return [Row(row.origin._replace(part=first + j), payload) for j, payload in enumerate(payloads)]


def _pass_down(rows: list[Row], stages: Sequence[Function | Accumulator], end: Literal["", "segment", "run"]) -> list[Row]:
    """Rows that enter a chain, with an end behind them or not: what leaves it."""
    for stage in stages:
        if isinstance(stage, Accumulator):
            rows = [out for row in rows for out in stage.push(row)]
            if end == "run" or (end == "segment" and stage.needs_flush):
                rows += stage.flush()
        else:
            rows = [out for row in rows for out in stage(row)]
    return rows


class _Stand:
    """Where a lane stands in one dataset."""

    def __init__(self, number: int, scale: Fraction, rows: Iterator[Row], due: int | None) -> None:
        self.number, self.scale, self.rows, self.due = number, scale, rows, due
        self.given = self.taken = 0
        self.next: Row | None = None
        self.ended_at = Fraction(0) if due == 0 else None

    def place(self, limit: Fraction | None) -> Fraction | None:
        """The real time of the next row; None where there is none below the limit."""
        if self.next is None and (limit is None or self.given * self.scale < limit):
            self.next = next(self.rows, None)
        if self.next is None:
            return None
        time = (self.given + Fraction(self.next.length, 2)) * self.scale
        return time if limit is None or time < limit else None

    def take(self) -> Row:
        """Give the row that `place` has seen."""
        assert self.next is not None
        row, self.next = self.next, None
        self.given += row.length
        self.taken += 1
        if self.taken == self.due:
            self.ended_at = self.given * self.scale
        return row


class Oracle:
    """What a recipe gives, by the conventions of this module."""

    def __init__(
        self,
        datasets: Iterable[Dataset],
        *,
        seed: int,
        lanes: int = 1,
        shuffle: bool | Literal["units", "blocks", "rows"] = True,
        epochs: int | None = 1,
        on_exhausted: Rule = "repeat",
        max_repeats: int | None = None,
        flush_every: int = 8192,
    ) -> None:
        self.datasets = sorted(datasets, key=lambda dataset: dataset.name.encode())
        self.weights = whole_weights(self.datasets)
        self.seeds = [mix(seed, seed_of(dataset.name)) for dataset in self.datasets]
        self.lanes, self.shuffle, self.flush_every = lanes, shuffle, flush_every
        self.epochs, self.on_exhausted, self.max_repeats = epochs, on_exhausted, max_repeats
        for dataset, weight in zip(self.datasets, self.weights, strict=True):
            if weight == 0 and Fraction(str(dataset.weight)) != 0:
                raise ValueError(f"{dataset.name}: its weight is too small to be told from 0")
            if any(len(sizes) != length or block < 1 or min(sizes, default=1) < 1 for length, block, sizes in dataset.units):
                raise ValueError(f"{dataset.name}: a unit has `length` sizes of at least 1 and blocks of at least 1 row")

    def rows(self, lane: int, n: int | None = None) -> list[Row]:
        """The first n rows of a lane in draw order (all of them where n is None)."""
        return list(islice(self.draw(lane), n))

    def outputs(self, lane: int, chain: Sequence[Stage], n: int | None = None) -> list[Row]:
        """The first n rows that leave a chain of stages."""
        return list(islice(self.run(lane, chain), n))

    def steps(
        self, chain: Sequence[Stage], rows: int, microbatches: int, n: int | None = None, on_end: Literal["drop", "pad"] = "drop"
    ) -> list[list[list[Row | None]]]:
        """The first n global batches, each `microbatches` microbatches of `rows` rows."""
        each = microbatches // self.lanes
        if each * self.lanes != microbatches:
            raise ValueError("microbatches must be a multiple of the lanes")
        wanted = None if n is None else n * each * rows
        outputs: list[list[Row | None]] = [[*self.outputs(lane, chain, wanted)] for lane in range(self.lanes)]
        filled = [Fraction(len(output), each * rows) for output in outputs]
        count = floor(min(filled)) if on_end == "drop" else ceil(max(filled))
        outputs = [output + [None] * (count * each * rows - len(output)) for output in outputs]
        return [[outputs[m // each][(s * each + m % each) * rows :][:rows] for m in range(microbatches)] for s in range(count)]

    @staticmethod
    def numbers(rank: int, ranks: int, microbatches: int) -> range:
        """The numbers of the microbatches of a step that a rank yields."""
        if microbatches % ranks:
            raise ValueError("the ranks must divide the microbatches of a step")
        return range(rank * microbatches // ranks, (rank + 1) * microbatches // ranks)

    def owned(self, dataset: int, lane: int, epoch: int) -> list[tuple[int, int]]:
        """The lane's part of an epoch of a dataset: (unit, position in it), in order."""
        units = self.datasets[dataset].units
        words = self.seeds[dataset], epoch
        as_stored = [(number, position) for number, unit in enumerate(units) for position in range(unit.length)]
        if self.shuffle == "rows":
            line = [as_stored[feistel(place, len(as_stored), *words)] for place in range(len(as_stored))]
        else:
            pieces = [[place for place in as_stored if place[0] == number] for number in range(len(units))]
            if self.shuffle == "blocks":
                pieces = [list(p) for _, p in groupby(as_stored, key=lambda place: (place[0], place[1] // units[place[0]].block))]
            order = permutation(len(pieces), *words) if self.shuffle else range(len(pieces))
            line = [place for number in order for place in pieces[number]]
        part = (lane + epoch) % self.lanes
        return line[part * len(line) // self.lanes : (part + 1) * len(line) // self.lanes]

    def parts(self, dataset: int, lane: int, epoch: int) -> list[tuple[int, int, int, int]]:
        """The same as runs of positions in one row block: (unit, block, start, stop)."""
        units = self.datasets[dataset].units
        runs = groupby(self.owned(dataset, lane, epoch), key=lambda place: (place[0], place[1] // units[place[0]].block))
        found = [(unit, block, [position for _, position in places]) for (unit, block), places in runs]
        return [(unit, block, positions[0], positions[-1] + 1) for unit, block, positions in found]

    def row_at(self, dataset: int, epoch: int, unit: int, position: int) -> Row:
        """The row that has a position of a unit in an epoch."""
        length, rows, sizes = self.datasets[dataset].units[unit]
        block, row = position // rows, position
        if self.shuffle and self.shuffle != "rows":
            in_block = min(rows, length - block * rows)
            row = block * rows + permutation(in_block, self.seeds[dataset], epoch, unit, block)[position % rows]
        return Row(Origin(dataset, epoch, unit, row), sizes[row])

    def draw(self, lane: int) -> Iterator[Row]:
        """The rows of a lane, in order."""
        stands = [self._stand(number, lane) for number, weight in enumerate(self.weights) if weight]
        while True:
            limit = self._limit(stands)
            places = [(floor(time), stand.number, stand) for stand in stands if (time := stand.place(limit)) is not None]
            if not places:
                return
            yield min(places)[2].take()

    def run(self, lane: int, chain: Sequence[Stage]) -> Iterator[Row]:
        """The rows that leave a chain of stages, in order."""
        stages = [stage.make(lane) if isinstance(stage, Serial) else stage for stage in chain]
        rows, drawn = self.draw(lane), 0
        row = next(rows, None)
        while row is not None:
            following, drawn = next(rows, None), drawn + 1
            end: Literal["", "segment", "run"] = "run" if following is None else "" if drawn % self.flush_every else "segment"
            yield from _pass_down([row], stages, end)
            row = following

    def _stand(self, number: int, lane: int) -> _Stand:
        num, den = self.datasets[number].ratio
        scale = Fraction(TICKS * num, self.weights[number] * den)
        due = None if self.epochs is None else sum(len(self.owned(number, lane, epoch)) for epoch in range(self.epochs))
        return _Stand(number, scale, self._epochs(number, lane), due)

    def _epochs(self, dataset: int, lane: int) -> Iterator[Row]:
        """The rows of a dataset in a lane, epoch after epoch, for as long as the rules let it go on."""
        must = self.epochs or 0
        repeats = self.max_repeats if self.on_exhausted == "repeat" else 0
        last = None if self.epochs is None or repeats is None else must + repeats
        epoch = empty = 0
        while last is None or epoch < last:
            places = self.owned(dataset, lane, epoch)
            empty = empty + 1 if epoch >= must and not places else 0
            if empty == self.lanes:
                raise EmptyTurn(f"{self.datasets[dataset].name}: {empty} epochs in a row gave lane {lane} no row")
            for unit, position in places:
                yield self.row_at(dataset, epoch, unit, position)
            epoch += 1

    def _limit(self, stands: Sequence[_Stand]) -> Fraction | None:
        """The time from which on nothing is given, where there is one already."""
        ends = [stand.ended_at for stand in stands if stand.ended_at is not None]
        if self.on_exhausted == "stop" and ends:
            return min(ends)
        if self.on_exhausted == "repeat" and len(ends) == len(stands):
            return max(ends)
        return None
