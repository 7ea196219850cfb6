"""What a pipeline was told, what its consumer's side must know of it, and the recipe: all that decides the data.

The recipe goes into every checkpoint, and a state is only restored where it is the same.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from zephon_async.errors import CheckpointError
from zephon_async.lanes import Topology
from zephon_async.operators import Fingerprint, Operator
from zephon_async.options import RECIPE, Options
from zephon_async.records import Names
from zephon_async.work import WorkSource

_log = logging.getLogger("zephon_async")
_SHORT = 24  # a setting is put into a checkpoint as it is when its text is no longer than this


@dataclass(frozen=True, slots=True, eq=False)
class Spec:
    """What a pipeline was told. `fingerprints`: of its operators, taken where the source of their functions is at hand."""

    source: WorkSource
    operators: tuple[Operator, ...]
    options: Options
    microbatch_size: int
    fingerprints: tuple[Fingerprint, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What the side of the consumer must know of a run: plain values.

    sources: the entries of the recipe that are the hash of a user's source, with what each is the source of.
    """

    topology: Topology
    names: Names
    output: pa.Schema | None  # of a microbatch, where the operators tell
    recipe: Mapping[str, Any]
    sources: Mapping[str, str]
    facts: Mapping[str, Any]


def recipe_of(spec: Spec, topology: Topology) -> tuple[dict[str, Any], dict[str, str]]:
    """Everything that decides the data: short values as they are, others as six bytes of their SHA-256. And what users' sources
    there are among it."""
    source, options = spec.source, spec.options
    recipe: dict[str, Any] = {f"source {name}": value for name, value in source.settings().items()}
    apart = dict[str, Any]()  # by themselves and in full, so that a message says which commit or index to go on with
    for dataset in source.datasets:
        recipe[f"dataset {dataset.name}"] = settings = dataset.settings()
        apart |= {f"dataset {dataset.name} {name}": settings.pop(name) for name in ("commit", "index") if name in settings}
    sources: dict[str, str] = {}
    unread: list[str] = []
    for i, (operator, found) in enumerate(zip(spec.operators, spec.fingerprints, strict=True)):
        at = f"{i + 1} {operator.name}"
        recipe[at] = ""
        recipe |= {f"{at} {name}": value for name, value in found.settings.items()}
        sources |= {f"{at} {name}": of for name, of in found.sources.items()}
        unread += found.unread
    if unread and options.version is None:
        _log.warning(
            "the source of %s cannot be read, so a checkpoint cannot tell it from another of that name: give version= (an operator "
            'of your own: a "version" in its settings()), and change it whenever the code changes',
            ", ".join(dict.fromkeys(unread)),
        )
    recipe |= {name: getattr(options, name) for name in RECIPE if getattr(options, name) is not None}
    recipe |= {"lanes": topology.lanes, "microbatches_per_step": topology.microbatches_per_step}
    recipe["microbatch_size"] = spec.microbatch_size
    return {name: _short(value) for name, value in recipe.items()} | apart, sources


def _short(value: Any) -> Any:
    if value is None or (isinstance(value, bool | int | float | str) and len(repr(value)) <= _SHORT):
        return value
    return hashlib.sha256(msgspec.msgpack.encode(value, order="deterministic")).digest()[:6]


def differences(recipes: Sequence[Mapping[str, Any]], known: Known, allow_changed_source: bool) -> None:
    """Raise `CheckpointError` with all that differs between the recipes of checkpoints and this one.

    allow_changed_source: where only users' sources differ, log which, and go on.
    """
    now, changed = known.recipe, dict[str, str]()
    for saved in recipes:
        differ = [name for name in sorted({*saved, *now}) if saved.get(name) != now.get(name)]
        sources = {name: known.sources[name] for name in differ if name in saved and name in known.sources}
        if differ and not (allow_changed_source and len(sources) == len(differ)):
            lines = [f"  {name}: {_difference(saved, now, name, sources.get(name))}" for name in differ]
            raise CheckpointError("the checkpoint was made with another recipe, so it cannot go on here:\n" + "\n".join(lines))
        changed |= sources
    if changed:
        told = ", ".join(f"{of} ({name})" for name, of in changed.items())
        _log.warning("the source of %s is not that of the checkpoint; allow_changed_source says that the data is the same", told)


def _difference(saved: Mapping[str, Any], now: Mapping[str, Any], name: str, source_of: str | None) -> str:
    if source_of is None:
        return f"{_shown(saved, name)} in the checkpoint, {_shown(now, name)} here"
    allow = "restore(..., allow_changed_source=True) if it gives the same data"
    if saved[name] is None or now[name] is None:
        where = "here" if now[name] is None else "where the checkpoint was made"
        return f"the source of {source_of} could not be read {where}, so it may have changed ({allow})"
    return f"the source of {source_of} has changed (put it back, or {allow})"


def _shown(recipe: Mapping[str, Any], name: str) -> str:
    if name not in recipe:
        return "absent"
    value = recipe[name]
    return f"other content ({value.hex()})" if isinstance(value, bytes) else repr(value)
