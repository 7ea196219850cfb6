"""Cases A01 to A04 and A06: JSON lines, as written by everyone. Each test takes the whole kind of fault."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.taken import (
    CASES,
    WAYS,
    column,
    counted,
    expected,
    ids_of,
    in_order,
    letters,
    of,
    records,
    said,
    token_rows,
    values,
    written,
)
from zephon_async import BadRecord, Dataset, Pipeline
from zephon_async.io.formats import line_format

BOM = b"\xef\xbb\xbf"


@pytest.fixture(params=["counted", "not counted"])
def _measured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data is measured in rows, large data in bytes; here both are small."""
    if request.param == "not counted":
        monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)


pytestmark = pytest.mark.usefixtures("_measured")


def read_sizes(size: int) -> list[dict[str, int]]:
    """Units and row blocks of several sizes, also smaller than a line."""
    return [{}, {"unit_bytes": size, "block_bytes": size}, {"unit_bytes": 3 * size + 1, "block_bytes": max(1, size // 2)}]


# A01


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["with-bom", "without-bom"])
def test_a_byte_order_mark_is_not_there(name: str, way: dict[str, Any]) -> None:
    right = expected("A01")["records"]
    found = records(of(CASES / f"A01/{name}.jsonl"), **way)
    assert [{**row, "meta": json.loads(row["meta"])} for row in found] == right


def test_a_byte_order_mark_inside_a_text_stays() -> None:
    assert [len(text) for text in values(of(CASES / "A01/bom-inside-the-string.jsonl"))] == [
        expected("A01")["bom_inside_text_length"]
    ]


@pytest.mark.parametrize("sizes", read_sizes(2))
@pytest.mark.parametrize(
    ("text", "right"),
    [
        (BOM, []),
        (BOM + b"\n", []),
        (BOM + b"\r\n", []),
        (BOM + b'\n\n{"text": "a"}', ["a"]),
        (BOM + b' \t {"text": "a"}\n{"text": "b"}', ["a", "b"]),
        (BOM + b'{"text": "a\xef\xbb\xbf"}', ["a\ufeff"]),
        (BOM[:2], None),
        (BOM + BOM + b'{"text": "a"}', None),
        (b'{"text": "a"}\n' + BOM + b'{"text": "b"}', None),
        ('{"text": "a"}\n'.encode("utf-16"), None),
    ],
)
def test_where_a_byte_order_mark_can_stand(text: bytes, right: list[str] | None, sizes: dict[str, int], tmp_path: Path) -> None:
    made = of(written(tmp_path / "d.jsonl", text), schema={"text": pa.string()}, **sizes)
    if right is None:
        assert "dataset 'd', shard 'd.jsonl', line " in said(Pipeline(in_order(made)).batch(1), BadRecord)
    else:
        assert values(made) == right


def test_each_shard_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    for n in range(3):
        written(tmp_path / f"{n}.jsonl", BOM + b'{"text": "%d"}' % n)
    assert records(of(tmp_path)) == [{"text": "0"}, {"text": "1"}, {"text": "2"}]


# A02


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", read_sizes(5))
def test_line_ends_and_blank_lines(sizes: dict[str, int], way: dict[str, Any]) -> None:
    right = expected("A02")
    assert values(of(CASES / "A02/mixed.jsonl", **sizes), **way) == right["mixed"]
    assert values(of(CASES / "A02/pair", **sizes), **way) == right["pair"]
    assert values(of(CASES / "A02/only-newlines.jsonl", **sizes), **way) == []
    assert values(of(CASES / "A02/empty.jsonl", **sizes), **way) == []


@pytest.mark.parametrize("text", [b"", b"\n", b"\r\n\r\n", b"  \n\t\r\n", b" ", b"\n" * 5000])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_file_without_a_record_is_an_empty_pass(text: bytes, lanes: int, tmp_path: Path) -> None:
    made = of(written(tmp_path / "d.jsonl", text))
    pipeline = Pipeline(in_order(made)).options(lanes=lanes, on_end="pad").tokenize(letters(), field="text").pack_flat(4)
    assert counted(pipeline.map(lambda record: record).shuffle(3).batch(2))[0] == []


@pytest.mark.parametrize("text", [b"", b"\n\n"])
def test_a_file_without_a_record_cannot_be_repeated(text: bytes, tmp_path: Path) -> None:
    empty = of(written(tmp_path / "d.jsonl", text))
    assert "'d'" in said(Pipeline(in_order(empty, epochs=None)).batch(1))
    other = written(tmp_path / "e.jsonl", {"text": "a"}, {"text": "b"})
    both = (empty, Dataset.from_path("e", other))
    assert "dataset 'd' has no rows" in said(Pipeline(in_order(*both, epochs=None)).batch(1))
    for rule in ("stop", "drop_out"):
        found, _ = counted(Pipeline(in_order(*both, on_exhausted=rule)).batch(1))
        assert column(found, "text") == ([] if rule == "stop" else ["a", "b"])


# A03


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("sizes", [{}, {"unit_bytes": 4097, "block_bytes": 1000}])
def test_characters_across_every_edge(n: int, sizes: dict[str, int], tmp_path: Path) -> None:
    right = expected("A03")[f"straddle-{n}"]
    path = written(tmp_path / "d.jsonl", gzip.decompress((CASES / f"A03/straddle-{n}.jsonl.gz").read_bytes()))
    assert [(len(text), sha256(text)) for text in values(of(path, **sizes)) if text] == [(right["code_points"], right["sha256"])]


@pytest.mark.parametrize("size", [5, 64, 1000, 8191, 27013, 27014])
def test_short_reads_of_a_line_of_many_characters(size: int) -> None:
    right = expected("A03")["straddle-plain"]
    found = [text for text in values(of(CASES / "A03/straddle-plain.jsonl", unit_bytes=size * 3, block_bytes=size)) if text]
    assert [(len(text), sha256(text)) for text in found] == [(right["code_points"], right["sha256"])]


@pytest.mark.parametrize("sizes", [{}, {"unit_bytes": 1 << 16, "block_bytes": 1 << 12}, {"unit_bytes": 2000, "block_bytes": 999}])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_line_longer_than_any_block(sizes: dict[str, int], lanes: int, tmp_path: Path) -> None:
    right = expected("A03")["long-line"]
    path = written(tmp_path / "d.jsonl", gzip.decompress((CASES / "A03/long-line.jsonl.gz").read_bytes()))
    assert max(map(len, path.read_bytes().split(b"\n"))) == right["line_bytes"]
    found = column(counted(Pipeline(in_order(of(path, **sizes))).options(lanes=lanes, on_end="pad").batch(1))[0], "text")
    assert len(found) == right["records"]
    assert (right["text_1_code_points"], right["text_1_sha256"]) in [(len(text), sha256(text)) for text in found]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# A04


def test_lines_end_at_lf_only() -> None:
    assert values(of(CASES / "A04/separators.jsonl")) == expected("A04")["texts"]


@pytest.mark.parametrize("sizes", read_sizes(3))
def test_other_separators_are_characters(sizes: dict[str, int], tmp_path: Path) -> None:
    signs = "\u2028\u2029\u0085\u00a0\u1680\u2000\u3000\u180e\u200b\u2060\ufeff\x7f\U0001f600\U0010ffff"
    texts = [f"{sign}left{sign}right{sign}" for sign in signs]
    rows = [{"text": text, f"key{text}": n} for n, text in enumerate(texts)]
    made = of(written(tmp_path / "d.jsonl", *rows), **sizes)
    assert values(made) == texts
    escaped = [json.dumps({"text": f"a{chr(n)}b"}) for n in range(32)]
    assert values(of(written(tmp_path / "e.jsonl", *escaped), **sizes)) == [f"a{chr(n)}b" for n in range(32)]


# A06, and whatever else a line can be

GOOD = '{"id": 1, "text": "ok"}'
BAD = {
    "null": b"null",
    "list": b"[]",
    "number": b"1",
    "string": b'"x"',
    "two": b'{"id":2,"text":"a"}{"id":3,"text":"b"}',
    "two with a space": b'{"id":2,"text":"a"} {"id":3,"text":"b"}',
    "two with cr": b'{"id":2,"text":"a"}\r{"id":3,"text":"b"}',
    "crlf in the middle": b'{"id":2,\r\n"text":"a"}',
    "behind": b'{"id":2,"text":"a"} x',
    "cut": b'{"id":2,"text":"a',
    "comma": b'{"id":2,"text":"a",}',
    "quotes": b"{'id':2}",
    "utf-8 in a value": b'{"id":2,"text":"\xff"}',
    "utf-8 in a key": b'{"id":2,"te\xffxt":"a","text":"b"}',
    "utf-8 beside": b'{"id":2,"text":"a","other":["\xff"]}',
    "half a character": b'{"id":2,"text":"\xe2\x82"}',
    "latin-1": '{"id":2,"text":"é"}'.encode("latin-1"),
    "surrogate": b'{"id":2,"text":"\\ud800"}',
    "nul": b"\x00",
    "nul in a text": b'{"id":2,"text":"a\x00b"}',
    "tab in a text": b'{"id":2,"text":"a\tb"}',
    "2**63": b'{"id":9223372036854775808,"text":"a"}',
    "10**40": b'{"id":1' + b"0" * 40 + b',"text":"a"}',
    "NaN": b'{"id":NaN,"text":"a"}',
    "Infinity": b'{"id":Infinity,"text":"a"}',
    "leading zero": b'{"id":02,"text":"a"}',
    "deep": b'{"id":2,"text":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "number for text": b'{"id":2,"text":5}',
    "truth for text": b'{"id":2,"text":true}',
    "list for text": b'{"id":2,"text":["a"]}',
    "object for text": b'{"id":2,"text":{"a":1}}',
    "text for number": b'{"id":"2","text":"a"}',
    "truth for number": b'{"id":true,"text":"a"}',
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_line_that_is_no_record_is_named(bad: bytes, tmp_path: Path) -> None:
    made = of(written(tmp_path / "d.jsonl", GOOD, b"\n", bad + b"\n", GOOD), schema={"id": pa.int64(), "text": pa.string()})
    with Pipeline(in_order(made)).batch(1) as pipeline:
        rows = iter(pipeline)
        assert next(rows).to_pylist("text") == ["ok"]  # the row before it comes first
        with pytest.raises(BadRecord, match=r"dataset 'd', shard 'd\.jsonl', line 3 \(byte 25\)"):
            next(rows)
    found, counts = counted(Pipeline(in_order(made)).options(on_bad_record="quarantine").batch(1))
    assert column(found, "id") == [1, 1]
    assert counts["records_quarantined"] == (2 if b"\r\n" in bad else 1)


@pytest.mark.parametrize("depth", [100, 199, 200, 900, 5_000, 200_000])
def test_a_value_of_any_depth_in_a_column_that_is_not_read(depth: int, tmp_path: Path) -> None:
    """The record is the first of 200 levels. It is a record or a bad one, the same on every Python."""
    deep = b'{"deep":' + b"[" * depth + b"]" * depth + b',"text":"a"}\n'
    made = of(written(tmp_path / "d.jsonl", {"text": "ok"}, deep, {"text": "ok"}))
    found, counts = counted(Pipeline(in_order(made)).options(on_bad_record="quarantine").tokenize(letters(), field="text").batch(1))
    bad = depth > 199
    assert column(found, "input_ids") == [ids_of("ok"), *([] if bad else [ids_of("a")]), ids_of("ok")]
    assert counts == ({"records_quarantined": 1} if bad else {})


def test_odd_lines_that_are_records(tmp_path: Path) -> None:
    lines = (
        b'{"id":1,"text":"\\ud83d\\ude00"}\n',
        b'{"id":2,"text":"a","text":"b"}\n',
        b'  {"text" : "2020-01-01T00:00:00Z" , "id" : -0 }  \r\n',
        b"{}\n",
        b'{"id":9223372036854775807,"text":""}\n',
        b'{"other":1}',
    )
    right = [(1, "\U0001f600"), (2, "b"), (0, "2020-01-01T00:00:00Z"), (None, None), ((1 << 63) - 1, ""), (None, None)]
    pins = {"id": pa.int64(), "text": pa.string()}
    assert [(row["id"], row["text"]) for row in records(of(written(tmp_path / "d.jsonl", *lines), schema=pins))] == right


def test_nulls_first_and_text_later() -> None:
    right = expected("A06")
    found = records(of(CASES / "A06/good"))
    assert len(found) == right["good_records"]
    assert [type(row["note"]).__name__.replace("NoneType", "None") for row in found[:220]] == ["None"] * 200 + ["str"] * 20


@pytest.mark.parametrize("way", WAYS)
def test_a_text_that_is_null_or_a_number(way: dict[str, Any]) -> None:
    odd, bad = of(CASES / "A06/odd"), expected("A06")["odd_bad_lines"]
    texts = ["row 220", "row 221"]
    pipeline = Pipeline(in_order(odd)).options(**way).tokenize(letters(), field="text").batch(1)
    assert f"shard 'shard-2.jsonl', line {bad[0]} (byte 73)" in said(pipeline, BadRecord)
    assert token_rows(odd, **way, on_bad_record="quarantine") == [ids_of(text) for text in texts]
    for on_null, more, counts in (
        ("skip", [], {"records_skipped_null": 1, "records_quarantined": 1}),
        ("empty", [[0]], {"records_quarantined": 1}),
    ):
        pipeline = Pipeline(in_order(odd)).options(**way).tokenize(letters(), field="text", on_null=on_null).batch(1)
        assert f"line {bad[1]} (byte" in said(pipeline, BadRecord)
        pipeline = Pipeline(in_order(odd)).options(**way, on_bad_record="quarantine")
        found, counted_ = counted(pipeline.tokenize(letters(), field="text", on_null=on_null).batch(1))
        assert column(found, "input_ids") == [ids_of(text) for text in texts] + more
        assert counted_ == counts


@pytest.mark.parametrize(
    ("first", "later", "right"),
    [
        (None, "x", "x"),
        (None, None, None),
        (1, None, None),
        (1, 2.5, 2.5),
        ([], [1, 2], [1, 2]),
        ([1], None, None),
        ([None], [1], "[1]"),
        ({"a": None}, {"a": "x"}, '{"a": "x"}'),
        ({"a": 1}, [1, "x"], '[1, "x"]'),
        (True, None, None),
    ],
)
def test_nulls_and_values_of_a_side_column(first: Any, later: Any, right: Any, tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", *[{"text": "a", "note": first}] * 50)
    written(tmp_path / "b.jsonl", {"text": "b", "note": later}, {"text": "c"})
    found = records(of(tmp_path))
    assert [row["text"] for row in found] == ["a"] * 50 + ["b", "c"]
    assert [row["note"] for row in found[50:]] == [right, None]
