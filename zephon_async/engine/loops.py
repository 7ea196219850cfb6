"""Event loops for threads of our own: uvloop's where there is a GIL, asyncio's own else.

uvloop saves a tenth to a third of what a loop costs. On free-threaded Python it must not be used (0.23): a thread that calls
`call_soon_threadsafe` while the loop closes ends in a segmentation fault, where asyncio raises `RuntimeError`, and workers,
consumers and closers do just that. Nor in a program that has closed its stdin, stdout or stderr: libuv ends the process over a
descriptor of its own that has got their number. See benchmarks/bench_loop.py.
"""

import asyncio
import os
import sys


def new_loop() -> asyncio.AbstractEventLoop:
    """A new event loop, set nowhere."""
    if getattr(sys, "_is_gil_enabled", lambda: True)() and _has_stdio():
        try:
            import uvloop
        except ImportError:  # there is none on Windows
            return asyncio.new_event_loop()
        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _has_stdio() -> bool:
    """Whether stdin, stdout and stderr are open."""
    try:
        return all(os.fstat(descriptor) for descriptor in range(3))
    except OSError:
        return False
