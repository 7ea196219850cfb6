"""What runs on workers, many at once: gathering a chunk, and the stateless operators of a stage.

Takes values and gives values; nothing here waits or touches a loop. A failure is a field of the parcel, behind the rows that
came before it, so that it reaches the consumer in its place.

Threads: everything here may run on many workers at once and keeps nothing.
"""

from collections import Counter
from dataclasses import dataclass, replace

from zephon_async.engine.blame import blamed
from zephon_async.engine.gather import Chunk, Policy, gather
from zephon_async.engine.placement import Placement
from zephon_async.errors import BadRecord
from zephon_async.operators import Operator, RecordFailed, Tally, what_is_wrong
from zephon_async.records import Parcel, Records, Skipped, between
from zephon_async.runners import Portable, ask, deliverable


@dataclass(frozen=True, slots=True, eq=False)
class Stateless:
    """Consecutive stateless operators of one setting, fused into one call, with their numbers in the pipeline."""

    numbers: tuple[int, ...]
    operators: tuple[Operator, ...]
    policy: Policy
    placement: Placement
    gathers: bool = False
    portable: Portable | None = None
    """The same for worker processes, where it runs there."""

    @property
    def name(self) -> str:
        return "+".join((*(["read"] if self.gathers else []), *(operator.name for operator in self.operators)))

    @property
    def parallelism(self) -> int | None:
        return self.operators[0].parallelism if self.operators else None

    @property
    def concurrent(self) -> bool:
        """Runs on the users' loop."""
        return bool(self.operators) and self.operators[0].concurrency is not None

    def portably(self) -> "Stateless":
        """This stage for worker processes: they ask the engine what to call a row, since only that has the shards."""
        here = replace(self, policy=replace(self.policy, row_name=ask))
        return replace(self, portable=Portable(here, copies=any(operator.gives_views for operator in self.operators)))

    def run(self, work: Parcel | Chunk) -> Parcel:
        """Apply the operators one after the other to all rows. Whatever fails is a field of the parcel."""
        try:
            parcel = gather(work, self.policy) if isinstance(work, Chunk) else work
            for number, operator in zip(self.numbers, self.operators, strict=True):
                parcel = apply(operator, self.policy.spared(number, parcel), self.policy)
        except BaseException as error:
            return Parcel(None, work.end, deliverable(error), drawn=work.drawn)
        return parcel

    async def run_async(self, work: Parcel) -> Parcel:
        """The same on the users' loop."""
        parcel = work
        try:
            for number, operator in zip(self.numbers, self.operators, strict=True):
                parcel = await apply_async(operator, self.policy.spared(number, parcel), self.policy)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            return work.made(None, deliverable(error))
        return parcel


def apply(operator: Operator, parcel: Parcel, policy: Policy) -> Parcel:
    """Apply one operator. Rows behind a failing one are given up, those before it go on.

    Rows between bad records that were left out before are worked by themselves, so that it is known how many come before each.
    """
    outcome = _Outcome(operator, parcel, policy)
    while (rest := outcome.rest) is not None:
        tally: Tally = Counter()
        try:
            records = operator.apply(rest, tally)
        except RecordFailed as failed:
            outcome.failed(failed, tally)
        except BaseException as error:
            outcome.failed(_find(operator, rest, error), Counter())
        else:
            outcome.given(records, tally)
    return outcome.parcel()


async def apply_async(operator: Operator, parcel: Parcel, policy: Policy) -> Parcel:
    """`apply` for an operator with `concurrency`."""
    outcome = _Outcome(operator, parcel, policy)
    while (rest := outcome.rest) is not None:
        tally: Tally = Counter()
        try:
            records = await operator.apply_async(rest, tally)
        except RecordFailed as failed:
            outcome.failed(failed, tally)
        else:
            outcome.given(records, tally)
    return outcome.parcel()


class _Outcome:
    """What has become of a parcel so far, and the rows that are still to be done."""

    def __init__(self, operator: Operator, parcel: Parcel, policy: Policy) -> None:
        self._operator, self._parcel, self._policy = operator, parcel, policy
        self.rest: Records | None = None
        self._pieces: list[Records] = []
        self._rows = 0
        self._failure = parcel.failure
        self._tally: Tally = Counter(parcel.counts)
        self._skipped: list[Skipped] = []
        self._between = between(parcel.records, parcel.skipped)
        self._next()

    def _next(self) -> None:
        """Go on to the next rows between bad records."""
        while self.rest is None and (piece := next(self._between, None)) is not None:
            self._skipped += [each._replace(at=self._rows) for each in piece[0]]
            self.rest = piece[1] if piece[1] is not None and len(piece[1]) else None

    def given(self, records: Records, tally: Tally) -> None:
        """What the operator gave for all of `rest`."""
        if wrong := what_is_wrong(records):
            assert self.rest is not None
            error = TypeError(f"{self._operator.name}: apply gave {wrong}")
            place = f"among rows that begin with {self._policy.place(self.rest, 0)}"
            self._failure, self.rest = blamed(error, self._operator.name, place), None
        else:
            self._done(records, tally)
            self._next()

    def _done(self, records: Records | None, tally: Tally) -> None:
        self._tally.update(tally)
        if records is not None and len(records):
            self._pieces.append(records)
            self._rows += len(records)
        self.rest = None

    def failed(self, failed: RecordFailed, tally: Tally) -> None:
        assert self.rest is not None
        rest, cause = self.rest, failed.__cause__ or failed
        self._done(failed.done, tally)
        if isinstance(cause, BadRecord) and self._policy.quarantine:
            self._skipped.append(self._policy.skip(rest, failed.at, self._rows, cause, self._tally))
            self.rest = rest.slice(failed.at + 1, len(rest)) if failed.at + 1 < len(rest) else None
            self._next()
            return
        place = self._policy.place(rest, failed.at) if failed.at < len(rest) else "an unknown record"
        self._failure = blamed(cause, self._operator.name, place)

    def parcel(self) -> Parcel:
        records = Records.concat(self._pieces) if self._pieces else None
        return self._parcel.made(records, self._failure, self._tally, self._skipped)


def _find(operator: Operator, records: Records, error: BaseException) -> RecordFailed:
    """Which record made a row-wise operator fail as a whole: halve until it is alone."""
    done: list[Records] = []
    start, stop, failing = 0, len(records), error
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            done.append(operator.apply(records.slice(start, middle), Counter()))
            start = middle
        except RecordFailed as failed:
            failing, stop = failed.__cause__ or failed, middle
        except BaseException as raised:
            failing, stop = raised, middle
    found = RecordFailed(start, Records.concat(done) if done else None)
    found.__cause__ = failing
    return found
