"""How a chunk of LitData lies in its file: which bytes are samples, and where each begins.

At the head of a chunk are the places of its samples (uint32: how many, where each begins, where the last ends). "batch" compression
has its own head, with the places in what comes out and a directory of compressed runs. An Arrow file may lie behind the samples.
What is read is checked, so nothing is taken from places that the file does not have.
"""

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_async.errors import ShardError
from zephon_async.io.catalog import MOST_RATIO
from zephon_async.io.formats.inflate import Inflated, codec_of, unpack_zstd
from zephon_async.io.formats.litdata_index import Chunk, Index, parse_index
from zephon_async.io.formats.remembered import MOST_BYTES, Remembered
from zephon_async.io.stores import Source, view_of

INDEX = "index.json"
PLAIN, BATCHES, WHOLE, ARROW = range(4)
_MOST_SAMPLE_BYTES = 1 << 28  # that may come out of a sample
Ints: TypeAlias = npt.NDArray[np.int64]
_FRAMED = b"LDFZ01\0\0"
_HEAD = struct.Struct("<8sHHIII")  # of compressed runs: magic, version, flags, samples, samples of a run, runs
_RUN = np.dtype([("first", "<u4"), ("rows", "<u4"), ("start", "<u8"), ("length", "<u4"), ("inflated", "<u4")])
_FOOTER, _FOOTED = b"LDARW01\0", 12  # the last bytes, behind the length of the Arrow file


@dataclass(frozen=True, slots=True)
class Layout:
    """run, runs: of BATCHES, samples of a compressed run and how many there are. start, stop: of ARROW, where its file lies."""

    kind: int
    index: Index
    rows: int
    nbytes: int
    run: int = 0
    runs: int = 0
    start: int = 0
    stop: int = 0


class Samples(NamedTuple):
    """Bytes of samples: one begins at each place, the last place is the end: int64[rows + 1]. bad: which cannot be had, and why."""

    body: bytes | memoryview
    places: Ints
    bad: dict[int, str]

    def part(self, first: int, rows: int) -> "Samples":
        """Some of them."""
        bad = {row - first: reason for row, reason in self.bad.items() if first <= row < first + rows}
        return Samples(self.body, self.places[first : first + rows + 1], bad)


