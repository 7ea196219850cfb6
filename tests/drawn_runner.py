"""A runner for tests that runs and finishes work in an order drawn from a seed."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from zephon_async.runners import Need

T = TypeVar("T")


class DrawnRunner:
    """Holds calls, runs one of them now and then, and hands back one that has run now and then; which and when is drawn."""

    workers = 5

    def __init__(self, seed: int, workers: int | None = None) -> None:
        self._random = random.Random(seed)
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._done: list[Callable[[], None]] = []
        self._turning = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def submit(self, call: Callable[[], T], need: Need) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((call, future))
        self._turn()
        return future

    def close(self, timeout_s: float) -> list[str]:
        for _, future in self._waiting:
            future.cancel()
        return []

    def _turn(self) -> None:
        if not self._turning and (self._waiting or self._done):
            self._turning = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        """One turn of the loop: nothing, a call is run, or a result is handed back."""
        self._turning = False
        chosen = self._random.randrange(3)
        if chosen == 0 and self._waiting:
            self._run(*self._waiting.pop(self._random.randrange(len(self._waiting))))
        if chosen == 1 and self._done:
            self._done.pop(self._random.randrange(len(self._done)))()
        self._turn()

    def _run(self, call: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        try:
            result = call()
        except Exception as error:
            self._done.append(partial(_hand_back, future, future.set_exception, error))
        else:
            self._done.append(partial(_hand_back, future, future.set_result, result))


def _hand_back(future: "asyncio.Future[Any]", give: Callable[[Any], None], outcome: Any) -> None:
    if not future.cancelled():
        give(outcome)
