"""The index of an MDS dataset: which shards it has, how their samples are laid out, and their sizes and hashes.

An `index.json` names shards of its folder, and after `merge_index` those of folders below it. It is required, as in the format's
own library: a shard belongs to the nearest index at or above it that names it. What an index names must be there, raw or
compressed, and what is there must be named by an index: a stale one is an error, not fewer rows. Where the path of a dataset is a
pattern or one file, the shards that it leaves out are not missed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from zephon_async.errors import DatasetError, MissingError, ShardError
from zephon_async.io.catalog import MOST_RATIO
from zephon_async.io.formats.remembered import MOST_BYTES, Remembered
from zephon_async.io.hashes import hashed
from zephon_async.io.stores import Source

INDEX = "index.json"
_VERSION = 2
_NOT_MENDED = "write the index anew (streaming's merge_index does), or copy the dataset again"
_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class File(msgspec.Struct, frozen=True):
    """A file of a shard: its name as seen from the folder of the index, its size, and its hashes by algorithm."""

    basename: str
    bytes: _Size
    hashes: dict[str, str] = {}


class Entry(msgspec.Struct, frozen=True):
    """What an index says of a shard. compression: an algorithm, and after a colon its level."""

    raw_data: File
    samples: _Size
    column_names: tuple[str, ...] = ()
    column_encodings: tuple[str, ...] = ()
    column_sizes: tuple[_Size | None, ...] = ()
    zip_data: File | None = None
    compression: str | None = None
    format: str = "mds"
    version: int = _VERSION


class _Index(msgspec.Struct):
    version: int
    shards: list[Entry]


class Found(NamedTuple):
    """What is known of a shard, and which of its two files it is."""

    entry: Entry
    file: File

    @property
    def is_compressed(self) -> bool:
        return self.file is not self.entry.raw_data


def entries_of(text: bytes) -> list[Entry]:
    """What an index has. Raises `ValueError` that says what is wrong with it."""
    if not text:
        raise ValueError("it is empty")
    try:
        index = msgspec.json.decode(text, type=_Index)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    seen = set[str]()
    for entry in index.shards:
        name = entry.raw_data.basename
        if index.version != _VERSION or entry.version != _VERSION:
            raise ValueError(f"it is of version {entry.version if index.version == _VERSION else index.version}, not {_VERSION}")
        if entry.format != "mds":
            raise ValueError(f"its shard {name!r} is of the format {entry.format!r}, not 'mds'")
        if not len(entry.column_names) == len(entry.column_encodings) == len(entry.column_sizes):
            raise ValueError(f"of its shard {name!r} it has not as many names as encodings and sizes of columns")
        if again := [file.basename for file in _files(entry) if file.basename in seen]:
            raise ValueError(f"it names {again[0]!r} twice")
        seen.update(file.basename for file in _files(entry))
    return index.shards


def pick(names: Sequence[str], read: Callable[[str], bytes]) -> list[str]:
    """The shards among files, by the indexes that are among them or are found above them: of each the raw file, if it is there.

    Raises `DatasetError` where an index is missing, broken or stale.
    """
    there = {name for name in names if not _is_index(name)}
    listed = sorted(set(names) - there)
    picked, named = set[str](), set[str]()

    def take(index: str, must_be_there: bool) -> None:
        folder = index.removesuffix(INDEX)
        for entry in _entries_at(index, read):
            files = [folder + file.basename for file in _files(entry)]
            if present := next((file for file in files if file in there), None):
                picked.add(present)
            elif must_be_there:
                raise DatasetError(f"{index!r} names the shard {files[-1]!r}, which is not there; {_NOT_MENDED}")
            named.update(files)

    for index in listed:
        take(index, must_be_there=True)
    tried = dict.fromkeys(listed, "")
    for name in sorted(there):
        for index in _above(name):
            if name not in named and index not in tried:
                try:
                    take(index, must_be_there=False)
                    tried[index] = ""
                except _Missing as error:
                    tried[index] = str(error)
        if name not in named:
            raise DatasetError(f"{_unnamed(name, [tried[index] for index in _above(name)])}; {_NOT_MENDED}")
    return sorted(picked, key=str.encode)


class _Missing(DatasetError):
    """There is no index at a place."""


def _entries_at(index: str, read: Callable[[str], bytes]) -> list[Entry]:
    try:
        text = read(index)
    except MissingError as error:
        raise _Missing(str(error)) from error
    try:
        return entries_of(text)
    except ValueError as error:
        raise DatasetError(_broken(index, error)) from error


def find(source: Source) -> Found:
    """What an index says of a shard. Raises `ShardError` where none names it, or where its size is another."""
    troubles = []
    for level, _ in enumerate(_above(source.name)):
        try:
            index = source.beside("../" * level + INDEX)
        except MissingError as error:
            troubles.append(str(error).removeprefix(f"{source.where}: "))
            continue
        troubles.append("")
        found = _INDEXES.of(index).get("/".join(source.name.split("/")[-1 - level :]))
        if found is not None:
            if source.size != found.file.bytes:
                raise ShardError(
                    f"{source.where}: has {source.size:,} bytes, but its {INDEX} says {found.file.bytes:,}; "
                    "it was cut short, or the index is of another version of it"
                )
            _check_sizes(source, found)
            return found
    raise ShardError(f"{source.where}: {_unnamed(source.name, troubles)}; {_NOT_MENDED}")


def _check_sizes(source: Source, found: Found) -> None:
    """Raise `ShardError` where a shard cannot have what its index says: no run would end with that."""
    nbytes, samples = found.entry.raw_data.bytes, found.entry.samples
    if found.is_compressed and nbytes > MOST_RATIO * source.size:
        raise ShardError(f"{source.where}: {nbytes:,} bytes cannot come out of {source.size:,}: its {INDEX} is not what it seems")
    if nbytes < 4 * (samples + 2):  # how many there are, and where each begins and the last ends
        raise ShardError(f"{source.where}: its {INDEX} says {samples:,} samples, and {nbytes:,} bytes cannot hold them")


def verify(where: str, file: File, body: bytes) -> None:
    """Compare bytes with the hashes that an index states; of those that need a package which is not there nothing is said."""
    for name, stated in sorted(file.hashes.items()):
        found = hashed(name, [body])
        if found is not None and found != stated:
            raise ShardError(
                f"{where}: {file.basename!r} has the {name} {found}, but its {INDEX} says {stated}; it is damaged: copy it again"
            )


def _parsed(source: Source) -> dict[str, Found]:
    try:
        entries = entries_of(source.read(0, source.size))
    except ValueError as error:
        raise ShardError(_broken(source.where, error)) from error
    return {file.basename: Found(entry, file) for entry in entries for file in _files(entry)}


_INDEXES = Remembered(_parsed, most_bytes=MOST_BYTES)


def _files(entry: Entry) -> list[File]:
    """The raw one first: it can be entered anywhere."""
    return [entry.raw_data] if entry.zip_data is None else [entry.raw_data, entry.zip_data]


def _is_index(name: str) -> bool:
    return name.rpartition("/")[2] == INDEX


def _above(name: str) -> Iterator[str]:
    """Where the index of a shard may be, from its own folder upwards."""
    folders = name.split("/")[:-1]
    for depth in range(len(folders), -1, -1):
        yield "/".join([*folders[:depth], INDEX])


def _broken(index: str, error: ValueError) -> str:
    return f"{index}: the index is broken: {error}; {_NOT_MENDED}"


def _unnamed(name: str, troubles: Sequence[str]) -> str:
    """What is said of a shard that no index names. troubles: why there is none, at each place; "" where there is one."""
    if all(troubles):
        return f"no {INDEX} is beside {name!r} or above it, and the samples of MDS are not read without ({troubles[0]})"
    return f"no {INDEX} names {name!r}, which is there"
