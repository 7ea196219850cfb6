"""JSON lines: what a line is, what a record is, and what is said of those that are none. Cases A01 to A04 and A06."""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whole import BytesSource, bad_of, block_numbers, ones, schema_of, whole
from zephon_async.errors import RecipeError, ShardError
from zephon_async.io import Dataset, Reader
from zephon_async.io.formats import find_format
from zephon_async.io.formats.jsonl import JsonlFormat
from zephon_async.io.formats.lines import lines_of
from zephon_async.kinds import is_json

CASES = Path(__file__).parent.parent / "cases"
WHERE = "dataset 'd', shard 'a.jsonl', "


def text_of(text: bytes) -> BytesSource:
    return BytesSource("a.jsonl", text)


def of(tmp_path: Path, text: bytes, **settings: Any) -> Dataset:
    (tmp_path / "a.jsonl").write_bytes(text)
    return Dataset.from_path("d", tmp_path / "a.jsonl", **settings)


def decoded(records: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """With JSON text decoded in some columns."""
    return [row | {name: None if row[name] is None else json.loads(row[name]) for name in names} for row in records]


# Lines


def naive(text: bytes) -> list[tuple[int, bytes]]:
    """(offset, line) of all lines that are rows."""
    at = 3 if text.startswith(b"\xef\xbb\xbf") else 0
    lines = []
    for line in text[at:].split(b"\n"):
        if line.strip(b" \t\r"):
            lines.append((at, line))
        at += len(line) + 1
    return lines


pieces = st.sampled_from(
    [
        b"\n",
        b"\r\n",
        b" ",
        b"\t",
        b"\r",
        b"{}",
        b'{"a": 1}',
        "é中\u2028\u2029\x85\x0b\x0c".encode(),
        b"\xef\xbb\xbf",
        b"x" * 40,
        b"\x00",
    ]
)


@given(text=st.lists(pieces, max_size=30).map(b"".join), step=st.integers(1, 60))
def test_lines_are_those_of_a_naive_split_for_any_blocks(text: bytes, step: int) -> None:
    source = text_of(text)
    found = []
    for start in range(0, len(text), step):
        lines = lines_of(source, start, start + step)
        for a, b in zip(lines.starts.tolist(), lines.stops.tolist(), strict=True):
            assert start <= a < start + step
            found.append((a, lines.text[a - lines.base : b - lines.base]))
    assert found == naive(text)


@pytest.mark.parametrize("length", [0, 1, 65_535, 65_536, 200_000, 1_500_000])
def test_a_line_may_be_longer_than_any_block(length: int) -> None:
    text = b'{"a": "' + b"y" * length + b'"}'
    for source in (text_of(text), text_of(text + b"\n"), text_of(text + b"\n" + text)):
        assert [b - a for a, b in zip(*lines_of(source, 0, 5)[2:4], strict=True)] == [len(text)]
        assert len(lines_of(source, 5, 9).starts) == 0


records = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.none() | st.text(max_size=20),
            "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
            "x": st.none() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False),
            "tags": st.none() | st.lists(st.integers(-9, 9) | st.text(max_size=3), max_size=3),
            "ids": st.none() | st.lists(st.integers(0, 1 << 31), max_size=4),
            "meta": st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=3), max_size=2),
        },
    ),
    max_size=12,
)
PINS = {"text": pa.string(), "n": pa.int64(), "x": pa.float64(), "ids": pa.list_(pa.int64())}