class Window:
    """Part of a shard as a source of its own."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self.where, self.name, self.tag, self.size = source.where, source.name, source.tag, stop - start
        self.key, self.remote = f"{source.key} from {start} to {stop}", source.remote
        self._source, self._start = source, start

    def read(self, offset: int, length: int) -> bytes:
        return self._source.read(self._start + offset, length)

    def beside(self, name: str) -> Source:
        return self._source.beside(name)


def _parsed(source: Source) -> Index:
    try:
        return parse_index(source.read(0, source.size))
    except ValueError as error:
        raise ShardError(f"{source.where}: {error}") from error


def _index(source: Source) -> Index:
    return _PARSED.of(source.beside(INDEX))


def _layout(source: Source) -> Layout:
    index = _index(source)
    chunk = index.chunks.get(source.name.rpartition("/")[2])
    if chunk is None:
        raise ShardError(f"{source.where}: its {INDEX} does not name it; list the dataset anew")
    if index.codec and source.name.endswith(f".{index.codec}.bin"):
        return Layout(WHOLE, index, chunk.chunk_size, chunk.chunk_bytes)
    if source.size not in _sizes(chunk):
        raise ShardError(
            f"{source.where}: has {source.size:,} bytes, and {chunk.chunk_bytes:,} by its {INDEX}: one of the two was cut short, "
            f"or is of another version of the data"
        )
    layout = _laid(source, index)
    if layout.rows != chunk.chunk_size:
        raise wrong_count(source, layout.rows, chunk.chunk_size)
    return layout


def _sizes(chunk: Chunk) -> tuple[int, int]:
    """Bytes that a chunk may have; older versions did not count its head."""
    return chunk.chunk_bytes, chunk.chunk_bytes + 4 * (chunk.chunk_size + 2)


def _laid(source: Source, index: Index) -> Layout:
    """What the first and last bytes say."""
    head = source.read(0, min(_HEAD.size, source.size))
    if head[:8] == _FRAMED and len(head) == _HEAD.size:
        _, version, _, rows, run, runs = _HEAD.unpack(head)
        if version != 1 or not run or runs != -(-rows // run):
            raise ShardError(f"{source.where}: its head is broken, or of another version than 1 ({version})")
        if _HEAD.size + 4 * (rows + 1) + _RUN.itemsize * runs > source.size:
            raise _broken(source)
        return Layout(BATCHES, index, rows, source.size, run, runs)
    rows = int.from_bytes(head[:4], "little")
    header = 4 * (rows + 2)
    if header > source.size:
        raise _broken(source)
    if source.size >= header + _FOOTED:
        tail = source.read(source.size - _FOOTED, _FOOTED)
        start = source.size - _FOOTED - int.from_bytes(tail[:4], "little")
        if tail[4:] == _FOOTER and start >= header:
            return Layout(ARROW, index, rows, source.size, start=start, stop=source.size - _FOOTED)
    return Layout(PLAIN, index, rows, source.size)


_PARSED, _LAYOUT = Remembered(_parsed, most_bytes=MOST_BYTES), Remembered(_layout)


def layout_of(source: Source) -> Layout:
    """How a chunk is laid out, from its ends and its index; by no other than the one that is remembered."""
    layout = _LAYOUT.of(source)
    return layout if layout.index is _index(source) else _LAYOUT.of(source, anew=True)


def layout_ranges(source: Source) -> list[tuple[int, int]]:
    """The bytes that this is read from."""
    return [(0, min(_HEAD.size, source.size)), (max(source.size - _FOOTED, 0), source.size)]


def wrong_count(source: Source, found: int, wanted: int) -> ShardError:
    return ShardError(f"{source.where}: has {found:,} samples, and {wanted:,} by its {INDEX}")


def _broken(source: Source) -> ShardError:
    return ShardError(f"{source.where}: its samples do not lie in it one behind the other: it was cut short, or is broken")


def _checked(source: Source, table: bytes, begin: int, end: int) -> Ints:
    """Places of samples, which must lie one behind the other between two others."""
    places = np.frombuffer(table, "<u4").astype(np.int64)
    if places[0] < begin or places[-1] > end or (np.diff(places) < 0).any():
        raise _broken(source)
    return places


def sample_edges(source: Source, layout: Layout, step: int) -> list[int]:
    """Where every `step` samples begin in a PLAIN or BATCHES chunk, and where the last ends. Checks its whole table."""
    firsts = np.append(np.arange(0, layout.rows, step), layout.rows)
    if layout.kind == BATCHES:
        _checked(source, source.read(_HEAD.size, 4 * (layout.rows + 1)), 0, 1 << 32)
        runs = _runs(source, layout, 0, layout.runs)
        start = _HEAD.size + 4 * (layout.rows + 1) + _RUN.itemsize * layout.runs
        ends = np.append(runs["start"], start if not layout.runs else runs["start"][-1] + runs["length"][-1])
        edges = ends[-(-firsts // layout.run)]
    else:
        start = 4 * (layout.rows + 2)
        edges = _checked(source, source.read(4, start - 4), start, source.size)[firsts]
    if edges[0] != start or edges[-1] != source.size:
        raise _broken(source)
    return [int(edge) for edge in edges]


def sample_ranges(layout: Layout, unit: Any) -> list[tuple[int, int]]:
    """The bytes that the samples of a unit are read from."""
    first, rows, body = int(unit["first"]), int(unit["length"]), (int(unit["start"]), int(unit["stop"]))
    if layout.kind != BATCHES:
        return [(4 * (first + 1), 4 * (first + rows + 2)), body]
    directory = _HEAD.size + 4 * (layout.rows + 1)
    begin, end = first // layout.run, -(-(first + rows) // layout.run)
    table = _HEAD.size + 4 * first
    return [(table, table + 4 * (rows + 1)), (directory + _RUN.itemsize * begin, directory + _RUN.itemsize * end), body]


def samples_of(source: Source, layout: Layout, first: int, rows: int) -> Samples:
    """Samples of a PLAIN or BATCHES chunk; of the latter they must begin with a compressed run."""
    if layout.kind == BATCHES:
        return _unpacked(source, layout, first, rows)
    places = _checked(source, source.read(4 * (first + 1), 4 * (rows + 1)), 4 * (layout.rows + 2), source.size)
    body = view_of(source, int(places[0]), int(places[-1] - places[0]))
    return Samples(body, places - places[0], {}) if not layout.index.in_samples else _each_unpacked(body, places - places[0])


def _unpacked(source: Source, layout: Layout, first: int, rows: int) -> Samples:
    places = _checked(source, source.read(_HEAD.size + 4 * first, 4 * (rows + 1)), 0, 1 << 32)
    places -= places[0]
    begin = first // layout.run
    runs = _runs(source, layout, begin, -(-(first + rows) // layout.run) - begin)
    start = int(runs["start"][0])
    packed = memoryview(source.read(start, int(runs["start"][-1] + runs["length"][-1]) - start))
    parts = []
    for run in runs:
        at, wanted = int(run["start"]) - start, int(run["inflated"])
        try:
            parts.append(unpack_zstd(packed[at : at + int(run["length"])], wanted))
        except ValueError as error:
            raise ShardError(f"{source.where}: the samples from {int(run['first']):,} on: {error}") from error
    body = b"".join(parts)
    ends = np.cumsum([len(part) for part in parts])
    if (places[np.minimum(np.arange(1, len(parts) + 1) * layout.run, rows)] != ends).any():
        raise _broken(source)
    return Samples(body, places, {})


def _runs(source: Source, layout: Layout, first: int, count: int) -> npt.NDArray[Any]:
    """Entries of the directory of compressed runs."""
    directory = _HEAD.size + 4 * (layout.rows + 1)
    runs = np.frombuffer(source.read(directory + first * _RUN.itemsize, count * _RUN.itemsize), _RUN)
    numbers = np.arange(first, first + count)
    stops = runs["start"] + runs["length"]
    wrong = (runs["first"] != numbers * layout.run) | (runs["rows"] != np.minimum(layout.run, layout.rows - numbers * layout.run))
    wrong |= (runs["start"] < directory + layout.runs * _RUN.itemsize) | (stops > source.size) | (stops < runs["start"])
    wrong |= runs["inflated"].astype(np.int64) > runs["length"].astype(np.int64) * MOST_RATIO
    if wrong.any() or (runs["start"][1:] != stops[:-1]).any():
        raise _broken(source)
    return runs


def _each_unpacked(body: bytes | memoryview, places: Ints) -> Samples:
    """Samples that are compressed one by one."""
    parts, bad, edges = [], {}, places.tolist()
    view = memoryview(body)
    for row, (begin, end) in enumerate(pairwise(edges)):
        try:
            parts.append(unpack_zstd(view[begin:end], min(MOST_RATIO * (end - begin), _MOST_SAMPLE_BYTES)))
        except ValueError as error:
            parts.append(b"")
            bad[row] = f"the sample {error}"
    return Samples(b"".join(parts), np.concatenate(([0], np.cumsum([len(part) for part in parts]))), bad)


class Scan:
    """A chunk that is compressed as a whole, read from its start: the next row block is `at`."""

    def __init__(self, source: Source, layout: Layout) -> None:
        codec = codec_of(".zst")
        assert codec is not None
        self.at, self._layout, self._source = 0, layout, source
        self._stream, self._buffer, self._begin = Inflated(source, codec), bytearray(), 0
        rows = int.from_bytes(self._take(0, 4), "little")
        if rows != layout.rows:
            raise wrong_count(source, rows, layout.rows)
        start = 4 * (rows + 2)
        self._places = _checked(source, self._take(4, start), start, layout.nbytes + start)

    @property
    def nbytes(self) -> int:
        return self._stream.nbytes + len(self._buffer) + self._places.nbytes

    def turn_to(self, source: Source) -> None:
        """Read on from another source of the same bytes."""
        self._stream.turn_to(source)

    def samples(self, first: int, rows: int) -> Samples:
        """Samples that lie behind those before."""
        places = self._places[first : first + rows + 1]
        body = self._take(int(places[0]), int(places[-1]))
        if first + rows == self._layout.rows:
            self._finish()
        return Samples(body, places - places[0], {})

    def _take(self, begin: int, end: int) -> bytes:
        """Bytes of what comes out; those before them are forgotten."""
        while self._begin + len(self._buffer) < end:
            if not (piece := self._stream.read()):
                raise _broken(self._source)
            self._buffer += piece
            gone = min(begin - self._begin, len(self._buffer))
            del self._buffer[:gone]
            self._begin += gone
        del self._buffer[: begin - self._begin]
        self._begin = begin
        with memoryview(self._buffer) as view:
            return bytes(view[: end - begin])

    def _finish(self) -> None:
        """Nothing may lie behind the last sample but what the index says, and nothing may be wrong with the end."""
        came = self._begin + len(self._buffer)
        while piece := self._stream.read():
            came += len(piece)
        nbytes = self._layout.nbytes
        if came not in (nbytes, nbytes + 4 * (self._layout.rows + 2)):
            raise ShardError(f"{self._source.where}: {came:,} bytes come out of it, and {nbytes:,} would by its {INDEX}")
