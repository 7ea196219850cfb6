from importlib import import_module
from pathlib import Path

from tests.writers.base import Row, Writer, each, table
from zephon_async.io.foreign import FREE_THREADED


def vortex(path: Path, rows: list[Row]) -> None:
    import_module("vortex").io.write(table(rows), str(path))


WRITERS = [] if FREE_THREADED else [Writer("vortex", ".vortex", each(vortex, ".vortex"))]  # it has no wheel there