@given(
    rows=records,
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\r\n"]), min_size=1),
    last=st.booleans(),
    unit_bytes=st.integers(1, 300),
    block_bytes=st.integers(1, 300),
    measure=st.sampled_from(["rows", "bytes"]),
    spaces=st.booleans(),
)
def test_any_unit_and_block_sizes_give_the_records_as_written(
    rows: list[dict[str, Any]], ends: list[str], last: bool, unit_bytes: int, block_bytes: int, measure: Any, spaces: bool
) -> None:
    lines = [json.dumps(row, ensure_ascii=False, separators=None if spaces else (",", ":")) for row in rows]
    text = "".join(line + ends[n % len(ends)] for n, line in enumerate(lines))
    raw = (text if last else text.rstrip()).encode("utf-8")
    form, source = JsonlFormat(), text_of(raw)
    fields = [pa.field(name, kind) for name, kind in PINS.items() if name != "text"]
    marked = [pa.field(name, pa.large_string(), metadata={b"zephon": b"json"}) for name in ("tags", "meta")]
    decoder = form.decoder(pa.schema([*fields, pa.field("text", pa.large_string()), *marked]), (), None)  # type: ignore[arg-type]
    found, places = [], []
    for span in form.units(source, measure, unit_bytes, block_bytes):
        unit = span._asdict()
        for one in decoder.read(source, unit, range(-(-span.length // span.block))):
            assert not one.bad
            assert measure == "bytes" or one.columns.num_rows == span.length
            found += one.columns.to_pylist()
            places += one.rows.tolist()
    names = [*PINS, "tags", "meta"]
    assert decoded(found, "tags", "meta") == [{name: row.get(name) for name in names} for row in rows]
    assert places == [at for at, _ in naive(raw)]
    for row, record in zip(found, rows, strict=True):
        for name in ("tags", "meta"):
            if record.get(name) is not None:
                assert row[name] == json.dumps(record[name], ensure_ascii=False, separators=None if spaces else (",", ":"))


def test_a_byte_order_mark_is_not_there() -> None:  # A01
    right = json.loads((CASES / "A01/expected.json").read_text())
    for name in ("with-bom", "without-bom"):
        found = whole(Dataset.from_path("d", CASES / f"A01/{name}.jsonl"))
        assert decoded(found.rows, "meta") == right["records"]
        assert found.places[0][1] == (3 if name == "with-bom" else 0)
    (inside,) = whole(Dataset.from_path("d", CASES / "A01/bom-inside-the-string.jsonl")).column("text")
    assert len(inside) == right["bom_inside_text_length"]
    assert "\ufeff" in inside


@pytest.mark.parametrize("name", ["mixed", "only-newlines", "empty"])
def test_ends_of_lines(name: str) -> None:  # A02
    right = json.loads((CASES / "A02/expected.json").read_text())
    dataset = Dataset.from_path("d", CASES / f"A02/{name}.jsonl")
    found = whole(dataset)
    assert ([row["text"] for row in found.rows] if found.rows else 0) == right[name]
    assert dataset.catalog().rows == len(found.rows) == dataset.total()
    assert found.bad == []


def test_shards_are_never_glued() -> None:  # A02
    assert whole(Dataset.from_path("d", CASES / "A02/pair")).column("text") == ["end of shard zero", "start of shard one"]


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 64, 999, 4096, 1 << 20])
def test_characters_across_blocks(block_bytes: int) -> None:  # A03
    right = json.loads((CASES / "A03/expected.json").read_text())["straddle-plain"]
    (text,) = whole(Dataset.from_path("d", CASES / "A03/straddle-plain.jsonl", block_bytes=block_bytes)).column("text")
    assert (len(text), hashlib.sha256(text.encode()).hexdigest()) == (right["code_points"], right["sha256"])


def test_lines_end_at_line_feeds_only() -> None:  # A04
    right = json.loads((CASES / "A04/expected.json").read_text())
    assert whole(Dataset.from_path("d", CASES / "A04/separators.jsonl")).column("text") == right["texts"]


# Types


def test_nulls_and_then_strings() -> None:  # A06
    dataset = Dataset.from_path("d", CASES / "A06/good")
    for block_bytes in (100, 1 << 20):
        found = whole(dataset.with_sizes(block_bytes=block_bytes))
        assert found.bad == []
        assert [type(note).__name__ for note in found.column("note")] == ["NoneType"] * 200 + ["str"] * 25


def test_a_number_is_no_text_and_null_stays_null() -> None:  # A06
    found = whole(Dataset.from_path("d", CASES / "A06/odd"), needed=["id", "text"], required={"text": "string"})
    assert found.rows == [
        {"id": 220, "text": "row 220"},
        {"id": 221, "text": "row 221"},
        {"id": 222, "text": None},
        {"id": None, "text": None},
    ]
    assert found.bad == ["dataset 'd', shard 'shard-2.jsonl', line 4 (byte 127): Expected `str | null`, got `int` - at `$.text`"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["null", '"a"'], "large_string"),
        (["true", "null"], "bool"),
        (["1", "-2"], "int64"),
        (["1", "2.5"], "double"),
        (["2.5", "1"], "double"),
        (["[1]", "null", "[]"], "list<item: int64>"),
        (["[]", "[1]"], "list<item: int64>"),
        (["[]"], "json"),
        (["[1]", "[1.5]"], "json"),
        (["[1]", "[null]"], "json"),
        (["[true]"], "json"),
        (['["a"]', "[1]"], "json"),
        (["[1]", '{"a": 1}'], "json"),
        (['{"a": 1}', "5"], "json"),
        (["null"], "large_string"),
        (['"a"', "1"], "large_string"),
    ],
)
def test_what_type_a_column_has(values: list[str], kind: str, tmp_path: Path) -> None:
    (field,) = schema_of(of(tmp_path, "".join(f'{{"v": {value}}}\n' for value in values).encode()))
    assert ("json" if is_json(field) else str(field.type)) == kind
    shards = tmp_path / "shards"
    shards.mkdir()
    for n, value in enumerate(values):
        (shards / f"{n}.jsonl").write_text(f'{{"v": {value}}}\n')
    if kind not in ("json", "large_string"):  # where the first value decides, the order of the look decides
        assert schema_of(Dataset.from_path("d", shards)) == pa.schema([field])


