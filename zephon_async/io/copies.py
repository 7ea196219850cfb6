"""Small files of any store as files of this machine, for what can only be read as such: tokenizers and the like."""

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zephon_async.io.access import Access
from zephon_async.io.remote import LOCAL, RemoteStore, list_url
from zephon_async.leftovers import owned


@contextmanager
def copied(url: str, options: Mapping[str, Any], names: Collection[str]) -> Iterator[str]:
    """The path of a copy of what a URL stands for, as long as the context lasts: of one object, or of a folder those of the names.

    Of the folder that an object is in, those of the names are there beside it. Raises `DatasetError`.
    """
    if url.startswith(LOCAL):
        yield url.partition("://")[2]
        return
    with Access() as access, tempfile.TemporaryDirectory(prefix=owned()) as folder:
        store = list_url(url, options, access)
        found = {*store.names}
        if store.explicit:
            _copy(store, store.names, access, Path(folder))
            beside = url.rpartition("/")[0] + "/"
            _copy(list_url(beside, options, access), names, access, Path(folder))
        else:
            _copy(store, names, access, Path(folder))
        yield str(Path(folder, *found)) if store.explicit else folder


def _copy(store: RemoteStore, names: Collection[str], access: Access, folder: Path) -> None:
    for name in set(names).intersection(store.names):
        source = store.open("", store.shard(name), access)
        (folder / name).write_bytes(source.read(0, source.size))
