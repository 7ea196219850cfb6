"""What was made of small files that many reads need, such as an index: the last few, so that each is parsed once.

Where it is made of the whole of a file, `most_bytes` of files are remembered: what was made takes some times as much. What is
made of a larger one is kept until there is another, since to parse it for each read would cost far more than to hold it.

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
MOST, MOST_BYTES = 32, 128 << 20


class Remembered(Generic[T]):
    """What `make` makes of a source, made anew where it has changed."""

    def __init__(self, make: Callable[[Source], T], most: int = MOST, most_bytes: int | None = None) -> None:
        """most: of the files of which it is remembered. most_bytes: of them; None: they do not count, being read in small parts."""
        self._most, self._most_bytes, self.nbytes = most, most_bytes, 0
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
            self.nbytes += 0 if key in self._made else source.size
            self._made[key] = made
            while self._too_many():
                (_, size, _), _ = self._made.popitem(last=False)
                self.nbytes -= size
        return made

    def _too_many(self) -> bool:
        too_large = self._most_bytes is not None and self.nbytes > self._most_bytes
        return len(self._made) > self._most or (too_large and len(self._made) > 1)
