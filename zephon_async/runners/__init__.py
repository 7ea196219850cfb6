"""Where work runs. `base` says what a runner promises; RUNNERS is the table of those there are."""

from collections.abc import Callable

from zephon_async.runners.base import Need, Runner, deliverable
from zephon_async.runners.inline import InlineRunner
from zephon_async.runners.threads import ThreadRunner, begin

RUNNERS: dict[str, Callable[[int | None], Runner]] = {"threads": ThreadRunner, "inline": InlineRunner}

__all__ = ["RUNNERS", "InlineRunner", "Need", "Runner", "ThreadRunner", "begin", "deliverable"]
