"""The contract of accumulators, over all of them: flush equals new, restart at any mark, any chunking (law 4).

The same with bad records that are skipped, as the engine does it. A new accumulating operator is one more line in `OPERATORS`:
a strategy for it, fed with rows of `text` and `input_ids`, for which a row with the token `BAD` must be bad.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_async.errors import BadRecord
from zephon_async.operators.accumulate import Accumulate
from zephon_async.operators.base import Accumulator, Operator, RecordFailed
from zephon_async.operators.contract import rows_of, try_accumulator
from zephon_async.operators.dedup import Dedup
from zephon_async.operators.ensure_mixture import EnsureMixture
from zephon_async.operators.map_batches import MapBatches
from zephon_async.operators.pack_flat import PackFlat
from zephon_async.operators.pack_rules import RULES
from zephon_async.operators.pack_sequences import PackSequences
from zephon_async.operators.shuffle import Shuffle
from zephon_async.records import ORIGIN, Origins, Records
from zephon_async.views import refer

BAD = 1 << 40  # a token of a bad record


def pairs(state: list[str], record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Join every two texts; one that begins with "a" comes out twice. A bad record raises, or gives what does not fit."""
    if BAD in record["input_ids"] and 8 in record["input_ids"]:
        raise BadRecord("bad")
    state.append(record["text"])
    if BAD in record["input_ids"]:
        yield {"joined": 9}
    elif len(state) >= 2:
        yield {"joined": "+".join(state)}
        if state[0].startswith("a"):
            yield {"joined": state[0]}
        state.clear()


def rest(state: list[str]) -> list[dict[str, Any]]:
    return [{"joined": text} for text in state]


def beside_the_first(columns: pa.RecordBatch) -> dict[str, Any]:
    """Look at all rows of a batch together."""
    if BAD in columns.column("input_ids").flatten().to_pylist():
        raise BadRecord("bad")
    texts = columns.column("text").to_pylist()
    return {"text": texts, "first": texts[:1] * len(texts)}


packing: dict[str, st.SearchStrategy[Any]] = {
    "algorithm": st.sampled_from(sorted(RULES)),
    "on_long": st.sampled_from(["split", "truncate", "drop"]),
    "num_bins": st.integers(1, 4),
    "max_sequences_per_row": st.integers(1, 4),
}
OPERATORS: dict[str, st.SearchStrategy[Operator]] = {
    "pack_flat": st.builds(PackFlat, st.integers(1, 9), pad_id=st.just(-1), on_long=st.sampled_from(["split", "truncate", "drop"])),
    "pack_flat, rows open": st.builds(PackFlat, st.integers(1, 9), pad_id=st.just(-1), **packing),
    "pack_flat, images carried": st.builds(
        PackFlat,
        st.integers(1, 9),
        pad_id=st.just(-1),
        on_long=st.just("drop"),
        carry=st.just(["images", "text"]),
        algorithm=st.sampled_from(["first_fit", "best_fit"]),
        num_bins=st.integers(1, 4),
    ),
    "pack_sequences": st.builds(
        PackSequences, st.integers(1, 9), columns=st.sampled_from([None, ["text"], ["images"], []]), **packing
    ),
    "shuffle": st.builds(lambda n, block, seed: Shuffle(n * block, seed=seed, block_size=block), *[st.integers(1, 5)] * 3),
    "map_batches": st.integers(1, 7).map(
        lambda rows: MapBatches(beside_the_first, rows=rows, schema={"text": pa.large_string(), "first": pa.large_string()})
    ),
    "ensure_mixture": st.builds(
        EnsureMixture,
        st.fixed_dictionaries({name: st.integers(1, 5) for name in "abc"}),
        window_tokens=st.integers(1, 60),
        buffer_tokens=st.integers(1, 200),
        on_overflow=st.sampled_from(["emit", "drop"]),
    ),
    "dedup": st.builds(Dedup, st.sampled_from(["input_ids", ["text", "input_ids"]]), window=st.integers(2, 9)),
    "accumulate": st.just(Accumulate(list, pairs, rest, schema={"joined": pa.large_string()})),
}
DOCUMENTS = st.lists(st.lists(st.integers(0, 8), max_size=14), min_size=1, max_size=25)
WITH_BAD = st.lists(st.lists(st.sampled_from((*range(9), BAD)), max_size=6), min_size=1, max_size=25)
each = pytest.mark.parametrize("name", OPERATORS)
each_that_survives = pytest.mark.parametrize(
    "name", [name for name in OPERATORS if name not in ("shuffle", "ensure_mixture", "dedup")]
)  # which never fail


class Mark(NamedTuple):
    output: int
    row: int
    skip: int


def as_records(documents: Sequence[Sequence[int]], epoch: int = 0) -> Records:
    origins = np.zeros(len(documents), ORIGIN)
    origins["row"], origins["epoch"], origins["stop"] = np.arange(len(documents)), epoch, -1
    origins["dataset"] = [(i * i + len(tokens)) % 3 for i, tokens in enumerate(documents)]
    images = [[bytes([i]) * (5 * n) for n in range(len(tokens) % 4)] for i, tokens in enumerate(documents)]
    columns = {
        "input_ids": pa.array(documents, pa.list_(pa.int64())),
        "images": refer(pa.array(images, pa.list_(pa.large_binary()))),
        "text": pa.array(["abc"[len(tokens) % 3] * (i % 3) for i, tokens in enumerate(documents)], pa.large_string()),
    }
    return Records(pa.RecordBatch.from_pydict(columns), Origins(origins))


