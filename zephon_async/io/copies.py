"""Small files of any store as files of this machine, for what can only be read as such: tokenizers and the like."""

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zephon_async.errors import DatasetError, ShardError
from zephon_async.io.access import Access, is_forbidden
from zephon_async.io.remote import LOCAL, RemoteSource, placed
from zephon_async.io.stores import shown
from zephon_async.leftovers import owned

_log = logging.getLogger("zephon_async")


@contextmanager
def copied(url: str, options: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    """The path of a copy of what a URL stands for, as long as the context lasts: of one object, or of a folder those of the names.

    Of the folder that an object is in, those of the names are there beside it. Nothing is listed. Raises `DatasetError`.
    """
    if url.startswith(LOCAL):
        yield url.partition("://")[2]
        return
    place, key = placed(url, options)
    with Access() as access, tempfile.TemporaryDirectory(prefix=owned()) as folder:
        forbidden: list[ShardError] = []

        def copy(key: str) -> bool:
            try:
                found = access.look(shown(url), place, key)
            except ShardError as error:
                if not is_forbidden(error):
                    raise
                forbidden.append(error)
                return False
            if found is not None:
                source = RemoteSource(shown(url), key, place, found, access)
                Path(folder, key.rpartition("/")[2]).write_bytes(source.read(0, source.size))
            return found is not None

        is_file = bool(key) and not key.endswith("/") and copy(key)
        beside = key.rpartition("/")[0] if is_file else key.rstrip("/")
        keys = [f"{beside}/{name}" if beside else name for name in names]
        there = [copy(each) for each in keys if not is_file or each != key]
        if not is_file and not any(there):
            if forbidden:
                raise forbidden[0]
            raise DatasetError(f"{shown(url)!r}: there is no such object, and none of {', '.join(names)} below it")
        for error in forbidden:
            _log.warning("%s; it is taken for one that is not there", error)
        yield str(Path(folder, key.rpartition("/")[2])) if is_file else folder
