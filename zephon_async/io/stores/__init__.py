"""Where shards lie. A store lists names and gives each shard as a `Source` of bytes; formats read through that alone.

What is not on this machine is reached through a `Connection`, which is found by the scheme of its URL: in the table below, else in
fsspec. A scheme of another package takes part through an entry point of the group `zephon_async.stores`, which is named as the
scheme and gives a `Scheme`. Modules of schemes are loaded when one is first used.
"""

import re
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from zephon_async.errors import RecipeError
from zephon_async.io.stores.base import Source, SourceFile, Store, named_beside, names_files, view_of
from zephon_async.io.stores.connection import Connection, Fault, Kind, Object, Scheme, shown
from zephon_async.io.stores.lance import LanceSource, LanceStore, lance_store
from zephon_async.io.stores.local import LocalSource, LocalStore, is_pattern
from zephon_async.io.stores.memory import MemoryStore, TableSource

__all__ = [
    "Connection",
    "Fault",
    "Kind",
    "LanceSource",
    "LanceStore",
    "LocalSource",
    "LocalStore",
    "MemoryStore",
    "Object",
    "Scheme",
    "Source",
    "SourceFile",
    "Store",
    "TableSource",
    "find_scheme",
    "is_pattern",
    "lance_store",
    "named_beside",
    "names_files",
    "scheme_name",
    "scheme_of",
    "shown",
    "view_of",
]

_TABLE = {  # scheme: module, in which it is SCHEME
    "abfs": "zephon_async.io.stores.azure",
    "abfss": "zephon_async.io.stores.azure",
    "az": "zephon_async.io.stores.azure",
    "hf": "zephon_async.io.stores.hub",
    "http": "zephon_async.io.stores.http",
    "https": "zephon_async.io.stores.http",
    "s3": "zephon_async.io.stores.s3",
    "s3a": "zephon_async.io.stores.s3",
}
_THE_OTHERS = "zephon_async.io.stores.fsspec"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+._-]+)((?:::[^:/]*)*)://")


@lru_cache(maxsize=1)
def _foreign() -> dict[str, Scheme]:
    return {point.name.lower(): cast(Scheme, point.load()) for point in entry_points(group="zephon_async.stores")}


def scheme_name(url: str) -> str:
    """The name of the scheme of a URL, in lower case, and "" for a path of this machine.

    Raises `RecipeError` for chained URLs of fsspec.
    """
    match = _SCHEME.match(url)
    if match and match[2]:
        raise RecipeError(f"{url!r} is more than one URL: give the inner one, what lies in others is not read")
    return match[1].lower() if match else ""


def find_scheme(name: str) -> Scheme:
    """What opens connections for a scheme. Raises `RecipeError` with the nearest right name where there is none."""
    if name in _foreign():
        return _foreign()[name]
    if name in _TABLE:
        return cast(Scheme, import_module(_TABLE[name]).SCHEME)
    from zephon_async.io.stores.file_systems import known_schemes  # it loads fsspec

    others = known_schemes()
    if name in others:
        return cast(Scheme, import_module(_THE_OTHERS).SCHEME)
    if name in ("file", "local"):
        raise RecipeError(f"files of this machine are given as a path: '/folder/file' and not '{name}:///folder/file'")
    known = sorted({*_TABLE, *_foreign(), *others})
    near = get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0] + '://'!r}? " if near else ""
    raise RecipeError(f"there is no storage {name + '://'!r}; {hint}known: {', '.join(known)}")


def scheme_of(url: str) -> Scheme:
    """What opens connections for a URL."""
    return find_scheme(scheme_name(url))
