"""Bad records that do not end a run: skipped, counted, logged, up to a limit; the same on every way to run it."""

import logging
from typing import Any

import pyarrow as pa
import pytest

from zephon_async import BadRecord, Batch, Dataset, DatasetError, Pipeline, StaticMixtureWorkSource

DOCUMENTS = [[n] * 3 if n % 4 else None for n in range(1, 21)]  # every fourth is null


def pipeline(**options: Any) -> Pipeline:
    table = pa.table({"input_ids": pa.array(DOCUMENTS, pa.list_(pa.int32()))})
    source = StaticMixtureWorkSource([Dataset.from_arrow("d", table)], {"d": 1}, shuffle=False)
    return Pipeline(source).options(on_bad_record="quarantine", **options).pack_flat(4).batch(1)


def tokens(batches: list[Batch]) -> list[int]:
    rows = [(b.to_pylist("input_ids")[0], sum(b.to_pylist("segment_lengths")[0])) for b in batches]
    return [token for row, n in rows for token in row[:n]]


GOOD = [n for n in range(1, 21) if n % 4 for _ in range(3)]


@pytest.mark.parametrize("chunk_rows", [1, 3, 256])
def test_a_packer_goes_on_behind_a_bad_record(chunk_rows: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "zephon_async"), pipeline(chunk_rows=chunk_rows) as running:
        assert tokens(list(running)) == GOOD
        assert running.statistics().counts["records_quarantined"] == 5
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 5
    where = "skipped a bad record: dataset 'd', shard '0', row or byte"
    assert said == [f"{where} {row}, epoch 0: input_ids is null" for row in (3, 7, 11, 15, 19)]


def test_a_resume_skips_the_same() -> None:
    for stop in range(1, 11):
        with pipeline(chunk_rows=3) as first:
            taken = iter(first)
            before = [next(taken) for _ in range(stop)]
            state = first.checkpoint()
        with pipeline(chunk_rows=5).restore(state) as second:
            assert tokens(before + list(second)) == GOOD


TOO_MANY = r"lane 0: 3 bad records of dataset 'd' were skipped, more than options\(max_bad=2\) allows; the log names them"


@pytest.mark.parametrize("chunk_rows", [1, 3, 256])
def test_more_than_allowed_ends_the_run_in_the_place_of_the_one_too_many(chunk_rows: int) -> None:
    with pipeline(chunk_rows=chunk_rows, max_bad=2) as running:
        taken: list[Batch] = []
        with pytest.raises(DatasetError, match=f"^{TOO_MANY}$"):
            taken.extend(running)
    assert tokens(taken) == GOOD[: 9 * 3 // 4 * 4]  # of rows 0 to 10 but for 3 and 7, the whole rows of four tokens


def test_without_quarantine_it_is_an_error_in_its_place() -> None:
    with pipeline().options(on_bad_record="raise") as running, pytest.raises(BadRecord, match="row 3"):
        list(running)


def test_the_limit_holds_before_another_stage_too() -> None:
    def odd(record: dict[str, Any]) -> bool:
        if record["n"] % 2:
            raise BadRecord("odd")
        return True

    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"n": list(range(100))})], {"d": 1}, shuffle=False)
    pipeline = Pipeline(source).options(on_bad_record="quarantine", max_bad=3)
    with (
        pipeline.filter(odd).shuffle(50).filter(lambda record: True).batch(1),
        pytest.raises(DatasetError, match="max_bad=3"),
    ):
        list(pipeline)


# Users' accumulators: numbers in groups of four; every fifth is bad, and so is all that is made of it


def odd_sums(state: list[int], record: dict[str, Any]) -> list[dict[str, Any]]:
    """Sums of three; of the bad records every other raises, the rest give what does not fit."""
    if record["n"] % 10 == 0:
        raise BadRecord("ten")
    if record["n"] % 5 == 0:
        return [{"sum": "five"}]
    state.append(record["n"])
    return rest(state) if len(state) == 3 else []


def rest(state: list[int]) -> list[dict[str, Any]]:
    out = [{"sum": sum(state)}] if state else []
    state.clear()
    return out


def whole(batch: pa.RecordBatch) -> dict[str, Any]:
    """Raise for a batch with a bad record, or give what does not fit."""
    numbers = batch.column("n").to_pylist()
    if any(n % 10 == 0 for n in numbers):
        raise BadRecord("ten")
    return {"sum": ["five" if n % 5 == 0 else n for n in numbers]}


SUM = {"sum": pa.int64()}
N = 30
GOOD_NUMBERS = [n for n in range(1, N + 1) if n % 5]
SKIPPED = {
    "accumulate": [n for n in range(1, N + 1) if n % 5 == 0],
    "map_batches": [
        n for n in range(1, N + 1) if any(m % 5 == 0 for m in range((n - 1) // 4 * 4 + 1, min((n - 1) // 4 * 4 + 4, N) + 1))
    ],
}
WANTED = {
    "accumulate": [sum(GOOD_NUMBERS[i : i + 3]) for i in range(0, len(GOOD_NUMBERS), 3)],
    "map_batches": [n for n in range(1, N + 1) if n not in SKIPPED["map_batches"]],
}


def summed(kind: str, **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"n": list(range(1, N + 1))})], {"d": 1}, shuffle=False)
    pipeline = Pipeline(source).options(on_bad_record="quarantine", **options)
    if kind == "accumulate":
        return pipeline.accumulate(list, odd_sums, rest, schema=SUM).batch(1)
    return pipeline.map_batches(whole, rows=4, schema=SUM).batch(1)


