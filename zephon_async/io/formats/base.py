"""What a format promises.

A format says which units a shard has (from its footer or headers, or from its bytes where that is cheap), which columns its
first rows have, and makes the `Decoder` that reads one row block of a unit as Arrow. It reads through a `Source` alone and
keeps no state: what stays open between row blocks is in the `Pool` that the decoder is given.

Threads: formats and decoders are values; any thread may call them at any time.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import hint
from zephon_async.errors import ColumnError, ShardError, StorageError
from zephon_async.io.catalog import ANYWHERE, IN_ORDER, MOST_RATIO
from zephon_async.io.conform import canonical_field, conform
from zephon_async.io.formats.edges import Edges
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source, Store

Measure: TypeAlias = Literal["rows", "bytes"]
MOST_ROWS = 4096  # of a row block, where rows are counted
_ASKED = re.compile(r"of size (\d+) failed")
_ABSURD = 10**14  # bytes, which no machine has


class UnitSpan(NamedTuple):
    """A unit of a shard: the fields of catalog.UNIT but the shard."""

    start: int
    stop: int
    first: int
    length: int
    block: int
    entry: int = ANYWHERE


class Decoded(NamedTuple):
    """A decoded row block: its number in the unit, its columns, the row of each in the shard (int64[n]), what is bad and why.

    last: no row block behind it has a row; told where their number is not known (FROM_START).
    starts: the first bytes of bad rows, up to 200 or so, where they are at hand.
    """

    block: int
    columns: pa.RecordBatch
    rows: npt.NDArray[np.int64]
    bad: Mapping[int, str]
    last: bool = False
    starts: Mapping[int, bytes] = MappingProxyType({})


class Decoder(Protocol):
    """Reads row blocks of the shards of one format."""

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        """Neighbouring row blocks of a unit (a record of catalog.UNIT), and others that were decoded on the way to them.

        Where their number is not known (FROM_START) some behind the last may be asked for: they are empty, and `last`.
        """

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        """Where the bytes lie, (begin, end), that row blocks of a unit are decoded from: what is fetched before they are read.

        What is read beside them is waited for. Of a unit measured in rows all row blocks are asked for at once; of one of which
        their number is not known (FROM_START) it is not asked.
        """

    def row_name(self, source: Source, row: int) -> str:
        """What messages call a row. It may read, and is asked only when a message is made."""


class Format(Protocol):
    """How the bytes of a shard are rows."""

    @property
    def name(self) -> str: ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of the names of its shards, in lower case."""

    @property
    def loose_suffixes(self) -> tuple[str, ...]:
        """Of names that are its shards only where the format is said and no name has one of its suffixes."""
        return ()

    @property
    def typed(self) -> bool:
        """Whether its shards say themselves of which types their columns are."""

    @property
    def spelled(self) -> bool:
        """Whether all its values are texts, of which the look finds types: text holds those of shards that differ."""
        return False

    @property
    def beside(self) -> str:
        """The name of a file that lies beside every shard, `{stem}` being the name of the shard without its suffix; or "".

        Where formats share a suffix it tells them apart.
        """
        return ""

    @property
    def index(self) -> str:
        """The base name of files that say which shards there are; or "". They are given to `shards`, and are not ignored."""
        return ""

    def shards(self, names: Sequence[str], read: Callable[[str], bytes]) -> Sequence[str]:
        """Those of the files with its suffixes below a root that are shards, by an index if there is one.

        names: these, and its index files. read: any file below the root, whole, listed or not.
        Raises `DatasetError` where a shard that should be there is not.
        """
        return names

    def store(self, path: str, options: Mapping[str, Any]) -> Store | None:
        """What lies at a path or URL as a store of its own, where a dataset has a manifest; None: its shards are files.

        It is asked where the format was said, or is told by the path's own ending, before anything is listed. options: the
        `storage_options`. The names of the store are then the shards, and its sources what the format reads: they need no bytes.
        """
        return None

    def check(self, source: Source) -> None:
        """Look for what reading its rows does not show, such as a wrong hash. It may read all of it. Raises `ShardError`."""
        return

    def described(self, source: Source) -> tuple[int, dict[str, Any]]:
        """Rows of a shard, and what `build_index` keeps of it beside them (`extra`, see `io.index`). It may read all of it."""
        return sum(span.length for span in self.units(source, "rows", 1 << 24, 1 << 20)), {}

    @property
    def entered_by_index(self) -> bool:
        """Whether units of large data are measured in rows and made by `units_by` where an index knows the edges of all shards."""
        return False

    def units_by(self, source: Source, edges: Edges, block_bytes: int) -> Sequence[UnitSpan]:
        """The units of a shard, measured in rows, by what an index says where rows begin: where `described` says that."""
        return self.units(source, "rows", block_bytes << 4, block_bytes)

    def measure(self, total_bytes: int) -> Measure:
        """What the units of a dataset of so many bytes are measured in: rows where they can be told without a full read."""

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        """The units of a shard, in their order. Empty ones may be among them."""

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        """Of the columns asked for, those in the first row block of a unit, with their types: `null` where only nulls were seen."""

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> Decoder:
        """A decoder that gives exactly the columns of `schema`, null where a shard lacks one that is not required."""


