"""Packing by `wrap`, against a slow oracle that goes token by token."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.errors import BadRecord, RecipeError
from zephon_async.operators.base import RecordFailed, Tally
from zephon_async.operators.pack_flat import PackFlat
from zephon_async.records import ORIGIN, Origins, Records

PAD = 99
KINDS = [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16()), pa.list_(pa.int8()), pa.large_list(pa.uint64())]


def documents(tokens: Sequence[Any], kind: pa.DataType = KINDS[0], stop: int = -1) -> Records:
    origins = np.zeros(len(tokens), ORIGIN)
    origins["row"], origins["stop"] = np.arange(len(tokens)), stop
    return Records(pa.RecordBatch.from_pydict({"input_ids": pa.array(tokens, kind)}), Origins(origins))


def packed(
    operator: PackFlat, records: Records, flush: bool = True
) -> tuple[list[dict[str, Any]], list[list[tuple[int, int, int]]], Tally]:
    """Rows, and for each the (row, start, stop) of its documents."""
    tally: Tally = Counter()
    accumulator = operator.accumulator(0, 0)
    pieces = [accumulator.push(records, 0, tally)[0], accumulator.flush(tally) if flush else None]
    out = [piece for piece in pieces if piece is not None]
    if not out:
        return [], [], +tally
    whole = Records.concat(out)
    assert whole.columns.schema.equals(operator.schema, check_metadata=True)
    bounds = whole.origins.bounds().tolist()
    named = [tuple(segment) for segment in whole.origins.segments[["row", "start", "stop"]].tolist()]
    return whole.columns.to_pylist(), [named[a:b] for a, b in pairwise(bounds)], +tally


def oracle(tokens: list[list[int]], n: int, on_long: str) -> tuple[list[dict[str, Any]], list[list[tuple[int, int, int]]]]:
    stream = []
    for row, document in enumerate(tokens):
        kept = document
        if len(document) > n and on_long != "split":
            kept = document[:n] if on_long == "truncate" else []
        stream += [(token, row, place) for place, token in enumerate(kept)]
    rows, origins = [], []
    for start in range(0, len(stream), n):
        piece = stream[start : start + n]
        behind = stream[start + n] if start + n < len(stream) else (None, None, None)
        owned = sorted({row for _, row, _ in piece})
        places = [[place for _, r, place in piece if r == row] for row in owned]
        rows.append(
            {
                "input_ids": [token for token, _, _ in piece] + [PAD] * (n - len(piece)),
                "segment_lengths": [len(of_row) for of_row in places],
                "next_token": behind[0] if behind[1] == piece[-1][1] else -100,
            }
        )
        origins.append([(row, of_row[0], of_row[-1] + 1) for row, of_row in zip(owned, places, strict=True)])
    return rows, origins


@given(
    st.lists(st.lists(st.integers(0, 90), max_size=20), min_size=1, max_size=20),
    st.integers(1, 12),
    st.sampled_from(["split", "truncate", "drop"]),
    st.sampled_from(KINDS),
)
def test_against_an_oracle(tokens: list[list[int]], n: int, on_long: str, kind: pa.DataType) -> None:
    rows, origins, tally = packed(PackFlat(n, pad_id=PAD, on_long=on_long), documents(tokens, kind))
    assert (rows, origins) == oracle(tokens, n, on_long)
    long = [len(document) for document in tokens if len(document) > n] if on_long != "split" else []
    wanted = {
        "documents_empty": sum(not document for document in tokens),
        "documents_truncated": len(long) * (on_long == "truncate"),
        "documents_dropped": len(long) * (on_long == "drop"),
        "tokens_dropped": sum(long) - n * len(long) * (on_long == "truncate"),
    }
    wanted["padding_tokens"] = -(sum(map(len, tokens)) - wanted["tokens_dropped"]) % n
    assert tally == {name: count for name, count in wanted.items() if count}


@pytest.mark.parametrize("cut", [0, 1])
def test_slices_and_lists_of_fixed_size(cut: int) -> None:
    for records in (
        documents([[9, 9], [1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        documents([[9, 9], [1, 2], [3, 4], [5, 6]]),
    ):
        rows, origins, _ = packed(PackFlat(3), records.slice(cut, 4), flush=False)
        stream = [9, 9, 1, 2, 3, 4, 5, 6][2 * cut :]
        assert [row["input_ids"] for row in rows] == [stream[:3], stream[3:6]]
        assert origins[0] == [(cut, 0, 2), (cut + 1, 0, 1)]


def test_case_e02_long_documents() -> None:
    tokens = [[10, 11, 12, 13, 14, 15, 16], [20, 21], [30, 31, 32], [40]]
    rows, _, tally = packed(PackFlat(4, pad_id=PAD), documents(tokens))
    assert [row["input_ids"] for row in rows] == [[10, 11, 12, 13], [14, 15, 16, 20], [21, 30, 31, 32], [40, PAD, PAD, PAD]]
    assert tally == {"padding_tokens": 3}
    assert packed(PackFlat(4, on_long="truncate"), documents(tokens))[2]["tokens_dropped"] == 3
    huge = documents([list(range(1, 1001))])
    rows, _, tally = packed(PackFlat(4), huge)
    assert [token for row in rows for token in row["input_ids"]] == list(range(1, 1001))
    assert tally == {}
    rows, _, tally = packed(PackFlat(4, on_long="truncate"), huge)
    assert [row["input_ids"] for row in rows] == [[1, 2, 3, 4]]
    assert tally == {"tokens_dropped": 996, "documents_truncated": 1}


def test_case_e03_the_rest_is_padded_and_counted() -> None:
    rows, _, tally = packed(PackFlat(4, pad_id=PAD), documents([[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]]))
    assert [row["input_ids"] for row in rows] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, PAD, PAD]]
    assert [row["segment_lengths"] for row in rows] == [[3, 1], [4], [2]]
    assert [row["next_token"] for row in rows] == [5, 9, -100]
    assert tally == {"padding_tokens": 2}


def test_marks() -> None:
    accumulator = PackFlat(4).accumulator(0, 5)
    pushed: list[list[list[int]]] = [[[1, 2]], [[], [1], [1] * 6], [[1, 1, 1]], [[]]]
    marks = [accumulator.push(documents(tokens), 0, Counter())[1] for tokens in pushed]
    assert [(m.outputs, m.rows, m.skips) for m in marks] == [
        ([5], [0], [0]),
        ([5, 6, 7], [0, 3, 3], [0, 1, 5]),
        ([7, 8], [3, 5], [5, 0]),
        ([8], [6], [0]),
    ]


def test_skipped_tokens_are_left_out_and_the_origin_says_so() -> None:
    out, marks = PackFlat(2).accumulator(0, 9).push(documents([[1, 2, 3, 4, 5], [6]]), 3, Counter())
    assert out is not None
    assert out.columns.to_pylist() == [{"input_ids": [4, 5], "segment_lengths": [2], "next_token": -100}]
    assert out.origins.segments[["row", "start", "stop"]].tolist() == [(0, 3, 5)]
    assert (marks.outputs, marks.rows, marks.skips) == ([9, 10], [0, 1], [3, 0])


def test_a_document_that_is_a_part_of_one_keeps_its_place_in_it() -> None:
    records = documents([[1, 2, 3]], stop=13)
    records.origins.segments["start"] = 10
    assert packed(PackFlat(2), records)[1] == [[(0, 10, 12)], [(0, 12, 13)]]


def test_a_document_made_of_several_records_has_all_their_origins() -> None:
    records = documents([[1, 2, 3], [4], [5, 6], [], [7]])
    several = documents([[0]] * 7).origins.segments
    several["start"][5], several["stop"][5] = 10, 20
    ragged = Records(records.columns, Origins(several, np.array([0, 2, 3, 3, 5, 7])))
    rows, origins, _ = packed(PackFlat(2), ragged)
    assert [row["input_ids"] for row in rows] == [[1, 2], [3, 4], [5, 6], [7, 0]]
    first = [(0, 0, -1), (1, 0, -1)]  # which of the tokens are whose is not known
    assert origins == [first, [*first, (2, 0, 1)], [], [(5, 10, 20), (6, 0, -1)]]


def test_rows_that_are_packed_are_not_packed_again() -> None:
    said = r"pack_flat\(field='input_ids'\): the rows are packed already, and their padding would become tokens"
    operator = PackFlat(4)
    out = operator.accumulator(0, 0).push(documents([[1, 2, 3, 4]]), 0, Counter())[0]
    assert out is not None
    with pytest.raises(RecipeError, match=said):
        operator.accumulator(0, 0).push(out, 0, Counter())
    with pytest.raises(RecipeError, match=said):
        operator.output(operator.schema)


@pytest.mark.parametrize(
    ("tokens", "kind", "why"),
    [
        ([[1, 2], None, [3]], pa.list_(pa.int32()), "input_ids is null"),
        ([[1, 2], [3, None], [3]], pa.list_(pa.int32()), "no 32-bit integer: None"),
        ([[1, 2], [2**31, None], [3]], pa.list_(pa.int64()), "no 32-bit integer: 2147483648"),
        ([[1, 2], [2**32], [3]], pa.large_list(pa.uint64()), "no 32-bit integer: 4294967296"),
        ([[1, 2], [1, 2, 3], None], pa.list_(pa.int32()), "3 tokens, more than max_length=2"),
        ([[1, 2], [1, 2, 3], [None]], pa.list_(pa.int32()), "3 tokens, more than max_length=2"),
        ([[1, 2], None, [2, 3]], pa.list_(pa.int32(), 2), "input_ids is null"),
    ],
)
def test_a_bad_document_fails_in_its_place(tokens: list[Any], kind: pa.DataType, why: str) -> None:
    accumulator = PackFlat(2, on_long="error").accumulator(0, 0)
    with pytest.raises(RecordFailed) as caught:
        accumulator.push(documents(tokens, kind), 0, Counter())
    assert caught.value.at == 1
    assert caught.value.done is not None
    assert caught.value.done.columns.column("input_ids").to_pylist() == [[1, 2]]
    assert isinstance(caught.value.__cause__, BadRecord)
    assert why in str(caught.value.__cause__)
    _, marks = accumulator.push(documents([[7]]), 0, Counter())
    assert (marks.outputs, marks.rows) == ([1], [2])  # the bad one was taken


def test_a_bad_first_document() -> None:
    with pytest.raises(RecordFailed) as caught:
        PackFlat(2).accumulator(0, 0).push(documents([None, [1, 2]]), 0, Counter())
    assert (caught.value.at, caught.value.done) == (0, None)


def test_columns() -> None:
    operator = PackFlat(4, field="tokens")
    assert (operator.reads(None), operator.requires()) == (frozenset({"tokens", "loss_mask"}), {"tokens": "integers"})
    with pytest.raises(RecipeError, match=r"no such column, there are \['input_ids'\]"):
        operator.accumulator(0, 0).push(documents([[1]]), 0, Counter())
    text = documents([[1]])
    text = text.with_columns(pa.RecordBatch.from_pydict({"tokens": ["a"]}))
    with pytest.raises(RecipeError, match="is string, not a list of integers"):
        operator.accumulator(0, 0).push(text, 0, Counter())


def test_settings_and_schema() -> None:
    operator = PackFlat(8, pad_id=3)
    told = {"max_length": 8, "algorithm": "wrap", "field": "input_ids", "pad_id": 3, "on_long": "split", "aligned": None}
    told |= {"num_bins": 64, "max_sequences_per_row": None, "homogeneity": "none", "groups": {}, "carry": []}
    assert operator.settings() == told
    assert operator.schema.field("input_ids").metadata == {b"zephon.fill": b"3"}
    assert operator.schema.field("next_token").metadata == {b"zephon.fill": b"-100"}
    assert (operator.holds_rows(), operator.holds_bytes(1000)) == (0, 32 + ORIGIN.itemsize)


def test_rows_to_the_first_outputs() -> None:
    operator = PackFlat(8)
    assert [operator.takes_rows(3, tokens) for tokens in (None, 0.0, 8.0, 5.0, 100.0)] == [None, None, 3, 5, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_length": 0}, "at least 1"),
        ({"max_length": True}, "at least 1"),
        ({"max_length": 4.0}, "at least 1"),
        ({"max_length": 4, "algorithm": "best"}, "algorithm is 'best': it must be one of 'wrap'"),
        ({"max_length": 4, "on_long": "cut"}, "on_long is 'cut': it must be one of 'split', 'truncate', 'drop', 'error'"),
        ({"max_length": 4, "algorithm": ["wrap"]}, "it must be one of 'wrap'"),
        ({"max_length": 2**31}, "32 bits"),
        ({"max_length": 4, "pad_id": 2**31}, "32 bits"),
        ({"max_length": 4, "pad_id": None}, "pad_id is None: it must be a whole number"),
    ],
)
def test_refusals(settings: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        PackFlat(**settings)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    settings = PackFlat(np.int64(8), pad_id=np.int32(-3)).settings()  # type: ignore[arg-type]
    assert [(settings[name], type(settings[name])) for name in ("max_length", "pad_id")] == [(8, int), (-3, int)]
