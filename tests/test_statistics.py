"""What a pipeline says of itself: `statistics()` and `explain()`."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.numbered import numbers, packed, settle, source
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation

RUNNERS = pytest.mark.parametrize("runner", ["threads", "inline"])


@RUNNERS
def test_the_reading_of_row_blocks_is_metered(tmp_path: Path, runner: str) -> None:
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "a.parquet", row_group_size=100)
    made = Dataset.from_path("d", tmp_path).with_sizes(block_bytes=400)
    with Pipeline(source(made)).options(runner=runner).batch(100) as pipeline:
        assert len(list(pipeline)) == 10
        storage, stage, serial = pipeline.statistics().stages
    assert (storage.name, storage.kind, storage.rows) == ("storage", "storage", 1000)
    assert (stage.rows, serial.rows) == (1000, 1000)
    assert 1 < storage.calls <= 30
    assert storage.bytes >= 8 * 1000
    assert storage.busy_s > 0
    assert storage.waiting_s >= 0


@RUNNERS
@pytest.mark.parametrize(
    "options", [{}, {"on_end": "pad"}, {"lanes": 4, "microbatches_per_step": 8}, {"agree": lambda n: min(n, 2)}]
)
def test_nothing_is_held_behind_the_end_of_the_data(runner: str, options: dict[str, Any]) -> None:
    with packed(runner=runner, **options) as pipeline:
        for _ in range(2):
            batches = iter(pipeline)
            next(batches)
            assert pipeline.statistics().held_bytes > 0
            assert len(list(batches)) > 1
            assert pipeline.statistics().held_bytes == 0


@RUNNERS
def test_nothing_is_held_behind_a_close(runner: str) -> None:
    with packed(epochs=None, runner=runner) as pipeline:
        next(iter(pipeline))
        settle(pipeline)
        assert pipeline.statistics().held_bytes > 0
    assert pipeline.statistics().held_bytes == 0


def test_statistics_as_a_table() -> None:
    assert str(packed().statistics()).endswith("bottleneck: none yet")
    with packed() as pipeline:
        list(pipeline)
        said = str(pipeline.statistics())
    head, *lines = said.splitlines()
    assert re.fullmatch(
        r"\d+ microbatches taken in [\d.]+ s, of which the consumer waited [\d.]+ s; 0 bytes held; bottleneck: \w+", head
    )
    words = [line.split("  ") for line in lines]
    assert [next(filter(None, line)).strip() for line in words] == [
        "stage",
        "storage",
        "read",
        "pack_flat | shuffle | batch",
        "dataset",
        "d",
        "count",
        "padding_tokens",
        *(["rows_left"] if "rows_left" in said else []),
    ]
    assert lines[5].split() == ["d", "60", "100.00%", "100.00%"]
    assert len({len(line) for line in lines[:4]}) == 1


def told(pipeline: Pipeline) -> list[str]:
    with pipeline:
        return pipeline.explain().splitlines()


def test_explain_names_every_stage() -> None:
    def stages(pipeline: Pipeline) -> list[str]:
        lines = told(pipeline)
        start = lines.index("stages of a lane") + 1
        return [line.strip() for line in lines[start : next(n for n, line in enumerate(lines) if line.startswith("a step"))]]

    plain = Pipeline(source(numbers(5)))
    assert stages(plain.filter(bool).batch(1)) == ["read+filter on threads, as there is no GIL", "batch, serial"]
    behind = Pipeline(source(numbers(5))).shuffle(2).filter(bool).batch(1)
    assert stages(behind) == [
        "read on threads, as it reads",
        "shuffle, serial",
        "filter on threads, as there is no GIL",
        "batch, serial",
    ]


def test_explain_counts_in_words_that_fit() -> None:
    lines = told(Pipeline(source(numbers(1))).batch(1))
    assert "1 shard, 1 unit, 8 bytes, 1 row" in lines[1]
    assert "a step: 1 microbatch of 1 row from 1 lane; rank 0 of 1 yields 1 and works lane 0" in lines
    lines = told(Pipeline(source(numbers(9))).options(lanes=4).batch(2))
    assert "a step: 4 microbatches of 2 rows from 4 lanes; rank 0 of 1 yields 4 and works lanes 0 to 3" in lines


def test_explain_says_how_the_budget_is_divided() -> None:
    lines = told(Pipeline(source(numbers(100))).options(lanes=4, memory_budget="1MiB", chunk_rows=8).shuffle(10).batch(1))
    divided, need = lines[-2:]
    budget, share, lanes, cache, opened = (int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\b", divided))
    assert (budget, lanes) == (1 << 20, 4)
    assert budget - lanes < share * lanes + cache + opened <= budget
    total, shuffle, microbatch, chunk, block, row = (int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\b", need))
    assert total == shuffle + microbatch + chunk + block
    assert (shuffle, microbatch, chunk) == (10 * row, row, 8 * row)


def first(pipeline: Pipeline) -> str:
    return next(line.partition("draws ")[2] for line in told(pipeline) if line.startswith("to its first microbatch a lane draws "))


def test_explain_foresees_the_rows_to_the_first_microbatch() -> None:
    none = ", if operators leave none out and add none"
    assert first(Pipeline(source(numbers(100))).batch(1)) == f"1 row{none}"
    assert first(Pipeline(source(numbers(100))).shuffle(10).shuffle(4).batch(9)) == f"20 rows{none}"
    words = Dataset.from_dict("d", {"input_ids": [[1, 2, 3]] * 1000})  # of 12 bytes as int32
    made = StaticMixtureWorkSource([words], {"d": 1}, token_estimation=TokenEstimation(0.25))
    assert first(Pipeline(made).pack_flat(30).shuffle(5).batch(6)) == f"about 100 rows{none}"
    unknown = first(Pipeline(source(words)).pack_flat(30).shuffle(5).batch(6))
    assert unknown == "as many rows as pack_flat needs to give 10"
    counted = Pipeline(source(numbers(100))).accumulate(list, push, schema={"n": pa.int64()}).shuffle(5).batch(1)
    assert first(counted) == "as many rows as accumulate needs to give 5; it is flushed every 8,192 rows"


def push(state: list[Any], record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"n": 1}]
