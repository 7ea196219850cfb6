"""A stateless stage on worker processes, and what is done where they die of it.

Without quarantine that is an error that names the rows. With it, the rows are parted until each stands alone in workers that have
worked nothing before, and one that two of them die of, by the same signal of its own, is left out for good (see `deadly`). Nothing
is left out for what may come from elsewhere: a kill, or a time that was over.

Threads: all on the engine's loop.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from zephon_async.engine.stage import Stateless
from zephon_async.errors import BadRecord, WorkerDied
from zephon_async.operators import Tally
from zephon_async.records import Parcel, Records, Skipped, between
from zephon_async.runners import Need, ProcessRunner


async def run_in_processes(processes: ProcessRunner, stage: Stateless, work: Parcel, need: Need) -> tuple[Parcel, float]:
    """What a stage makes of a parcel, and the seconds that it ran."""
    work = stage.policy.spared(stage.numbers[0], work)
    if not work.skipped and len(work):  # as nearly always
        return await _piece(processes, stage, work, need)
    made, busy_s = _Joined(work), 0.0
    for skipped, records in between(work.records, work.skipped):
        made.leave_out(skipped)
        if records is not None and made.failure is None:
            parcel, piece_s = await _piece(processes, stage, Parcel(records), need)
            made.add(parcel)
            busy_s += piece_s
    return made.parcel(), busy_s


class _Joined:
    """What is made of a parcel piece by piece, up to the first failure."""

    def __init__(self, of: Parcel) -> None:
        self._of, self._records, self._rows = of, list[Records](), 0
        self._tally: Tally = Counter(of.counts)
        self._skipped = list[Skipped]()
        self.failure: BaseException | None = None

    def leave_out(self, skipped: Sequence[Skipped]) -> None:
        if self.failure is None:
            self._skipped += [each._replace(at=self._rows) for each in skipped]

    def add(self, parcel: Parcel) -> None:
        self._tally.update(parcel.counts)
        self._skipped += [each._replace(at=each.at + self._rows) for each in parcel.skipped]
        self.failure = parcel.failure
        if parcel.records is not None:
            self._records.append(parcel.records)
            self._rows += len(parcel)

    def parcel(self) -> Parcel:
        records = Records.concat(self._records) if self._records else None
        return self._of.made(records, self.failure or self._of.failure, self._tally, self._skipped)


async def _piece(processes: ProcessRunner, stage: Stateless, work: Parcel, need: Need) -> tuple[Parcel, float]:
    assert stage.portable is not None
    assert work.records is not None
    try:
        return await processes.run(stage.portable, work, need)
    except WorkerDied as died:
        if died.signal is None or not stage.policy.quarantine:
            raise _named(stage, work.records, died) from died
        return await _apart(processes, stage, work, work.records, need)


async def _apart(processes: ProcessRunner, stage: Stateless, work: Parcel, records: Records, need: Need) -> tuple[Parcel, float]:
    """A parcel whose rows killed a worker, in two halves; a single row in fresh workers."""
    n = len(records)
    made, busy_s = _Joined(work), 0.0
    for part in (records.slice(0, n // 2), records.slice(n // 2, n)) if n > 1 else (records,):
        parcel, part_s = await _part(processes, stage, part, need)
        busy_s += part_s
        made.add(parcel)
        if made.failure is not None:
            break
    return made.parcel(), busy_s


async def _part(processes: ProcessRunner, stage: Stateless, records: Records, need: Need) -> tuple[Parcel, float]:
    assert stage.portable is not None
    try:
        return await processes.run(stage.portable, Parcel(records), need, deaths=2, fresh=len(records) == 1)
    except WorkerDied as died:
        if died.signal is None:
            raise _named(stage, records, died) from died
        if len(records) > 1:
            return await _apart(processes, stage, Parcel(records), records, need)
        tally: Tally = Counter()
        stage.policy.deadly.add(stage.numbers[0], records, 0)
        error = BadRecord(f"two worker processes died of it: {died.signal.name}")
        skipped = [stage.policy.skip(records, 0, 0, error, tally)]
        return Parcel(None, counts=tally, skipped=skipped), 0.0


def _named(stage: Stateless, records: Records, died: WorkerDied) -> WorkerDied:
    policy, n = replace(stage.policy, row_name=None), len(records)
    places = " to ".join(policy.place(records, row) for row in sorted({0, n - 1}))
    return WorkerDied(f"{stage.name} on {n} row{'s' * (n > 1)}, {places}: {died}", died.signal)
