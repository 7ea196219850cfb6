"""`decode_text`: encodings, line ends, case, and bytes that are no text."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made_rows import made, placed, run
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.decode_text import DecodeText


def decoded(values: list[Any], kind: pa.DataType, **settings: Any) -> list[Any]:
    out = DecodeText(["x"], **settings).apply(made({"x": pa.array(values, kind)}), Counter())
    assert out.columns.schema.field("x").type == pa.large_string()
    return list(out.columns.column("x").to_pylist())


@given(st.lists(st.one_of(st.none(), st.binary(max_size=4), st.text(max_size=4).map(str.encode))))
def test_utf8_is_what_python_says_it_is(values: list[bytes | None]) -> None:
    for errors in ("replace", "ignore", "backslashreplace"):
        wanted = [None if value is None else value.decode("utf-8", errors) for value in values]
        assert decoded(values, pa.binary(), errors=errors, normalize_newlines=False) == wanted
    wanted_rows = []
    for at, value in enumerate(values):
        try:
            wanted_rows.append(({"x": None if value is None else value.decode()}, at, 0))
        except UnicodeDecodeError:
            break
    out, failed, cause = run(DecodeText(["x"], normalize_newlines=False), made({"x": pa.array(values, pa.large_binary())}))
    assert placed(out) == wanted_rows
    assert failed == (len(wanted_rows) if len(wanted_rows) < len(values) else None)
    assert failed is None or isinstance(cause, BadRecord)


@pytest.mark.parametrize(
    ("encoding", "value"),
    [("latin-1", b"\xe9"), ("utf-16", "\u00e9".encode("utf-16")), ("cp1252", b"\x80"), ("utf-8-sig", b"\xef\xbb\xbfa")],
)
def test_other_encodings(encoding: str, value: bytes) -> None:
    assert decoded([value, None], pa.large_binary(), encoding=encoding) == [value.decode(encoding), None]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_every_kind_of_column(kind: pa.DataType) -> None:
    assert decoded(["A\r\nb\rc\r\r\nd\n", None], kind) == ["A\nb\nc\n\nd\n", None]
    assert decoded(["A\r\n\u00c9", None], kind, normalize_newlines=False, lowercase=True) == ["a\r\n\u00e9", None]


def test_other_columns_and_metadata_stay() -> None:
    field = pa.field("x", pa.binary(), metadata={"k": "v"})
    batch = pa.RecordBatch.from_arrays([pa.array([b"A"]), pa.array([5])], schema=pa.schema([field, ("n", pa.int64())]))
    out = DecodeText(["x"]).apply(made({"x": [b"A"]}).with_columns(batch), Counter())
    assert out.columns.schema.equals(pa.schema([field.with_type(pa.large_string()), ("n", pa.int64())]), check_metadata=True)
    assert placed(out) == [({"x": "A", "n": 5}, 0, 0)]


def test_the_first_bad_row_of_all_fields_is_named() -> None:
    records = made({"a": [b"1", b"2", b"3", b"\xff"], "b": [b"1", b"2", b"\xfe", b"4"]})
    out, at, cause = run(DecodeText(["a", "b"]), records)
    assert placed(out) == [({"a": "1", "b": "1"}, 0, 0), ({"a": "2", "b": "2"}, 1, 0)]
    assert (at, type(cause)) == (2, BadRecord)
    assert "column 'b' is no utf-8 text ('utf-8' codec can't decode byte 0xfe in position 0" in str(cause)


def test_half_a_surrogate_pair_is_no_text() -> None:
    out, at, cause = run(DecodeText(["x"], encoding="utf-7"), made({"x": [b"a", b"+2AA-"]}))
    assert (placed(out), at, type(cause)) == ([({"x": "a"}, 0, 0)], 1, BadRecord)


def test_numbers_are_no_text() -> None:
    with pytest.raises(TypeError, match="column 'x' is int64, wanted text or bytes"):
        DecodeText(["x"]).apply(made({"x": [5]}), Counter())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fields": "text"}, "fields is 'text': it must be a list of names"),
        ({"fields": []}, "at least 1"),
        ({"encoding": "utf-9"}, "is no text encoding"),
        ({"encoding": "base64"}, "is no text encoding"),
        ({"encoding": 5}, "is no text encoding"),
        (
            {"errors": "surrogateescape"},
            "errors is 'surrogateescape': it must be one of 'strict', 'replace', 'ignore', 'backslashreplace'",
        ),
        ({"parallelism": 0}, "parallelism is 0"),
        ({"normalize_newlines": "no"}, "normalize_newlines is 'no': it must be True or False"),
        ({"lowercase": 1}, "lowercase is 1: it must be True or False"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        DecodeText(**settings)


def test_contract() -> None:
    operator = DecodeText(encoding="UTF8")
    assert operator.settings() == {
        "fields": ["text"],
        "encoding": "utf-8",
        "errors": "strict",
        "normalize_newlines": True,
        "lowercase": False,
    }
    assert operator.reads(frozenset({"a"})) == frozenset({"a", "text"})
    assert operator.reads(None) is None
    assert operator.requires() == {"text": "text"}
