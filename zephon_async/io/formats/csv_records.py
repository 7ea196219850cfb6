"""Records of CSV (RFC 4180): where they end, and the values in them as they are written.

A record ends at an LF outside quotes; a CR before it is dropped; a line with nothing in it is no record. Quotes open at the first
byte of a value and nowhere else (elsewhere they stand for themselves, as with every reader in use) and close at a quote that is not
doubled. Since what is inside quotes cannot be told from the bytes around it, a shard is read from its start.

Records are split by where quotes open and close, found with array operations, or quote by quote where some stand for themselves.
Values are split by pyarrow's reader where it gives exactly the same: it takes a lone CR for the end of a record, what follows a
closing quote for a part of the value, and drops a byte order mark that begins a block, all without a word. Blocks with such in
them, and those that it refuses, are split strictly, record by record.

Threads: functions of their arguments; a `RecordScan` has one owner.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from zephon_async.errors import ShardError
from zephon_async.io.formats.csv_types import has_padded, is_number, is_read_well
from zephon_async.io.formats.inflate import Stream
from zephon_async.io.formats.lines import BOM, Lines, LineScan, places_of, text_stops
from zephon_async.kinds import is_json

T = pa.types
_QUOTE, _LF, _CR = b'"\n\r'
_START, _INSIDE, _CLOSED, _BARE = range(4)  # where a piece ends: before a value, inside quotes, behind them, in a bare value
_MOST_BYTES = (1 << 31) - 2  # of one block of pyarrow's reader
_PIECES = 8  # of a block: pyarrow's reader is twice as slow in the first one that it is given
_ODD = 52  # bytes of a number in a list
_Places = npt.NDArray[np.int64]


def _quoted(text: bytes, state: int, delimiter: bytes) -> tuple[_Places, _Places, int]:
    """Where quotes open (-1: before) and close in a piece that begins in a state, and the state in which it ends.

    A doubled quote may be given as one that closes and one that opens.
    """
    at = np.frombuffer(text, np.uint8)
    quotes = places_of(_QUOTE, text, len(text))
    skip = int(state == _INSIDE)
    opens, closes = quotes[skip::2], quotes[1 - skip :: 2]
    before = at[opens - 1]
    sound = (before == delimiter[0]) | (before == _LF) | (before == _QUOTE)
    if len(opens) and not opens[0]:
        sound[0] = state in (_START, _CLOSED)
    if not sound.all():
        opens, closes = _one_by_one(text, quotes, state, delimiter)
    if skip:
        opens = np.concatenate((np.array([-1]), opens))
    if len(opens) > len(closes):
        state = _INSIDE
    elif len(closes) and closes[-1] == len(text) - 1:
        state = _CLOSED
    elif text:
        state = _START if text[-1] in delimiter + b"\n" else _BARE
    return opens, closes, state


def _one_by_one(text: bytes, quotes: _Places, state: int, delimiter: bytes) -> tuple[_Places, _Places]:
    """The same for a piece with quotes that stand for themselves."""
    places, inside, n = quotes.tolist(), state == _INSIDE, 0
    opens: list[int] = []
    closes: list[int] = []
    while n < len(places):
        at = places[n]
        if not inside:
            if text[at - 1] in delimiter + b"\n" if at else state in (_START, _CLOSED):
                opens.append(at)
                inside = True
        elif n + 1 < len(places) and places[n + 1] == at + 1:
            n += 1  # two stand for one
        else:
            closes.append(at)
            inside = False
        n += 1
    return np.array(opens, np.int64), np.array(closes, np.int64)


class RecordScan(LineScan):
    """The records of a shard that is read from its start, behind the first, which names the columns."""

    too_long = "record of more than {:,} bytes: a quote is not closed, or it wants a split"

    def __init__(self, stream: Stream, delimiter: bytes) -> None:
        super().__init__(stream)
        self._delimiter, self._state = delimiter, _START
        self._header: tuple[str, ...] | None = None
        self._odd: list[int] = []  # where in what has come out there is what only a strict reader reads right

    @property
    def nbytes(self) -> int:
        return super().nbytes + _ODD * len(self._odd)

    def copy(self) -> Self:
        twin = super().copy()
        twin._odd = list(self._odd)
        return twin

    def up_to(self, stop: int) -> tuple[Lines, bool]:
        self._begin()
        return super().up_to(stop)

    def rows(self, rows: int) -> tuple[Lines, bool]:
        self._begin()
        return super().rows(rows)

    def _begin(self) -> None:
        """Read the header, once."""
        if self._header is None:
            first, _ = super().rows(1)
            self.at, self._header = 0, _names(self._stream.where, first, self._delimiter)

    def _ends_in(self, piece: bytes) -> _Places:
        at = self._base + self._text.nbytes
        head = at < len(BOM) and BOM.startswith((self._text.whole() + piece)[: len(BOM)])
        skip = min(len(BOM) - at, len(piece)) if head else 0  # quotes may open behind a byte order mark
        text, before = piece[skip:], self._state
        opens, closes, self._state = _quoted(text, before, self._delimiter)
        self._note_odd(text, before, opens, closes, at + skip)
        ends = places_of(_LF, text, len(text))
        if len(opens):
            ends = ends[opens.searchsorted(ends) == closes.searchsorted(ends)]
        return ends + skip

    def _note_odd(self, text: bytes, before: int, opens: _Places, closes: _Places, base: int) -> None:
        """Note where values go on behind their closing quote, and where a CR outside quotes may end no record."""
        at, fine = np.frombuffer(text, np.uint8), _behind_quotes(self._delimiter)
        if before == _CLOSED and text and not fine[at[0]]:
            self._odd.append(base)
        inner = closes[:-1] if len(closes) and closes[-1] == len(text) - 1 else closes
        self._odd += (inner[~fine[at[inner + 1]]] + base).tolist()
        if b"\r" in text:
            returns = places_of(_CR, text, len(text))
            lone = returns[(returns == len(text) - 1) | (at[np.minimum(returns + 1, len(text) - 1)] != _LF)]
            self._odd += (lone[opens.searchsorted(lone) == closes.searchsorted(lone)] + base).tolist()

    def _kept(self, text: bytes, starts: _Places, stops: _Places) -> npt.NDArray[np.bool_]:
        kept: npt.NDArray[np.bool_] = stops > starts
        short = np.flatnonzero(stops - starts == 1)
        kept[short] = np.frombuffer(text, np.uint8)[starts[short]] != _CR if len(short) else False
        return kept

    def _more(self) -> None:
        super()._more()
        if self._over and self._state == _INSIDE:
            at = int(self._ends[-1]) + 1 if len(self._ends) else self._base
            raise ShardError(
                f"{self._stream.where}: ends inside the quotes of the record at byte {at:,}: one is not closed, or it was cut short"
            )

    def _give(self, starts: _Places, stops: _Places, lines: int) -> tuple[Lines, bool]:
        given, last = super()._give(starts, stops, lines)
        end = given.base + len(given.text)
        plain, self._odd = not any(at < end for at in self._odd), [at for at in self._odd if at >= end]
        return given._replace(header=self._header or (), plain=plain), last


@cache
def _behind_quotes(delimiter: bytes) -> npt.NDArray[np.bool_]:
    """Which bytes may follow a quote that closes: bool[256]."""
    fine = np.zeros(256, np.bool_)
    fine[list(delimiter + b'\n\r"')] = True
    return fine


def _names(where: str, first: Lines, delimiter: bytes) -> tuple[str, ...]:
    """The names of the columns, from the first record of a shard if there is one."""
    for a, b in _bounds(first):
        if b"\0" in first.text[a:b]:
            raise ShardError(
                f"{where}: the names of its columns, in the first line, have a NUL in them: it is damaged, or no UTF-8"
            )
        try:
            return tuple(str(value, "utf-8") for value in _values_of(first.text[a:b], delimiter))
        except UnicodeDecodeError as error:
            raise ShardError(f"{where}: the names of its columns, in the first line, are not UTF-8") from error
        except ValueError as error:
            raise ShardError(f"{where}: the names of its columns, in the first line, cannot be read: {error}") from error
    return ()


def _bounds(lines: Lines) -> list[tuple[int, int]]:
    """Where records begin and end in the text, without the CR at their end."""
    starts, stops = lines.starts - lines.base, lines.stops - lines.base
    return list(zip(starts.tolist(), text_stops(lines.text, starts, stops).tolist(), strict=True))


def columns_of(lines: Lines, wanted: Sequence[pa.Field], delimiter: bytes) -> tuple[list[pa.Array], dict[int, str]]:
    """The wanted columns, null in records that are bad; and the reasons of these by row.

    A column is of its type where pyarrow's reader gives what it should, else large_binary, as it is written.
    """
    numbers = {name: n for n, name in enumerate(lines.header)}
    places = [numbers[field.name] for field in wanted]
    if lines.plain and len(lines.starts):
        starts, stops = lines.starts - lines.base, lines.stops - lines.base
        body = memoryview(lines.text)[starts[0] : text_stops(lines.text, starts[-1:], stops[-1:])[0]]
        block_bytes = max(len(body) // _PIECES + 1, int((stops - starts).max()) + 3)
        if b"\r" in bytes(body[block_bytes - 1 :: block_bytes]):  # it drops an LF behind it, also inside quotes
            block_bytes = len(body) + 1
        doubted = any(is_number(field.type) for field in wanted) and has_padded(np.frombuffer(body, np.uint8))
        for kinds in ([_read_as(field, doubted) for field in wanted], [pa.large_binary()] * len(wanted)):
            columns = dict(zip(map(str, places), kinds, strict=True))
            table = _by_arrow(body, block_bytes, len(lines.header), columns, delimiter)
            if table is not None and table.num_rows == len(starts):
                return [pa.concat_arrays(table.column(name).chunks) for name in columns], {}
    return _strictly(lines, places, delimiter)


def _read_as(field: pa.Field, doubted: bool) -> pa.DataType:
    """The type by which a column is read. doubted: there may be numbers that are not written as such."""
    trusted = is_read_well(field.type) and not is_json(field) and not (doubted and is_number(field.type))
    return field.type if trusted else pa.large_binary()


def _by_arrow(body: memoryview, block_bytes: int, width: int, columns: dict[str, pa.DataType], delimiter: bytes) -> pa.Table | None:
    """Columns, by their numbers, by pyarrow's reader; None where it may not give what is right."""
    if len(body) > _MOST_BYTES or body[: len(BOM)] == BOM:
        return None
    try:
        table = pv.read_csv(
            pa.BufferReader(pa.py_buffer(body)),
            read_options=pv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=[str(n) for n in range(width)]),
            parse_options=pv.ParseOptions(delimiter=str(delimiter, "ascii"), newlines_in_values=True),
            convert_options=pv.ConvertOptions(
                include_columns=list(columns) or ["0"],
                column_types=columns or {"0": pa.large_binary()},
                null_values=[""],
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
            ),
        )
    except pa.ArrowInvalid:
        return None
    endless = any(T.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py() for column in table.columns)
    return None if endless else table  # of "1e999" it makes an infinity


