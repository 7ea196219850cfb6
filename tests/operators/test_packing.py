"""What all ways of packing share: columns cut in step, rows of one group, rows as lists of documents; whole pipelines of them."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.taken import WAYS, batches, in_order
from zephon_async import Batch, Dataset, MixtureSpec, Pipeline, RecipeError, StaticMixtureWorkSource
from zephon_async.errors import BadRecord
from zephon_async.operators import Operator, PackFlat, PackSequences
from zephon_async.operators.base import RecordFailed, Tally
from zephon_async.operators.pack_rules import RULES
from zephon_async.records import ORIGIN, Origins, Records
from zephon_async.views import refer

each_way = pytest.mark.parametrize("way", WAYS)
each_rule = pytest.mark.parametrize("algorithm", sorted(RULES))
DOCUMENTS = st.lists(st.integers(0, 11), max_size=30)


def documents(lengths: Sequence[int], datasets: Sequence[int] = (), **columns: pa.Array) -> Records:
    """Token t of document d is 100 d + t; its loss mask says whether t is even, its weight is t / 8."""
    origins = np.zeros(len(lengths), ORIGIN)
    origins["row"], origins["stop"] = np.arange(len(lengths)), -1
    origins["dataset"] = datasets or 0
    made = {
        "input_ids": pa.array([[100 * d + t for t in range(n)] for d, n in enumerate(lengths)], pa.list_(pa.int32())),
        "loss_mask": pa.array([[t % 2 == 0 for t in range(n)] for n in lengths], pa.list_(pa.bool_())),
        "weight": pa.array([[t / 8 for t in range(n)] for n in lengths], pa.large_list(pa.float32())),
        "name": pa.array([f"document {d}" for d in range(len(lengths))], pa.large_string()),
    }
    return Records(pa.RecordBatch.from_pydict(made | columns), Origins(origins))


def packed(operator: Operator, records: Records, first: int = 0) -> tuple[list[dict[str, Any]], Tally]:
    """The rows, of two pushes and a flush."""
    tally: Tally = Counter()
    accumulator, half = operator.accumulator(0, 0), len(records) // 2
    given = [
        accumulator.push(part, 0, tally)[0] for part in (records.slice(0, half), records.slice(half, len(records))) if len(part)
    ]
    given.append(accumulator.flush(tally))
    schema = operator.output(records.columns.schema)
    assert schema is not None
    for each in given:
        assert each is None or each.columns.schema.equals(schema, check_metadata=True)
    return [row for each in given if each is not None for row in each.columns.to_pylist()], tally


@each_rule
@given(lengths=DOCUMENTS, most=st.none() | st.integers(1, 3))
def test_columns_are_cut_in_step(algorithm: str, lengths: list[int], most: int | None) -> None:
    operator = PackFlat(4, algorithm=algorithm, aligned=["loss_mask", "weight"], num_bins=2, pad_id=-1, max_sequences_per_row=most)
    rows, tally = packed(operator, documents(lengths))
    for row in rows:
        real = sum(row["segment_lengths"])
        tokens = row["input_ids"]
        assert tokens[real:] == [-1] * (4 - real)
        assert row["loss_mask"] == [token % 100 % 2 == 0 for token in tokens[:real]] + [False] * (4 - real)
        assert row["weight"] == [token % 100 / 8 for token in tokens[:real]] + [0] * (4 - real)
    assert sorted(t for row in rows for t in row["input_ids"] if t >= 0) == [
        100 * d + t for d, n in enumerate(lengths) for t in range(n)
    ]
    assert tally["padding_tokens"] == 4 * len(rows) - sum(lengths)


@each_rule
def test_what_follows_a_row_is_told_where_it_counts(algorithm: str) -> None:
    rows, _ = packed(PackFlat(3, algorithm=algorithm, aligned=[]), documents([7]))
    assert [row["next_token"] for row in rows] == [3, 6, -100]
    assert set(rows[0]) == {"input_ids", "segment_lengths", "next_token"}
    rows, _ = packed(PackFlat(3, algorithm=algorithm), documents([7]))
    assert [row["next_token"] for row in rows] == [-100, 6, -100]  # the loss mask leaves token 3 out
    assert rows[0]["loss_mask"] == [True, False, True]


@each_rule
@given(lengths=DOCUMENTS)
def test_rows_as_lists_of_documents(algorithm: str, lengths: list[int]) -> None:
    settings: dict[str, Any] = {"algorithm": algorithm, "num_bins": 2}
    lists, left = packed(PackSequences(4, aligned=["loss_mask", "weight"], **settings), documents(lengths))
    flat, padded = packed(PackFlat(4, **settings), documents(lengths))
    if algorithm != "wrap":  # there a flat row is cut where two pushes meet as everywhere else, and is the same too
        assert left == padded
    assert [[len(sample["input_ids"]) for sample in row["packed_samples"]] for row in lists] == [
        row["segment_lengths"] for row in flat
    ]
    for row, beside in zip(lists, flat, strict=True):
        joined = [token for sample in row["packed_samples"] for token in sample["input_ids"]]
        assert joined == beside["input_ids"][: len(joined)]
        for sample in row["packed_samples"]:
            assert sample["name"] == f"document {sample['input_ids'][0] // 100}"
            assert sample["weight"] == [token % 100 / 8 for token in sample["input_ids"]]


@each_rule
@given(lengths=DOCUMENTS, groups=st.lists(st.integers(0, 2), min_size=30, max_size=30))
def test_rows_of_one_group(algorithm: str, lengths: list[int], groups: list[int]) -> None:
    operator = PackFlat(4, algorithm=algorithm, homogeneity="group", groups={"a": "x", "c": "x"}, num_bins=2)
    operator.told(["a", "b", "c"])
    records = documents(lengths, groups[: len(lengths)])
    rows, _ = packed(operator, records)
    for row in rows:
        of = {groups[token // 100] for token in row["input_ids"][: sum(row["segment_lengths"])]}
        assert of <= {0, 2} or of == {1}
    alone = [t for t in range(len(lengths)) if groups[t] == 1]
    expected, _ = packed(
        PackFlat(4, algorithm=algorithm, num_bins=2), documents([n if d in alone else 0 for d, n in enumerate(lengths)])
    )
    ones = [row for row in rows if groups[row["input_ids"][0] // 100] == 1]
    assert [row["input_ids"] for row in ones] == [row["input_ids"] for row in expected]


def test_what_is_held_grows_with_the_groups() -> None:
    for operator, more in ((PackFlat(8, algorithm="best_fit", homogeneity="dataset"), 64), (PackFlat(8, homogeneity="dataset"), 1)):
        operator.told(["a", "b", "c"])
        assert operator.holds_bytes(1_000) == 2 * 3 * more * (32 + ORIGIN.itemsize)
    assert PackSequences(8).holds_bytes(10) == 2 * PackSequences(8).row_bytes(10) == 2 * (32 + ORIGIN.itemsize)


def test_what_is_held_has_all_that_a_token_and_a_document_have() -> None:
    records = documents([1, 1, 1])
    settings: dict[str, Any] = {"algorithm": "best_fit", "aligned": ["loss_mask", "weight"], "num_bins": 1}
    for operator, more in (
        (PackFlat(3, **settings), 0),
        (PackFlat(3, **settings, on_long="drop", carry=["name"]), 500),
        (PackSequences(3, **settings), 500 - 3 * (4 + 1 + 4) - ORIGIN.itemsize),
    ):
        operator.output(records.columns.schema)
        row_bytes = 3 * (4 + 1 + 4) + ORIGIN.itemsize + more
        assert (operator.row_bytes(500), operator.holds_bytes(500)) == (row_bytes, 2 * row_bytes)


def test_a_column_cannot_be_made_twice() -> None:
    for name in ("tokens", "segment_lengths"):
        with pytest.raises(RecipeError, match=f"aligned names '{name}', which pack_flat itself makes"):
            PackFlat(4, field="tokens", aligned=[name])


@pytest.mark.parametrize("algorithm", ["first_fit", "best_fit", "best_fit_wrap"])
def test_of_a_document_that_was_cut_only_the_rest_is_held(algorithm: str) -> None:
    accumulator = PackFlat(64, algorithm=algorithm, aligned=[]).accumulator(0, 0)
    out, _ = accumulator.push(documents([64 * 100 + 1]), 0, Counter())
    assert out is not None
    assert (len(out), accumulator.held_rows) == (100, 1)
    assert accumulator.held_bytes == 4 + ORIGIN.itemsize
    assert [row["next_token"] for row in out.columns.to_pylist()] == [64 * n for n in range(1, 101)]


def pictures(rows: int) -> pa.Array:
    """Row r refers to r % 4 images, the last of which lies in its view; every fifth has none."""
    lists = [None if r % 5 == 4 else [bytes([r, n]) * (9 * (3 - n)) for n in range(r % 4)] for r in range(rows)]
    return refer(pa.array(lists, pa.list_(pa.large_binary())))


@pytest.mark.parametrize("algorithm", ["first_fit", "best_fit"])
@given(lengths=DOCUMENTS)
def test_rows_have_what_their_documents_carry(algorithm: str, lengths: list[int]) -> None:
    rows = len(lengths)
    grids = pa.array([[[r, n] for n in range(r % 4)] for r in range(rows)], pa.large_list(pa.list_(pa.int32(), 2)))
    place = pa.array([[r, r] if r % 3 else None for r in range(rows)], pa.list_(pa.int16(), 2))
    of_struct = pa.array(
        [{"a": r, "b": [r] * (r % 3)} for r in range(rows)], pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int8()))])
    )
    records = documents(lengths, images=pictures(rows), grids=grids, place=place, of_struct=of_struct)
    carry = ["images", "grids", "place", "of_struct", "name"]
    operator = PackFlat(9, algorithm=algorithm, on_long="drop", carry=carry, num_bins=2, pad_id=-1)
    found, tally = packed(operator, records)
    assert tally["documents_dropped"] == sum(n > 9 for n in lengths)
    alone, _ = packed(PackFlat(9, algorithm=algorithm, on_long="drop", num_bins=2, pad_id=-1), records)
    assert [{name: row[name] for name in row if name not in carry} for row in found] == alone
    before = records.columns.to_pylist()
    for row in found:
        first = np.cumsum([0, *row["segment_lengths"][:-1]])
        own = [before[row["input_ids"][at] // 100] for at in first]
        for name in ("images", "grids"):
            assert row[name] == [value for document in own for value in document[name] or ()]
        for name in ("place", "of_struct", "name"):
            assert row[name] == [document[name] for document in own]


def test_what_has_gone_out_is_held_no_more() -> None:
    values = pa.array([bytes([r]) * 1_000 for r in range(40)], pa.large_binary())
    records = documents([3] * 39 + [1], image=refer(values))
    for operator in (
        PackFlat(6, algorithm="best_fit", on_long="drop", carry=["image"], aligned=[]),
        PackSequences(6, algorithm="best_fit", columns=["image"], aligned=[]),
    ):
        accumulator = operator.accumulator(0, 0)
        for start in range(0, 40, 4):
            accumulator.push(records.slice(start, start + 4), 0, Counter())
        assert accumulator.held_rows == 2
        assert accumulator.held_bytes == 4 * 4 + 2 * (ORIGIN.itemsize + 16 + 1_000)


def test_only_whole_documents_carry_something() -> None:
    whole: dict[str, Any] = {"algorithm": "first_fit", "on_long": "error"}
    for cut in ({"algorithm": "wrap"}, {"algorithm": "best_fit_wrap"}, {"on_long": "split"}, {"on_long": "truncate"}):
        with pytest.raises(RecipeError, match="documents would be cut"):
            PackFlat(4, carry=["name"], **(whole | cut))
    for name in ("input_ids", "next_token", "loss_mask"):
        with pytest.raises(RecipeError, match=f"carry names '{name}', which is in the rows anyway"):
            PackFlat(4, carry=[name], **whole)
    with pytest.raises(RecipeError, match=r"pack_flat\(carry=...\): there is no column 'nam', .*did you mean 'name'"):
        PackFlat(4, carry=["nam"], **whole).output(documents([1]).columns.schema)


@each_rule
@given(lengths=DOCUMENTS)
def test_documents_of_a_list_refer_to_their_images(algorithm: str, lengths: list[int]) -> None:
    records = documents(lengths, images=pictures(len(lengths)))
    found, _ = packed(PackSequences(4, algorithm=algorithm, num_bins=2), records)
    before = records.columns.to_pylist()
    for sample in (sample for row in found for sample in row["packed_samples"]):
        assert sample["images"] == before[sample["input_ids"][0] // 100]["images"]


def test_groups_are_told() -> None:
    with pytest.raises(RecipeError, match="groups names 'z', which is no dataset"):
        PackFlat(4, homogeneity="group", groups={"z": "x"}).told(["a", "b"])
    for settings in ({"homogeneity": "group"}, {"groups": {"a": "x"}}):
        with pytest.raises(RecipeError, match="are given together or not at all"):
            PackFlat(4, **settings)


def test_a_column_of_another_length_is_a_bad_record() -> None:
    records = documents([2, 3, 4], loss_mask=pa.array([[1, 1], [1, 1], [1] * 4], pa.list_(pa.int8())))
    for operator in (PackFlat(4), PackFlat(4, algorithm="best_fit"), PackSequences(4)):
        accumulator = operator.accumulator(0, 0)
        with pytest.raises(RecordFailed) as failed:
            accumulator.push(records, 0, Counter())
        assert failed.value.at == 1
        assert isinstance(failed.value.__cause__, BadRecord)
        assert str(failed.value.__cause__) == "loss_mask has 2 values for 3 tokens"


def test_columns_that_are_not_there() -> None:
    schema = documents([1]).columns.schema
    with pytest.raises(RecipeError, match="there is no such column"):
        PackFlat(4, aligned=["mask"]).output(schema)
    with pytest.raises(RecipeError, match="not a list of numbers"):
        PackFlat(4, aligned=["name"]).output(schema)
    with pytest.raises(RecipeError, match="there is no column 'nam'"):
        PackSequences(4, columns=["nam"]).output(schema)


def pipeline(way: dict[str, Any], **options: Any) -> Pipeline:
    names = {"a": 40, "b": 25}
    sets = [
        Dataset.from_dict(name, {"input_ids": [[n] * (1 + (7 * n) % 13) for n in range(rows)], "id": list(range(rows))})
        for name, rows in names.items()
    ]
    source = StaticMixtureWorkSource(sets, MixtureSpec({"a": 0.6, "b": 0.4}), seed=5, epochs=2)
    return Pipeline(source).options(lanes=2, **(way | options))


def values(found: list[Batch]) -> list[str]:
    return [batch.digest() for batch in found]


@each_way
@each_rule
@pytest.mark.parametrize("flat", [True, False])
def test_rows_do_not_depend_on_where_it_is_stopped(way: dict[str, Any], algorithm: str, flat: bool) -> None:
    def made() -> Pipeline:
        begun = pipeline(way, flush_every=16, chunk_rows=5)
        settings: dict[str, Any] = {"algorithm": algorithm, "num_bins": 3, "homogeneity": "dataset"}
        return (begun.pack_flat(16, **settings) if flat else begun.pack_sequences(16, **settings)).shuffle(3).batch(2)

    whole = values(batches(made()))
    assert len(whole) > 6
    for stop in (1, 4, len(whole) - 1):
        with made() as first:
            begun = [batch.digest() for batch in islice(first, stop)]
            state = first.checkpoint()
        second = made()
        second.restore(state)
        assert begun + values(batches(second)) == whole


def test_one_pipeline_does_not_tell_another_its_groups() -> None:
    """An operator is one object, and each start has its own datasets."""
    operator = PackFlat(8, algorithm="best_fit", homogeneity="dataset")
    for sizes in ({"a": [1, 2], "b": [3]}, {"b": [3]}):
        sets = [Dataset.from_dict(name, {"input_ids": [[n] for n in rows]}) for name, rows in sizes.items()]
        source = StaticMixtureWorkSource(sets, MixtureSpec(dict.fromkeys(sizes, 1.0)), shuffle=False)
        found = batches(Pipeline(source).apply(operator).batch(1))
        assert len(found) >= len(sizes)
    assert operator._group_of is None


def test_training_batches_of_chat() -> None:
    """The loss mask of packed rows is that of the documents, in the labels too."""
    rows = {"input_ids": [[1, 2, 3], [4, 5, 6, 7]], "loss_mask": [[0, 0, 1], [0, 1, 1, 0]]}
    (batch,) = batches(Pipeline(in_order(Dataset.from_dict("d", rows))).pack_flat(8, algorithm="best_fit").batch(1))
    made = batch.to_training(framework="numpy")
    assert made["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7, 0]]
    assert made["labels"].tolist() == [[-100, 3, -100, 5, 6, -100, -100, -100]]
