"""What a pipeline and its isolated engine say to one another, pickled, on a socket, each behind its length.

    parent -> child   Prepare, then for each run Begin, Free and Want; Agreed answers Agree, and Looked answers Look
    child -> parent   Prepared or Refused; of a run Made, and at its end Over or Failed; LeavesOut and Said at any time

What may be large lies in an arena. A run has a number, so that what is said of one that has been given up is told apart.
"""

import contextlib
import pickle
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

from zephon_async.engine import Consumed, Known, Statistics
from zephon_async.lanes import Cursor, Start
from zephon_async.runners import Layout, Letters, framed


class Prepare(NamedTuple):
    """Find out what is not known. `sizes`: of the pickled spec and facts in the arena, and of the buffers behind."""

    sizes: tuple[int, ...]
    agrees: bool


class Prepared(NamedTuple):
    known: Known
    explained: str


class Refused(NamedTuple):
    error: bytes


class Begin(NamedTuple):
    run: int
    begins: Start
    finite: bool


class Free(NamedTuple):
    """A microbatch that lay in a slot was taken by the consumer."""

    run: int
    slot: int


class Want(NamedTuple):
    """The consumer asks for a step."""

    run: int
    step: int


class Made(NamedTuple):
    """The next microbatch lies in a slot; slot -1: all of it is to be made up."""

    run: int
    slot: int
    layout: Layout
    step: int
    lane: int
    microbatch: int
    filled: int
    cursor: Cursor


class LeavesOut(NamedTuple):
    """The rows that the engine leaves out for good, from now on."""

    deadly: frozenset[tuple[int, int, bytes]]


class Over(NamedTuple):
    """There is no such step."""

    run: int
    step: int


class Failed(NamedTuple):
    """In this step the failure has its place."""

    run: int
    step: int
    error: bytes


class Agree(NamedTuple):
    number: int
    steps: int


class Agreed(NamedTuple):
    """What the ranks gave, or what `agree` raised."""

    number: int
    steps: Any
    error: bytes | None = None


class Look(NamedTuple):
    number: int
    taken: Consumed


class Looked(NamedTuple):
    number: int
    statistics: Statistics


class Said(NamedTuple):
    """For the log of the package."""

    level: int
    text: str


def send(to: socket.socket, message: Any) -> None:
    try:
        body = pickle.dumps(message)
    except (pickle.PicklingError, AttributeError, TypeError):  # of a class that went by value, such as a type of a column
        import cloudpickle

        body = cloudpickle.dumps(message)
    to.sendall(framed(body))


def received(of: socket.socket) -> Iterator[Any]:
    """Messages as they come, until the other side closes."""
    letters = Letters(pickle.loads)
    with contextlib.suppress(OSError):
        while data := of.recv(1 << 16):
            yield from letters.feed(data)
