"""What a forked child must not take over: threads that are not there, and locks that they held.

Threads: a `WeakSet` is added to by any thread; it is walked in the child, which has one.
"""

import ctypes
import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something that is told in a forked child that it is in one, before any code there uses it."""

    def forked(self) -> None: ...


_told: WeakSet[Forked] = WeakSet()


def tell_of_forks(each: Forked) -> None:
    """Call `forked` of something in every forked child, as long as it lives."""
    _told.add(each)


def keep(*parents: object) -> None:
    """Never finalize what is the parent's, not even at the end of this process.

    What a socket or an event loop does at its end reaches the parent, with which its descriptors are shared.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(parents))


def _in_child() -> None:
    for each in list(_told):
        each.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
