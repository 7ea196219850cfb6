"""What the trainer receives: columns, origins, digests, filler rows."""

import decimal
import pickle
import struct
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.batch import Batch, Document, fill_rows, global_digest
from zephon_async.errors import RecipeError
from zephon_async.kinds import FILL
from zephon_async.records import ORIGIN, Names, Origins, Records

NAMES = Names(("news", "wiki"), (("a.jsonl",), ("a.jsonl", "b.jsonl")))
NUMBERS = pa.array([5, 6, 7], pa.int64())


def origins_of(n: int) -> Origins:
    origins = np.zeros(n, ORIGIN)
    origins["row"], origins["stop"], origins["dataset"], origins["shard"] = np.arange(n), -1, 1, np.arange(n) % 2
    return Origins(origins)


def batch_of(columns: dict[str, pa.Array], number: int = 0, **settings: Any) -> Batch:
    records = Records(pa.RecordBatch.from_pydict(columns), origins_of(len(next(iter(columns.values())))))
    return Batch(records, NAMES, step=4, lane=2, number=number, **settings)


def digest(*columns: pa.Array) -> str:
    return batch_of({f"column {i}": column for i, column in enumerate(columns)}).digest()


def test_columns_are_numpy_where_shapes_are_fixed() -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    batch = batch_of(
        {
            "int": NUMBERS,
            "bool": pa.array([True, False, True]),
            "half": pa.array([1, 2, 3], pa.float16()),
            "packed": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
            "deep": pa.array([[[1], [2]], [[3], [4]], [[5], [6]]], pa.list_(pa.list_(pa.int8(), 1), 2)),
            "tensor": pa.ExtensionArray.from_storage(tensor, pa.array([[0.5] * 6] * 3, pa.list_(pa.float32(), 6))),
        }
    )
    shapes = {name: (column.dtype, column.shape) for name, column in batch.columns.items()}
    assert shapes == {
        "int": (np.int64, (3,)),
        "bool": (np.bool_, (3,)),
        "half": (np.float16, (3,)),
        "packed": (np.int32, (3, 2)),
        "deep": (np.int8, (3, 2, 1)),
        "tensor": (np.float32, (3, 2, 3)),
    }
    assert not any(column.flags.writeable for column in batch.columns.values())
    assert batch.columns["packed"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch.columns["deep"][2].tolist() == [[5], [6]]


def test_columns_without_a_copy() -> None:
    packed = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2))
    cut = batch_of({"packed": packed}).records.slice(1, 3)
    view = Batch(cut, NAMES, step=0, lane=0, number=0).columns["packed"]
    assert view.tolist() == [[3, 4], [5, 6]]
    assert np.shares_memory(view, packed.values.to_numpy())


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "c"]),
        pa.array([b"a", b"b", b"c"], pa.large_binary()),
        pa.array([[1], [], [2]], pa.list_(pa.int32())),
        pa.array([{"a": 1}] * 3),
        pa.array([1, None, 3]),
        pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
        pa.array([[1, None], [1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.nulls(3),
    ],
    ids=lambda column: str(column.type),
)
def test_other_columns_are_arrow_and_have_python_values(column: pa.Array) -> None:
    batch = batch_of({"column": column})
    assert isinstance(batch.columns["column"], pa.Array)
    assert column.equals(batch.columns["column"])
    assert batch.to_pylist("column") == column.to_pylist()


def test_columns_that_there_are_not() -> None:
    batch = batch_of({"int": NUMBERS})
    told = "there is no column 'text', there are ['int']; tokenize(keep_columns=[...]) keeps others of the dataset"
    for look in (lambda: batch.columns["text"], lambda: batch.to_pylist("text")):
        with pytest.raises(KeyError) as caught:
            look()
        assert caught.value.args == (told,)
    assert (batch.columns.get("text"), "text" in batch.columns, list(batch.columns)) == (None, False, ["int"])
    for key, place in (("int", "batch.columns['int']"), (0, "batch.columns['int'], and of that a row")):
        with pytest.raises(RecipeError) as refused:
            batch[key]
        assert str(refused.value) == f"a batch has its arrays in its columns: take {place}; there are ['int']"


def test_a_batch_is_a_value() -> None:
    batch = batch_of({"n": NUMBERS}, number=1, filled=1)
    assert (len(batch), batch.step, batch.lane, batch.number) == (3, 4, 2, 1)
    assert batch.mask.tolist() == [True, True, False]
    assert repr(batch) == "Batch(3 rows of n; step 4, lane 2, number 1)"
    with pytest.raises(AttributeError):
        batch.step = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        batch.columns["n"] = NUMBERS  # type: ignore[index]
    again = pickle.loads(pickle.dumps(batch))
    assert (again.digest(), again.mask.tolist(), again.number) == (batch.digest(), [True, True, False], 1)


def test_documents() -> None:
    segments = np.array([(1, 1, 7, 2, 0, 3, 9), (0, 0, 1, 0, 5, 0, -1)], ORIGIN)
    columns = pa.RecordBatch.from_pydict({"n": NUMBERS})
    batch = Batch(Records(columns, Origins(segments, np.array([0, 0, 2, 2]))), NAMES, step=0, lane=0, number=0)
    assert batch.documents() == [[], [Document("wiki", "b.jsonl", 7, 2, 0, 3, 9), Document("news", "a.jsonl", 1, 0, 5, 0, -1)], []]
    assert [len(row) for row in batch_of({"n": NUMBERS}).documents()] == [1, 1, 1]
    assert batch.origins.segments is segments


# -- digest ------------------------------------------------------------------------------------------------------------------

TEXTS = ["a", None, "", "bcd" * 9, "e"]
LISTS = [[1, 2], None, [], [3, None], [4]]
STRUCTS = [{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}, {"x": 2, "y": None}, {"x": 3, "y": "c"}]
PAIRS = [[("a", 1)], None, [], [("b", None), ("c", 2)], [("d", 3)]]
SAME = {
    "text": [pa.array(TEXTS, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())]
    + [pa.array(TEXTS).dictionary_encode(), pa.array(TEXTS, pa.large_string()).dictionary_encode()],
    "bytes": [pa.array([b"a", None, b"", b"b" * 20], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())],
    "lists": [pa.array(LISTS, kind(pa.int16())) for kind in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)],
    "nested": [
        pa.array([[["a"], None], None, [["b", "c"]]], pa.list_(pa.list_(pa.string()))),
        pa.array([[["a"], None], None, [["b", "c"]]], pa.large_list(pa.large_list(pa.string_view()))),
    ],
    "structs": [pa.array(STRUCTS, pa.struct([("x", pa.int8()), ("y", kind)])) for kind in (pa.string(), pa.large_string())],
    "maps": [pa.array(PAIRS, pa.map_(kind, pa.int64())) for kind in (pa.string(), pa.large_string())],
    "runs": [pa.RunEndEncodedArray.from_arrays([2, 3], [7, 8]), pa.array([7, 7, 8])],
}
KINDS = {
    "integers": pa.array([1, None, 3], pa.uint16()),
    "booleans": pa.array([True, None, False]),
    "floats": pa.array([1.5, None, float("nan")]),
    "times": pa.array([datetime(2024, 1, 1, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
    "decimals": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal(-3)], pa.decimal128(10, 2)),
    "fixed bytes": pa.array([b"abc", None, b"def"], pa.binary(3)),
    "no bytes": pa.array([b"", None, b""], pa.binary(0)),
    "packed": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)),
    "nothing": pa.nulls(3),
    "tensors": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int8(), [1, 2]), pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2))
    ),
    **{name: columns[0] for name, columns in SAME.items()},
}


