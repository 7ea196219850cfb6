"""LitData: folders of `optimize()`, an `index.json` beside `chunk-<rank>-<number>.bin`. No torch is needed to read them.

The rows are the samples, in the order of the chunks' names; `litdata_index` says which their columns are, `litdata_leaves` of which
types. The places of all samples are at the head of a chunk, so a unit is a run of samples, and any row block is read by two ranges.
What `compression=` makes of chunks:

- "batch": runs of samples are compressed; a row block is a whole number of them.
- "sample": each sample is.
- "chunk", which shows in the names of chunks: the whole file is, and is read from its start.

Where samples are plain dicts newer versions write an Arrow file behind the head. It is what the library itself reads, and so is
here: its columns are those of that file, nested ones as Arrow nests them, and its units are record batches.

Of chunks of tokens (TokensLoader) the rows are the arrays that were written, each a document, in the column "input_ids". The size
of the blocks that StreamingDataset gives of them is said when reading, no index knows it: `pack_flat` cuts and packs them here.

Chunks that the index names must be there, with the size and the number of samples that it says; other files beside it are no
shards. Pickles are refused where their column is asked for, encrypted chunks always.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa

from zephon_async.errors import ColumnError, DatasetError, ShardError
from zephon_async.io.catalog import ANYWHERE, IN_ORDER
from zephon_async.io.conform import conform
from zephon_async.io.formats import arrow
from zephon_async.io.formats.base import Decoded, Format, Measure, UnitSpan, check_columns, held, rows_of, rows_per_block, span_of
from zephon_async.io.formats.litdata_chunk import (
    ARROW,
    BATCHES,
    INDEX,
    WHOLE,
    Layout,
    Samples,
    Scan,
    Window,
    layout_of,
    layout_ranges,
    sample_edges,
    sample_ranges,
    samples_of,
)
from zephon_async.io.formats.litdata_index import Leaf, parse_index
from zephon_async.io.formats.litdata_leaves import columns_of, field_of, refusal
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source


class LitdataFormat(Format):
    """The format. Stateless."""

    name = "litdata"
    suffixes = (".bin",)
    typed = True
    beside = INDEX

    def shards(self, names: Sequence[str], read: Callable[[str], bytes]) -> Sequence[str]:
        found: list[str] = []
        for folder in sorted({name.rpartition("/")[0] for name in names}):
            before = f"{folder}/" if folder else ""
            try:
                wanted = [before + name for name in parse_index(read(before + INDEX)).chunks]
            except ValueError as error:
                raise DatasetError(f"{before + INDEX!r} {error}") from error
            if missing := sorted(set(wanted).difference(names)):
                more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
                raise DatasetError(
                    f"{before + INDEX!r} names {missing[0]!r}{more}, which is not there; a whole folder is a dataset"
                )
            found += wanted
        return found

    def measure(self, total_bytes: int) -> Measure:
        return "rows"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        layout = layout_of(source)
        rows = layout.rows
        block = rows_per_block(rows, layout.nbytes, block_bytes)
        if layout.kind == WHOLE:
            return [UnitSpan(0, source.size, 0, held(source, rows), block, IN_ORDER)]
        if layout.kind == ARROW:
            units = arrow.FORMAT.units(_window(source, layout), measure, unit_bytes, block_bytes)
            if (count := sum(unit.length for unit in units)) != rows:
                raise ShardError(f"{source.where}: its head says {rows:,} samples, and its Arrow file has {count:,} rows")
            return units
        if layout.kind == BATCHES:
            block = layout.run * max(block // layout.run, 1)
        step = block * max(unit_bytes * rows // max(source.size, 1) // block, 1)
        edges = sample_edges(source, layout, step)
        firsts = range(0, rows, step)
        return [UnitSpan(edges[n], edges[n + 1], first, min(step, rows - first), block, ANYWHERE) for n, first in enumerate(firsts)]

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        layout = layout_of(source)
        if layout.kind == ARROW:
            return arrow.FORMAT.look(_window(source, layout), unit, block_bytes, columns)
        leaves = _leaves(source, layout, layout.index.names if columns is None else columns)
        as_bytes = [leaf._replace(kind="bytes") for leaf in layout.index.leaves]
        first = Scan(source, layout).samples(0, 1) if layout.kind == WHOLE else None
        first = first or samples_of(source, layout, int(unit["first"]), min(layout.run or 1, int(unit["length"])))
        names = {leaf.name for leaf in leaves}
        found, _ = columns_of(first, as_bytes, names, pa.schema([]), headed=not layout.index.tokens)
        return pa.schema([field_of(leaf, found[leaf.name][0].as_py() or b"") for leaf in leaves])

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "LitdataDecoder":
        return LitdataDecoder(schema, required, pool)


def _window(source: Source, layout: Layout) -> Window:
    """The Arrow file in a chunk."""
    return Window(source, layout.start, layout.stop)


def _leaves(source: Source, layout: Layout, columns: Collection[str]) -> list[Leaf]:
    """The values of samples that are columns. Raises `ColumnError` for one that is not read."""
    leaves = [leaf for leaf in layout.index.leaves if leaf.name in columns]
    if reason := next(filter(None, map(refusal, leaves)), None):
        raise ColumnError(f"{source.where}: {reason}")
    return leaves


class LitdataDecoder:
    """Reads row blocks of chunks."""

    def __init__(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> None:
        self._schema, self._required, self._pool = schema, required, pool
        self._arrow = arrow.FORMAT.decoder(schema, required, pool)

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        layout = layout_of(source)
        if layout.kind == ARROW:
            return self._arrow.read(_window(source, layout), unit, blocks)
        check_columns(source, pa.schema([(name, pa.null()) for name in layout.index.names]), self._schema.names, self._required)
        _leaves(source, layout, self._schema.names)
        begin, _ = span_of(unit, blocks[0])
        end = sum(span_of(unit, blocks[-1]))
        first = int(unit["first"]) + begin
        if layout.kind == WHOLE:
            samples = self._scanned(source, layout, unit, blocks, first, end - begin)
        else:
            samples = samples_of(source, layout, first, end - begin)
        return [self._block(layout, samples, unit, block, begin) for block in blocks]

    def _scanned(self, source: Source, layout: Layout, unit: Any, blocks: range, first: int, rows: int) -> Samples:
        """Samples of a chunk that is compressed as a whole."""
        with self._pool.opened(source.where, unit, blocks, lambda: Scan(source, layout)) as scan:
            scan.turn_to(source)
            scan.at = blocks.stop
            return scan.samples(first, rows)

    def _block(self, layout: Layout, samples: Samples, unit: Any, block: int, before: int) -> Decoded:
        begin, rows = span_of(unit, block)
        own = samples.part(begin - before, rows)
        columns, bad = columns_of(own, layout.index.leaves, set(self._schema.names), self._schema, headed=not layout.index.tokens)
        made, misfits = conform(columns, rows, self._schema)
        return Decoded(block, made, rows_of(unit, block), misfits | bad)

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        layout = layout_of(source)
        if layout.kind == WHOLE:
            return [(0, source.size)]
        if layout.kind == ARROW:
            within = self._arrow.ranges(_window(source, layout), unit, blocks)
            return [*layout_ranges(source), *((begin + layout.start, end + layout.start) for begin, end in within)]
        return [*layout_ranges(source), *sample_ranges(layout, unit)]

    def row_name(self, source: Source, row: int) -> str:
        return f"sample {row:,}"


FORMAT = LitdataFormat()
