"""Makes the index of a folder of shards: names, sizes, rows, hashes, and where rows begin. See `index` for its layout.

It reads everything, twice where rows must be counted. The file is written beside its place and then renamed, so whoever reads it
finds a whole one.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from zephon_async.checks import checks_call, one_of
from zephon_async.errors import DatasetError, RecipeError
from zephon_async.io.access import Access
from zephon_async.io.at_once import at_once
from zephon_async.io.catalog import Shard
from zephon_async.io.formats import find_format, reading
from zephon_async.io.hashes import hashed
from zephon_async.io.index import HEAD, NAMES, VERSION, is_index, pieces
from zephon_async.io.listing import Listed, listed
from zephon_async.leftovers import owned

FORMATS = ("jsonl", "parquet", "vortex", "webdataset")
_HASH = "sha256"
_THREADS = 8


@checks_call
def build_index(
    format: str,
    dir: str | os.PathLike[str],
    output_path: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], object] = lambda done, shards: None,
) -> str:
    """Write the index of all shards in a folder and below it, and give its path. Reads all of them; one in its place is replaced.

    format: "jsonl", "parquet", "vortex" or "webdataset" (tars); compressed ones too. dir: the folder, or its URL.
    output_path: the file; default: `index.json` in the folder, where datasets look for it. Of a URL it must be said.
    storage_options: as those of `Dataset.from_path`. progress: told now and then how many of how many shards are done.
    Raises `DatasetError` where there is no shard, or where the file cannot be written, which is tried before anything is read, and
    `ShardError` for a shard that is broken.
    """
    one_of("format", format, FORMATS)
    root = os.fspath(dir)
    is_local = os.path.lexists(root) or "://" not in root
    if is_local and not os.path.isdir(root):
        raise DatasetError(f"{root!r} is no folder: an index is made of all shards in one")
    if not is_local and output_path is None:
        raise RecipeError(f"{root!r} is not on this machine: say with output_path= where its index is to be written")
    path = os.path.join(root, NAMES[0]) if output_path is None else os.fspath(output_path)
    _may_be_written(path)
    found = listed(root, root, storage_options or {}, format, by_index=False)
    access: AbstractContextManager[Access | None] = Access() if found.store.remote else nullcontext()
    with access as opened:
        count = len(found.shards)
        shards = at_once(
            lambda shard: _described(root, found, shard, opened), found.shards, _THREADS, lambda done: progress(done, count)
        )
    _write(path, shards)
    return path


def _described(root: str, found: Listed, shard: Shard, access: Access | None) -> dict[str, Any]:
    """What an index says of a shard."""
    source, form = found.store.open(root, shard, access), find_format(found.format)
    with reading(source, form.name):
        rows, extra = form.described(source)
    hashes = {_HASH: hashed(_HASH, pieces(source))}
    return {"basename": shard.name, "bytes": shard.size, "num_rows": rows, "hashes": hashes, "extra": extra}


def _may_be_written(path: str) -> None:
    """Raise where no file can be made beside the place of an index, or where something is there and may not be replaced."""
    if "://" in path and not os.path.isdir(os.path.dirname(path)):
        raise RecipeError(f"output_path={path!r} is a URL: an index is written on this machine; give a file of it, and copy that")
    with _beside(path) as temporary:
        open(temporary, "xb").close()
        if os.path.exists(path):
            with open(path, "rb") as file:
                head = file.read(HEAD)
            if not is_index(head):
                raise DatasetError(f"{path!r} is there, and is no index of this kind: give another file as output_path")


def _write(path: str, shards: list[dict[str, Any]]) -> None:
    with _beside(path) as temporary:
        with open(temporary, "xb") as file:
            file.writelines(_lines(shards))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


@contextmanager
def _beside(path: str) -> Iterator[str]:
    """The name of a file that is not there, beside another, and behind the context is not there again."""
    temporary = os.path.join(os.path.dirname(path), f"{owned()}{secrets.token_hex(4)}")
    try:
        yield temporary
    except OSError as error:
        raise DatasetError(f"{path!r} cannot be written: {error.strerror}; give another file as output_path") from error
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def _lines(shards: list[dict[str, Any]]) -> Iterator[bytes]:
    """A line for each shard."""
    yield b'{"format_version": %d, "shards": [' % VERSION
    for number, shard in enumerate(shards):
        yield (b",\n" if number else b"\n") + json.dumps(shard, ensure_ascii=False, separators=(",", ":")).encode()
    yield b"\n]}\n"
