"""What a runner promises: it runs work somewhere off the event loop and gives the result back on it.

Called from one event loop only. Work is started in the order of its need: the smallest `need` first, then the order in which
it was submitted; a runner may finish it in any order, nothing depends on that. An exception of the work, of whatever kind, is
the exception of the future, made `deliverable`. `close` cancels the futures of calls that have not begun; a call that runs is
waited for, up to the timeout, and its future ends only if the loop still runs then. Nothing may be submitted after `close`.
"""

import asyncio
from asyncio import CancelledError
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Need: TypeAlias = tuple[int, ...]
"""Where in the order of use the result is needed; smaller is sooner."""


class Runner(Protocol):
    """Where stateless work and accumulators run."""

    workers: int
    """How many calls run at once."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Be ready to run work for `loop`. Called once, on it."""

    def submit(self, call: Callable[[], T], need: Need) -> asyncio.Future[T]:
        """Run `call` on a worker."""

    def close(self, timeout_s: float) -> list[str]:
        """Stop the workers, waiting for running calls up to `timeout_s`. Gives the names of workers that did not come back."""


def deliverable(error: BaseException) -> BaseException:
    """What a future may carry and `next` may raise: exceptions that end a loop or a task without a word are carried by another."""
    if not isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit | CancelledError):
        return error
    carried = RuntimeError(f"a function raised {type(error).__name__}")
    carried.__cause__ = error
    carried.__notes__ = list(getattr(error, "__notes__", ()))
    return carried
