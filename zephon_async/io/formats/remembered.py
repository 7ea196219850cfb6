"""What was made of small files that many reads need, such as an index: the last few, so that each is parsed once.

Threads: any; a lock guards the list. Two threads may make the same at the same time.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from zephon_async.forks import tell_of_forks
from zephon_async.io.stores import Source

T = TypeVar("T")
_Key: TypeAlias = tuple[str, int, str]
MOST = 32


class Remembered(Generic[T]):
    """What `make` makes of a source, made anew where it has changed."""

    def __init__(self, make: Callable[[Source], T], most: int = MOST) -> None:
        """most: of the files of which it is remembered."""
        self._most = most
        self._make, self._made, self._lock = make, OrderedDict[_Key, T](), threading.Lock()
        tell_of_forks(self)

    def forked(self) -> None:
        """A thread that is not there any more may have held the lock."""
        self._lock = threading.Lock()

    def of(self, source: Source, anew: bool = False) -> T:
        """What is made of a source. anew: whatever is remembered, as something else that it is made of may have changed."""
        key = (source.key, source.size, source.tag)
        with self._lock:
            if key in self._made and not anew:
                self._made.move_to_end(key)
                return self._made[key]
        made = self._make(source)
        with self._lock:
            self._made[key] = made
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        return made
