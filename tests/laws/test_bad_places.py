"""Bad records have no place in the order, and the one that is too many ends the run in its place, on every way to run it."""

import io
import json
import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_async import BadRecord, Batch, Dataset, DatasetError, Pipeline, StaticMixtureWorkSource
from zephon_async.engine import bad_records
from zephon_async.engine.bad_records import BadRecords
from zephon_async.records import Names, Skipped

N = pa.schema({"n": pa.int64()})
ROWS = {"a": 400, "b": 150}
FIRST = {"a": 0, "b": 1_000}


def is_broken(n: int) -> bool:
    """Whether its line is no JSON."""
    return n % 11 == 4 or 60 <= n < 75


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    for name, rows in ROWS.items():
        (folder / name).mkdir()
        for shard in range(2):
            numbers = range(FIRST[name] + shard * rows // 2, FIRST[name] + (shard + 1) * rows // 2)
            lines = ("{broken\n" if is_broken(n) else f'{{"n": {n}}}\n' for n in numbers)
            (folder / name / f"{shard}.jsonl").write_text("".join(lines))
    return folder


def one_of_nine(record: dict[str, Any]) -> bool:
    if record["n"] % 9 == 2:
        raise BadRecord("two of nine")
    return bool(record["n"] % 5)


def copies(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"n": record["n"]}] * (1 + record["n"] % 3)


def refused(record: dict[str, Any]) -> dict[str, Any]:
    if record["n"] % 17 == 3:
        raise BadRecord("three of seventeen")
    return {"n": record["n"]}


def collected(state: list[int], record: dict[str, Any]) -> list[dict[str, Any]]:
    if record["n"] % 23 == 7:
        raise BadRecord("seven of twenty-three")
    state.append(record["n"])
    return given_out(state) if len(state) == 2 else []


def given_out(state: list[int]) -> list[dict[str, Any]]:
    out = [{"n": n} for n in state]
    state.clear()
    return out


def pipeline(folder: Path, chain: str, shuffle: bool = True, **options: Any) -> Pipeline:
    datasets = [Dataset.from_path(name, folder / name, unit_bytes=900, block_bytes=300) for name in ROWS]
    source = StaticMixtureWorkSource(datasets, {"a": 2, "b": 1}, seed=3, unit="samples", shuffle=shuffle)
    made = Pipeline(source).options(**{"on_bad_record": "quarantine", "lanes": 2, "workers": 2, "flush_every": 64, **options})
    if "f" in chain:
        made.filter(one_of_nine)
    if "c" in chain:
        made.flat_map(copies, schema=N)
    if "s" in chain:
        made.shuffle(7, seed=1)
    if "a" in chain:
        made.accumulate(list, collected, given_out, schema=N)
    if "m" in chain:
        made.map(refused, schema=N)
    return made.batch(3)


def taken(run: Pipeline, most: int | None = None) -> tuple[list[str], str]:
    """Digests up to the error, and what it says."""
    found: list[str] = []
    try:
        found.extend(batch.digest() for batch in islice(run, most))
    except DatasetError as error:
        return found, str(error)
    return found, ""


def numbers(batches: list[Batch]) -> list[int]:
    return [n for batch in batches for n in batch.to_pylist("n")]


def test_what_its_reader_finds_bad_takes_no_place(folder: Path, tmp_path: Path) -> None:
    """As if it were not there: the mixture is that of the sound rows."""
    sound = {name: [n for n in range(FIRST[name], FIRST[name] + rows) if not is_broken(n)] for name, rows in ROWS.items()}
    clean = StaticMixtureWorkSource(
        [Dataset.from_dict(name, {"n": rows}) for name, rows in sound.items()], {"a": 2, "b": 1}, unit="samples", shuffle=False
    )
    with Pipeline(clean).batch(3) as wanted, pipeline(folder, "", shuffle=False, lanes=1) as run:
        assert numbers(list(run)) == numbers(list(wanted))