@pytest.mark.parametrize("name", SAME)
def test_encodings_do_not_matter(name: str) -> None:
    assert len({digest(column) for column in SAME[name]}) == 1


@pytest.mark.parametrize("name", KINDS)
def test_neither_offsets_nor_chunks_matter(name: str) -> None:
    column = KINDS[name]
    n = len(column)
    around = pa.concat_arrays([column, column, column])
    wanted = digest(column)
    assert digest(around.slice(n, n)) == wanted
    assert digest(pa.concat_arrays([column.slice(0, 1), column.slice(1)])) == wanted
    assert digest(column.slice(0, 2)) == digest(around.slice(n, 2)) == digest(around.slice(2 * n, 2)) != wanted
    assert digest(column.slice(0, 0)) == digest(around.slice(n, 0))


def test_every_kind_and_value_matters() -> None:
    columns = [column for column in KINDS.values() if len(column) == 3]
    columns += [pa.array(values) for values in ([1, 2, 3], [1, 2, 4], [1, 2, None], [1, 2, 0], [1.0, 2.0, 3.0], ["1", "2", "3"])]
    columns += [pa.array([1, 2, 3], pa.int32()), pa.array([b"1", b"2", b"3"]), pa.array(["12", "", "3"])]
    columns += [
        pa.array(lists, pa.list_(pa.int64())) for lists in ([[1], [2], []], [[1, 2], [], []], [[1], [2], None], [[1], [None], []])
    ]
    assert len({digest(column) for column in columns}) == len(columns)


