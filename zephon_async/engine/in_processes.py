"""A stateless stage on worker processes, and what is done where they die of it.

Without quarantine that is an error that names the rows. With it, the rows are parted until each stands alone in workers that have
worked nothing before, and one that two of them die of, by the same signal of its own, is left out for good (see `deadly`). Nothing
is left out for what may come from elsewhere: a kill, or a time that was over.

Threads: all on the engine's loop.
"""

from collections import Counter
from dataclasses import replace

from zephon_async.engine.stage import Stateless
from zephon_async.errors import BadRecord, WorkerDied
from zephon_async.operators import Tally
from zephon_async.records import Parcel, Records
from zephon_async.runners import Need, ProcessRunner


async def run_in_processes(processes: ProcessRunner, stage: Stateless, work: Parcel, need: Need) -> tuple[Parcel, float]:
    """What a stage makes of a parcel, and the seconds that it ran."""
    assert stage.portable is not None
    work = stage.policy.spared(stage.numbers[0], work)
    if work.records is None or not len(work):
        return work, 0.0
    try:
        return await processes.run(stage.portable, work, need)
    except WorkerDied as died:
        if died.signal is None or not stage.policy.quarantine:
            raise _named(stage, work.records, died) from died
        return await _apart(processes, stage, work, work.records, need)


async def _apart(processes: ProcessRunner, stage: Stateless, work: Parcel, records: Records, need: Need) -> tuple[Parcel, float]:
    """A parcel whose rows killed a worker, in two halves; a single row in fresh workers."""
    n = len(records)
    done, busy_s, tally = list[Records](), 0.0, Counter(work.counts)
    for part in (records.slice(0, n // 2), records.slice(n // 2, n)) if n > 1 else (records,):
        parcel, part_s = await _part(processes, stage, part, need)
        busy_s += part_s
        tally.update(parcel.counts)
        if parcel.records is not None:
            done.append(parcel.records)
        if parcel.failure is not None:
            return Parcel(Records.concat(done) if done else None, work.end, parcel.failure, tally), busy_s
    return Parcel(Records.concat(done) if done else None, work.end, work.failure, tally), busy_s


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
        stage.policy.skip(records, 0, BadRecord(f"two worker processes died of it: {died.signal.name}"), tally)
        return Parcel(None, counts=tally), 0.0


def _named(stage: Stateless, records: Records, died: WorkerDied) -> WorkerDied:
    policy, n = replace(stage.policy, row_name=None), len(records)
    places = " to ".join(policy.place(records, row) for row in sorted({0, n - 1}))
    return WorkerDied(f"{stage.name} on {n} row{'s' * (n > 1)}, {places}: {died}", died.signal)
