"""Values of CSV and Arrow types: which type a column of texts has, and the texts as values of a type.

A column is bool (`true`, `false`, also `True` or `TRUE`), int64 or double where all its values are written so, else text. Numbers
are told carefully: what has zeros in front (`007`), a plus, or more digits than fit stays text, as it may be a key; and so does a
column with `NA` or `nan` in it: only a value with nothing in it is null. White space around numbers and booleans is not there.
A column may be pinned to any type that Arrow reads from text: wider or narrower numbers, dates, timestamps, decimals.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zephon_async.io.conform import cast_rows, fit
from zephon_async.kinds import is_bytes, is_json, is_text

T = pa.types
_WRITTEN = (
    (pa.bool_(), "^(?:true|false|True|False|TRUE|FALSE)$"),
    (pa.int64(), "^-?(?:0|[1-9][0-9]{0,18})$"),
    (pa.float64(), r"^-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"),
)
_SHOWN = 60


def looked_type(column: pa.Array) -> pa.DataType:
    """The type of a column of large_binary: `null` where there are no values."""
    text, bad = fit(column.view(pa.large_string()), pa.large_string())
    values = pc.utf8_trim(text.filter(pc.greater(pc.binary_length(text), 0)), " \t")
    if bad:
        return pa.large_string()
    if not len(values):
        return pa.null()
    for kind, written in _WRITTEN:
        if (
            pc.all(pc.match_substring_regex(values, written)).as_py()
            and not typed(values.view(pa.large_binary()), pa.field("", kind))[1]
        ):
            return kind
    return pa.large_string()


def typed(column: pa.Array, field: pa.Field) -> tuple[pa.Array, dict[int, str]]:
    """A column as one of a field, null where a value does not fit, and the reasons by row. It is of its type, or large_binary.

    A value with nothing in it is an empty text or no bytes, and null as anything else.
    """
    kind = field.type
    if column.type == kind and not is_json(field):
        return column, {}
    if is_bytes(kind):
        return fit(column, kind)
    text, bad = fit(column.view(pa.large_string()), pa.large_string())
    if is_text(kind) and not is_json(field):
        return text, bad
    text = _nulled(text, _places(text)[1] == 0)
    if is_number(kind) or T.is_boolean(kind):
        text = pc.utf8_trim(text, " \t")
    starts, lengths = _places(text)
    array, misfits = _parsed(text, kind, starts, lengths)
    return array, bad | {row: f"{kind} is wanted, not {_shown(column[row].as_py())}" for row in sorted(misfits)}


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a type are numbers."""
    return bool(T.is_integer(kind) or T.is_floating(kind))


def is_read_well(kind: pa.DataType) -> bool:
    """Whether pyarrow's reader of CSV gives the same values of a type, or refuses: but for what `has_padded` finds."""
    is_other = T.is_boolean(kind) or T.is_large_string(kind) or T.is_large_binary(kind)
    return is_other or (is_number(kind) and not T.is_float16(kind))  # which it does not know


def has_padded(body: npt.NDArray[np.uint8]) -> bool:
    """Whether in a text of records a value may begin with a zero before a digit, or with 0x."""
    zeros = body[1:-1] == ord("0")
    zeros &= body[2:] > ord(".")
    zeros &= body[:-2] < ord(".")  # a delimiter, a quote, a minus, white space
    places = np.flatnonzero(zeros) + 1
    behind = body[places + 1]
    places = places[(behind <= ord("9")) | (behind | 32 == ord("x"))]
    before = body[places - 1]
    within = ((before == ord(" ")) | (before == ord("-"))) & (body[np.maximum(places - 2, 0)] > ord("."))  # a value
    return bool((~within).any()) or (len(body) > 1 and body[0] == ord("0") and body[1] > ord("."))


def _places(text: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where in its body the texts of an array begin, and how long they are."""
    offsets = np.frombuffer(text.buffers()[1] or bytes(8), np.int64)[text.offset : text.offset + len(text) + 1]
    return offsets[:-1], np.diff(offsets)


def _parsed(
    text: pa.Array, kind: pa.DataType, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[pa.Array, set[int]]:
    """Texts as values of a type, and the rows that are none."""
    wrong: dict[int, str] = {}
    if is_number(kind):
        padded = _padded(np.frombuffer(text.buffers()[2] or b"", np.uint8), starts, lengths)
        text, wrong = _nulled(text, padded), dict.fromkeys(np.flatnonzero(padded).tolist(), "")
    try:
        array = cast_rows(text, kind, wrong)
    except pa.ArrowNotImplementedError:  # no text is such a value
        return pa.nulls(len(text), kind), set(np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False)).tolist())
    if T.is_floating(kind) and pc.any(pc.is_inf(array)).as_py():
        endless = pc.and_(pc.is_inf(array), pc.invert(pc.match_substring_regex(text, "(?i)inf"))).fill_null(False)
        mask = endless.to_numpy(zero_copy_only=False)
        array, wrong = _nulled(array, mask), wrong | dict.fromkeys(np.flatnonzero(mask).tolist(), "")
    return array, set(wrong)


def _padded(body: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which texts have a zero before a digit, or 0x: Arrow reads these as numbers."""
    padded = lengths > 1
    rows = np.flatnonzero(padded)
    first = body[starts[rows]]
    padded[rows] = (first == ord("-")) | (first == ord("0"))
    rows = np.flatnonzero(padded)  # few, but for numbers between -1 and 1
    at = starts[rows] + (body[starts[rows]] == ord("-"))
    behind = body[np.minimum(at + 1, len(body) - 1)]
    long = at + 1 < starts[rows] + lengths[rows]
    padded[rows] = long & (body[at] == ord("0")) & (behind > ord(".")) & (behind | 32 != ord("e"))
    return padded


def _nulled(array: pa.Array, where: npt.NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(pa.array(where), pa.scalar(None, array.type), array) if where.any() else array


def _shown(value: bytes) -> str:
    text = value[: 4 * _SHOWN].decode("utf-8", "replace")
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
