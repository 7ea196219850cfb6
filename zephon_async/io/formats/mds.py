"""MDS, the shards of MosaicML streaming: `.mds` files, raw or compressed, of which an `index.json` says what they are.

A row is a sample of a shard: the lengths of those of its columns that vary (u32 each), then the values of all columns one behind
the other, in the encodings that the index says. Nothing is unpickled.

Units are made from the index alone: no shard is read before a row of it is wanted. The units of a raw shard are runs of samples, of
which every row block is read by itself. A compressed shard is one unit: it is decompressed as a whole, which is kept in the pool.
Where a shard is there in both ways the raw one is read. Number of samples, columns, sizes and places must agree with the index.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from zephon_async.errors import ColumnError
from zephon_async.io.catalog import WHOLE
from zephon_async.io.conform import LEAVE_OUT, conform, nulled
from zephon_async.io.formats.base import Decoded, Format, Measure, UnitSpan, check_columns, rows_of, rows_per_block, span_of
from zephon_async.io.formats.mds_encodings import PICKLE, Coder, coder_of
from zephon_async.io.formats.mds_index import INDEX, Entry, pick
from zephon_async.io.formats.mds_samples import COMPRESSIONS, FOUND, Opened, Samples, check, open_samples
from zephon_async.io.formats.mds_values import NO_VALUES, Places, Values
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source

_SIZES = "the lengths of its columns do not add up to the"


class MdsFormat(Format):
    """The format. Stateless."""

    name = "mds"
    suffixes = (".mds", *(f".mds.{name}" for name in COMPRESSIONS))
    typed = True
    index = INDEX

    def shards(self, names: Sequence[str], read: Callable[[str], bytes]) -> Sequence[str]:
        return pick(names, read)

    def measure(self, total_bytes: int) -> Measure:
        return "rows"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        found = FOUND.of(source, anew=True)
        rows, nbytes = found.entry.samples, found.entry.raw_data.bytes
        if not rows:
            open_samples(source, found).places(0, 0)
            return []
        block = rows_per_block(rows, nbytes, block_bytes)
        if found.is_compressed:
            return [UnitSpan(0, rows, 0, rows, block, WHOLE)]
        units = max(1, min(-(-nbytes // unit_bytes), rows))
        edges = pairwise([rows * n // units for n in range(units + 1)])
        return [UnitSpan(start, stop, start, stop - start, min(block, stop - start)) for start, stop in edges]

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        found = FOUND.of(source)
        names = found.entry.column_names
        layout = _Layout.of(source.where, found.entry, [name for name in names if columns is None or name in columns])
        if not any(coder.looks for coder in layout.coders.values()):
            values = dict.fromkeys(layout.coders, NO_VALUES)
        else:
            samples = open_samples(source, found)
            places = samples.places(*_rows(unit, range(1)))
            values, _ = layout.split(samples.body(places), places - places[0])
        return pa.schema([coder.look(values[name], name) for name, coder in layout.coders.items()])

    def check(self, source: Source) -> None:
        check(source)

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "MdsDecoder":
        return MdsDecoder(schema, required, pool)


class _Layout(NamedTuple):
    """How samples are split into columns. sizes: of the values of each column, 0 where they vary. coders: of wanted columns."""

    names: tuple[str, ...]
    sizes: Places
    coders: Mapping[str, Coder]

    @staticmethod
    def of(where: str, entry: Entry, wanted: Sequence[str]) -> "_Layout":
        """Raises `ColumnError` where a wanted column cannot be read."""
        coders = {}
        sizes = np.array([size or 0 for size in entry.column_sizes], np.int64)
        for name, encoding, size in zip(entry.column_names, entry.column_encodings, sizes.tolist(), strict=True):
            if name not in wanted:
                continue
            if encoding == PICKLE:
                raise ColumnError(
                    f"{where}: column {name!r} is pickled, which is not read, as a pickle can run any code; "
                    f"write it anew in another encoding, or {LEAVE_OUT}"
                )
            coder = coder_of(encoding)
            if coder is None:
                raise ColumnError(f"{where}: column {name!r} has the encoding {encoding!r}, which is not known")
            if coder.size is not None and size not in (0, coder.size):
                raise ColumnError(f"{where}: column {name!r} has values of {size:,} bytes, but {encoding!r} are {coder.size:,}")
            coders[name] = coder
        return _Layout(entry.column_names, sizes, coders)

    def split(self, body: memoryview, places: Places) -> tuple[dict[str, Values], dict[int, str]]:
        """The values of the wanted columns of samples, and the samples that are broken, whose values are empty.

        places: where in the body samples begin, and where the last one ends.
        """
        starts, stops = places[:-1], places[1:]
        vary = np.flatnonzero(self.sizes == 0)
        head = 4 * len(vary)
        sizes = np.empty((len(starts), len(self.sizes)), np.int64)
        sizes[:] = self.sizes
        broken = stops - starts < head
        if head and len(body) >= head:
            at = np.where(broken, 0, starts)[:, None] + np.arange(0, head, 4)
            sizes[:, vary] = Values(body, starts, stops).numbers("<u4", at)
        ends = (starts + head)[:, None] + sizes.cumsum(axis=1)
        broken |= (ends[:, -1] if len(self.sizes) else starts) != stops
        bad = {row: f"{_SIZES} {stops[row] - starts[row]:,} bytes of the sample" for row in np.flatnonzero(broken).tolist()}
        if bad:
            ends[broken], sizes[broken] = starts[broken, None], 0
        numbers = {name: n for n, name in enumerate(self.names)}
        ends_of = {name: ends[:, numbers[name]] for name in self.coders}
        return {name: Values(body, end - sizes[:, numbers[name]], end) for name, end in ends_of.items()}, bad


class MdsDecoder:
    """Decodes samples to the columns of a schema."""

    def __init__(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> None:
        self._schema, self._required, self._pool = schema, required, pool

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        found = FOUND.of(source)
        if not found.is_compressed:
            return self._blocks(source, open_samples(source, found), unit, blocks)
        with self._pool.opened(source.where, unit, blocks, lambda: Opened(source, found)) as shard:
            return self._blocks(source, shard.samples, unit, blocks)

    def _blocks(self, source: Source, samples: Samples, unit: Any, blocks: range) -> list[Decoded]:
        """Row blocks, of which the samples are read at once."""
        entry, (start, stop) = samples.entry, _rows(unit, blocks)
        columns = pa.schema([(name, pa.null()) for name in entry.column_names])
        layout = _Layout.of(source.where, entry, check_columns(source, columns, self._schema.names, self._required))
        places = samples.places(start, stop)
        body = samples.body(places)
        decoded = []
        for block in blocks:
            begin, rows = span_of(unit, block)
            first = begin + int(unit["first"]) - start
            made, bad = self._block(layout, body, places[first : first + rows + 1] - places[0])
            decoded.append(Decoded(block, made, rows_of(unit, block), bad))
        return decoded

    def _block(self, layout: _Layout, body: memoryview, places: Places) -> tuple[pa.RecordBatch, dict[int, str]]:
        split, broken = layout.split(body, places)
        arrays: dict[str, pa.Array] = {}
        bad: dict[int, str] = {}
        for name, values in split.items():
            array, misfits = layout.coders[name].decode(values, self._schema.field(name))
            if nothing := {**misfits, **broken}:
                array = nulled(array, np.array(list(nothing)))
            arrays[name] = array
            for row, reason in misfits.items():
                bad.setdefault(row, f"column {name!r}: {reason}")
        made, misfits = conform(arrays, len(places) - 1, self._schema)
        return made, {**misfits, **bad, **broken}

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        found = FOUND.of(source)
        if found.is_compressed:
            return [(0, source.size)]
        start, stop = _rows(unit, blocks)
        places = open_samples(source, found).places(start, stop)
        return [(4 + 4 * start, 8 + 4 * stop), (int(places[0]), int(places[-1]))]

    def row_name(self, source: Source, row: int) -> str:
        return f"sample {row:,}"


def _rows(unit: Any, blocks: range) -> tuple[int, int]:
    """The samples of row blocks of a unit, in the shard."""
    last, rows = span_of(unit, blocks[-1])
    return int(unit["first"]) + span_of(unit, blocks[0])[0], int(unit["first"]) + last + rows


FORMAT = MdsFormat()
