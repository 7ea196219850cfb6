"""The `index.json` of a LitData folder: its chunks, and what the values of a sample are, as columns.

A sample is a tree whose leaves lie one behind the other, and the index says which tree (a pytree of torch, as JSON). A leaf is a
column: the keys and numbers on the way to it, joined by dots ("text", "meta.lang", "images.0"); that of a sample which is one value
alone is "0", that of chunks of tokens "input_ids". Indexes of all versions are read; older ones say less.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

TOKENS = "input_ids"
_MOST_DEPTH = 100
_DICTS = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")
_LOADERS = (None, "PyTreeLoader", "TokensLoader")
_Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class Leaf(NamedTuple):
    """A value of each sample: its column, the name of its serializer, and what that says behind a colon."""

    name: str
    kind: str
    of: str


class Chunk(msgspec.Struct):
    """What the index says of a chunk. chunk_bytes: before a compression of the whole; up to 0.2.17 without the header."""

    filename: str
    chunk_size: _Whole
    chunk_bytes: _Whole


class Index(NamedTuple):
    """leaves: as they lie in a sample. codec: the name of the compression, or "". in_samples: each sample is compressed alone."""

    leaves: tuple[Leaf, ...]
    chunks: Mapping[str, Chunk]
    tokens: bool
    codec: str
    in_samples: bool

    @property
    def names(self) -> list[str]:
        """The columns."""
        return [leaf.name for leaf in self.leaves]


class _Config(msgspec.Struct):
    data_format: list[str]
    data_spec: str | None = None
    compression: str | None = None
    compression_level: str | None = None
    encryption: Any = None
    item_loader: str | None = None
    format: str | None = None


class _File(msgspec.Struct):
    chunks: list[Chunk]
    config: _Config


def parse_index(text: bytes) -> Index:
    """An index, as it is in its file. Raises `ValueError` with what is wrong with it, or cannot be read."""
    try:
        file = msgspec.json.decode(text, type=_File)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"is no index of LitData: {error}") from error
    config = file.config
    if config.encryption is not None:
        raise ValueError("says that its chunks are encrypted, which is not read: write them with encryption=None")
    if config.item_loader not in _LOADERS or config.format is not None:
        what = f"the item loader {config.item_loader!r}" if config.format is None else f"the format {config.format!r}"
        raise ValueError(f"says that its chunks are of {what}, and those of PyTreeLoader and TokensLoader are read")
    if config.compression and config.compression.partition(":")[0] != "zstd":
        raise ValueError(f"says that its chunks are compressed as {config.compression!r}, and only zstd is read")
    if not file.chunks:
        raise ValueError("names no chunk")
    chunks = {chunk.filename: chunk for chunk in file.chunks}
    if len(chunks) < len(file.chunks):
        raise ValueError("names a chunk twice")
    formats = [each.partition(":") for each in config.data_format]
    names = list(_names(config.data_spec, len(formats)))
    if len(names) != len(formats):
        raise ValueError(f"has {len(names)} values in data_spec, and {len(formats)} in data_format")
    tokens = config.item_loader == "TokensLoader" or (
        config.item_loader is None and len(formats) == 1 and formats[0][0] == "no_header_tensor"
    )
    if tokens:
        if len(formats) != 1 or not formats[0][0].startswith("no_header_"):
            raise ValueError(f"says that its chunks are tokens, and of {config.data_format}")
        names = [TOKENS]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"has two values that would be the column {twice!r}")
    leaves = tuple(Leaf(name, kind, of) for name, (kind, _, of) in zip(names, formats, strict=True))
    return Index(leaves, chunks, tokens, config.compression or "", config.compression_level == "sample")


def _names(spec: str | None, leaves: int) -> Iterator[str]:
    """The columns of a tree, in the order of its leaves."""
    if spec is None:
        return iter([str(n) for n in range(leaves)])
    try:
        _, tree = msgspec.json.decode(spec)
        return iter([".".join(path) or "0" for path in _paths(tree, ())])
    except (msgspec.MsgspecError, RecursionError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"has a data_spec that is no tree: {error or type(error).__name__}") from error


def _paths(tree: Mapping[str, Any], before: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The keys and numbers on the way to each leaf."""
    if len(before) > _MOST_DEPTH:
        raise ValueError("it is too deep")
    if tree["type"] is None:
        yield before
        return
    children = tree["children_spec"]
    keys: Any = range(len(children))
    if tree["type"] in _DICTS:
        context = msgspec.json.decode(tree["context"])
        keys = context["dict_context"] if isinstance(context, dict) else context
    for key, child in zip(keys, children, strict=True):
        yield from _paths(child, (*before, str(key)))
