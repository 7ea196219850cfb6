"""Plain text: what a line is, and that all ways to it give the same."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whole import BytesSource, schema_of, whole
from zephon_async.errors import DatasetError, RecipeError
from zephon_async.io import Dataset
from zephon_async.io.formats import find_format, inflate, line_format
from zephon_async.io.pool import Pool

WHERE = "dataset 'd', shard 'a.txt', "
SCHEMA = pa.schema({"text": pa.large_string()})


def of(folder: Path, body: bytes, name: str = "a.txt", **settings: Any) -> Dataset:
    (folder / name).write_bytes(body)
    return Dataset.from_path("d", folder / name, **settings)


def naive(body: bytes) -> list[tuple[int, bytes]]:
    """(offset, text) of all lines."""
    at = 3 if body.startswith(b"\xef\xbb\xbf") else 0
    lines = body[at:].split(b"\n")
    found = []
    for line in lines if lines[-1] else lines[:-1]:
        found.append((at, line.removesuffix(b"\r")))
        at += len(line) + 1
    return found


PIECES = st.sampled_from([b"\n", b"\r\n", b"\r", b" ", b"a", "é中\u2028\x85\x0b\x00".encode(), b"\xef\xbb\xbf", b"\xff", b"x" * 30])


@given(
    body=st.lists(PIECES, max_size=25).map(b"".join),
    sizes=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    measure=st.sampled_from(["rows", "bytes"]),
    packed=st.booleans(),
    given_out=st.integers(1, 50),
)
def test_lines_are_those_of_a_naive_split(body: bytes, sizes: tuple[int, int], measure: Any, packed: bool, given_out: int) -> None:
    right = naive(body)
    form = find_format("text")
    source = BytesSource("a.txt.gz", gzip.compress(body)) if packed else BytesSource("a.txt", body)
    decoder = form.decoder(SCHEMA, (), Pool(0))
    found: list[tuple[int, str | None]] = []
    bad: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_GIVEN", given_out)
        for span in form.units(source, measure, *sizes):
            blocks = range(len(body) // span.block + 1 if span.entry == 2 else -(-span.length // span.block))
            for one in decoder.read(source, span._asdict(), blocks):
                found += zip(one.rows.tolist(), one.columns.column(0).to_pylist(), strict=True)
                bad += [int(one.rows[row]) for row in one.bad]
                assert set(one.bad.values()) <= {"column 'text': the text is not UTF-8"}
    texts = [(at, None if b"\xff" in line else line) for at, line in right]
    assert [(at, None if text is None else text.encode()) for at, text in found] == texts
    assert bad == [at for at, line in right if b"\xff" in line]


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_what_a_line_is(name: str, counted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not counted:
        monkeypatch.setattr(line_format, "COUNTED_BYTES", 0)
    pack = gzip.compress if name.endswith("gz") else bytes
    for body, right in {
        b"a\nb\n": ["a", "b"],
        b"a\r\n\r\nb\r": ["a", "", "b"],
        b"\n\n": ["", ""],
        b" \n\t": [" ", "\t"],
        b"\xef\xbb\xbfa\n\xef\xbb\xbf": ["a", "\ufeff"],
        b"\xef\xbb\xbf\n": [""],
        b"a\rb\r\r\n": ["a\rb\r"],
        "a\u2028b\x85c\x0cd".encode(): ["a\u2028b\x85c\x0cd"],
    }.items():
        dataset = of(tmp_path, pack(body), name)
        assert whole(dataset).column("text") == right
        assert dataset.total() == len(right)
    for body in (b"", b"\xef\xbb\xbf"):
        assert whole(of(tmp_path, pack(body), name)).rows == []


def test_a_shard_of_more_units_than_have_room_is_refused() -> None:
    """Its size may be wrong, as a web server tells it, or `unit_bytes` too small."""
    source = BytesSource("a.txt", b"a\n")
    source.size = 1 << 52
    with pytest.raises(
        RecipeError, match=r"^dataset 'd', shard 'a.txt': is said to have 4,503,.* say a larger unit_bytes=, or look"
    ):
        find_format("text").units(source, "bytes", 1 << 24, 1 << 20)


def test_text_that_is_not_utf_8_is_a_bad_record(tmp_path: Path) -> None:
    found = whole(of(tmp_path, b"a\n\n\xff\n\xc3\n\xa9\nb"))
    assert found.column("text") == ["a", "", None, None, None, "b"]
    assert found.bad == [f"{WHERE}line {n} (byte {at}): column 'text': the text is not UTF-8" for n, at in ((3, 3), (4, 5), (5, 7))]


def test_other_columns_and_types(tmp_path: Path) -> None:
    dataset = of(tmp_path, b"a\n\xff\n", schema={"text": pa.binary()})
    assert whole(dataset).rows == [{"text": b"a"}, {"text": b"\xff"}]
    assert whole(of(tmp_path, b"a\n"), needed=["other"]).rows == [{"other": None}]
    found = whole(of(tmp_path, b"1\n", schema={"text": pa.int64()}))
    assert found.bad == [f"{WHERE}line 1 (byte 0): column 'text': int64 is wanted, not large_string"]
    with pytest.raises(DatasetError, match=r"there is no column 'body' in shard 'a.txt', .* columns seen: 'text'$"):
        schema_of(of(tmp_path, b"a\n"), required={"body": "string"})
