"""What is found out before a run: catalogs, one schema, tokens per byte, learned types, the recipe.

Takes a `Spec` and gives a `Prepared`; runs in the caller's thread, before any lane. What it measures (`facts`) goes into the
checkpoint, so a resumed run takes it from there.
"""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import one_of
from zephon_async.engine.budget import Budget, Need, divide
from zephon_async.engine.gather import Chunk, Policy, gather, sound
from zephon_async.engine.recipe import Known, Spec, recipe_of
from zephon_async.engine.trial import judge, run, try_operators
from zephon_async.errors import DatasetError, RecipeError, ShardError, ZephonError
from zephon_async.io import Access, Catalog, Reader, StorageOptions, dataset_schema, row_sizes, unify
from zephon_async.kinds import list_lengths
from zephon_async.lanes import Topology
from zephon_async.loops import LoopThread
from zephon_async.operators import KINDS, Columns, Finding, Operator, is_interrupt
from zephon_async.options import Options
from zephon_async.records import ORIGIN, Names, Parcel, Pick
from zephon_async.work import Plan, Unit, WorkSource, measured, sample_blocks

_log = logging.getLogger("zephon_async")
_USUAL_UNITS = 8
_REMEMBERED = 16  # one part in so many of the budget is for what is read to plan


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """All that is known before a run."""

    known: Known
    plan: Plan
    reader: Reader
    budget: Budget
    row_tokens: float | None  # of a row of the datasets, about; None where tokens are not estimated
    catalogs: tuple[Catalog, ...]
    schema: pa.Schema
    access: Access  # of remote shards
    findings: Sequence[Finding]  # of the operators
    users: LoopThread  # on which a trial has run coroutines: theirs in the run must find the same loop