def test_json_text_is_as_written(tmp_path: Path) -> None:
    values = ['{ "b":1,"a" : [1e2, 1.50, "\\u00e9"]}', "5", '"x"', "null", "true", "123456789012345678901234567890"]
    found = whole(of(tmp_path, "".join(f'{{"v": {value} }}\n' for value in values).encode()))
    assert found.column("v") == [None if value == "null" else value for value in values]
    assert found.bad == []


PINNED = {
    "tokens": (pa.list_(pa.int32()), "[1, 2]", [1, 2]),
    "wide": (pa.large_list(pa.uint16()), "[65535]", [65535]),
    "fixed": (pa.list_(pa.float32(), 2), "[1, 2.5]", [1.0, 2.5]),
    "words": (pa.list_(pa.string()), '["a", null]', ["a", None]),
    "record": (pa.struct({"a b": pa.int8(), "c": pa.list_(pa.string())}), '{"a b": 1, "z": 0}', {"a b": 1, "c": None}),
    "big": (pa.uint64(), "18446744073709551615", 18446744073709551615),
    "bytes": (pa.binary(), '"YWJj"', b"abc"),
    "word": (pa.dictionary(pa.int8(), pa.string()), '"a"', "a"),
}


@pytest.mark.parametrize("name", PINNED)
def test_pinned_types(name: str, tmp_path: Path) -> None:
    kind, written, right = PINNED[name]
    found = whole(of(tmp_path, f'{{"{name}": {written}}}\n{{}}\n{{"{name}": [{{}}, 1]}}\n'.encode(), schema={name: kind}))
    assert found.column(name) == [right, None, None]
    assert len(found.bad) == 1
    assert found.bad[0].startswith(f"{WHERE}line 3 (byte ")


