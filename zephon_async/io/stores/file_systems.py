"""File systems of fsspec: which there are, how one is made that belongs to one connection, and what they can do.

Its cache of instances is not used, and caches of listings are switched off, whatever the options say.
"""

import asyncio
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.dircache import DirCache
from fsspec.registry import registry
from fsspec.spec import AbstractFileSystem

from zephon_async.errors import RecipeError

_EXTRAS = {"gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure", "hf": "hf", "http": "http", "https": "http"}
_NOT_STORAGE = {  # they read another file system, or files of this machine
    "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "data", "dir", "file", "filecache", "generic",
    "libarchive", "local", "reference", "simplecache", "tar", "zip",
}  # fmt: skip


def known_schemes() -> set[str]:
    """All schemes that may be opened here, whether or not their libraries are installed."""
    return {*fsspec.available_protocols(), *registry, *_EXTRAS} - _NOT_STORAGE


def file_system_class(scheme: str) -> type[AbstractFileSystem]:
    """The file system of a scheme. Raises `RecipeError` with what to install where its library is missing."""
    try:
        return fsspec.get_filesystem_class(scheme)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(scheme)
        need = f"install it with `pip install 'zephon-async[{extra}]'`" if extra else str(error)
        reason = error.__cause__ or error
        raise RecipeError(f"{scheme}:// needs a library that is not there: {need} ({reason})") from error


def make_file_system(scheme: str, root: str, options: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> AbstractFileSystem:
    """A file system of one's own."""
    kind = file_system_class(scheme)
    check_options(scheme, kind, options)
    own = {"asynchronous", "loop", "skip_instance_cache", "use_listings_cache"}
    given = {**kind._get_kwargs_from_urls(root), **{name: value for name, value in options.items() if name not in own}}
    if scheme == "hf":
        given.setdefault("max_workers", 1)  # of its own pool, whose threads nobody can end
    if kind.async_impl:
        given |= {"asynchronous": True, "loop": loop}
    made = kind(**given, skip_instance_cache=True)
    if isinstance(cache := getattr(made, "dircache", None), DirCache):
        cache.use_listings_cache = False
    if kind.async_impl:
        _forget(made)
    return made


def check_options(scheme: str, kind: type[AbstractFileSystem], options: Mapping[str, Any], more: Iterable[str] = ()) -> None:
    """Raises `RecipeError` for options that are no names, or that are nearly a name that is known: most file systems take any."""
    known = {*more}
    for base in kind.__mro__[:-1]:
        parameters = inspect.signature(vars(base).get("__init__", lambda: None)).parameters.values()
        known |= {
            parameter.name
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
    for name in options:
        if not isinstance(name, str):
            raise RecipeError(f"storage_options of {scheme}:// are named by text, not by {name!r}")
        near = get_close_matches(name, known - {"self"}, 1, 0.8)
        if name not in known and near:
            raise RecipeError(f"{scheme}:// has no storage option {name!r}; did you mean {near[0]!r}?")


def _forget(file_system: AbstractFileSystem) -> None:
    """Take back what a new file system wants done at its end: adlfs keeps itself alive so, and fails aloud when Python exits."""
    for last in list(getattr(weakref.finalize, "_registry", ())):
        if (kept := last.peek()) is not None and kept[0] is file_system:
            last.detach()


def named(options: Mapping[str, Any]) -> str:
    """Options without their values, which may be secret."""
    return f"the storage_options {', '.join(sorted(options))}" if options else "no storage_options"


def finds_all(file_system: AbstractFileSystem) -> bool:
    """Whether it has a way of its own to find all that is below a folder. The common one leaves out folders that it cannot list."""
    kind = type(file_system)
    if file_system.async_impl:
        return kind._find is not AsyncFileSystem._find
    return kind.find is not AbstractFileSystem.find


def finds_prefix(file_system: AbstractFileSystem) -> bool:
    """Whether that way takes the beginning of a name."""
    return _takes(type(file_system)._find if file_system.async_impl else type(file_system).find, "prefix", exactly=True)


def exact_read(file_system: AbstractFileSystem) -> dict[str, Any]:
    """Options by which `cat_file` reads what is asked for and no more."""
    kind = type(file_system)
    by_file = not file_system.async_impl and kind.cat_file is AbstractFileSystem.cat_file
    return {"cache_type": "none"} if by_file and _takes(kind._open, "cache_type") else {}


def reads_generation(file_system: AbstractFileSystem) -> bool:
    """Whether `cat_file` can be told which version to read, as that of gcsfs can; older ones and zonal buckets do not heed it."""
    return _takes(getattr(type(file_system), "url", len), "generation", exactly=True)


def _takes(function: Callable[..., object], name: str, exactly: bool = False) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or (not exactly and any(one.kind is one.VAR_KEYWORD for one in parameters.values()))
