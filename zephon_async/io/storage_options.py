"""The settings of `Pipeline.options(io_options={...})`: the cache on the local disk, and how remote storage is read.

    {"cache": {"enabled": True, "root": "/scratch", "limit": "200GB"}, "download_retry": 12, "arrow": {"io_threads": 4}}

The names are the reference library's, which has some of them inside of "cache" and some beside it; here each may be in either
place, but once. None of them decides the data.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from zephon_async.checks import flag, nearest, refuse_unknown, shown, whole, whole_or_none
from zephon_async.errors import RecipeError
from zephon_async.options import parse_bytes

_HASHES = {*hashlib.algorithms_available, "crc32", "xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"}
_OF_ARROW = {"cpu_threads", "io_threads"}
_ALIASES = {"limit": "limit_bytes", "download_timeout": "download_timeout_s"}
_ALIASES |= {"arrow.cpu_threads": "arrow_cpu_threads", "arrow.io_threads": "arrow_io_threads"}


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """A cache on the local disk, of which `cache.py` says what it keeps.

    enabled: whether there is one.
    root: a local folder. The cache makes a folder of its own in it and touches nothing else there.
    limit_bytes (also `limit`): bytes of the disk that it may take, or text such as "200GB"; None: a tenth of what is free, or
        1 GiB if that is more and half of what is free has room for it.
    keep_zip: accepted; what is kept is always what was fetched, compressed as it was.
    validate_hash: False: do not compare the bytes of an entry with their checksum when a process first reads it. True, None or the
        name of a hash: do, by the checksum of the cache itself.
    min_slack_bytes, max_slack_bytes: accepted; what an entry takes is known exactly before it is written.
    """

    enabled: bool = False
    root: Path = Path("~/.cache/zephon")
    limit_bytes: int | None = None
    keep_zip: bool = False
    validate_hash: bool | str | None = None
    min_slack_bytes: int = 512 << 10
    max_slack_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        flag("enabled", self.enabled)
        flag("keep_zip", self.keep_zip)
        object.__setattr__(self, "root", _folder(self.root))
        if self.limit_bytes is not None:
            object.__setattr__(self, "limit_bytes", _bytes("limit_bytes", self.limit_bytes, least=1))
        for name in ("min_slack_bytes", "max_slack_bytes"):
            object.__setattr__(self, name, _bytes(name, getattr(self, name), least=0))
        if self.min_slack_bytes > self.max_slack_bytes:
            raise RecipeError(
                f"min_slack_bytes is {self.min_slack_bytes:,} and max_slack_bytes {self.max_slack_bytes:,}: swap them"
            )
        if isinstance(self.validate_hash, str):
            if self.validate_hash not in _HASHES:
                raise RecipeError(
                    f"validate_hash is {shown(self.validate_hash)}, which is no hash; {nearest(self.validate_hash, _HASHES)}"
                )
        elif self.validate_hash is not None:
            flag("validate_hash", self.validate_hash)

    @property
    def validates(self) -> bool:
        """Whether entries are compared with their checksum."""
        return self.validate_hash is not False


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How remote storage is read.

    download_retry: attempts in a row in which nothing comes, until it is an error.
    download_timeout_s (also `download_timeout`): seconds of such attempts and the pauses between them; one of them takes a third of
        that at most.
    download_hedges: whether reads that take much longer than others are made a second time beside themselves.
    spill_limit: bytes of the disk for what comes out of compressed shards that several lanes read at once, or text such as
        "20GB"; None: a tenth of what is free.
    metadata_cache_entries: 0: Parquet footers and the like are not kept in memory. Else as many are as have room in the budget.
    arrow_cpu_threads, arrow_io_threads (`arrow.cpu_threads`, or {"arrow": {"cpu_threads": ...}}): sizes of pyarrow's pools, which
        are of the whole process; None leaves them as they are.
    """

    cache: CacheOptions = field(default_factory=CacheOptions)
    download_retry: int = 12
    download_timeout_s: float = 180.0
    download_hedges: bool = True
    spill_limit: int | None = None
    metadata_cache_entries: int = 256
    arrow_cpu_threads: int | None = None
    arrow_io_threads: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "download_retry", whole("download_retry", self.download_retry, 1))
        object.__setattr__(self, "metadata_cache_entries", whole("metadata_cache_entries", self.metadata_cache_entries, 0))
        flag("download_hedges", self.download_hedges)
        if self.spill_limit is not None:
            object.__setattr__(self, "spill_limit", _bytes("spill_limit", self.spill_limit, least=0))
        for name in ("arrow_cpu_threads", "arrow_io_threads"):
            object.__setattr__(self, name, whole_or_none(name.replace("_", ".", 1), getattr(self, name)))
        seconds = self.download_timeout_s
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            raise RecipeError(f"download_timeout is {shown(seconds)}: it must be a number of seconds above 0")

    def size_pools(self) -> None:
        """Set the sizes of pyarrow's pools, where they are given."""
        if self.arrow_cpu_threads is not None:
            pa.set_cpu_count(self.arrow_cpu_threads)
        if self.arrow_io_threads is not None:
            pa.set_io_thread_count(self.arrow_io_threads)

    @staticmethod
    def of(io_options: Mapping[str, Any]) -> "StorageOptions":
        """The options that a mapping of settings means. Raises `RecipeError` for names and values that cannot be meant."""
        given = _one_level(io_options)
        of_cache = {name: given.pop(name) for name in (f.name for f in fields(CacheOptions)) if name in given}
        return StorageOptions(CacheOptions(**of_cache), **given)


_KNOWN = {f.name for f in (*fields(CacheOptions), *fields(StorageOptions))} | {*_ALIASES, "arrow"}


def _one_level(io_options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a mapping and of those in it, by the names of the fields here."""
    chosen: dict[str, Any] = {}
    for name, value in _pairs("io_options", io_options, _KNOWN):
        right = _ALIASES.get(name, name)
        if right in chosen:
            raise RecipeError(f"io_options was given {right!r} twice: {name!r} is the second time")
        chosen[right] = value
    return chosen


def _pairs(who: str, settings: Any, known: Set[str]) -> Iterator[tuple[str, Any]]:
    if not isinstance(settings, Mapping):
        raise RecipeError(f"{who} is {shown(settings)}: it must be a dict of settings")
    refuse_unknown(who, settings, known)
    for name, value in settings.items():
        if name == "cache":
            yield from _pairs(name, value, known - {name})
        elif name == "arrow":
            yield from ((f"arrow.{inner}", threads) for inner, threads in _pairs(name, value, _OF_ARROW))
        else:
            yield name, value


def _folder(root: Any) -> Path:
    if not isinstance(root, str | os.PathLike) or not isinstance(text := os.fspath(root), str) or not text:
        raise RecipeError(f"root is {shown(root)}: it must be the path of a folder")
    if "://" in text:
        raise RecipeError(f"root is {shown(text)}: the cache needs a folder on a local disk")
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no such user
        raise RecipeError(f"root is {shown(text)}: there is no such home folder") from None


def _bytes(name: str, size: Any, least: int) -> int:
    if isinstance(size, str):
        return parse_bytes(size, name)
    return whole(name, size, least, ", or text such as '2GiB'")