def _strictly(lines: Lines, places: list[int], delimiter: bytes) -> tuple[list[pa.Array], dict[int, str]]:
    """The columns record by record, with what is bad."""
    rows: list[list[bytes] | None] = []
    bad: dict[int, str] = {}
    for a, b in _bounds(lines):
        try:
            values = _values_of(lines.text[a:b], delimiter)
            if len(values) != len(lines.header):
                raise ValueError(f"it has {len(values)} values, and {len(lines.header)} columns are named in the first line")
            rows.append(values)
        except ValueError as error:
            bad[len(rows)] = str(error)
            rows.append(None)
    return [pa.array([None if row is None else row[n] for row in rows], pa.large_binary()) for n in places], bad


@cache
def _value(delimiter: bytes) -> re.Pattern[bytes]:
    """One value, with quotes or without, and what ends it."""
    return re.compile(rb'(?:"((?:[^"]++|"")*+)"|((?!")[^%b\r]*+))(%b|\Z)' % (delimiter, delimiter))


def _values_of(record: bytes, delimiter: bytes) -> list[bytes]:
    """The values of a record. Raises `ValueError` for one that breaks the rules."""
    values, at, matches = [], 0, _value(delimiter).match
    while found := matches(record, at):
        quoted, bare, end = found.groups()
        values.append(bare if quoted is None else quoted.replace(b'""', b'"'))
        if not end:
            return values
        at = found.end()
    if record.startswith(b'"', at):
        raise ValueError(f"value {len(values) + 1} goes on behind its closing quote")
    raise ValueError(f"value {len(values) + 1} has a CR in it that ends no line; it must be in quotes")