def test_times_have_a_zone_or_have_none(tmp_path: Path) -> None:
    pins = {"utc": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "day": pa.date32(), "price": pa.decimal128(6, 2)}
    text = b'{"utc": "2020-01-01T00:00:00Z", "local": "2020-01-01T00:00:00", "day": "2020-01-01", "price": "1.25"}\n'
    found = whole(
        of(tmp_path, text + b'{"utc": "2020-01-01T00:00:00"}\n{"local": "2020-01-01T00:00:00Z"}\n{"price": "1.255"}', schema=pins)
    )
    assert {name: str(value) for name, value in found.rows[0].items()} == {
        "day": "2020-01-01",
        "local": "2020-01-01 00:00:00",
        "price": "1.25",
        "utc": "2020-01-01 00:00:00+00:00",
    }
    assert len(found.bad) == 3


def test_a_type_that_json_has_not(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"^column 'v' is pinned to duration\[s\], which values of JSON cannot be; pin it to another type$"
    ):
        whole(of(tmp_path, b"{}", schema={"v": pa.duration("s")}))


def test_pre_tokenized_documents_are_integers(tmp_path: Path) -> None:
    dataset = of(tmp_path, b'{"input_ids": [1, 2, 3]}\n{"input_ids": []}\n{"input_ids": [2147483648]}\n{"input_ids": [1, null]}')
    found = whole(dataset, required={"input_ids": "integers"})
    assert found.column("input_ids") == [[1, 2, 3], [], None, None]
    assert found.bad == [
        f"{WHERE}line 3 (byte 43): Expected `int` <= 2147483647 - at `$.input_ids[0]`",
        f"{WHERE}line 4 (byte 71): Expected `int`, got `null` - at `$.input_ids[1]`",
    ]


# Bad records

WHOLE = "; a line must be one whole JSON object"
BAD = {
    '{"text": "a"} {"text": "b"}': f"JSON is malformed: trailing characters (byte 15){WHOLE}",
    '["a"]': f"Expected `object`, got `array`{WHOLE}",
    "null": f"Expected `object`, got `null`{WHOLE}",
    "nonsense": f"JSON is malformed: invalid character (byte 4){WHOLE}",
    '{"text": "a"': f"Input data was truncated{WHOLE}",
    '{"text": 5}': "Expected `str | null`, got `int` - at `$.text`",
    '{"text": ["a"]}': "Expected `str | null`, got `array` - at `$.text`",
    '{"text": "a\x00"}': f"JSON is malformed: invalid character (byte 11){WHOLE}",
    '{"n": 9223372036854775808}': "Expected `int` <= 9223372036854775807 - at `$.n`",
    '{"n": 1.0}': "Expected `int | null`, got `float` - at `$.n`",
    '{"n": "1"}': "Expected `int | null`, got `str` - at `$.n`",
    '{"n": true}': "Expected `int | null`, got `bool` - at `$.n`",
    '{"x": 1e999}': "Number out of range - at `$.x`",
    '{"x": NaN}': f"JSON is malformed: invalid character (byte 6){WHOLE}",
    "\ufeff{}": f"JSON is malformed: invalid character (byte 0){WHOLE}",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_records_say_where_and_why(line: str, tmp_path: Path) -> None:
    good = '{"text": "a", "n": 1, "x": 5, "meta": {}}'
    dataset = of(tmp_path, f"\n{good}\n{line}\n{good}".encode(), schema={"n": pa.int64(), "x": pa.float64()})
    found = whole(dataset)
    assert found.bad == [f"{WHERE}line 3 (byte 43): {BAD[line]}"]
    fine = {"text": "a", "n": 1, "x": 5.0, "meta": "{}"}
    assert found.rows == [fine, dict.fromkeys(fine), fine]


@pytest.mark.parametrize("name", ["text", "meta"])
def test_text_that_is_not_utf_8(name: str, tmp_path: Path) -> None:
    line = {"text": b'{"text": "\xff"}', "meta": b'{"meta": ["\xff"]}'}[name]
    dataset = of(tmp_path, b'{"text": "a", "meta": {}}\n' + line)
    assert whole(dataset).bad == [f"{WHERE}line 2 (byte 26): Invalid UTF-8 encoded string"]


def test_columns_that_are_not_needed_are_not_looked_at(tmp_path: Path) -> None:
    dataset = of(tmp_path, b'{"text": "a", "n": 1}\n{"text": "b", "n": "odd", "o": [[[5]]]}')
    assert whole(dataset, needed=["text"]) == ([{"text": "a"}, {"text": "b"}], [("a.jsonl", 0), ("a.jsonl", 22)], [])


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    record = {"class": 1, "a b": "x", "": True, "é": [1], "__init__": 2.5, "f0": "y", "a.b": "z"}
    assert whole(of(tmp_path, msgspec.json.encode(record))).rows == [
        dict(sorted(record.items(), key=lambda pair: pair[0].encode()))
    ]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "\n", "\0", "\x1f"])