def held(source: Source, rows: int) -> int:
    """How many rows a shard says that it has. Raises `ShardError` for more than its bytes can hold: no run would end with them."""
    if not 0 <= rows <= MOST_RATIO * source.size:
        raise ShardError(f"{source.where}: says that it has {rows:,} rows, in {source.size:,} bytes: it is broken")
    return rows


def rows_per_block(rows: int, nbytes: int, block_bytes: int) -> int:
    """Rows of a row block of at most about `block_bytes`, for `rows` rows of `nbytes` bytes in all: blocks of even size."""
    blocks = max(-(-nbytes // block_bytes), -(-rows // MOST_ROWS), 1)
    return max(-(-rows // blocks), 1)


def runs_of_rows(rows: int, nbytes: int, unit_bytes: int, block_bytes: int) -> list[UnitSpan]:
    """Units of about `unit_bytes`, from row `start` on, for `rows` rows of `nbytes` bytes in all that can be entered anywhere."""
    block = rows_per_block(rows, nbytes, block_bytes)
    step = block * max(unit_bytes * rows // max(nbytes, 1) // block, 1)
    return [UnitSpan(first, min(first + step, rows), first, min(step, rows - first), block) for first in range(0, rows, step)]


def between(edges: Edges, block_bytes: int) -> list[UnitSpan]:
    """Units of a shard that can be entered where rows begin, each of them one row block of about `block_bytes`."""
    kept = edges.thinned(block_bytes)
    spans = zip(pairwise(kept.offsets.tolist()), pairwise(kept.rows.tolist()), strict=True)
    return [UnitSpan(start, stop, first, behind - first, behind - first) for (start, stop), (first, behind) in spans]


def from_start(edges: Edges, nbytes: int, block_bytes: int) -> list[UnitSpan]:
    """A shard of `nbytes` as one unit that is read from its start. edges: of what comes out of it."""
    return [UnitSpan(0, nbytes, 0, edges.total, rows_per_block(edges.total, edges.end, block_bytes), IN_ORDER)]


def span_of(unit: Any, block: int) -> tuple[int, int]:
    """Where row block `block` of a unit measured in rows begins in the unit, and how many rows it has."""
    begin = block * int(unit["block"])
    return begin, min(int(unit["block"]), int(unit["length"]) - begin)


def rows_of(unit: Any, block: int) -> npt.NDArray[np.int64]:
    """The rows in the shard of a row block of a unit measured in rows."""
    begin, rows = span_of(unit, block)
    return np.arange(rows) + (int(unit["first"]) + begin)


def decoded_block(columns: Mapping[str, pa.Array], schema: pa.Schema, unit: Any, block: int) -> Decoded:
    """A row block of a unit measured in rows, of its columns; of those that are slices of far more, copies are made."""
    rows = rows_of(unit, block)
    made, bad = conform({name: _own(array) for name, array in columns.items()}, len(rows), schema)
    return Decoded(block, made, rows, bad)


def _own(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([array]) if array.get_total_buffer_size() > 2 * array.nbytes else array


def check_columns(source: Source, schema: pa.Schema, wanted: Collection[str], required: Collection[str]) -> list[str]:
    """The wanted columns that a file has, in its order. Raises `ShardError` for a required one that is not there."""
    names = schema.names
    if missing := sorted(set(required).difference(names)):
        raise ColumnError(
            f"{source.where}: there is no column {missing[0]!r}; its columns are {', '.join(map(repr, names)) or 'none'}"
            f"{hint(missing[0], names)}"
        )
    asked = set(wanted)
    present = [name for name in names if name in asked]
    if len(set(present)) < len(present):
        twice = sorted(name for name, times in Counter(present).items() if times > 1)
        raise ColumnError(f"{source.where}: has two columns named {twice[0]!r}")
    return present


def looked(schema: pa.Schema, columns: Collection[str] | None) -> pa.Schema:
    """The columns asked for of a file's own schema, with canonical types; marks on fields stay."""
    return pa.schema([canonical_field(field) for field in schema if columns is None or field.name in columns])


@contextmanager
def reading(source: Source, form: str) -> Iterator[None]:
    """Turn what Arrow says of a broken shard into a `ShardError` that names it."""
    try:
        yield
    except MemoryError as error:  # Arrow's is one of its own too
        asked = _ASKED.search(str(error))
        if not asked or int(asked[1]) < min(MOST_RATIO * source.size, _ABSURD):  # what a machine may lack
            error.add_note(f"while {source.where} was read as {form}")
            raise
        raise ShardError(f"{source.where}: cannot be read as {form}: it is broken: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        of_system = isinstance(error, OSError) and error.errno is not None  # Arrow says OSError of broken bytes too
        kind = StorageError if of_system else ShardError
        raise kind(f"{source.where}: cannot be read as {form}: {str(error).strip()}") from error
