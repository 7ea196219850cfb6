"""WebDataset: tars of which the files that lie one behind the other under one key are one row.

The key of a file is its name up to the first dot behind the last slash; it is the column `__key__`. What is behind that dot, in
lower case, is its column. Files without a dot there, hidden ones (with nothing before the dot), those below a folder or of a name
like `__this__`, folders and links are passed over. A column that a row has twice makes it a bad row, `__key__` too; a key that
comes back later is another row. All this is as in the package webdataset, but that there a hidden file in a folder is a row of its
own, and that it takes tars without the two blocks of zeros at their end, and what lies behind these, in silence: here both are
errors.

By the last part of its name a column is text (`txt`, `text`, `transcript`), int64 (`cls`, `cls2`, `index`, `inx`, `id`), JSON text
(`json`, `jsn`), the numbers of an array (`npy`, see `npy`) or else bytes, such as images, which stay encoded; a type that is pinned
goes before that. webdataset decodes so only when it is told to, and then also pickles, msgpack, CBOR, tensors and images, what ends
in `.gz`, and JSON with NaN in it or in UTF-16.

Data under 64 MB is counted first, from the headers; then a unit is one row block, and so it is in larger data of which an index
says where rows begin (see `io.index`). Else each shard is read from its start, since a tar has no index of its own, and so are
compressed ones (.tar.gz, .tgz, .tar.zst, .tar.bz2, .tar.xz). Row blocks are blocks of bytes of the tar, with the rows that begin in
them. The number of a row is the byte of its first header, in what comes out of a compressed
shard.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.errors import ShardError
from zephon_async.io.catalog import ANYWHERE, FROM_START
from zephon_async.io.conform import conform
from zephon_async.io.formats.base import Decoded, Format, Measure, UnitSpan, between, from_start, span_of
from zephon_async.io.formats.edges import APART, Edges, edges_of, outer
from zephon_async.io.formats.file_values import column_of, field_of, keys_of, needs_values
from zephon_async.io.formats.inflate import Codec, Inflated, Stream, codec_of, with_compressed
from zephon_async.io.formats.samples import ANY, KEY, Samples, column_name, split
from zephon_async.io.formats.shared import stream_in
from zephon_async.io.formats.tar import walk
from zephon_async.io.formats.tar_scan import Run, TarScan
from zephon_async.io.formats.tar_usual import BLOCK
from zephon_async.io.pool import Pool
from zephon_async.io.stores import Source, view_of

COUNTED_BYTES = 64 << 20
_PASSED = 4  # row blocks on the way to others that are decoded
_START_BYTES = 200


def _codec(source: Source) -> Codec | None:
    """How a shard is compressed."""
    name = source.name.lower()
    return codec_of(".gz" if name.endswith(".tgz") else name)


class WebDatasetFormat(Format):
    """The format. Stateless."""

    name = "webdataset"
    suffixes = (*with_compressed(".tar"), ".tgz")
    typed = True
    entered_by_index = True

    def measure(self, total_bytes: int) -> Measure:
        return "rows" if total_bytes < COUNTED_BYTES else "bytes"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        if measure == "bytes" and source.size:
            return [UnitSpan(0, source.size, 0, source.size, min(block_bytes, unit_bytes), FROM_START)]
        return _units(source, _counted(source), block_bytes)

    def described(self, source: Source) -> tuple[int, dict[str, Any]]:
        edges = _counted(source)
        kept = edges.thinned(APART) if _codec(source) is None else outer(edges.total, edges.end)
        return edges.total, kept.described()

    def units_by(self, source: Source, edges: Edges, block_bytes: int) -> Sequence[UnitSpan]:
        if _codec(source) is None:  # a tar is filled up to a round size, so one that has grown may have the same
            left = source.size - edges.end
            if left < 2 * BLOCK or any(source.read(edges.end, 2 * BLOCK)):
                raise _of_another(source, f"do not end at byte {edges.end:,}")
        return _units(source, edges, block_bytes)

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        def wanted(column: str) -> bool:
            return needs_values(column) and (columns is None or column in columns)

        if unit["entry"] == ANYWHERE:
            samples = _alone(source, unit, wanted)
        else:
            samples, _ = _next(_scan(source, wanted), unit, wanted)
        names = [name for name in samples.columns if _is_sound(name) and name != KEY]
        fields = [pa.field(KEY, pa.large_string()), *(field_of(name, samples.values(name)) for name in names)]
        return pa.schema([field for field in fields if columns is None or field.name in columns])

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> "WebDatasetDecoder":
        return WebDatasetDecoder(schema, pool)


def _units(source: Source, edges: Edges, block_bytes: int) -> Sequence[UnitSpan]:
    return between(edges, block_bytes) if _codec(source) is None else from_start(edges, source.size, block_bytes)


def _of_another(source: Source, what: str) -> ShardError:
    return ShardError(
        f"{source.where}: its rows {what}, as was counted; start again, and where there is an index.json build it again"
    )


def _is_sound(column: str) -> bool:
    """Whether a column has a name that is UTF-8; another one cannot be asked for."""
    return not any("\ud800" <= char <= "\udfff" for char in column)


def _scan(source: Source, wanted: Callable[[str], bool], stream: Stream | None = None) -> TarScan:
    """A shard from its start on. wanted: whether a column is."""
    if stream is None and (codec := _codec(source)) is not None:
        stream = Inflated(source, codec)
    return TarScan(source, stream, lambda name: wanted(column_name(split(name)[1])))


def _counted(source: Source) -> Edges:
    """Where the rows of a shard begin, and where it ends."""
    scan, samples = _scan(source, _nothing), Samples(_nothing)
    while not scan.over:
        scan.more()
        samples.take(scan.run)
    return edges_of(samples.starts, scan.end)


def _alone(source: Source, unit: Any, wanted: Callable[[str], bool]) -> Samples:
    """The rows of a unit that is one row block."""
    start, stop = int(unit["start"]), int(unit["stop"])
    text = view_of(source, start, stop - start)
    walked, samples = walk(source.where, text, start), Samples(wanted)
    if walked.error is not None:
        raise walked.error
    samples.take(Run(text, start, walked.members))
    if start + walked.at != stop or len(samples.starts) != unit["length"]:
        raise ShardError(
            f"{source.where}: its bytes {start:,} to {stop:,} are not those that were counted; start again, "
            "and where there is an index.json build it again"
        )
    return samples


def _next(scan: TarScan, unit: Any, wanted: Callable[[str], bool]) -> tuple[Samples, bool]:
    """The next row block of what is read from its start, and whether it is the last."""
    samples = Samples(wanted)
    by_bytes = unit["entry"] == FROM_START
    limits = ((scan.at + 1) * int(unit["block"]), ANY) if by_bytes else (ANY, span_of(unit, scan.at)[1])
    full = samples.take(scan.run, *limits)
    while not full and not scan.over:
        scan.more()
        full = samples.take(scan.run, *limits)
    scan.at += 1
    return samples, not full


class WebDatasetDecoder:
    """Decodes the files of samples to the columns of a schema."""

    def __init__(self, schema: pa.Schema, pool: Pool) -> None:
        self._schema, self._pool = schema, pool
        self._wanted = frozenset(schema.names).__contains__

    def read(self, source: Source, unit: Any, blocks: range) -> Sequence[Decoded]:
        if unit["entry"] == ANYWHERE:
            return [self._block(block, _alone(source, unit, self._wanted)) for block in blocks]
        key = (source.where, int(unit["start"]))
        if (scan := self._pool.take(key, blocks.start)) is None:
            codec = _codec(source)
            scan = _scan(source, self._wanted, None if codec is None else stream_in(self._pool, key, source, codec))
        scan.turn_to(source)
        decoded, last = list[Decoded](), False
        while scan.at < blocks.stop and not last:
            number, given = scan.at, scan.at >= blocks.start - _PASSED
            samples, last = _next(scan, unit, self._wanted if given else _nothing)
            if not last:
                self._pool.mark(key, scan)
            if given:
                decoded.append(self._block(number, samples, last))
        if not last and unit["entry"] != FROM_START and scan.at * int(unit["block"]) >= int(unit["length"]):
            raise _of_another(source, f"are not {unit['length']:,}")
        if not last:
            self._pool.put(key, scan)
        behind = range(max(scan.at, blocks.start), blocks.stop)
        return [*decoded, *(self._block(number, Samples(_nothing), True) for number in behind)]

    def _block(self, block: int, samples: Samples, last: bool = False) -> Decoded:
        rows, bad = len(samples.starts), dict(samples.bad)
        columns = {}
        for field in self._schema:
            if field.name == KEY:
                columns[KEY], misfits = keys_of(samples.keys)
            else:
                columns[field.name], misfits = column_of(field, samples.rows(field.name), samples.values(field.name), rows)
            for row, reason in misfits.items():
                bad.setdefault(row, f"column {field.name!r}: {reason}")
        made, misfits = conform(columns, rows, self._schema)
        for row, reason in misfits.items():
            bad.setdefault(row, reason)
        for row in samples.rows(KEY):
            bad.setdefault(row, f"has a file {KEY!r}, and that column is the key of the sample")
        starts = {row: samples.keys[row][:_START_BYTES] for row in bad}  # a sample begins with the name of its first file
        return Decoded(block, made, np.array(samples.starts, np.int64), bad, last, starts)

    def ranges(self, source: Source, unit: Any, blocks: range) -> Sequence[tuple[int, int]]:
        return [(int(unit["start"]), int(unit["stop"]))]

    def row_name(self, source: Source, row: int) -> str:
        """The key of a sample, and the byte where it begins."""
        if _codec(source) is not None:
            return f"the sample at byte {row:,} of what comes out of it"
        scan = TarScan(source, None, lambda name: False, row)
        while not scan.run.members:
            scan.more()
        key, _ = split(scan.run.members[0][1])
        return f"sample {key.decode('utf-8', 'backslashreplace')!r} (byte {row:,})"


def _nothing(column: str) -> bool:
    return False


FORMAT = WebDatasetFormat()