def lost(failed: RecordFailed, pushed: Records) -> list[int]:
    """The rows that failed."""
    assert isinstance(failed.__cause__, BadRecord)
    records = failed.failed or pushed.slice(failed.at, failed.at + 1)
    return list(records.origins.segments["row"].tolist())


def feed_past_bad(
    accumulator: Accumulator, records: Records, stops: Sequence[int] = (), skip: int = 0
) -> tuple[list[Any], list[Mark], list[int]]:
    """`feed` and `flush`, with bad records skipped; gives the rows of these too, which are not fed again."""
    out: list[Any] = []
    marks: list[Mark] = []
    bad: list[int] = []
    edges = sorted({0, len(records), *(stop for stop in stops if stop < len(records))})
    for start, stop in pairwise(edges):
        while start < stop:
            rest, start = records.slice(start, stop), stop
            try:
                given, named = accumulator.push(rest, skip, Counter())
            except RecordFailed as failed:
                given, named, start = failed.done, failed.marks, stop - len(rest) + failed.at + 1
                bad += lost(failed, rest)
            skip = 0
            out += rows_of(given)
            marks += map(Mark, named.outputs, named.rows, named.skips)
    try:
        out += rows_of(accumulator.flush(Counter()))
    except RecordFailed as failed:
        bad += lost(failed, records)
    return out, marks, bad


@each
@given(data=st.data(), documents=DOCUMENTS, more=DOCUMENTS, stops=st.lists(st.integers(1, 24)))
def test_the_contract(name: str, data: st.DataObject, documents: list[list[int]], more: list[list[int]], stops: list[int]) -> None:
    operator = data.draw(OPERATORS[name])
    assert list(try_accumulator(operator, as_records(documents), stops, more=as_records(more, 1))) == []


@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "dedup"])  # which remembers what it gave out
@given(data=st.data(), documents=DOCUMENTS)
def test_the_next_output_can_be_restarted(name: str, data: st.DataObject, documents: list[list[int]]) -> None:
    operator, records = data.draw(OPERATORS[name]), as_records(documents)
    accumulator, given = operator.accumulator(3, 7), 7
    for row in range(len(records)):
        out, marks = accumulator.push(records.slice(row, row + 1), 0, Counter())
        given += len(rows_of(out))
        if not operator.needs_flush:  # the next output can be restarted from what is held, or from the row that comes next
            assert marks.outputs[-1] == given
            assert row + 1 - accumulator.held_rows >= marks.rows[-1] or not accumulator.held_rows
            assert accumulator.held_rows or (marks.rows[-1], marks.skips[-1]) == (row + 1, 0)


@each
@given(data=st.data(), rows=st.integers(1, 9))
def test_rows_to_the_first_outputs_are_foreseen(name: str, data: st.DataObject, rows: int) -> None:
    operator, records = data.draw(OPERATORS[name]), as_records([[number] for number in range(81)])
    accumulator = operator.accumulator(3, 0)
    foreseen = operator.takes_rows(rows, 1.0)
    assert (foreseen is None) == operator.needs_flush
    if foreseen is not None:
        if foreseen > 1:
            accumulator.push(records.slice(0, foreseen - 1), 0, Counter())
        assert accumulator.given < rows
        accumulator.push(records.slice(foreseen - 1, foreseen), 0, Counter())
        assert accumulator.given >= rows


@each_that_survives
@given(data=st.data(), documents=WITH_BAD, stops=st.lists(st.integers(1, 24)))
def test_bad_records_are_skipped_whatever_the_chunks(
    name: str, data: st.DataObject, documents: list[list[int]], stops: list[int]
) -> None:
    operator, records = data.draw(OPERATORS[name]), as_records(documents)
    assert operator.survives
    whole, _, bad = feed_past_bad(operator.accumulator(3, 0), records)
    assert bad == sorted(bad)
    for cuts in (stops, range(1, 25)):
        accumulator = operator.accumulator(3, 0)
        assert (feed_past_bad(accumulator, records, cuts)[::2], accumulator.given) == ((whole, bad), len(whole))
        assert (accumulator.held_rows, accumulator.held_bytes) == (0, 0)
    assert {row for _, origins in whole for _, _, row, *_ in origins}.isdisjoint(bad)
    assert set(bad) >= {row for row, tokens in enumerate(documents) if BAD in tokens}


@each_that_survives
@given(data=st.data(), documents=WITH_BAD, stops=st.lists(st.integers(1, 24)))
def test_restart_at_every_mark_between_bad_records(
    name: str, data: st.DataObject, documents: list[list[int]], stops: list[int]
) -> None:
    operator, records = data.draw(OPERATORS[name]), as_records(documents)
    assert operator.survives
    whole, marks, bad = feed_past_bad(operator.accumulator(3, 0), records, stops)
    assert [mark.output for mark in marks] == sorted(mark.output for mark in marks)
    for output, row, skip in set(marks):
        restarted = feed_past_bad(operator.accumulator(3, output), records.slice(row, len(records)), skip=skip)
        assert (restarted[0], restarted[2]) == (whole[output:], [one for one in bad if one >= row])