def test_columns_may_have_names_that_json_escapes(name: str, tmp_path: Path) -> None:
    values: list[Any] = [1, "no", None, 1.0]
    lines = [json.dumps({name: value, "t": "a", "x": [n]}) for n, value in enumerate(values)] + ['{"t":"b"}', "{"]
    found = whole(of(tmp_path, "\n".join(lines).encode()))
    assert found.column(name) == [1, None, None, 1, None, None]
    assert found.column("t") == ["a", None, "a", "a", "b", None]
    assert found.column("x") == [[0], None, [2], [3], None, None]
    assert [said.split(":")[0] for said in found.bad] == [f"{WHERE}line {n} (byte {found.places[n - 1][1]})" for n in (2, 6)]


def test_an_escaped_key_is_the_key(tmp_path: Path) -> None:
    assert whole(of(tmp_path, b'{"\\u0074ext": "a"}')).rows == [{"text": "a"}]


# Measures


def test_small_data_is_counted_and_large_data_is_not() -> None:
    form = find_format("jsonl")
    assert [form.measure(size) for size in (0, (64 << 20) - 1, 64 << 20)] == ["rows", "rows", "bytes"]


def test_data_that_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon_async.io.formats.line_format.COUNTED_BYTES", 0)
    text = b"".join(b'{"n": %d}\n' % n for n in range(100))
    dataset = of(tmp_path, text, unit_bytes=100, block_bytes=40)
    catalog = dataset.catalog()
    assert (catalog.measure, catalog.rows) == ("bytes", None)
    assert catalog.units["length"].tolist() == [100] * (len(text) // 100) + [len(text) % 100]
    found = whole(dataset)
    assert found.column("n") == list(range(100))
    reader = Reader([dataset], schema_of(dataset), ones)
    for unit, number in block_numbers(catalog):
        block = reader.read(0, unit, number)
        assert (block.places == block.rows - int(catalog.units["start"][unit])).all()
        assert ((block.places >= number * 40) & (block.places < number * 40 + 40)).all()
    assert (dataset.total(), dataset.counts().tolist()) == (100, [100])
    assert dataset.settings()["shards"] == [["a.jsonl", len(text), None]]


def test_a_bad_row_of_a_shard_that_is_gone_is_still_named(tmp_path: Path) -> None:
    dataset = of(tmp_path, b'{"text": "a"}\n5\n')
    block = Reader([dataset], schema_of(dataset), ones).read(0, 0, 0)
    (tmp_path / "a.jsonl").unlink()
    assert bad_of(block) == [f"dataset 'd', shard 'a.jsonl', row 14: Expected `object`, got `int`{WHOLE}"]
    with pytest.raises(ShardError):
        Reader([dataset], schema_of_text(), ones).read(0, 0, 0)


def schema_of_text() -> pa.Schema:
    return pa.schema({"text": pa.large_string()})
