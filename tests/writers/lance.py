from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from tests.writers.base import Row, Writer, table

FOLDER = "d.lance"


def lance(folder: Path, shards: Mapping[str, list[Row]]) -> None:
    """A fragment for each shard, whatever it is called; each has a row more, which is deleted again."""
    library = import_module("lance")
    for rows in shards.values():
        library.write_dataset(table([{**rows[0], "id": -1}, *rows]), folder / FOLDER, mode="append")
    library.dataset(folder / FOLDER).delete("id = -1")


def fragments(names: list[str]) -> list[str]:
    return [f"fragment-{number:010d}" for number in range(len(names))]


WRITERS = [Writer("lance", "", lance, at=FOLDER, named=fragments)]
