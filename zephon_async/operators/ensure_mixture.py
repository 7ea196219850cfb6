"""`ensure_mixture`: put documents in such an order that each dataset has its share of the tokens of every window.

Takes any columns, among them one of token ids, and gives the same; it stands between `tokenize` and `pack_flat`. Estimated ratios
of tokens to bytes, filters and cut documents put the draw off its shares, and only behind them are tokens known.

Every dataset has a time line of its own, on which a token takes 1 / share, and a window is `window_tokens` of it. A document
belongs to the window in which its middle lies, so that at the end of each window a dataset has given its share of all windows so
far, and is off by at most half a document. Documents of the current window go out as they come; those of later ones wait. The
current window is the first one that some dataset has not filled, and when that one has, the waiting documents of the next go out,
window by window, in order of arrival. So nothing is moved that need not be, and one dataset alone is left as it is.

Where more than `buffer_tokens` would wait, the shares cannot be met (a dataset has ended, or too little of it is drawn): the
oldest document that waits goes out ahead of its window (`documents_off_target` and `tokens_off_target` count these). At the end of
a segment all that waits goes out in order of arrival (`documents_flushed`). Both keep their place on the time line, so the dataset
gets less later; how far each one is ahead is what the accumulator carries over the flush, one whole number a dataset.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import one_of, whole
from zephon_async.errors import InternalError, RecipeError
from zephon_async.kinds import is_integers, list_lengths
from zephon_async.operators.base import NO_MARKS, Accumulator, Operator, Tally
from zephon_async.operators.rows import find_field
from zephon_async.records import Marks, Records

ON_OVERFLOW = ("emit", "drop")
_TOKEN_BYTES = 8  # of a token that waits, with what is kept of its neighbours until half of a parcel is out


class EnsureMixture(Operator):
    """Reorder documents so that the tokens of every window are mixed as `target` says."""

    name = "ensure_mixture"
    needs_flush = True
    carries = True
    keeps_columns = True

    def __init__(
        self,
        target: Mapping[str, int],
        *,
        window_tokens: int = 1 << 16,
        buffer_tokens: int = 1 << 20,
        field: str = "input_ids",
        on_overflow: str = "emit",
    ) -> None:
        """target: a whole weight for each dataset, in the order of their numbers.

        window_tokens: tokens of all datasets among which the shares are to hold. buffer_tokens: tokens of a lane that may wait; a
        document without one counts as one. field: a column of lists of integers. on_overflow: what happens where more would wait:
        "emit" (the oldest goes out off target) or "drop" (a document that comes from a dataset that is ahead is dropped and
        counted). Documents wait with all their columns, and the memory budget is told of 8 bytes a token: where much lies beside
        the tokens, as images do, give a smaller buffer_tokens.
        """
        one_of("ensure_mixture: on_overflow", on_overflow, ON_OVERFLOW)
        self.target = {name: whole(f"ensure_mixture: the weight of {name!r}", weight, 1) for name, weight in target.items()}
        self.window_tokens = whole("ensure_mixture: window_tokens", window_tokens, 1)
        self.buffer_tokens = whole("ensure_mixture: buffer_tokens", buffer_tokens, 1)
        self.on_overflow, self.field, self.token_field = on_overflow, field, field

    def settings(self) -> Mapping[str, Any]:
        names = ("target", "window_tokens", "buffer_tokens", "field", "on_overflow")
        return {name: getattr(self, name) for name in names}

    def requires(self) -> Mapping[str, str]:
        return {self.field: "integers"}

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        who = f"ensure_mixture(field={self.field!r})"
        field = find_field(schema, self.field, who)
        if schema is not None and "segment_lengths" in schema.names:
            raise RecipeError(
                f"{who}: the rows are packed already, and have documents of several datasets; put it before the packing"
            )
        if field is not None and not is_integers(field.type):
            raise RecipeError(f"{who}: the column is {field.type}, not a list of integers; put tokenize() before it")
        return schema

    def accumulator(self, lane: int, first: int) -> Accumulator:
        return Mixing(self, first)

    def takes_rows(self, rows: int, row_tokens: float | None) -> int | None:
        return None

    def holds_bytes(self, row_bytes: int) -> int:
        return self.buffer_tokens * _TOKEN_BYTES


class Mixing:
    """The documents that wait, and where each dataset stands on its time line.

    A place on a time line counts in steps of which a token takes `2 * total` (so that half a token is whole) and a window
    `2 * weight * window_tokens`.
    """

    def __init__(self, operator: EnsureMixture, first: int) -> None:
        weights = list(operator.target.values())
        self._operator, self.given = operator, first
        self._half = sum(weights)  # steps of half a token
        self._spans = [2 * weight * operator.window_tokens for weight in weights]  # steps of a window
        self._at = [0] * len(weights)  # places behind what came of each dataset
        self._begin()

    def _begin(self) -> None:
        """Nothing waits. Windows are counted from the first that some dataset has not filled."""
        filled = min(at // span for at, span in zip(self._at, self._spans, strict=True))
        self._at = [at - filled * span for at, span in zip(self._at, self._spans, strict=True)]
        self._filled = [at // span for at, span in zip(self._at, self._spans, strict=True)]  # windows that each has filled
        self._window = 0
        self._queues: list[deque[tuple[int, int, int]]] = [deque() for _ in self._at]  # of each: (row, window, tokens)
        self._waits: set[int] = set()  # their rows
        self._arrived: deque[tuple[int, int]] = deque()  # (row, dataset) of these and of some that have gone
        self._tokens = 0
        self._rows = 0  # that came so far; rows are numbered by it
        self._parcels: list[_Parcel] = []
        self.held_rows = self.held_bytes = 0

    @property
    def carried(self) -> tuple[int, ...]:
        return tuple(self._at)

    def carry(self, carried: tuple[int, ...]) -> None:
        self._at = list(carried or self._at)
        self._begin()

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        if skip:
            raise InternalError(f"ensure_mixture is told to skip {skip} tokens, but it gives no marks")
        segments, bounds = records.origins.segments, records.origins.bounds()
        datasets = segments["dataset"][bounds[:-1]].tolist()
        tokens = list_lengths(records.columns.column(self._operator.field)).tolist()
        order: list[int] = []
        for row, dataset, size in zip(count(self._rows), datasets, tokens, strict=False):
            self._take(row, dataset, size, order, tally)
        return self._go_out(order, records), NO_MARKS

    def flush(self, tally: Tally) -> Records | None:
        order = sorted(self._waits)
        tally["documents_flushed"] += len(order)
        self._waits.clear()
        out = self._go_out(order, None)
        self._begin()
        return out

    def _take(self, row: int, dataset: int, tokens: int, order: list[int], tally: Tally) -> None:
        """Give a document its place; `order` gets the rows that go out."""
        operator, span = self._operator, self._spans[dataset]
        leads, room = self._filled[dataset] > self._window, operator.buffer_tokens - self._tokens
        if leads and operator.on_overflow == "drop" and max(tokens, 1) > room:
            tally["documents_dropped"] += 1
            tally["tokens_dropped"] += tokens
            return
        middle = self._at[dataset] + tokens * self._half
        self._at[dataset] = behind = middle + tokens * self._half
        self._filled[dataset] = behind // span
        window = min(self._filled) if not leads and behind // span > self._window else self._window
        if window == self._window and middle // span <= window:
            order.append(row)
            return
        self._queues[dataset].append((row, middle // span, tokens))
        self._waits.add(row)
        self._arrived.append((row, dataset))
        self._tokens += max(tokens, 1)
        if window > self._window:
            self._window = window
            self._release(order)
        while self._tokens > operator.buffer_tokens:
            self._overflow(order, tally)

    def _release(self, order: list[int]) -> None:
        """Let go what waits for the current window and those before it."""
        due: list[tuple[int, int]] = []
        for queue in self._queues:
            while queue and queue[0][1] <= self._window:
                row, window, tokens = queue.popleft()
                self._gone(row, tokens)
                due.append((window, row))
        order += [row for _, row in sorted(due)]

    def _overflow(self, order: list[int], tally: Tally) -> None:
        """Let the oldest document go."""
        row, dataset = self._arrived.popleft()
        if row not in self._waits:
            return
        _, _, tokens = self._queues[dataset].popleft()
        self._gone(row, tokens)
        order.append(row)
        tally["documents_off_target"] += 1
        tally["tokens_off_target"] += tokens

    def _gone(self, row: int, tokens: int) -> None:
        self._waits.remove(row)
        self._tokens -= max(tokens, 1)

    def _go_out(self, order: list[int], arrived: Records | None) -> Records | None:
        """Rows in an order, behind what arrived; what waits of that is kept."""
        if arrived is not None:
            rows = np.arange(self._rows, self._rows + len(arrived))
            self._rows += len(arrived)
            self._parcels.append(_Parcel(rows, arrived, arrived.nbytes))
        wanted = np.array(order, np.int64)
        of = np.searchsorted([parcel.rows[0] for parcel in self._parcels], wanted, side="right") - 1
        out = _gathered(self._parcels, wanted, of) if order else None
        touched = {*of.tolist(), len(self._parcels) - 1}
        parcels = [parcel.kept(self._waits) if i in touched else parcel for i, parcel in enumerate(self._parcels)]
        self._parcels = [parcel for parcel in parcels if parcel is not None]
        self.held_rows, self.held_bytes = len(self._waits), sum(parcel.nbytes for parcel in self._parcels)
        self.given += len(order)
        return out


class _Parcel(NamedTuple):
    """Rows, by number, some of which wait."""

    rows: npt.NDArray[np.int64]
    records: Records
    nbytes: int

    def kept(self, waits: set[int]) -> "_Parcel | None":
        """What is left of it: all, while more than half waits, else that alone."""
        wait = np.fromiter((row in waits for row in self.rows.tolist()), bool, len(self.rows))
        n = int(np.count_nonzero(wait))
        if 2 * n > len(self.rows):
            return self
        records = self.records.take(np.flatnonzero(wait))
        return _Parcel(self.rows[wait], records, records.nbytes) if n else None


def _gathered(parcels: Sequence[_Parcel], wanted: npt.NDArray[np.int64], of: npt.NDArray[np.int64]) -> Records:
    """Rows by number, `of` which parcels they are: neighbours in one slice, so that nothing is copied more than once."""
    at = np.empty_like(wanted)
    for number in np.unique(of).tolist():
        at[of == number] = np.searchsorted(parcels[number].rows, wanted[of == number])
    begins = np.flatnonzero(np.concatenate(([True], (np.diff(of) != 0) | (np.diff(at) != 1))))
    ends = np.append(begins[1:], len(at))
    runs = zip(of[begins].tolist(), at[begins].tolist(), (ends - begins).tolist(), strict=True)
    return Records.concat([parcels[number].records.slice(start, start + n) for number, start, n in runs])
