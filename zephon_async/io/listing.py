"""What a path or URL stands for: which format, which files are its shards, and what an index says of them."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from zephon_async.errors import RecipeError, ShardError
from zephon_async.io.access import Access
from zephon_async.io.catalog import Shard
from zephon_async.io.formats import beside_name, ending_of, find_format, pick_shards, shards_among
from zephon_async.io.hub import is_of_hub, list_hub
from zephon_async.io.index import HEAD, NAMES, Entry, is_index
from zephon_async.io.remote import LOCAL, WEB, RemoteStore, list_url
from zephon_async.io.stores import LocalStore, Source, Store, shown


class Listed(NamedTuple):
    """shards: in the byte order of their names. ignored: what was seen beside them. entries: what an index says of each shard."""

    format: str
    store: Store
    shards: tuple[Shard, ...]
    ignored: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()


def listed(dataset: str, path: str, options: Mapping[str, Any], form: str | None, by_index: bool = True) -> Listed:
    """List it. by_index: whether what is there must be what an index says, if there is one.

    Raises `DatasetError` where there is nothing to read, or where the index is stale.
    """
    told = ending_of(path) if form is None else form
    if told is not None and (own := find_format(told).store(path, options)) is not None:
        return Listed(told, own, _shards(own, own.names))
    store = _store(path, options, form)
    index = _index_name(dataset, store)
    names = {name for name in store.names if name != index}
    picked, found = pick_shards(shown(path), names, form, store.explicit)
    chosen = find_format(picked)
    aside = {file for file in names if chosen.index and file.rpartition("/")[2] == chosen.index}
    shards = _shards(store, chosen.shards([*found, *aside.difference(found)], lambda file: _read(dataset, store, file)))
    if chosen.beside:
        suffixes = [(shard.name, suffix) for shard in shards for suffix in chosen.suffixes if shard.name.endswith(suffix)]
        aside |= {beside_name(name, suffix, chosen.beside) for name, suffix in suffixes}
    entries: tuple[Entry, ...] = ()
    if index and by_index:
        from zephon_async.io.index_layout import index_of  # its library is loaded where there is an index

        entries = index_of(index, _read(dataset, store, index)).of(chosen, shards)
    used = {shard.name for shard in shards} | aside | ({index} if entries else set())
    ignored = {*store.ignored, *store.names} - used
    texts = (_in_bytes(other).decode("utf-8", "backslashreplace") for other in ignored)
    return Listed(picked, store, shards, tuple(sorted(texts, key=str.encode)), entries)


def _store(path: str, options: Mapping[str, Any], form: str | None) -> Store:
    """The files that a path or URL stands for."""
    is_url = "://" in path and not os.path.lexists(path)
    if is_url and not path.startswith(LOCAL):
        with Access() as access:
            if is_of_hub(path):
                return list_hub(path, options, access, lambda names: shards_among(names, form))
            return _named(path, list_url(path, options, access))
    if options:
        raise RecipeError(f"storage_options ({', '.join(options)}) are for URLs, and {path!r} is a path of this machine")
    return LocalStore(path.partition("://")[2] if is_url else path)


def _named(url: str, store: RemoteStore) -> RemoteStore:
    """A file of a web server by the name before its "?", as what stands behind that may be a signature: secret, and soon another.

    One that tells its format only behind it is named so.
    """
    name = url.partition("?")[0].rpartition("/")[2]
    if not url.startswith(WEB) or not name or (ending_of(name) is None and ending_of(url) is not None):
        return store
    return replace(store, objects={name: next(iter(store.objects.values()))})


def _shards(store: Store, names: Iterable[str]) -> tuple[Shard, ...]:
    return tuple(store.shard(name) for name in sorted(names, key=_in_bytes))


def _index_name(dataset: str, store: Store) -> str:
    """The name of the index at the root, if there is one; else ""."""
    seen = () if store.explicit or not store.names else {*store.names, *store.ignored}
    return next((name for name in NAMES if name in seen and is_index(_read(dataset, store, name, HEAD))), "")


def _read(dataset: str, store: Store, name: str, most: int | None = None) -> bytes:
    """A small file below the root, such as an index, or its first bytes; one that a pattern left out too. Raises `DatasetError`."""
    listed = name if name in store.names else min(store.names)
    try:
        source: Source = store.open(dataset, store.shard(listed))
        if listed != name:
            source = source.beside("../" * listed.count("/") + name)
        return source.read(0, source.size if most is None else min(most, source.size))
    except ShardError as error:
        raise type(error)(str(error).removeprefix(f"dataset {dataset!r}, ")) from error.__cause__


def _in_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
