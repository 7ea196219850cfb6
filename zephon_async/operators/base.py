"""What an operator promises.

An operator is a step of the pipeline. It may have a stateless half (`apply`, `apply_async`), a serial half (`accumulator`), or
both; the stateless half comes first.

Stateless means row-wise: `apply(a + b)` is `apply(a)` followed by `apply(b)`, for any cut. It runs on several workers at
once, so it keeps nothing between calls but what is thread-local, and it may be run again on the same rows.

The serial half is an `Accumulator`: one per lane, called by one thread at a time, which sees every record of its lane in order.
It has no `get_state`: it is restarted from *marks* (see `Marks`), and any randomness of it is keyed by output numbers. One that
can give no marks says `needs_flush` and is flushed at the end of every segment instead. After `flush` it must equal a new one
that is told the number of its next output (and what it carries over the flush, see `Carrying`).

`tally` collects what was left out or made up, by name (`documents_dropped`, `tokens_dropped`, `padding_tokens`, ...).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from zephon_async.records import Marks, Records

Columns: TypeAlias = frozenset[str] | None
"""Names of columns; None means all there are."""

Tally: TypeAlias = Counter[str]

KINDS = ("string", "integers", "text", "any")
"""The kinds of columns that an operator may require."""

NO_MARKS = Marks([], [], [])


class RecordFailed(Exception):
    """Raised by `apply`, and by an accumulator, for record `at` of its input, with the cause chained.

    done: what came of the records before it. An accumulator may say more: `marks`, as from `push`, that hold if the record is left
    out; and `failed`, the records that failed together, of which `at` is the last that was pushed (None: that record alone).
    """

    def __init__(self, at: int, done: Records | None, marks: Marks = NO_MARKS, failed: Records | None = None) -> None:
        super().__init__(at)
        self.at, self.done, self.marks, self.failed = at, done, marks, failed


class Accumulator(Protocol):
    """The serial half of an operator, for one lane."""

    given: int
    """The number of the next output."""
    held_rows: int
    """Input rows that have not gone out yet, wholly or in part."""
    held_bytes: int

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        """Take rows (at least one), the first `skip` tokens of the first of them left out.

        Gives the outputs that are complete (None where there is none), and marks; among them, where it can be restarted there,
        one for the output that comes next. Raises `RecordFailed` for records that cannot be taken. If the cause is a `BadRecord`
        that the run skips, the rows behind record `at` are pushed next, and all goes on as if those that failed had not come.
        """

    def flush(self, tally: Tally) -> Records | None:
        """Give out all that is held. Afterwards this equals a new accumulator told `given`, also where it raises `RecordFailed`."""


class Carrying(Accumulator, Protocol):
    """An accumulator of which a few whole numbers outlive a flush. They go into checkpoints, so they must not grow with the run."""

    @property
    def carried(self) -> tuple[int, ...]:
        """The numbers; asked for behind a flush."""

    def carry(self, carried: tuple[int, ...]) -> None:
        """Told to a new one before its first row, which then equals the one that was flushed. Nothing at the start of a run."""


class Operator:
    """A step of the pipeline. Subclass it and override `apply`, or `accumulator`, or both."""

    name: str = "operator"
    parallelism: int | None = None
    """How many workers run `apply` at once at most; None: as many as there are."""
    concurrency: int | None = None
    """Not None: `apply_async` is awaited on the users' loop instead of `apply` on a worker, for so many records at once."""
    stateless: bool = False
    """True where there is an `apply` (set by itself for subclasses that override it)."""
    serial: bool = False
    """True where there is an `accumulator` (likewise)."""
    survives: bool = False
    """True where the accumulator can go on after a `RecordFailed`, see `Accumulator.push`; without it a bad record ends the run."""
    needs_flush: bool = False
    """True where the accumulator gives no marks."""
    carries: bool = False
    """True where the accumulator, which is flushed, is a `Carrying` one."""
    keeps_columns: bool = False
    """True where all columns go through as they are, so that what later operators require is asked of the datasets."""
    learns: bool = False
    """True where `learn` has something to find out."""
    releases_gil: bool = False
    """True where `apply` spends its time in libraries that let other threads run meanwhile."""
    gives_views: bool = True
    """False where users' code gets values made of the input and no view of it, which may then lie in memory that is used again."""
    runner: str | None = None
    """Where `apply` runs, "threads" or "processes"; None: as the options say."""
    keep_columns: Sequence[str] = ()
    """Columns that it was told to keep beside its own; where none of the later operators has a use for one, the log says so."""
    token_column: str | None = None
    """The output column of token ids that `apply` makes, if it does: tokens are counted there."""
    token_field: str | None = None
    """The input column of token ids, or of the text that becomes them: sizes are measured there."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.stateless = cls.apply is not Operator.apply or cls.apply_async is not Operator.apply_async
        cls.serial = cls.accumulator is not Operator.accumulator

    def settings(self) -> Mapping[str, Any]:
        """What of this operator decides the data: plain values (None, bool, int, str, bytes, lists, dicts). It is fingerprinted.

        So is the source of the class of an operator of one's own. What that does not show (what it calls) needs a "version" here.
        """
        return {}

    def reads(self, wanted: Columns) -> Columns:
        """The input columns it takes to give the output columns `wanted`."""
        return wanted

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        """The exact schema of what it gives for columns of `schema` (None: unknown); None where it cannot tell.

        Asked once at the start, after `recall`. Rows that are made up (`on_end="pad"`) have the schema that the last operator
        tells. Raise `RecipeError` for columns that cannot be taken.
        """
        return None

    def requires(self) -> Mapping[str, str]:
        """Input columns that must be there, with their kind, one of `KINDS`: "string", "integers" (a list), "any", or "text" (or
        bytes, of which it makes text)."""
        return {}

    def told(self, datasets: Sequence[str]) -> None:
        """The names of the datasets, by their numbers in origins. Called once, before anything else runs."""

    def learn(self, records: Records) -> Any:
        """Look at up to 64 rows at the start, the same on every rank. What it gives (plain values) goes into the checkpoint."""
        return None

    async def learn_async(self, records: Records) -> Any:
        """`learn` for an operator with `concurrency`, awaited on the users' loop."""
        return self.learn(records)

    def recall(self, learned: Any) -> None:
        """Take what `learn` gave, here or in the run that is resumed. Called once, before anything else runs."""

    def apply(self, records: Records, tally: Tally) -> Records:
        """The stateless half. Raise `RecordFailed` to say which record failed; of anything else the engine finds out.

        `records.with_columns(batch)` gives the same rows other columns, `records.take(numbers)` gives some of the rows.
        """
        raise TypeError(f"{self.name} has no stateless half")

    async def apply_async(self, records: Records, tally: Tally) -> Records:
        """The stateless half of an operator with `concurrency`."""
        raise TypeError(f"{self.name} has no asynchronous half")

    def accumulator(self, lane: int, first: int) -> Accumulator:
        """A new accumulator for `lane` whose first output has the number `first`."""
        raise TypeError(f"{self.name} has no serial half")

    def holds_rows(self) -> int:
        """Input rows that the accumulator must hold before it gives any."""
        return 0

    def takes_rows(self, rows: int, row_tokens: float | None) -> int | None:
        """Input rows that the accumulator takes to give its first `rows`, where none is left out.

        row_tokens: tokens of an input row on average (None: not known). None where it cannot be foreseen.
        """
        holds = self.holds_rows()
        return -(-rows // holds) * holds if holds else rows

    def holds_bytes(self, row_bytes: int) -> int:
        """Bytes that the accumulator must hold, for input rows of `row_bytes` on average."""
        return self.holds_rows() * row_bytes

    def row_bytes(self, row_bytes: int) -> int:
        """Bytes of an output row, for input rows of `row_bytes` on average. The same, where it cannot be known."""
        return row_bytes
