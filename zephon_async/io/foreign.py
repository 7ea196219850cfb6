"""Formats that are read with a library of their own: how it is loaded, and what its errors become.

A library is loaded when it is first needed, and is then used in that process alone: threads of native code do not live on in a
forked child, which would wait for them for ever.

Threads: any; loading is guarded by Python's own import lock, and the process that a library was loaded in is noted once.
"""

import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from types import ModuleType

from zephon_async.errors import DatasetError, RecipeError, ShardError, StorageError, ZephonError

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
_NOISE = re.compile(r"\s*(Backtrace:|, /\S+\.rs:\d+|\n).*", re.DOTALL)  # where in its own source the library was


def library(module: str, form: str, wanted: str, caps: Mapping[str, str] | None = None) -> ModuleType:
    """A library. form: what is read with it. wanted: what to install. caps: what is set in the environment before it is loaded.

    Raises `RecipeError` where it is not there, `DatasetError` in a process that was forked from one that has it loaded.
    """
    try:
        loaded, process = _loaded(module, tuple((caps or {}).items()))
    except ImportError as error:
        name = ".".join(map(str, sys.version_info[:2])) + "t" * FREE_THREADED
        raise RecipeError(f"{form} is read with a library that is not there on this Python {name} ({error}): {wanted}") from error
    if process != os.getpid():
        raise DatasetError(
            f"{form} cannot be read in a forked process: start it by spawn, or read in the process that it was forked from"
        )
    return loaded


@lru_cache
def _loaded(module: str, caps: tuple[tuple[str, str], ...]) -> tuple[ModuleType, int]:
    for name, value in caps:
        os.environ.setdefault(name, value)
    return import_module(module), os.getpid()


@contextmanager
def calling(where: str, form: str) -> Iterator[None]:
    """Turn whatever a library raises, its panics too, into a `ShardError` that begins with `where`.

    What may be no fault of the data but of where it lies is a `StorageError`.
    """
    try:
        yield
    except (ZephonError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        kind = StorageError if isinstance(error, OSError) or "LanceError(IO)" in str(error) else ShardError
        raise kind(f"{where}: cannot be read as {form}: {said(error)}") from error


def said(error: BaseException) -> str:
    """What an error says, in one line, without where in its own source the library was."""
    return _NOISE.sub("", str(error)).strip() or type(error).__name__
