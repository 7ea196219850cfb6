"""From what a pipeline was told to an engine that is ready: in this process, or in a child of it (`isolate=True`)."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from zephon_async.engine import Deadly, Engine, Known, Policy, Spec, compile_chain, prepare
from zephon_async.explain import explain
from zephon_async.io import Access
from zephon_async.isolation import IsolatedEngine
from zephon_async.operators import Operator, ValidationReport


class Started(NamedTuple):
    """An engine, what the consumer's side must know of its runs, and the plan in text."""

    known: Known
    engine: Engine | IsolatedEngine
    explain: Callable[[], str]


Begun: TypeAlias = Callable[[Access], object]


def start(spec: Spec, facts: Mapping[str, Any] | None, deadly: Deadly, begun: Begun = lambda access: None) -> Started:
    """Find out what is not known of the data, and make an engine where the options say; `facts` are of a run that is resumed.

    begun: is told by what remote data is read, which may be closed to end this.
    """
    if spec.options.isolate:
        engine = IsolatedEngine(spec, deadly)
        known, explained = engine.start(facts)
        return Started(known, engine, lambda: explained)
    return start_here(spec, facts, deadly, begun)


def start_here(spec: Spec, facts: Mapping[str, Any] | None, deadly: Deadly, begun: Begun = lambda access: None) -> Started:
    """`start`, in this process."""
    spec = _own_copies(spec)
    options, operators, prepared = spec.options, spec.operators, prepare(spec, facts, begun)
    row_name, quarantine = prepared.reader.row_name, options.on_bad_record == "quarantine"
    policy = Policy(prepared.known.names, quarantine, row_name, options.max_bad, deadly=deadly)
    chain = compile_chain(operators, spec.microbatch_size, options, prepared.budget.need.chunk_rows, policy)
    engine = Engine(options, chain, prepared.plan, prepared.reader, prepared.budget, prepared.access, prepared.users)
    return Started(prepared.known, engine, partial(explain, prepared, chain, options, spec.source))


def examine(spec: Spec) -> ValidationReport:
    """Check the operators with code of a user on the first rows, in this process."""
    prepared = prepare(_own_copies(spec), None, fully=True)
    prepared.reader.close()
    prepared.access.close(1.0)
    prepared.users.close(1.0)
    return ValidationReport(tuple(dict.fromkeys(prepared.findings)))


def _own_copies(spec: Spec) -> Spec:
    """What an operator is told is for one start alone."""
    return replace(spec, operators=tuple(copy(each) if _is_told(each) else each for each in spec.operators))


def _is_told(operator: Operator) -> bool:
    return operator.learns or type(operator).told is not Operator.told