def sums(batches: list[Batch]) -> list[int]:
    return [n for batch in batches for n in batch.to_pylist("sum")]


@pytest.mark.parametrize("kind", WANTED)
@pytest.mark.parametrize("chunk_rows", [1, 3, 256])
def test_users_accumulators_go_on_behind_bad_records(kind: str, chunk_rows: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "zephon_async"), summed(kind, chunk_rows=chunk_rows) as running:
        assert sums(list(running)) == WANTED[kind]
        assert running.statistics().counts["records_quarantined"] == len(SKIPPED[kind])
    said = [record.getMessage() for record in caplog.records]
    assert [line.split("or byte ")[1].split(",")[0] for line in said] == [str(n - 1) for n in SKIPPED[kind]]
    assert {line.split("epoch 0: ")[1] for line in said} == {
        "ten",
        "column 'sum' of the result: wanted int64, found str 'five' (change schema= if that is right)",
    }


@pytest.mark.parametrize("kind", WANTED)
def test_a_resume_of_users_accumulators_skips_the_same(kind: str) -> None:
    for stop in range(1, len(WANTED[kind])):
        with summed(kind, chunk_rows=3) as first:
            taken = iter(first)
            before = [next(taken) for _ in range(stop)]
            state = first.checkpoint()
        with summed(kind, chunk_rows=5).restore(state) as second:
            assert sums(before + list(second)) == WANTED[kind]


def test_a_group_of_bad_records_is_skipped_as_a_whole_and_ends_a_run_as_a_whole() -> None:
    with summed("map_batches", max_bad=len(SKIPPED["map_batches"])) as running:
        assert sums(list(running)) == WANTED["map_batches"]
    with summed("map_batches", max_bad=7) as running:
        taken: list[Batch] = []
        with pytest.raises(DatasetError, match="8 bad records of dataset 'd' were skipped"):
            taken.extend(running)
    assert sums(taken) == [1, 2, 3, 4]


@pytest.mark.parametrize("chunk_rows", [1, 3, 256])
def test_a_failure_stays_behind_a_bad_record_that_is_skipped(chunk_rows: int) -> None:
    def last(record: dict[str, Any]) -> dict[str, Any]:
        return {"n": record["n"], "is": 1 // (N - record["n"])}

    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"n": list(range(1, N + 1))})], {"d": 1}, shuffle=False)
    pipeline = Pipeline(source).options(on_bad_record="quarantine", chunk_rows=chunk_rows).map(last)
    with pipeline.accumulate(list, odd_sums, rest, schema=SUM).batch(1) as running:
        taken: list[Batch] = []
        with pytest.raises(ZeroDivisionError):
            taken.extend(running)
    assert sums(taken) == WANTED["accumulate"]


def test_a_trial_goes_on_behind_bad_records_too() -> None:
    table = pa.table({"input_ids": pa.array([None, [1, 2], [3, 4]], pa.list_(pa.int32()))})
    source = StaticMixtureWorkSource([Dataset.from_arrow("d", table)], {"d": 1}, shuffle=False)
    pipeline = (
        Pipeline(source).options(on_bad_record="quarantine").pack_flat(2).map(lambda record: {"sum": sum(record["input_ids"])})
    )
    with pipeline.batch(1) as running:
        assert sums(list(running)) == [3, 7]


@pytest.mark.parametrize("kind", WANTED)
def test_without_quarantine_the_first_record_of_those_that_failed_is_named(kind: str) -> None:
    row = 4  # the record five, with which its group of four begins
    with (
        summed(kind, chunk_rows=3).options(on_bad_record="raise") as running,
        pytest.raises(BadRecord, match=f"row {row}, epoch 0: "),
    ):
        list(running)


def test_what_flush_fails_to_give_counts_as_the_last_record() -> None:
    def leave(state: list[int]) -> list[dict[str, Any]]:
        raise BadRecord("left over")

    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"n": [1, 2, 3, 4]})], {"d": 1}, shuffle=False)
    for policy in ("quarantine", "raise"):
        pipeline = Pipeline(source).options(on_bad_record=policy).accumulate(list, odd_sums, leave, schema=SUM).batch(1)
        with pipeline as running:
            batches = iter(running)
            assert next(batches).to_pylist("sum") == [6]
            if policy == "quarantine":
                assert next(batches, None) is None
                assert running.statistics().counts["records_quarantined"] == 1
            else:
                with pytest.raises(BadRecord, match="shard '0', row 3, epoch 0: left over"):
                    next(batches)
