"""Bytes that rows refer to: taken, joined, counted and copied as if they were in the rows, which they are not."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.batch import Batch, fill_rows
from zephon_async.errors import BadRecord
from zephon_async.records import ORIGIN, Names, Origins, Records, concat, nbytes, take
from zephon_async.runners.arena import Arena, lay_down, pick_up
from zephon_async.views import compact, has_views, refer, referred

LARGE = pa.large_binary()
VALUE = st.none() | st.integers(0, 40).map(lambda n: bytes(range(n, 2 * n)))  # up to 12 bytes lie in the view
LISTS = st.none() | st.lists(VALUE, max_size=4)
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bytes": (LARGE, VALUE),
    "small offsets": (pa.binary(), VALUE),
    "lists": (pa.list_(LARGE), LISTS),
    "large lists": (pa.large_list(pa.field("image", LARGE, nullable=False)), st.lists(VALUE.filter(bool), max_size=3)),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def batch_of(column: pa.Array) -> pa.RecordBatch:
    """With the column in a struct, a list of structs, and a list of fixed size too, and with numbers beside it."""
    rows = len(column)
    numbers = pa.array(range(rows), pa.int64())
    struct = pa.StructArray.from_arrays(
        [column, numbers], ["image", "n"], mask=pa.array([n % 3 == 2 for n in range(rows)], pa.bool_())
    )
    listed = pa.ListArray.from_arrays(pa.array([min(n, rows) for n in range(0, 2 * rows + 1, 2)], pa.int32()), struct)
    pairs = pa.FixedSizeListArray.from_arrays(pa.concat_arrays([column, column]), 2)
    return pa.RecordBatch.from_pydict({"image": column, "n": numbers, "struct": struct, "listed": listed, "pairs": pairs})


def drawn(data: st.DataObject, kind: str) -> tuple[pa.RecordBatch, list[dict[str, Any]]]:
    """A slice of a batch with views, and its rows."""
    wanted, value = KINDS[kind]
    column = pa.array(data.draw(st.lists(value, max_size=12)), wanted)
    start = data.draw(st.integers(0, len(column)))
    batch = batch_of(refer(column.slice(start)))
    rows = batch_of(column.slice(start)).to_pylist()
    assert batch.to_pylist() == rows
    first = data.draw(st.integers(0, len(rows)))
    return batch.slice(first), rows[first:]


def image_buffers(batch: pa.RecordBatch) -> list[pa.Buffer]:
    column = batch.column("image")
    return data_buffers(column if column.type == pa.binary_view() else column.values)


def data_buffers(column: pa.Array) -> list[pa.Buffer]:
    return list(column.buffers()[2:])


@each_kind
@given(data=st.data())
def test_rows_are_taken_and_joined(kind: str, data: st.DataObject) -> None:
    batch, rows = drawn(data, kind)
    some = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if rows else []
    taken = take(batch, np.array(some, np.int64))
    assert taken.to_pylist() == [rows[n] for n in some]
    joined = concat([batch, taken, batch.slice(len(rows) // 2)])
    assert joined.to_pylist() == rows + [rows[n] for n in some] + rows[len(rows) // 2 :]
    for made in (taken, joined):
        made.validate(full=True)
        assert made.schema == batch.schema


def values(rows: list[dict[str, Any]]) -> list[bytes | None]:
    """All values of the column, out of its lists."""
    images = [row["image"] for row in rows]
    return [value for image in images for value in (image if isinstance(image, list) else [image])]


def far_bytes(rows: list[dict[str, Any]]) -> int:
    """Bytes that do not lie in views."""
    return sum(len(value) for value in values(rows) if value is not None and len(value) > 12)


@each_kind
@given(data=st.data())
def test_a_copy_has_its_rows_and_no_more(kind: str, data: st.DataObject) -> None:
    batch, rows = drawn(data, kind)
    copied = compact(batch)
    copied.validate(full=True)
    assert copied.schema == batch.schema
    assert copied.to_pylist() == rows
    size = sum(buffer.size for buffer in image_buffers(copied))
    assert far_bytes(rows) <= size <= sum(len(value or b"") for value in values(rows))


@each_kind
@given(data=st.data())
def test_bytes_are_those_that_the_rows_use(kind: str, data: st.DataObject) -> None:
    batch, rows = drawn(data, kind)
    image = batch.select(["image"])
    size, far = nbytes(image), far_bytes(rows)
    most = 16 * len(values(rows)) + 8 * len(rows) + 8 + 2 * (len(rows) + len(values(rows)) + 2)  # views, offsets, bits of nulls
    assert far <= size <= far + most
    assert nbytes(concat([image, image])) >= 2 * far


def test_nothing_is_copied_and_buffers_that_no_row_uses_are_let_go() -> None:
    parts = [refer(pa.array([bytes([n]) * 100, None, b"short"], LARGE)) for n in range(5)]
    batches = [pa.RecordBatch.from_pydict({"image": part}) for part in parts]
    places = [data_buffers(part)[0].address for part in parts]
    joined = concat([*batches, batches[1].slice(0, 1)])
    assert [buffer.address for buffer in data_buffers(joined.column(0))] == places
    some = take(joined, np.array([12, 3, 15, 2, 1]))
    assert [buffer.address for buffer in data_buffers(some.column(0))] == [places[1], places[4]]
    assert some.column(0).to_pylist() == [b"\4" * 100, b"\1" * 100, b"\1" * 100, b"short", None]
    assert data_buffers(take(joined, np.array([1, 2])).column(0)) == []


def test_a_copy_out_of_an_arena_has_the_rows_and_no_more() -> None:
    column = refer(pa.array([[b"a" * 5000, b"b" * 5000], None, [b"c" * 60], [b"in the view"]], pa.list_(LARGE)))
    origins = np.zeros(4, ORIGIN)
    records = Records(pa.RecordBatch.from_pydict({"images": column}), Origins(origins)).slice(1, 4)
    arena = Arena.new()
    layout = lay_down(arena, records)
    assert layout.columns < 2000
    found, _ = pick_up(arena, layout, copied=False)
    assert found is not None
    assert found.columns.equals(records.columns)
    assert found.nbytes == records.nbytes
    del found
    arena.close()


def test_a_batch_is_the_same_with_views_and_takes_its_rows_alone_along() -> None:
    values = [[b"a" * 5000], None, [b"c" * 60, None, b"d"], []]

    def batch(column: pa.Array) -> Batch:
        records = Records(pa.RecordBatch.from_pydict({"images": column}), Origins(np.zeros(4, ORIGIN)))
        return Batch(records.slice(1, 4), Names(("d",), (("s",),)), step=0, lane=0, number=0)

    plain, views = (batch(column) for column in (pa.array(values, pa.list_(LARGE)), refer(pa.array(values, pa.list_(LARGE)))))
    assert views.records.columns.column("images").type == pa.list_(pa.binary_view())
    assert views.to_pylist("images") == plain.to_pylist("images") == values[1:]
    assert views.digest() == plain.digest()
    pickled = pickle.dumps(views)
    assert len(pickled) < 3000
    assert pickle.loads(pickled).digest() == plain.digest()


def test_filler_rows_refer_to_nothing() -> None:
    of_struct = pa.struct([("image", pa.binary_view())])
    kinds = {"image": pa.binary_view(), "images": pa.list_(pa.binary_view()), "struct": of_struct, "listed": pa.list_(of_struct)}
    made = fill_rows(pa.schema(list(kinds.items())), 2)
    assert made.columns.to_pylist() == [{"image": b"", "images": [], "struct": None, "listed": []}] * 2
    assert made.take(np.array([1])).columns.to_pylist() == made.columns.to_pylist()[:1]


def test_what_cannot_be_referred_to_is_told() -> None:
    assert referred(pa.large_string()) is referred(pa.list_(pa.int32())) is referred(pa.list_(pa.list_(LARGE))) is None
    assert not has_views(pa.list_(pa.struct([("a", LARGE)])))
    with pytest.raises(TypeError, match="large_string has no bytes"):
        refer(pa.array(["a"], pa.large_string()))


def test_columns_of_more_bytes_than_a_view_reaches() -> None:
    space = np.zeros(5 << 30, np.uint8)  # which no memory is taken for
    space[3 << 30] = 7

    def column(*ends: int) -> pa.Array:
        return pa.Array.from_buffers(LARGE, len(ends), [None, pa.py_buffer(np.array([0, *ends])), pa.py_buffer(space)])

    views = refer(column(3 << 29, 3 << 30, (3 << 30) + 20, 5 << 30).slice(0, 3))
    assert [len(views), nbytes(pa.RecordBatch.from_pydict({"image": views}))] == [3, (3 << 30) + 20 + 48]
    assert views[2].as_py() == b"\7" + bytes(19)
    with pytest.raises(BadRecord, match="3,221,225,472 bytes, and 2,147,483,647"):
        refer(column(3 << 30))