def prepare(
    spec: Spec, facts: Mapping[str, Any] | None, begun: Callable[[Access], object] = lambda access: None, fully: bool = False
) -> Prepared:
    """Find out everything; `facts` are those of a run that is resumed. begun: is told by what it is read, which may be closed.

    fully: check operators with code of a user fully, and judge nothing.
    """
    topology = _topology(spec.options)
    access = Access(StorageOptions.of(spec.options.io_options), spec.options.budget_bytes // _REMEMBERED)
    users = LoopThread("zephon-users")
    begun(access)
    try:
        prepared = _prepare(spec, facts, topology, access, users, fully)
    except BaseException:
        access.close(1.0)
        users.close(1.0)
        raise
    access.started()
    return prepared


def _prepare(
    spec: Spec, facts: Mapping[str, Any] | None, topology: Topology, access: Access, users: LoopThread, fully: bool
) -> Prepared:
    source, operators, options = spec.source, spec.operators, spec.options
    datasets = source.datasets
    lenient = options.on_bad_record == "quarantine"
    catalogs = tuple(dataset.catalog(access, lenient) for dataset in datasets)
    for catalog in catalogs:
        _few_lost(catalog, options.max_bad)
    _enough_rows(catalogs, topology.lanes, source.finite)
    names = Names(tuple(c.dataset for c in catalogs), tuple(tuple(shard.name for shard in c.shards) for c in catalogs))
    for operator in operators:
        operator.told(names.datasets)
    needed, required, by = _columns(operators)
    schema = unify(
        {dataset.name: dataset_schema(dataset, needed, required, source.seed, by, access, lenient) for dataset in datasets}
    )
    sizes = _sizes(source, operators, schema)
    reader = Reader(datasets, schema, sizes, required=set(required), access=access, lenient=lenient)
    policy = Policy(names, quarantine=True, quiet=True)
    found, findings = dict(facts or {}), list[Finding]()
    try:
        if facts is None:  # types before tokens: what measures tokens may need them
            tried = try_operators(spec, source.plan(catalogs, {}, topology.lanes), reader, policy, users, fully)
            found |= tried.learned
            findings = tried.findings
            judge([] if fully else findings, options.validate)
        else:
            _recall(operators, facts)
        output = _output(operators, schema, found, must_tell=source.finite and options.on_end == "pad")
        if source.token_estimation is not None and "ratios" not in found:
            ratios_found = _ratios(source, catalogs, operators, reader, policy, users)
            found["ratios"] = {name: list(pair) for name, pair in ratios_found.items()}  # as they come out of a checkpoint
        ratios = {name: (pair[0], pair[1]) for name, pair in found.get("ratios", {}).items()}
        plan = source.plan(catalogs, ratios, topology.lanes)
        usual = _usual(plan, reader, source.unit)
        size = spec.microbatch_size
        need = Need.of(operators, size, options.prefetch, options.chunk_rows, usual.row_bytes, usual.block_bytes)
        remote = any(dataset.store.remote for dataset in datasets)
        budget = divide(options.budget_bytes, len(topology.owned), need, len(datasets), remote, reader.opened_bytes)
    finally:
        reader.close()
    access.bound(budget.remembered_bytes, budget.remembered_bytes)
    reader = Reader(
        datasets,
        schema,
        sizes,
        required=set(required),
        open_bytes=budget.open_bytes,
        spill_bytes=StorageOptions.of(options.io_options).spill_limit,
        access=access,
        lenient=lenient,
    )
    known = Known(topology, names, output, *recipe_of(spec, topology), found)
    return Prepared(known, plan, reader, budget, usual.row_tokens, catalogs, schema, access, findings, users)


def _few_lost(catalog: Catalog, most: int | float) -> None:
    """Name the shards that are broken as a whole; each counts as a record. Raises `DatasetError` where there are too many."""
    for error in catalog.lost.values():
        _log.warning("left out a shard: %s", error)
    if len(catalog.lost) == len(catalog.shards) > 0:
        shards, first = len(catalog.shards), next(iter(catalog.lost.values()))
        those = "its one shard is" if shards == 1 else f"all of its {shards:,} shards are"
        raise ShardError(f"dataset {catalog.dataset!r}: {those} broken, so that nothing would be left: {first}") from first
    if len(catalog.lost) > (most * len(catalog.shards) if isinstance(most, float) else most):
        raise DatasetError(
            f"dataset {catalog.dataset!r}: {len(catalog.lost):,} of {len(catalog.shards):,} shards are broken, more than "
            f"options(max_bad={most}) allows; the first: {next(iter(catalog.lost.values()))}"
        )


def _topology(options: Options) -> Topology:
    if options.lanes is None and options.dp_size > 1:
        raise RecipeError(
            f"lanes must be given when dp_size is {options.dp_size}: they decide the data and must stay the same on any number of "
            "ranks; a multiple of every dp_size you may want is a good choice, such as .options(lanes=64)"
        )
    lanes = options.lanes or 1
    return Topology(lanes, options.microbatches_per_step or lanes, options.dp_size, options.dp_rank)


def _enough_rows(catalogs: Sequence[Catalog], lanes: int, finite: bool) -> None:
    counts = [catalog.rows for catalog in catalogs]
    rows = sum(count for count in counts if count is not None)
    if None in counts or (not rows and finite):  # no row at all is an empty pass
        return
    if not rows:
        named = ", ".join(repr(catalog.dataset) for catalog in catalogs)
        raise RecipeError(
            f"no dataset has a row ({named}), so they cannot be repeated without an end; set epochs=1, or give other data"
        )
    if rows < lanes:
        raise RecipeError(
            f"there are more lanes ({lanes}) than rows in all datasets ({rows}); set options(lanes=...) to {rows} or fewer"
        )


def _columns(operators: Sequence[Operator]) -> tuple[Columns, dict[str, str], dict[str, str]]:
    """The columns that are needed of the datasets, those that must be there with their kinds, and which operator requires each."""
    needed: Columns = None
    for operator in reversed(operators):
        if needed is not None and (unused := [repr(name) for name in operator.keep_columns if name not in needed]):
            _log.warning(
                "%s(keep_columns=...) keeps %s, but no later operator uses it or passes it on; it is read in vain, leave it out",
                operator.name,
                ", ".join(unused),
            )
        needed = operator.reads(needed)
    required: dict[str, str] = {}
    by: dict[str, str] = {}
    for operator in operators:
        for name, kind in _required(operator).items():
            known = required.get(name, "any")
            if known != kind and "integers" in (known, kind) and "any" not in (known, kind):
                raise RecipeError(
                    f"{by[name]} and {operator.name} both take column {name!r}, but one needs text and one a list of integers: "
                    "one of them names the wrong column"
                )
            if known == "any":
                required[name], by[name] = kind, operator.name
        if not operator.keeps_columns:
            break  # what comes later may be made by this one
    return needed, required, by


def _required(operator: Operator) -> Mapping[str, str]:
    """What an operator requires, which may be one of a user's."""
    required: Any = operator.requires()
    if not isinstance(required, Mapping) or not all(isinstance(name, str) for name in required):
        raise RecipeError(
            f"{operator.name}: requires() gave {required!r:.80}, wanted a dict of kinds by the names of columns, such as "
            "{'text': 'string'}"
        )
    for name, kind in required.items():
        one_of(f"{operator.name}: requires() wants a kind for column {name!r} that", kind, KINDS)
    return required


def _sizes(source: WorkSource, operators: Sequence[Operator], schema: pa.Schema) -> Any:
    """How big a row is in the plan's unit."""
    if source.unit == "samples":
        return _ones
    field = next((operator.token_field for operator in operators if operator.token_field is not None), None)
    columns = [field] if field is not None and field in schema.names else list(schema.names)
    return lambda batch: row_sizes(batch, columns)


def _ones(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    return np.ones(batch.num_rows, np.int64)


def _ratios(
    source: WorkSource,
    catalogs: Sequence[Catalog],
    operators: Sequence[Operator],
    reader: Reader,
    policy: Policy,
    users: LoopThread,
) -> dict[str, tuple[int, int]]:
    """Tokens per byte of each dataset: pinned, or measured on a sample."""
    estimation = source.token_estimation
    assert estimation is not None
    until = _last_of_tokens(operators)
    ratios = {}
    for d, catalog in enumerate(catalogs):
        pinned = estimation.pinned(catalog.dataset)
        if pinned is None and until is None:
            raise RecipeError(
                "weights are ratios of tokens, but no operator makes tokens to measure; add tokenize() or pack_flat(), "
                "pin the ratio with TokenEstimation(0.25), or use unit='bytes' or 'samples'"
            )
        if pinned is None and until is not None and len(catalog.units):
            tokens = size = 0
            for unit, number in sample_blocks(catalog, source.seed, estimation.blocks):
                block = reader.read(d, unit, number)
                index, _ = sound(block, np.arange(min(estimation.rows, len(block.rows))))
                if not len(index):
                    continue
                size += int(block.sizes[index].sum())
                tokens += _tokens(gather(Chunk([Pick(d, 0, block, index)]), policy), operators[: until + 1], policy, users)
            pinned = measured(catalog.dataset, tokens, size)
        ratios[catalog.dataset] = pinned or (1, 1)
    return ratios


def _last_of_tokens(operators: Sequence[Operator]) -> int | None:
    """The number of the operator behind which tokens are counted: the last that makes them of one record, or the first with any."""
    first = next((i for i, operator in enumerate(operators) if operator.token_field is not None), None)
    alone = itertools.takewhile(lambda operator: not operator.serial, operators)
    return max((i for i, operator in enumerate(alone) if operator.token_column is not None), default=first)


def _tokens(parcel: Parcel, operators: Sequence[Operator], policy: Policy, users: LoopThread) -> int:
    for operator in operators:
        if operator.stateless:
            parcel = run(operator, parcel, policy, users)
    last = operators[-1]
    column = last.token_column or last.token_field
    if parcel.failure is not None and (parcel.records is None or is_interrupt(parcel.failure)):
        raise parcel.failure  # nothing came through, or it is a Ctrl-C; else it will be raised in its place
    if parcel.records is None or column is None:
        return 0
    return int(list_lengths(parcel.records.columns.column(column)).sum())


def _recall(operators: Sequence[Operator], facts: Mapping[str, Any]) -> None:
    for i, operator in enumerate(operators):
        if operator.learns:
            operator.recall(facts.get(f"learned {i}"))


def _output(operators: Sequence[Operator], schema: pa.Schema, facts: Mapping[str, Any], must_tell: bool) -> pa.Schema | None:
    """The schema of what comes out at the end. `must_tell`: it has to be known, unless there was no row to learn it from."""
    known: pa.Schema | None = schema
    silent = ""
    for operator in operators:
        before, known = known, operator.output(known)
        silent = operator.name if known is None and before is not None else silent
    learned = all(f"learned {i}" in facts for i, operator in enumerate(operators) if operator.learns)
    if known is None and must_tell and learned:
        raise RecipeError(
            f"on_end='pad' makes up rows, but {silent} does not tell what columns it gives: pass schema= to it, or, if it is an "
            "operator of your own, give it a method output(schema); on_end='drop' needs neither"
        )
    return known


class _Usual(NamedTuple):
    """What rows are like: bytes in memory of one and of a row block, and tokens of one where they are estimated."""

    row_bytes: int = 0
    block_bytes: int = 0
    row_tokens: float | None = None


def _usual(plan: Plan, reader: Reader, unit: Unit) -> _Usual:
    """As in the first row block of the dataset of the greatest weight that has one."""
    for d in sorted(range(len(plan.datasets)), key=lambda d: -plan.weights[d]):
        for number in range(min(_USUAL_UNITS, len(plan.datasets[d].catalog.units))):  # the first may be broken
            try:
                block = reader.read(d, number, 0)
            except ZephonError:  # it is raised again in its place
                return _Usual()
            if rows := len(block.rows):
                tokens, size = plan.ratios[d]
                row_tokens = float(block.sizes.mean()) * tokens / size if unit == "tokens" else None
                return _Usual(block.nbytes // rows + ORIGIN.itemsize, block.nbytes, row_tokens)
    return _Usual()
