"""What a store and a source promise.

A `Store` knows the names of a dataset's files, relative to its root, and opens one as a `Source`: bytes that can be read at any
place. A source keeps nothing open between reads, and a read of a shard that has changed since it was listed is a `ShardError`.

Threads: stores and sources are values; any thread may read from one at any time. A `SourceFile` belongs to one thread at a time.
"""

import io
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol, cast

from zephon_async.io.catalog import Shard

if TYPE_CHECKING:
    from zephon_async.io.access import Access


class Source(Protocol):
    """One shard, as bytes."""

    @property
    def where(self) -> str:
        """What messages call it: "dataset 'wiki', shard 'a.jsonl'"."""

    @property
    def name(self) -> str:
        """Of the shard, relative to the root of its dataset."""

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def key(self) -> str:
        """Where it lies, whatever its dataset is called."""

    @property
    def tag(self) -> str:
        """Changes when the shard does."""

    @property
    def remote(self) -> bool:
        """Whether it is fetched over the network. Large reads are better then; a whole object has `tail` and `keep` (io.remote)."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on; anything else is a `ShardError`."""

    def beside(self, name: str) -> "Source":
        """Another file of the shard's folder; `../` leads to the one above. Raises `ShardError` where there is none."""


class Store(Protocol):
    """The files of one dataset."""

    @property
    def names(self) -> tuple[str, ...]:
        """All files that may be shards, relative to the root, in no order."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """What was seen and is no shard, whatever its suffix."""

    @property
    def remote(self) -> bool:
        """Whether its sources are fetched over the network."""

    @property
    def explicit(self) -> bool:
        """Whether the files were named themselves, one or by a pattern, so that their suffixes need not be known."""

    @property
    def commit(self) -> str:
        """Which version of all the files this is, where that can be said for ever: then it is part of the recipe. Else ""."""

    def shard(self, name: str) -> Shard:
        """Size and tag of a file, now."""

    def open(self, dataset: str, shard: Shard, access: "Access | None" = None) -> Source:
        """A shard as bytes. access: how remote ones are read."""

    def close(self) -> None:
        """Let go of what stands open between reads, if anything does. What is read later opens it again."""


def named_beside(name: str, other: str) -> str:
    """The name of another file, seen from the folder that a file lies in: see `Source.beside`."""
    folder = name.rpartition("/")[0]
    while other.startswith("../"):
        folder, other = folder.rpartition("/")[0], other.removeprefix("../")
    return f"{folder}/{other}" if folder else other


def names_files(pattern: str, names: Collection[str]) -> bool:
    """Whether the last part of a pattern is what files are called, and not the folders that they lie in. "*" says nothing."""
    return bool(pattern.strip("*")) and all(fnmatchcase(name.rpartition("/")[2], pattern) for name in names)


def view_of(source: Source, offset: int, length: int) -> bytes | memoryview:
    """The bytes that `read` gives, without a copy where a source has them in memory, and a method `view` that says so."""
    view: Callable[[int, int], bytes | memoryview] = getattr(source, "view", source.read)
    return view(offset, length)


class SourceFile(io.RawIOBase):
    """A source as a file object, for libraries that want one.

    What a source has in memory is given as a view, which Arrow takes without a copy.
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._at = 0
        self.turn_to(source)

    def turn_to(self, source: Source) -> None:
        """Read from another source of the same bytes."""
        self._source = source

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._source.size - self._at, 0)
        piece = cast(bytes, view_of(self._source, self._at, left if size is None or size < 0 else min(size, left)))
        self._at += len(piece)
        return piece