def test_garbage_under_nulls_does_not_matter() -> None:
    bitmap = pa.py_buffer(b"\x05")  # valid, null, valid

    def ints(middle: int) -> pa.Array:
        return pa.Array.from_buffers(pa.int32(), 3, [bitmap, pa.py_buffer(struct.pack("<3i", 1, middle, 3))])

    assert digest(ints(2)) == digest(ints(99)) == digest(pa.array([1, None, 3], pa.int32()))

    def text(offsets: tuple[int, ...], values: bytes) -> pa.Array:
        return pa.Array.from_buffers(pa.string(), 3, [bitmap, pa.py_buffer(struct.pack("<4i", *offsets)), pa.py_buffer(values)])

    assert digest(text((0, 1, 1, 2), b"ac")) == digest(text((1, 2, 5, 6), b"-azzzc-")) == digest(pa.array(["a", None, "c"]))

    def lists(offsets: tuple[int, ...], values: list[int]) -> pa.Array:
        buffers = [bitmap, pa.py_buffer(struct.pack("<4i", *offsets))]
        return pa.Array.from_buffers(pa.list_(pa.int64()), 3, buffers, children=[pa.array(values)])

    assert (
        digest(lists((0, 1, 1, 2), [1, 3])) == digest(lists((1, 2, 4, 5), [0, 1, 9, 9, 3, 0])) == digest(pa.array([[1], None, [3]]))
    )

    def packed(middle: int) -> pa.Array:
        kind = pa.list_(pa.int64(), 1)
        return pa.Array.from_buffers(kind, 3, [bitmap], children=[pa.array([1, middle, 3])])

    assert digest(packed(2)) == digest(packed(99)) == digest(pa.array([[1], None, [3]], pa.list_(pa.int64(), 1)))

    def records(middle: int) -> pa.Array:
        return pa.Array.from_buffers(pa.struct([("a", pa.int64())]), 3, [bitmap], children=[pa.array([1, middle, 3])])

    assert digest(records(2)) == digest(records(99)) == digest(pa.array([{"a": 1}, None, {"a": 3}]))


def test_a_bitmap_that_is_all_valid_does_not_matter() -> None:
    buffer = pa.array([1, 2, 3]).buffers()[1]
    assert digest(pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\xff"), buffer])) == digest(pa.array([1, 2, 3]))


@given(st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=4)), min_size=1), st.data())
def test_drawn_slices_and_encodings(values: list[list[str | None] | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    whole = pa.array(values, pa.list_(pa.string()))
    assert digest(whole.slice(start, stop - start)) == digest(pa.array(values[start:stop], pa.large_list(pa.string_view())))


def test_names_origins_and_order_of_columns() -> None:
    first, second = pa.array([1, 2]), pa.array([3, 4])
    wanted = batch_of({"a": first, "b": second}).digest()
    assert batch_of({"b": second, "a": first}).digest() == wanted
    assert batch_of({"a": second, "b": first}).digest() != wanted
    assert batch_of({"a": first, "c": second}).digest() != wanted
    assert batch_of({"a": first, "b": second}, number=7).digest() == wanted
    assert len(wanted) == 64


def test_origins_are_told_by_name_not_by_number() -> None:
    columns = pa.RecordBatch.from_pydict({"n": NUMBERS})

    def told(names: Names, dataset: int, shard: int, **changes: int) -> str:
        segments = np.zeros(3, ORIGIN)
        segments["dataset"], segments["shard"] = dataset, shard
        for name, value in changes.items():
            segments[name][1] = value
        return Batch(Records(columns, Origins(segments)), names, step=0, lane=0, number=0).digest()

    wanted = told(NAMES, 1, 1)
    assert told(Names(("wiki",), (("b.jsonl",),)), 0, 0) == wanted
    others = [
        told(NAMES, 1, 0),
        told(NAMES, 0, 0),
        *(told(NAMES, 1, 1, **{name: 1}) for name in ("row", "epoch", "part", "start", "stop")),
    ]
    assert len({wanted, *others}) == 8
    ragged = Origins(np.zeros(3, ORIGIN), np.array([0, 1, 1, 3]))
    plain = Origins(np.zeros(3, ORIGIN), np.array([0, 1, 2, 3]))
    digests = [
        Batch(Records(columns, o), NAMES, step=0, lane=0, number=0).digest() for o in (ragged, plain, Origins(plain.segments))
    ]
    assert digests[0] != digests[1] == digests[2]


def test_the_digest_is_the_same_for_ever() -> None:
    batch = batch_of({"b": pa.array(["x", None]), "a": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))})

    def eight(*numbers: int) -> bytes:
        return struct.pack(f"<{len(numbers)}q", *numbers)

    def framed(text: bytes) -> bytes:
        return eight(len(text)) + text

    written = [
        eight(2, 2),
        framed(b"a") + framed(b"fixed_size_list<int32>[2]") + eight(2) + framed(b"\1\1"),
        eight(4) + framed(b"\1\1\1\1") + framed(struct.pack("<4i", 1, 2, 3, 4)),
        framed(b"b") + framed(b"string") + eight(2) + framed(b"\1\0") + framed(eight(1, 0)) + framed(b"x"),
        eight(3) + framed(b"wiki") + framed(b"a.jsonl") + framed(b"b.jsonl"),
        framed(eight(0, 1, 0, 0, 0, 0, -1, 0, 2, 1, 0, 0, 0, -1)) + framed(eight(1, 1)),
    ]
    assert batch.digest() == sha256(b"".join(written)).hexdigest()


