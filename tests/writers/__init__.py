"""Writers of small shards, one file a format: what the contract suite of formats runs over.

A file here gives a list `WRITERS`; a new format is one new file here.
"""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from tests.writers.base import Row, Writer

__all__ = ["WRITERS", "Row", "Writer"]

_MODULES = sorted(module.name for module in iter_modules([str(Path(__file__).parent)]) if module.name != "base")
WRITERS: list[Writer] = [writer for name in _MODULES for writer in import_module(f"{__name__}.{name}").WRITERS]
