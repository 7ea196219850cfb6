"""pyarrow's reader is used only where it gives what the strict decoder gives: for any lines, whole or broken."""

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.whole import BytesSource
from zephon_async.io.formats import json_arrow, jsonl
from zephon_async.io.formats.json_arrow import read_plain, trusts
from zephon_async.io.formats.jsonl import JsonlFormat
from zephon_async.kinds import json_field

SCHEMA = pa.schema([("b", pa.bool_()), ("i", pa.int64()), ("l", pa.list_(pa.int32())), ("t", pa.large_string())])
RIGHT = {
    "b": ["true", "false", "null"],
    "i": ["0", "-7", "123456789012", "null"],
    "l": ["[]", "[1, 2]", "[-5]", "null"],
    "t": ['"a"', '""', '"\\u00e9 \\n"', '"{\\"n\\": NaN}"', '"\u20ac }"', "null"],
    "u": ["1", '"x"', "[[1], {}]", '{"t": "no"}', '{"a": {"b": [true]}}'],
}
ODD = [
    *("null", "true", "1", "-0", "1.0", "1e2", "1E400", "9223372036854775807", "9223372036854775808", "01", "+1", "nul"),
    *("NaN", "-Infinity", "Inf", "[1,null]", "[1.0]", "[2147483648]", '["a"]', "[[1]]", "[1,]", "{}", '{"a":1}', "'a'", ""),
    *('"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"\\u0000"', '"2020-01-01"', '"\\x"', '"open', '"{"', '"}"', '"\\"}"', '"\t"'),
]
KEYS = [*RIGHT, "\\u0074", ""]


@st.composite
def objects(draw: st.DrawFn) -> str:
    parts = []
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=4)):
        right = draw(st.integers(0, 15)) and key in RIGHT
        parts.append(f'"{key}":{draw(st.sampled_from(RIGHT[key] if right else ODD))}')
    return "{" + draw(st.sampled_from((",", ", "))).join(parts) + "}"


@st.composite
def lines(draw: st.DrawFn) -> str:
    one = draw(objects())
    odd = draw(st.integers(0, 200))
    if odd < len(WAYS):
        return WAYS[odd].format(one, draw(objects()))
    return one + draw(st.sampled_from(("", "", "\r")))


WAYS = [
    "{}{}",
    "{} {}",
    "{},{}",
    "{}\r{}",
    "",
    " ",
    " {} ",
    "{}}}",
    "{} x",
    "[{}]",
    '{{"u":{}',
    '{{"u":[{}',
    "1",
    "null",
    '{}"',
    "\ufeff{}",
]


def decoded(text: bytes, schema: pa.Schema) -> tuple[list[Any], dict[int, str], list[int]]:
    unit = {"start": 0, "stop": len(text), "first": 0, "length": len(text), "block": len(text) + 1}
    (one,) = JsonlFormat().decoder(schema, (), None).read(BytesSource("text", text), unit, range(1))  # type: ignore[arg-type]
    one.columns.validate(full=True)
    return one.columns.to_pylist(), dict(one.bad), one.rows.tolist()


def watched(text: bytes, schema: pa.Schema) -> tuple[Any, list[bool]]:
    """What is decoded, and whether pyarrow's reader gave it."""
    taken: list[bool] = []

    def noted(*given: Any) -> list[pa.Array] | None:
        columns = read_plain(*given)
        taken.append(columns is not None)
        return columns

    with patch.object(jsonl, "read_plain", noted):
        return decoded(text, schema), taken


@given(
    st.lists(lines(), min_size=1, max_size=5),
    st.sampled_from((SCHEMA, SCHEMA.remove(0), pa.schema([SCHEMA.field("t")]))),
    st.none() | st.integers(0, 300),
)
def test_it_gives_what_the_strict_decoder_gives(rows: list[str], schema: pa.Schema, broken: int | None) -> None:
    text = "\n".join(rows).encode()
    if broken is not None:
        text = text[:broken] + b"\xff" + text[broken:]
    found, taken = watched(text, schema)
    with patch.object(jsonl, "read_plain", lambda *given: None):
        assert found == decoded(text, schema)
    event(f"taken: {taken}")


@pytest.mark.parametrize(
    ("rows", "reads"),
    [
        (['{"t":"a","i":1}', '{"i":null}'], True),
        (['{"t":"\udcff"}'], False),  # no UTF-8: in a value, a key, a value that is not kept
        (['{"t\udcff":"a"}'], False),
        (['{"t":"a","u":"\udcff"}'], False),
        (['{"t":"a"}\r', "", '{"t":"b"}'], True),
        (['{"t":"a","u":[{}]}'], True),
        (['{"t":"\\"n\\": NaN, [Infinity]","u":1}'], True),  # it is in a string
        (['{"t":"a","u":NaN}'], False),
        (['{"t":"a","u":[1, -Infinity]}'], False),
        (['{"t":"a","t":"b","u":1}'], False),
        (['{"t":"a"}{"t":"b"}'], False),
        (['{"u":' + "[" * 300 + "]" * 300 + "}"], False),
        (["null", '{"t":"a"}'], False),
    ],
)
def test_where_it_is_used(rows: list[str], reads: bool) -> None:
    assert watched("\n".join(rows).encode(errors="surrogateescape"), SCHEMA)[1] == [reads]


def test_columns_it_is_trusted_with() -> None:
    assert trusts(SCHEMA)
    for kind in (pa.float64(), pa.timestamp("s"), pa.struct([("a", pa.int64())]), pa.list_(pa.large_string()), pa.null()):
        assert not trusts(pa.schema([("a", kind)]))
    assert not trusts(pa.schema([json_field("a")]))
    assert not trusts(pa.schema([]))


def test_many_words_that_are_no_numbers_in_one_line_are_looked_at_once() -> None:
    text = b'{"t":"' + b",NaN" * 250_000 + b'","u":1}'
    with patch.object(json_arrow, "_outside_strings", wraps=json_arrow._outside_strings) as looks:
        found, taken = watched(text, SCHEMA)
    assert taken == [True]
    assert found[0][0]["t"] == ",NaN" * 250_000
    assert looks.call_count == 1
    assert watched(text[:-2] + b"NaN}", SCHEMA)[1] == [False]
