"""What every place of work keeps: inline, threads, processes, mixes of them, and each in an isolated engine (G04).

The functions are of `tests.by_processes` and of this file, so each place finds them; the data is that of the inline runner.
"""

from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.by_processes import Record, children
from tests.numbered import NUMBERS, digests, numbers, seen, source
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_async.errors import BadRecord, ClosedError

PLACES: dict[str, dict[str, Any]] = {
    "inline": {"runner": "inline"},
    "threads": {"runner": "threads"},
    "processes": {"runner": "processes"},
    "isolated": {"runner": "threads", "isolate": True},
    "isolated processes": {"runner": "processes", "isolate": True},
}
MIXED = {"runner": "threads", "per_stage_runner": {"flat_map": "processes", "filter": "processes"}}
SLOW = {"isolated", "isolated processes"}
each_place = pytest.mark.parametrize(
    "place", [pytest.param(way, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, way in PLACES.items()]
)


HALVES = pa.schema([("n", pa.int64()), ("half", pa.float64()), ("text", pa.string())])


def halved(record: Record) -> Record:
    return {"n": record["n"], "half": record["n"] / 2, "text": "é" * (record["n"] % 5)}


def odd(record: Record) -> bool:
    return bool(record["n"] % 2)


def twice(record: Record) -> list[Record]:
    return [{**record, "copy": copy} for copy in range(record["n"] % 4)]


def negated(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"n": [-n for n in batch.column("n").to_pylist()], "text": batch.column("text")}


def every(place: dict[str, Any], **options: Any) -> Pipeline:
    """Every kind of user's function, with accumulators in between."""
    settings = {"lanes": 2, "workers": 2, "chunk_rows": 16, **place, **options}
    pipeline = Pipeline(source(numbers(120), epochs=2)).options(**settings).map(halved).shuffle(10, seed=1).filter(odd)
    return pipeline.flat_map(twice).shuffle(7, seed=2).map_batches(negated).batch(3)


@pytest.fixture(scope="module")
def expected() -> list[str]:
    with every({"runner": "inline"}) as pipeline:
        found = digests(pipeline)
    assert len(found) > 30
    return found


@each_place
def test_the_data_is_the_same_over_any_stops(place: dict[str, Any], expected: list[str]) -> None:
    with every(place) as pipeline:
        batches = iter(pipeline)
        found = digests(islice(batches, 11))
        state = pipeline.checkpoint()
        assert [*found, *digests(batches)] == expected
    with every({"runner": "inline"}) as there:
        assert [*found, *digests(there.restore(state))] == expected
        again = digests(islice(there, 9))
        state = there.checkpoint()
    with every(place) as pipeline:
        assert [*found, *again, *digests(pipeline.restore(state))] == expected


class Raises:
    """Raises at record 5."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, record: Record) -> Record:
        if record["n"] == 5:
            raise self.error
        return record


def failing(place: dict[str, Any], error: BaseException, **options: Any) -> Pipeline:
    settings = {"workers": 2, **place, **options}
    return Pipeline(source(numbers(40))).options(**settings).map(Raises(error), schema=NUMBERS).batch(1)


@each_place
@pytest.mark.parametrize("chunk_rows", [1, 40])
def test_an_error_comes_in_its_place(place: dict[str, Any], chunk_rows: int) -> None:
    with failing(place, ValueError("five"), chunk_rows=chunk_rows) as pipeline:
        batches = iter(pipeline)
        assert seen(islice(batches, 5)) == [0, 1, 2, 3, 4]
        state = pipeline.checkpoint()
        for _ in range(3):
            with pytest.raises(ValueError, match="five") as caught:
                next(batches)
            assert pipeline.checkpoint() == state
        assert any("row 5, epoch 0" in note for note in caught.value.__notes__)
        assert seen(islice(pipeline, 5)) == [0, 1, 2, 3, 4]


@each_place
def test_an_error_of_a_reader_comes_in_its_place(place: dict[str, Any], tmp_path: Path) -> None:
    lines = [f'{{"n": {n}}}' for n in range(40)]
    lines[5] = '{"n": '
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    made = Pipeline(source(Dataset.from_path("d", tmp_path / "d.jsonl"))).options(workers=2, **place)
    with made.map(halved, schema=HALVES).batch(1) as pipeline:
        batches = iter(pipeline)
        assert seen(islice(batches, 5)) == [0, 1, 2, 3, 4]
        state = pipeline.checkpoint()
        for _ in range(2):
            with pytest.raises(BadRecord, match=r"d\.jsonl.*line 6"):
                next(batches)
        assert pipeline.checkpoint() == state


@each_place
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration(1)], ids=lambda error: type(error).__name__)
def test_what_would_end_a_thread_is_an_error_too(place: dict[str, Any], error: BaseException) -> None:
    """Not so in the check at the start: there it may be a signal to this process, and ends the start."""
    with failing(place, error, validate="off") as pipeline:
        batches = iter(pipeline)
        assert seen(islice(batches, 5)) == [0, 1, 2, 3, 4]
        with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)):
            next(batches)


@each_place
def test_bad_records_are_skipped_and_counted(place: dict[str, Any]) -> None:
    with failing(place, BadRecord("not this"), on_bad_record="quarantine") as pipeline:
        assert seen(pipeline) == [n for n in range(40) if n != 5]
        assert pipeline.statistics().counts["records_quarantined"] == 1


@each_place
def test_leaving_and_closing_while_all_is_full(place: dict[str, Any]) -> None:
    pipeline = every(place, prefetch=1)
    with pipeline:
        first = digests(islice(pipeline, 2))
        for _ in range(3):
            assert digests(islice(pipeline, 2)) == first
        batches = iter(pipeline)
        next(batches)
    with pytest.raises(ClosedError):
        digests(batches)
    assert not children()


@pytest.mark.slow
def test_the_data_is_the_same_in_a_mixture_of_places(expected: list[str]) -> None:
    with every(MIXED) as pipeline:
        assert digests(pipeline) == expected


def test_a_mixture_of_places_for_each_operator() -> None:
    table = pa.table({"n": range(60)})
    expected: list[str] = []
    for first, second in (("threads", "threads"), ("processes", "threads"), ("threads", "processes"), ("processes", "processes")):
        made = StaticMixtureWorkSource([Dataset.from_arrow("d", table)], {"d": 1}, epochs=1)
        pipeline = Pipeline(made).options(workers=2, chunk_rows=8).map(halved, runner=first).shuffle(9, seed=1)
        with pipeline.filter(odd, runner=second).batch(2) as run:
            found = digests(run)
        expected = expected or found
        assert found == expected


class Remembers:
    """The identity, from what it has kept of its first batches."""

    def __init__(self) -> None:
        self.kept: dict[int, pa.Array] = {}

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        for at, n in enumerate(batch.column("n").to_pylist()):
            self.kept.setdefault(n, batch.column("text").slice(at, 1))
        return {"n": batch.column("n"), "text": pa.concat_arrays([self.kept[n] for n in batch.column("n").to_pylist()])}


@each_place
def test_what_a_function_keeps_stays_as_it_was(place: dict[str, Any]) -> None:
    texts = [f"{n}" * (n % 9) for n in range(64)]
    made = Pipeline(source(Dataset.from_dict("d", {"n": list(range(64)), "text": texts}), epochs=2)).options(
        **{"workers": 1, "chunk_rows": 8, **place}
    )
    with made.map_batches(Remembers(), schema={"n": pa.int64(), "text": pa.large_string()}).batch(8) as pipeline:
        batches = list(pipeline)
        kept = [(n, text) for batch in batches for n, text in zip(batch.to_pylist("n"), batch.to_pylist("text"), strict=True)]
    assert kept == [(n, texts[n]) for _ in range(2) for n in range(64)]
    assert "zephon" not in Path("/proc/self/maps").read_text()  # what the consumer holds is its own
