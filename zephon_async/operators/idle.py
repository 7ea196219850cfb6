"""Tools of an operator that only one call may use at a time, such as copies of a tokenizer: made when none is idle, and kept.

What uses them is pickled without them. They are about tokenizers, so TOKENIZERS_PARALLELISM is set to "false" where it is not set,
in every process and before a tokenizer is used: workers are the parallelism, see `tokenize`.

Threads: idle ones wait in a deque, whose append and pop are atomic.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Idle(Generic[T]):
    """The tools that `make` makes."""

    def __init__(self, make: Callable[[], T]) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._make = make
        self._waiting: deque[T] = deque()

    def __reduce__(self) -> tuple[Any, ...]:
        return Idle, (self._make,)

    def add(self, tools: T) -> None:
        """Keep tools that are not in use."""
        self._waiting.append(tools)

    @contextmanager
    def one(self) -> Iterator[T]:
        """Tools that nobody else uses meanwhile."""
        try:
            tools = self._waiting.pop()
        except IndexError:
            tools = self._make()
        try:
            yield tools
        finally:
            self.add(tools)
