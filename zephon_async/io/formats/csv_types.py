"""Values of CSV and Arrow types: which type a column of texts has, and the texts as values of a type.

A column is bool (`true`, `false`, also `True` or `TRUE`), int64 or double where all its values are written so, else text. Numbers
are told carefully: what has zeros in front (`007`), a plus, white space, or more digits than fit stays text, as it may be a key;
and so does a column with `NA` or `nan` in it: only a value with nothing in it is null. In a column of a type such values are bad.
A column may be pinned to any type that Arrow reads from text: wider or narrower numbers, dates, timestamps, decimals.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zephon_async.io.conform import cast, fit
from zephon_async.kinds import is_bytes, is_json, is_text

T = pa.types
_WRITTEN = (
    (pa.bool_(), "^(?:true|false|True|False|TRUE|FALSE)$"),
    (pa.int64(), "^-?(?:0|[1-9][0-9]{0,18})$"),
    (pa.float64(), r"^-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"),
)
_PADDED = "^-?0[0-9xX]"  # Arrow reads these as numbers, and hexadecimal ones too
_ENDLESS = "(?i)inf"
_SHOWN = 60


def looked_type(column: pa.Array) -> pa.DataType:
    """The type of a column of large_binary: `null` where there are no values."""
    text, bad = fit(column.view(pa.large_string()), pa.large_string())
    values = text.filter(pc.greater(pc.binary_length(text), 0))
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
    """A column of large_binary as one of a field, null where a value does not fit, and the reasons by row.

    A value with nothing in it is an empty text or no bytes, and null as anything else.
    """
    kind = field.type
    if is_bytes(kind):
        return fit(column, kind)
    text, bad = fit(column.view(pa.large_string()), pa.large_string())
    if is_text(kind) and not is_json(field):
        return text, bad
    empty = pc.equal(pc.binary_length(text), 0)
    if pc.any(empty).as_py():
        text = pc.if_else(empty, pa.scalar(None, text.type), text)
    array, misfits = _parsed(text, kind)
    return array, bad | {row: f"{kind} is wanted, not {_shown(text[row].as_py())}" for row in sorted(misfits)}


def _parsed(text: pa.Array, kind: pa.DataType) -> tuple[pa.Array, set[int]]:
    """Texts as values of a type, and the rows that are none."""
    misfits: dict[int, str] = {}
    if T.is_integer(kind) or T.is_floating(kind):
        text, padded = _without(text, pc.match_substring_regex(text, _PADDED))
        misfits |= dict.fromkeys(padded, "")
    try:
        array = cast(text, kind, misfits)
    except pa.ArrowNotImplementedError:  # no text is such a value
        return pa.nulls(len(text), kind), set(np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False)).tolist())
    if T.is_floating(kind) and not T.is_float16(kind):
        array, endless = _without(array, pc.and_(pc.is_inf(array), pc.invert(pc.match_substring_regex(text, _ENDLESS))))
        misfits |= dict.fromkeys(endless, "")
    return array, set(misfits)


def _without(array: pa.Array, where: pa.Array) -> tuple[pa.Array, list[int]]:
    """An array with nulls in the rows where a condition holds, and these."""
    if not pc.any(where).as_py():
        return array, []
    rows = np.flatnonzero(where.fill_null(False).to_numpy(zero_copy_only=False)).tolist()
    return pc.if_else(where, pa.scalar(None, array.type), array), rows


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}...")
