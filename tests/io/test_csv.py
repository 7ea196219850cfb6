"""CSV and TSV: what a record is, which types columns have, and what is said of records that are none."""

import csv
import gzip
import io
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.whole import BytesSource, schema_of, whole
from zephon_async.errors import ShardError
from zephon_async.io import Dataset, Reader
from zephon_async.io.formats import csv_records, find_format, inflate, line_format, lines
from zephon_async.io.pool import Pool
from zephon_async.io.schema import dataset_schema

WHERE = "dataset 'd', shard 'a.csv'"
NAMES = "the names of its columns, in the first line,"


def of(folder: Path, body: bytes, name: str = "a.csv", **settings: Any) -> Dataset:
    (folder / name).write_bytes(body)
    return Dataset.from_path("d", folder / name, **settings)


def read(source: BytesSource, schema: pa.Schema, measure: Any, block_bytes: int) -> list[tuple[int, dict[str, Any] | str]]:
    """(number, values or what is bad) of all rows."""
    form = find_format("csv")
    decoder = form.decoder(schema, (), Pool(1 << 20))
    found: list[tuple[int, dict[str, Any] | str]] = []
    for span in form.units(source, measure, 1 << 20, block_bytes):
        for block in range(-(-span.length // span.block)) if measure == "rows" else count():
            (one,) = [each for each in decoder.read(source, span._asdict(), range(block, block + 1)) if each.block == block]
            rows = zip(one.rows.tolist(), one.columns.to_pylist(), strict=True)
            found += [(at, one.bad.get(n) or row) for n, (at, row) in enumerate(rows)]
            if one.last:
                break
    return found


VALUES = st.lists(st.sampled_from([*"a,\"\n\t é'0;\ufeff", "\r\n"]), max_size=6).map("".join)


@given(
    rows=st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=8),
    dialect=st.fixed_dictionaries(
        {"lineterminator": st.sampled_from(["\n", "\r\n"]), "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])}
    ),
    tabbed=st.booleans(),
    packed=st.booleans(),
    bom=st.booleans(),
    measure=st.sampled_from(["rows", "bytes"]),
    block_bytes=st.integers(1, 80),
    given_out=st.integers(1, 60),
)
@settings(max_examples=100)
def test_what_a_writer_writes_is_read(
    rows: list[Any], dialect: Any, tabbed: bool, packed: bool, bom: bool, measure: Any, block_bytes: int, given_out: int
) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter="\t" if tabbed else ",", **dialect)
    starts = []
    for row in [("x", 'na,"me', "\nz"), *rows]:
        starts.append(len(file.getvalue().encode()) + 3 * bom)
        writer.writerow(row)
    body = b"\xef\xbb\xbf" * bom + file.getvalue().encode()
    name = f"a.{'tsv' if tabbed else 'csv'}{'.gz' if packed else ''}"
    schema = pa.schema({"\nz": pa.large_string(), "x": pa.large_string(), "other": pa.int64()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_GIVEN", given_out)
        found = read(BytesSource(name, gzip.compress(body) if packed else body), schema, measure, block_bytes)
    right = [{"\nz": c, "x": a, "other": None} for a, _, c in rows]
    assert found == list(zip(starts[1:], right, strict=True))


BYTES = st.lists(
    st.sampled_from(
        [b'"', b'"', b'""', b",", b",", b"\n", b"\n", b"\r\n", b"\r", b"a", b"7", b"07", b"-0x", b" ", b"\xff", b"\xef\xbb\xbf"]
    )
)


@given(body=BYTES.map(b"".join), block_bytes=st.integers(1, 40), given_out=st.integers(1, 40))
@settings(max_examples=200)
def test_any_bytes_are_read_as_by_the_strict_reader(body: bytes, block_bytes: int, given_out: int) -> None:
    """Whatever pieces come, whatever the blocks, and whether or not pyarrow's reader had a part in it."""
    body = b"n,t,b\n1,a,x\n" + body
    schema = pa.schema({"n": pa.int64(), "t": pa.large_string(), "b": pa.large_binary()})
    source = BytesSource("a.csv", body)

    def rows_or_error(measure: Any, block_bytes: int) -> Any:
        try:
            return read(source, schema, measure, block_bytes)
        except ShardError as error:
            return str(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "_by_arrow", lambda *_: None)
        right = rows_or_error("rows", 1 << 20)
    assert rows_or_error("rows", 1 << 20) == right
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_GIVEN", given_out)
        assert rows_or_error("rows", block_bytes) == right
        assert rows_or_error("bytes", block_bytes) == right
    if not isinstance(right, str) and b"\r" not in body.replace(b"\r\n", b""):
        texts = body.decode("latin-1")
        others = [row for row in csv.reader(io.StringIO(texts, newline="")) if row][1:]
        assert len(others) == len(right)
        for (_, ours), other in zip(right, others, strict=True):
            if isinstance(ours, dict):
                assert [ours["t"].encode(), ours["b"]] == [value.encode("latin-1") for value in other[1:]]


@pytest.mark.parametrize("before", range(24))
def test_ends_of_lines_inside_quotes_wherever_pyarrow_cuts(before: int, tmp_path: Path) -> None:
    """Its reader drops an LF that begins a block of its own where a CR ended the one before."""
    values = ["x" * before, *["\r\n"] * 40, "\n\r"]
    found = whole(of(tmp_path, b"t\n" + b"".join(b'"%s"\n' % value.encode() for value in values)))
    assert found.column("t") == values


# Types


@pytest.mark.parametrize(
    ("values", "kind", "right"),
    [
        (["1", "-2", "", "0"], "int64", [1, -2, None, 0]),
        (["1", "2.5", "-1e-05"], "double", [1.0, 2.5, -1e-05]),
        (["true", "False", ""], "bool", [True, False, None]),
        ([" 1", "2 "], "int64", [1, 2]),
        (["007", "1"], "large_string", ["007", "1"]),
        (["+1", ""], "large_string", ["+1", ""]),
        (["1", "NA"], "large_string", ["1", "NA"]),
        (["1.5", "nan"], "large_string", ["1.5", "nan"]),
        (["9223372036854775807"], "int64", [9223372036854775807]),
        (["9223372036854775808"], "large_string", ["9223372036854775808"]),
        (["1e999"], "large_string", ["1e999"]),
        (["0x10"], "large_string", ["0x10"]),
        (["2020-01-01"], "large_string", ["2020-01-01"]),
        (["true", "1"], "large_string", ["true", "1"]),
        (["", '""'], "large_string", ["", ""]),
    ],
)
def test_what_type_a_column_has(values: list[str], kind: str, right: list[Any], tmp_path: Path) -> None:
    dataset = of(tmp_path, "".join(f"{line}\n" for line in ["k,v", *(f"k,{value}" for value in values)]).encode())
    assert str(schema_of(dataset).field("v").type) == kind
    assert whole(dataset).column("v") == right
    shards = tmp_path / "shards"
    shards.mkdir()
    for n, value in enumerate(values):
        (shards / f"{n}.csv").write_text(f"k,v\nk,{value}\n")
    found = {str(dataset_schema(Dataset.from_path("d", shards), None, {}, seed).field("v").type) for seed in range(8)}
    assert found == {"null" if not any(value.strip('"') for value in values) else kind}


def test_pinned_types(tmp_path: Path) -> None:
    pins = {
        "i": pa.int8(),
        "f": pa.float32(),
        "d": pa.date32(),
        "t": pa.timestamp("us"),
        "m": pa.decimal128(6, 2),
        "s": pa.string(),
    }
    body = b"i,f,d,t,m,s\n12,1.5,2020-01-01,2020-01-01T00:00:00,1.25,007\n,,,,,\n128,x,x,x,1.255,\xff\n"
    found = whole(of(tmp_path, body, schema=pins))
    assert [{name: value if value is None else str(value) for name, value in row.items()} for row in found.rows] == [
        {"d": "2020-01-01", "f": "1.5", "i": "12", "m": "1.25", "s": "007", "t": "2020-01-01 00:00:00"},
        dict.fromkeys("dfimt") | {"s": ""},
        dict.fromkeys("dfimst"),
    ]
    assert found.bad == [f"{WHERE}, line 4 (byte 65): column 'd': date32[day] is wanted, not 'x'"]
    assert whole(of(tmp_path, b"v\n0.5\n", schema={"v": pa.float16()})).column("v") == [0.5]
    lists = whole(of(tmp_path, b"v\n[1]\n", schema={"v": pa.list_(pa.int64())}))
    assert lists.bad == [f"{WHERE}, line 2 (byte 2): column 'v': list<item: int64> is wanted, not '[1]'"]


def test_a_column_of_numbers_that_is_required_as_text(tmp_path: Path) -> None:
    assert whole(of(tmp_path, b"text\n2019\n007\n"), required={"text": "string"}).column("text") == ["2019", "007"]


# Bad records


@pytest.mark.parametrize("value", ["abc", "007", "-01", "0x1F", "+1", "1.0", "9223372036854775808", "1 2", "x" * 99])
def test_values_that_do_not_fit_are_named(value: str, tmp_path: Path) -> None:
    found = whole(of(tmp_path, f"n,t\n1,a\n{value},b\n3,c\n".encode(), schema={"n": pa.int64()}))
    shown = value if len(value) < 60 else f"{value[:60]}..."
    assert found.bad == [f"{WHERE}, line 3 (byte 8): column 'n': int64 is wanted, not {shown!r}"]
    assert found.rows == [{"n": 1, "t": "a"}, {"n": None, "t": "b"}, {"n": 3, "t": "c"}]


@pytest.mark.parametrize("value", ["-00", "-01", "007", " 07", "0x1F", "-0x1"])
def test_the_first_value_of_a_block_is_read_as_others(value: str, tmp_path: Path) -> None:
    found = whole(of(tmp_path, f"n\n{value}\n100".encode(), schema={"n": pa.int64()}))
    assert found.column("n") == [None, 100]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1", "it has 1 values, and 2 columns are named in the first line"),
        ("1,a,", "it has 3 values, and 2 columns are named in the first line"),
        ("  ", "it has 1 values, and 2 columns are named in the first line"),
        ('1,"a"b', "value 2 goes on behind its closing quote"),
        ("1\r,a", "value 1 has a CR in it that ends no line; it must be in quotes"),
    ],
)
@pytest.mark.parametrize("needed", [None, ["t"], []])
def test_bad_records_are_no_lost_ones(line: str, reason: str, needed: list[str] | None, tmp_path: Path) -> None:
    found = whole(of(tmp_path, f'n,t\n1,"a\nb"\n\n{line}\r\n3,c'.encode()), needed=needed)
    assert found.bad == [f"{WHERE}, line 5 (byte 13): {reason}"]
    names = ["n", "t"] if needed is None else needed
    rows: list[dict[str, Any]] = [{"n": 1, "t": "a\nb"}, {"n": None, "t": None}, {"n": 3, "t": "c"}]
    assert found.rows == [{name: row[name] for name in names} for row in rows]


@pytest.mark.parametrize("counted", [True, False])
def test_quotes_that_are_not_closed(counted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not counted:
        monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)
    with pytest.raises(ShardError) as caught:
        whole(of(tmp_path, b'n,t\n1,a\n2,"b\n3,c\n'))
    assert str(caught.value) == f"{WHERE}: ends inside the quotes of the record at byte 8: one is not closed, or it was cut short"
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(inflate, "_GIVEN", 100)
    with pytest.raises(ShardError) as caught:
        whole(of(tmp_path, b'n,t\n1,a\n2,"b\n' + b"3,c\n" * 1000))
    assert str(caught.value) == f"{WHERE}: has a record of more than 1,000 bytes: a quote is not closed, or it wants a split"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"n,n\n", "has two columns named 'n'"),
        (b"n,\xff\n", f"{NAMES} are not UTF-8"),
        (bytes(4096), f"{NAMES} have a NUL in them: it is damaged, or no UTF-8"),
        ("n,t\n1,2\n".encode("utf-16-le"), f"{NAMES} have a NUL in them: it is damaged, or no UTF-8"),
        (b'n,"a"b\n', f"{NAMES} cannot be read: value 2 goes on behind its closing quote"),
        (b"n,t\r1,2\r3,4\n", f"{NAMES} cannot be read: value 2 has a CR in it that ends no line; it must be in quotes"),
    ],
)
def test_headers_that_are_none(header: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(ShardError) as caught:
        whole(of(tmp_path, header + b"1,2\n"))
    assert str(caught.value) == f"{WHERE}: {said}"


def test_shards_with_other_columns(tmp_path: Path) -> None:
    for name, body in {
        "a.csv": "n,t\n1,a\n",
        "b.csv": "\ufefft\r\nb\r\n",
        "c.csv": "t,x,n\n",
        "d.csv": "",
        "e.csv": '\n\n"t",n\nc,5',
    }.items():
        (tmp_path / name).write_bytes(body.encode())
    dataset = Dataset.from_path("d", tmp_path)
    assert dataset.counts().tolist() == [1, 1, 0, 0, 1]
    found = whole(dataset)
    assert found.rows == [{"n": 1, "t": "a"}, {"n": None, "t": "b"}, {"n": 5, "t": "c"}]
    assert found.places == [("a.csv", 4), ("b.csv", 6), ("e.csv", 8)]
    with pytest.raises(ShardError, match=r"^dataset 'd', shard 'b.csv': there is no column 'n'; its columns are 't'$"):
        whole(dataset, required={"n": "any"})


def test_units_and_what_is_known_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"n\n" + b"1234567\n" * 1000
    dataset = of(tmp_path, body, block_bytes=800)
    assert dataset.catalog().units.tolist() == [(0, 0, len(body), 0, 1000, 100, 1)]
    monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)
    dataset = of(tmp_path, body, block_bytes=800)
    assert dataset.catalog().units.tolist() == [(0, 0, len(body), 0, len(body), 800, 2)]
    assert dataset.total() == 1000
    reader = Reader([dataset], schema_of(dataset), lambda batch: batch.column(0).to_numpy())
    assert [len(reader.read(0, 0, number).rows) for number in (3, 9, 0, 10, 11)] == [100, 100, 100, 0, 0]
    reader.close()
