"""On which runner each stateless operator runs, and why.

What a user asks for comes first: `runner=` of an operator, then `per_stage_runner`, then `runner` of the options. Else ("auto")
threads where the GIL is off or an operator lets go of it, and processes for the Python functions that hold it.
"""

import logging
import re
import sys
import sysconfig
from collections.abc import Sequence
from typing import NamedTuple

from zephon_async.checks import one_of
from zephon_async.operators import Operator
from zephon_async.options import Options
from zephon_async.runners import Portable

_log = logging.getLogger("zephon_async")
_SWITCHED_ON = re.compile(r"global interpreter lock \(GIL\) has been enabled to load module '([^']+)'")


class Placement(NamedTuple):
    """Where a stage runs: "inline", "threads", "processes" or "users' loop"; `why`, in words."""

    runner: str
    why: str


PLACES = ("threads", "processes", "inline")
"""What `options(runner=)` may say; "auto" besides."""
CHOSEN = ("threads", "processes")
"""What may be chosen for a single operator."""


def place(operators: Sequence[Operator], options: Options) -> list[Placement]:
    """A placement for each operator. What cannot be pickled runs on threads, which is told in the log."""
    names = [operator.name for operator in operators if operator.stateless]
    for name in options.per_stage_runner:
        one_of("per_stage_runner: the name", name, names)
    placements = [wished(operator, options) for operator in operators]
    for n, (operator, placement) in enumerate(zip(operators, placements, strict=True)):
        if operator.stateless and placement.runner == "processes" and (why := _cannot_travel(operator)):
            _log.warning("%s runs on threads, not on processes, as it cannot be pickled: %s", operator.name, why)
            placements[n] = Placement("threads", f"it cannot be pickled: {why}")
    return placements


def of_reading(options: Options) -> Placement:
    """Where the stage runs that only reads."""
    return Placement("inline" if options.runner == "inline" else "threads", "it reads")


def gil_is_on() -> bool:
    """Whether one thread at a time runs Python."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def warn_of_the_gil() -> None:
    """Say so where a Python without a GIL has one again."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") and gil_is_on():
        by = ", ".join(map(repr, _switched_on_by()))
        why = (
            f"the extension {by} has switched it on"
            if by
            else "PYTHON_GIL=1 or -X gil=1 is set, or an extension has switched it on"
        )
        _log.warning("this Python was built without the GIL, and it is on: %s; explain() tells where functions run", why)


def _switched_on_by() -> list[str]:
    """The extensions that have switched the GIL on: Python warns of each at its import, and keeps what it has warned of."""
    registries = [getattr(module, "__warningregistry__", None) for module in list(sys.modules.values())]
    texts = [key[0] for registry in registries if isinstance(registry, dict) for key in registry if isinstance(key, tuple)]
    found = [_SWITCHED_ON.search(text) for text in texts if isinstance(text, str)]
    return sorted({match[1] for match in found if match})


def wished(operator: Operator, options: Options) -> Placement:
    """Where an operator is to run, if it can."""
    if operator.concurrency is not None:
        return Placement("users' loop", "it is async")
    if options.runner == "inline":
        return Placement("inline", "options(runner='inline')")
    if operator.runner is not None:
        one_of(f"{operator.name}: runner", operator.runner, CHOSEN)
        return Placement(operator.runner, f"{operator.name}(runner={operator.runner!r})")
    if operator.name in options.per_stage_runner:
        return Placement(options.per_stage_runner[operator.name], "options(per_stage_runner=...)")
    if options.runner != "auto":
        return Placement(options.runner, f"options(runner={options.runner!r})")
    if not gil_is_on():
        return Placement("threads", "there is no GIL")
    if operator.releases_gil:
        return Placement("threads", "it lets go of the GIL")
    return Placement("processes", "Python functions hold the GIL")


def _cannot_travel(operator: Operator) -> str:
    try:
        Portable(operator)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
