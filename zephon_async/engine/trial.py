"""The first rows of a run, before it: what operators learn of them, and whether those with code of a user keep what they promise.

Takes up to 64 rows in plan order, the same on every rank; gives what was learned and what was found. Nothing of it comes out: the
run begins at its first row.

What runs in worker processes is only tried where it has to be, that something behind it may learn: it may be there because it
kills its process. Its source is looked at, as that of all users' functions.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_async.engine.gather import Chunk, Policy, gather, sound
from zephon_async.engine.placement import wished
from zephon_async.engine.recipe import Spec
from zephon_async.engine.serial import Fed, Serial
from zephon_async.engine.stage import apply, apply_async
from zephon_async.errors import RecipeError
from zephon_async.io import Reader
from zephon_async.lanes import Cursor
from zephon_async.loops import LoopThread
from zephon_async.operators import Finding, Operator, is_interrupt, is_own, learned, look_at_source, try_at_start, try_fully
from zephon_async.options import Options
from zephon_async.records import End, Parcel, Pick, Records
from zephon_async.work import Plan

_log = logging.getLogger("zephon_async")
_TRIAL_ROWS = 64


class Tried(NamedTuple):
    """learned: by "learned" and the number of an operator; empty without a row. findings: of what was looked at."""

    learned: dict[str, Any]
    findings: list[Finding]


def judge(findings: Iterable[Finding], validate: str) -> None:
    """Tell findings in the log, or refuse the recipe ("strict")."""
    findings = list(dict.fromkeys(findings))
    if findings and validate == "strict":
        lines = "\n".join(f"  {finding}" for finding in findings)
        raise RecipeError(f"operators do not keep what they promise; options(validate='warn') goes on all the same:\n{lines}")
    for finding in findings:
        _log.warning("%s", finding)


def try_operators(spec: Spec, plan: Plan, reader: Reader, policy: Policy, users: LoopThread, fully: bool) -> Tried:
    """Run the rows up to the last operator that learns or is to be checked. fully: check all that there is to check."""
    operators, checked = spec.operators, _to_check(spec.operators, spec.options, fully)
    check = try_fully if fully else try_at_start
    last = max([*(i for i, operator in enumerate(operators) if operator.learns), *checked], default=-1)
    picks = _first_rows(plan, reader) if last >= 0 else []
    sources = operators if fully or spec.options.validate != "off" else ()
    tried = Tried({}, [finding for operator in sources if is_own(operator) for finding in look_at_source(operator)])
    if not picks:
        return tried
    parcel = gather(Chunk(picks), policy)
    for i, operator in enumerate(operators[: last + 1]):
        if operator.learns:
            if parcel.records is None or not len(parcel):
                raise parcel.failure or RecipeError(
                    f"no rows reach {operator.name} to learn its result types from; give it schema="
                )
            _log.info("%s: its function is tried on %d records to learn its columns", operator.name, len(parcel.records))
            tried.learned[f"learned {i}"] = learned(operator, parcel.records, users)
            operator.recall(tried.learned[f"learned {i}"])
        if i in checked and parcel.records is not None and len(parcel):
            tried.findings.extend(check(operator, parcel.records, users))
        if i < last and operator.stateless:
            parcel = run(operator, parcel, policy, users)
        if i < last and operator.serial:
            parcel = _accumulated(operator, parcel, policy)
        if parcel.failure is not None and is_interrupt(parcel.failure):
            raise parcel.failure
    return tried


def _to_check(operators: Sequence[Operator], options: Options, fully: bool) -> list[int]:
    """The numbers of the operators with code of a user that are to be tried here."""
    if fully or options.validate == "off":
        return [i for i, operator in enumerate(operators) if fully and is_own(operator)]
    last = max((i for i, operator in enumerate(operators) if operator.learns), default=-1)  # they are run here in any case
    here: list[int] = []
    for i, operator in enumerate(operators):
        if i > last and operator.stateless and wished(operator, options).runner == "processes":
            break
        here += [i] if is_own(operator) else []
    return here


def run(operator: Operator, parcel: Parcel, policy: Policy, users: LoopThread) -> Parcel:
    """Apply the stateless half of an operator."""
    if operator.concurrency is None:
        return apply(operator, parcel, policy)
    return users.submit(apply_async(operator, parcel, policy)).result()


def _accumulated(operator: Operator, parcel: Parcel, policy: Policy) -> Parcel:
    """What a new accumulator makes of a parcel, and of its end. If it fails, it will fail again in its place."""
    given = Serial(0, [(0, operator)], Cursor.start(1), policy, None, _TRIAL_ROWS).run([Fed(Parcel(parcel.records, End.RUN), None)])
    full = [fed.parcel.records for fed in given.out if fed.parcel.records is not None]
    return Parcel(Records.concat(full) if full else None, failure=given.failure or parcel.failure)


def _first_rows(plan: Plan, reader: Reader) -> list[Pick]:
    """The first rows that a lane draws; of the first lane that has any."""
    for lane in range(plan.rule.turn):
        draw, picks, rows = plan.draw(lane), [], _TRIAL_ROWS
        current: dict[int, tuple[Any, npt.NDArray[np.integer]]] = {}
        while rows and not draw.done:
            for d, epoch, part in draw.missing():
                block = reader.read(d, part.unit, part.block)
                index, _ = sound(block, plan.datasets[d].select(part, epoch, block))
                current[d] = (block, index)
                draw.supply(d, block.sizes[index], block.last)
            for run in draw.take(rows):
                block, index = current[run.dataset]
                picks.append(Pick(run.dataset, run.epoch, block, index[run.start : run.stop]))
                rows -= run.stop - run.start
        if picks:
            return picks
    return []