def test_global_digest() -> None:
    batches = [batch_of({"n": pa.array([n])}, number=n) for n in range(3)]
    wanted = sha256(b"".join(bytes.fromhex(batch.digest()) for batch in batches)).hexdigest()
    assert global_digest(batches) == global_digest(reversed(batches)) == wanted
    with pytest.raises(ValueError, match="each number once"):
        global_digest([batches[0], batches[0]])
    anything: Any = global_digest
    for wrong in (3, [3], batches[0], [batches]):
        with pytest.raises(RecipeError, match=r"global_digest\(\) takes the batches of a step in a list"):
            anything(wrong)


# -- filler rows -------------------------------------------------------------------------------------------------------------


def test_filler_rows() -> None:
    def field(name: str, kind: pa.DataType, fill: bytes | None = None) -> pa.Field:
        return pa.field(name, kind, metadata=None if fill is None else {FILL: fill})

    tensor = pa.fixed_shape_tensor(pa.int8(), [1, 2])
    schema = pa.schema(
        [
            field("input_ids", pa.list_(pa.int32(), 3), b"50256"),
            field("next_token", pa.int32(), b"-100"),
            field("ratio", pa.float32(), b"0.5"),
            field("half", pa.float16()),
            field("count", pa.uint8()),
            field("flag", pa.bool_(), b"true"),
            field("plain flag", pa.bool_()),
            field("text", pa.large_string()),
            field("bytes", pa.binary()),
            field("lengths", pa.list_(pa.int32())),
            field("views", pa.large_list_view(pa.int32())),
            field("when", pa.timestamp("s")),
            field("pair", pa.struct([("a", pa.int64())])),
            field("tensor", tensor),
            field("word", pa.dictionary(pa.int8(), pa.string())),
        ]
    )
    records = fill_rows(schema, 2)
    assert records.columns.schema.equals(schema, check_metadata=True)
    assert (
        records.columns.drop_columns(["tensor"]).to_pylist()
        == [
            {
                "input_ids": [50256] * 3,
                "next_token": -100,
                "ratio": 0.5,
                "half": 0,
                "count": 0,
                "flag": True,
                "plain flag": False,
                "text": "",
                "bytes": b"",
                "lengths": [],
                "views": [],
                "when": None,
                "pair": None,
                "word": None,
            }
        ]
        * 2
    )
    assert records.columns.column("tensor").to_numpy_ndarray().tolist() == [[[0, 0]]] * 2
    assert (len(records.origins), len(records.origins.segments)) == (2, 0)
    assert len(fill_rows(schema, 0)) == 0


def test_filler_rows_join_others() -> None:
    columns = pa.RecordBatch.from_pydict({"n": NUMBERS, "text": pa.array(["a", "b", "c"], pa.large_string())})
    records = Records.concat([Records(columns, origins_of(3)), fill_rows(columns.schema, 2)])
    batch = Batch(records, NAMES, step=0, lane=0, number=0, filled=2)
    assert batch.columns["n"].tolist() == [5, 6, 7, 0, 0]
    assert [len(row) for row in batch.documents()] == [1, 1, 1, 0, 0]
    assert batch.mask.tolist() == [True, True, True, False, False]
