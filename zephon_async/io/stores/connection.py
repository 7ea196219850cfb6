"""What a storage system over the network promises, and how its faults are told.

A `Connection` lists objects in pages, looks at one, and reads a range of one, each with one attempt and on one event loop. It does
not retry, cache or hedge: that is done once for all of them, which is why every exception of its library comes out as a `Fault`
that says what kind it is. How a scheme's connection is found is in the table of this package.

Threads: a connection belongs to the loop that it was opened on.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol


class Object(NamedTuple):
    """One object: its key, its size in bytes, and what changes when it does ("" where the storage tells nothing of that kind)."""

    key: str
    size: int
    tag: str


class Kind(Enum):
    """What is to be done about a fault."""

    TRANSIENT = "transient"
    """Try again: server errors, time-outs, resets, bodies that end too early."""
    SLOW_DOWN = "slow down"
    """Try again, later and with fewer at once: the storage says that it is asked too often."""
    MISSING = "missing"
    FORBIDDEN = "forbidden"
    """Credentials are wrong, have ended and cannot be renewed, or do not allow it."""
    CHANGED = "changed"
    """The object is not the one that was listed."""
    REFUSED = "refused"
    """Anything else that another attempt would not mend."""


class Fault(Exception):
    """One attempt that failed. The text says what the storage said.

    status: of HTTP, where there was an answer. request: the id by which the storage knows the request. retry_after_s: what it asked
    to wait.
    """

    def __init__(
        self, kind: Kind, text: str, *, status: int | None = None, request: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(text)
        self.kind, self.status, self.request, self.retry_after_s = kind, status, request, retry_after_s

    def __str__(self) -> str:
        status = f"HTTP {self.status}: " if self.status is not None else ""
        request = f" (request {self.request})" if self.request else ""
        return f"{status}{self.args[0]}{request}"


class Connection(Protocol):
    """An open connection to one bucket, container or server. What fails is a `Fault`; cancelling a call ends its request."""

    streams: bool
    """Whether pages and bytes are given as they come. Where all comes at the end, silence means nothing for longer."""

    def pages(self, prefix: str) -> AsyncIterator[Sequence[Object]]:
        """The objects whose keys begin with a prefix, in no order, a page at a time; none is no fault. Keys that end in "/" and are
        empty stand for folders, and are left out. What cannot be listed at all is a `REFUSED` fault.

        An iterator that is no generator goes on with the page that failed when it is asked again behind a fault.
        """

    async def look(self, key: str) -> Object:
        """One object. Raises a `MISSING` fault where there is none."""

    async def read(
        self, key: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object], size: int | None = None
    ) -> None:
        """Give the bytes from `offset` on to `sink`, piece by piece as they come, `length` bytes in all.

        tag: of the object that is meant, as it was listed; another object under the key is a `CHANGED` fault, where the storage can
        tell ("": any). size: that it was listed with; one that is longer or shorter is another object too. A body that ends early
        is a `TRANSIENT` fault behind the pieces that came. One that is longer, or begins elsewhere than was asked for, is cut to
        what was asked for where it is clear what it is, and else a fault. `length` is at least 1.
        """

    async def close(self) -> None:
        """Close it and all that it holds: sockets, tasks, threads. What is asked of it then is a `REFUSED` fault."""


class Scheme(Protocol):
    """Opens connections for the URLs of a scheme."""

    def split(self, url: str) -> tuple[str, str]:
        """What one connection is for (a bucket, a container, a server), and the key there: `root + key == url`, nothing is decoded.

        Raises `RecipeError` for a URL that names nothing.
        """

    async def open(self, root: str, options: Mapping[str, Any], most: int) -> Connection:
        """A connection on the running loop. options: `storage_options`, as users of fsspec know them. most: requests at once.

        Raises `RecipeError` for options that cannot be meant, or for a library that is not installed, with the extra that has it,
        and a `Fault` where the storage cannot be reached.
        """


def shown(url: str) -> str:
    """A URL for messages: without a password, and without what a web address has behind "?", which may be as good as one."""
    url = re.sub(r"(?<=://)[^/@]*@", "", url)
    return re.sub(r"\?.*", "?...", url) if url.startswith(("http://", "https://")) else url