@pytest.mark.parametrize("chain", ["", "f", "fcsm", "csam", "sa", "fsasm"])
def test_the_run_ends_in_one_place(chain: str, folder: Path) -> None:
    """However it is cut into chunks, on whatever runner, and whether it was stopped before."""
    for most in (0, 1, 5, 12, 25):
        with pipeline(folder, chain, max_bad=most, chunk_rows=1, runner="inline") as run:
            expected = taken(run)
        assert f"options(max_bad={most})" in expected[1]
        ways: list[dict[str, Any]] = [{"chunk_rows": 7}, {"chunk_rows": 1024, "workers": 4}, {"chunk_rows": 3, "prefetch": 40}]
        for options in ways:
            with pipeline(folder, chain, max_bad=most, **options) as run:
                assert taken(run) == expected
        for stop in range(0, len(expected[0]) + 1, max(1, len(expected[0]) // 4)):
            with pipeline(folder, chain, max_bad=most, chunk_rows=5) as run:
                before, _ = taken(run, stop)
                state = run.checkpoint()
            with pipeline(folder, chain, max_bad=most, chunk_rows=11).restore(state) as run:
                found, said = taken(run)
            assert (before + found, said) == expected, stop


@settings(max_examples=10)
@given(share=st.sampled_from((0.0, 0.05, 0.12, 0.2, 0.3, 1.0)), chunk_rows=st.sampled_from((1, 13, 1024)), stop=st.integers(0, 60))
def test_a_share_is_judged_at_the_end_of_each_segment(folder: Path, share: float, chunk_rows: int, stop: int) -> None:
    with pipeline(folder, "fs", max_bad=share, chunk_rows=1, runner="inline") as run:
        expected = taken(run)
    assert bool(expected[1]) == (share < 0.25), expected[1]
    with pipeline(folder, "fs", max_bad=share, chunk_rows=chunk_rows) as run:
        before, said = taken(run, stop)
        state = run.checkpoint()
    if not said:
        with pipeline(folder, "fs", max_bad=share, chunk_rows=chunk_rows).restore(state) as run:
            found, said = taken(run)
        before += found
    assert (before, said) == expected


def test_a_share_is_of_all_rows_that_were_come_by(tmp_path: Path) -> None:
    """Rows that are refused were drawn, those that their reader finds bad were not: both are of the whole."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(640)))
    (tmp_path / "b.jsonl").write_text("".join("no\n" if n % 5 < 3 else f'{{"n": {n}}}\n' for n in range(640)))

    def three_of_five(record: dict[str, Any]) -> bool:
        if record["n"] % 5 < 3:
            raise BadRecord("three of five")
        return True

    def said(name: str, share: float) -> str:
        source = StaticMixtureWorkSource([Dataset.from_path("d", tmp_path / name)], {"d": 1}, unit="samples", shuffle=False)
        run = Pipeline(source).options(on_bad_record="quarantine", max_bad=share, flush_every=64)
        with (run.filter(three_of_five) if name == "a.jsonl" else run).batch(1) as run:
            return taken(run)[1]

    for name in ("a.jsonl", "b.jsonl"):
        assert (bool(said(name, 0.55)), bool(said(name, 0.65))) == (True, False)


def test_all_is_counted(folder: Path) -> None:
    with pipeline(folder, "f", max_bad=1000) as run:
        found = numbers(list(run))
        counts = run.statistics().counts["records_quarantined"]
    everything = [n for name, rows in ROWS.items() for n in range(FIRST[name], FIRST[name] + rows)]
    bad = Counter(n for n in everything if is_broken(n) or n % 9 == 2)
    assert not set(bad) & set(found)
    assert counts >= len(bad)


def test_worker_processes_skip_the_same(folder: Path) -> None:
    for most in (9, 1000):
        runs = []
        for options in ({"runner": "inline"}, {"runner": "processes", "workers": 2, "chunk_rows": 9}):
            with pipeline(folder, "fcsm", max_bad=most, **options) as run:
                runs.append(taken(run))
        assert runs[0] == runs[1]


def test_more_than_half_of_a_chunk_may_be_bad(tmp_path: Path) -> None:
    dice = random.Random(0)
    bad = {n for n in range(300) if dice.random() < 0.7}
    (tmp_path / "a.jsonl").write_text("".join("no\n" if n in bad else f'{{"n": {n}}}\n' for n in range(300)))
    source = StaticMixtureWorkSource([Dataset.from_path("d", tmp_path)], {"d": 1}, unit="samples", shuffle=False)
    with Pipeline(source).options(on_bad_record="quarantine", lanes=1).batch(1) as run:
        assert numbers(list(run)) == [n for n in range(300) if n not in bad]


def told(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in sorted(folder.glob("bad-records-*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    return [json.loads(line) for line in lines]


def place(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("dataset", "shard", "row", "epoch", "part", "reason"))


def test_each_is_told_once_when_the_rows_behind_it_are_delivered(folder: Path, tmp_path: Path) -> None:
    with pipeline(folder, "fcsm", bad_records_dir=tmp_path / "whole") as run:
        for _ in run:
            pass
    expected = sorted(map(place, told(tmp_path / "whole")))
    assert len(set(expected)) == len(expected) > 50
    first = next(line for line in told(tmp_path / "whole") if line["start"])
    assert list(first) == ["dataset", "shard", "row", "epoch", "part", "reason", "rows", "start"]
    reason = "JSON is malformed: object keys must be strings (byte 1); a line must be one whole JSON object"
    assert list(first.values())[4:] == [0, reason, 1, "{broken"]
    for stop in (0, 1, 20, 90):
        parts = tmp_path / f"{stop}"
        with pipeline(folder, "fcsm", bad_records_dir=parts, chunk_rows=5) as run:
            for _ in islice(run, stop):
                pass
            before, state = len(told(parts)), run.checkpoint()
        assert before <= len(expected) * stop // 60, "no more is told than was delivered"
        with pipeline(folder, "fcsm", bad_records_dir=parts, chunk_rows=31).restore(state) as run:
            for _ in run:
                pass
        assert sorted(map(place, told(parts))) == expected


def test_ranks_tell_of_their_own(folder: Path, tmp_path: Path) -> None:
    with pipeline(folder, "fs", bad_records_dir=tmp_path / "one", microbatches_per_step=6) as run:
        steps = len([batch for batch in run if batch.last_of_step])
    for rank in range(3):
        options: dict[str, Any] = {"dp_size": 3, "dp_rank": rank, "agree": lambda n: min(n, steps), "microbatches_per_step": 6}
        with pipeline(folder, "fs", bad_records_dir=tmp_path / "three", **options) as run:
            assert len([batch for batch in run if batch.last_of_step]) == steps
    ours, theirs = (sorted(map(place, told(tmp_path / name))) for name in ("one", "three"))
    assert len(list((tmp_path / "three").iterdir())) == 3
    assert len(set(theirs)) == len(theirs)
    assert set(ours) ^ set(theirs) <= set(ours), "behind the last step nobody of three may take a lane"


def test_a_folder_that_cannot_be_written_to_costs_no_run(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with pipeline(folder, "f", bad_records_dir=tmp_path / "file" / "x") as run:
        found = numbers(list(run))
    with pipeline(folder, "f") as run:
        assert numbers(list(run)) == found
    assert "bad records cannot be told in" in caplog.text


@pytest.mark.parametrize("until", [20, 40, None])
def test_what_could_not_be_written_is_written_later(
    until: int | None, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the next of them, or else at the end; once, and the fault is said once."""
    with pipeline(folder, "f", bad_records_dir=tmp_path / "always") as run:
        batches = len(list(run))
    expected = told(tmp_path / "always")
    (tmp_path / "later").write_text("no folder")
    with pipeline(folder, "f", bad_records_dir=tmp_path / "later") as run:
        taken = iter(run)
        for _ in islice(taken, batches if until is None else until):
            pass
        (tmp_path / "later").unlink()
        for _ in taken:
            pass
    assert told(tmp_path / "later") == expected
    assert caplog.text.count("bad records cannot be told in") == 1


def test_a_write_that_breaks_off_leaves_no_record_told_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(("d",), (("a",),))
    skipped = [Skipped(0, (0, 0, row, 0, 0), "bad", 1) for row in range(4)]
    records = BadRecords(tmp_path, 0, names)
    opened, room = Path.open, [150]

    class Full(io.FileIO):
        """A disk with room for some bytes."""

        def write(self, body: Any) -> int:
            if room:
                super().write(body[: room.pop()])
                raise OSError(28, "No space left on device")
            return super().write(body)

    def full(path: Path, mode: str = "r", **how: Any) -> Any:
        return Full(path, "a+") if mode == "a+b" else opened(path, mode, **how)

    monkeypatch.setattr(Path, "open", full)
    records.write(skipped[:3])
    records.write(skipped[3:])
    monkeypatch.undo()
    lines = (tmp_path / "bad-records-00000.jsonl").read_text().splitlines()
    whole = [json.loads(line)["row"] for line in lines if line.endswith("}")]
    assert sorted(whole) == [0, 1, 2, 3]


def test_however_many_come_at_once_all_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_records, "MOST_WAITING", 10)
    BadRecords(tmp_path, 0, Names(("d",), (("a",),))).write([Skipped(0, (0, 0, row, 0, 0), "bad", 1) for row in range(25)])
    assert [line["row"] for line in told(tmp_path)] == list(range(25))


def test_those_that_are_let_go_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bad_records, "MOST_WAITING", 10)
    (tmp_path / "later").write_text("no folder")
    records = BadRecords(tmp_path / "later", 0, Names(("d",), (("a",),)))
    for start in (0, 8, 16):
        records.write([Skipped(0, (0, 0, row, 0, 0), "bad", 1) for row in range(start, start + 8)])
    (tmp_path / "later").unlink()
    records.write()
    assert [line["row"] for line in told(tmp_path / "later")] == list(range(14, 24))
    _, letting_go, let_go = [record.getMessage() for record in caplog.records]
    assert letting_go.startswith("more than 10 bad records wait to be told in ")
    assert let_go.startswith("14 bad records are told nowhere: ")


