"""Where work runs. `base` says what a runner promises; RUNNERS is the table of those there are."""

from collections.abc import Callable

from zephon_async.runners.arena import Arena, Layout, above_stdio, aligned, lay_down, pick_up
from zephon_async.runners.base import Need, Runner, deliverable
from zephon_async.runners.child import Child, Says, begun, load, new_arenas
from zephon_async.runners.exceptions import pack_exception, unpack_exception
from zephon_async.runners.inline import InlineRunner
from zephon_async.runners.processes import Portable, ProcessRunner
from zephon_async.runners.threads import ThreadRunner
from zephon_async.runners.wire import Letters, ask, framed

RUNNERS: dict[str, Callable[[int | None], Runner]] = {"threads": ThreadRunner, "inline": InlineRunner}
"""Where reads and accumulators run. Functions may also run on a `ProcessRunner` beside it."""

__all__ = [
    "RUNNERS",
    "Arena",
    "Child",
    "InlineRunner",
    "Layout",
    "Letters",
    "Need",
    "Portable",
    "ProcessRunner",
    "Runner",
    "Says",
    "ThreadRunner",
    "above_stdio",
    "aligned",
    "ask",
    "begun",
    "deliverable",
    "framed",
    "lay_down",
    "load",
    "new_arenas",
    "pack_exception",
    "pick_up",
    "unpack_exception",
]