def test_what_it_says_of_a_record_may_be_any_text(tmp_path: Path) -> None:
    """No delivered batch is lost to it; a line that a crash has cut is not gone on with; each is told once."""

    def odd(record: dict[str, Any]) -> bool:
        if record["n"] == 3:
            raise BadRecord("\ud800 and \u2028 and \udce9")
        return True

    def run() -> list[int]:
        source = StaticMixtureWorkSource([Dataset.from_dict("d", {"n": list(range(8))})], {"d": 1}, shuffle=False)
        options = {"on_bad_record": "quarantine", "bad_records_dir": tmp_path}
        with Pipeline(source).options(**options).filter(odd).batch(1) as running:
            return numbers(list(running))

    (tmp_path / "bad-records-00000.jsonl").write_text('{"dataset": "d", "shard": "0", "ro')
    for _ in range(2):
        assert run() == [0, 1, 2, 4, 5, 6, 7]
    cut, line, end = (tmp_path / "bad-records-00000.jsonl").read_bytes().split(b"\n")
    assert (cut, json.loads(line)["row"], end) == (b'{"dataset": "d", "shard": "0", "ro', 3, b"")


def test_a_run_of_bad_records_alone_ends_soon(tmp_path: Path) -> None:
    """Whether there are too many is judged on the way, not when a sound one comes."""
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' + "no\n" * 60_000)
    dataset = Dataset.from_path("d", tmp_path, block_bytes=1_000)
    source = StaticMixtureWorkSource([dataset], {"d": 1}, unit="samples", shuffle=False)
    with (
        Pipeline(source).options(on_bad_record="quarantine", max_bad=10, prefetch=1, read_ahead=1).batch(1) as run,
        pytest.raises(DatasetError, match="lane 0: 11 bad records of dataset 'd'"),
    ):
        list(run)
    assert run.statistics().counts["records_quarantined"] < 30_000
