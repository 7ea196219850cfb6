"""The example of the design runs as written, and so does a pipeline that was written for the reference library."""

import shutil
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.taken import written

TOKENIZER = Path(__file__).parent / "laws/tokenizer.json"

EXAMPLE = """
from zephon_async import Pipeline
from zephon_async.io import Dataset
from zephon_async.work import StaticMixtureWorkSource, TokenEstimation

source = StaticMixtureWorkSource(
    datasets=[Dataset.from_path("wiki", "corpora/wiki/"), Dataset.from_path("news", "data/news/")],
    mixture={"wiki": 0.5, "news": 0.5},          # a ratio of tokens
    token_estimation=TokenEstimation(),
    seed=42,
)
pipeline = (
    Pipeline(source)
    .options(lanes=32, dp_size=8, dp_rank=3)
    .tokenize(tokenizer_id="gpt2.json", field="text", parallelism=4)
    .pack_flat(max_length=2048, algorithm="wrap")
    .shuffle(buffer_size=1024, seed=42)
    .batch(microbatch_size=8)
)

async def train():
    async with pipeline:                              # asyncio or trio
        async for batch in pipeline:
            await train_step(batch.to_training())
            state = pipeline.checkpoint()             # bytes; pipeline.restore(state) before iterating
    return state
"""

WRITTEN_FOR_THE_REFERENCE = """
from {library} import Dataset, MixtureSpec, Pipeline, StaticMixtureWorkSource
from {library}.work import TokenEstimation

source = StaticMixtureWorkSource(
    datasets=[Dataset.from_path("wiki", "corpora/wiki"), Dataset.from_path("news", "data/news")],
    mixture=MixtureSpec({{"wiki": 0.7, "news": 0.3}}),
    seed=1234,
    token_estimation=TokenEstimation(primer="measure"),
)

def make(rank):
    return (
        Pipeline(source)
        .options(io_options={{"cache": {{"enabled": True}}}}, canonical_replicas=4, dp_degree=2, dp_group_id=rank)
        .tokenize(tokenizer_id="gpt2.json", field="text", parallelism=2)
        .pack_flat(max_length=128, algorithm="wrap")
        .shuffle(buffer_size=16, seed=1234)
        .batch(microbatch_size=2)
    )
"""


@pytest.fixture(autouse=True)
def _corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["in", "the", "beginning", "was", "a", "river", "of", "words", "and", "it", "ran", "to", "the", "sea"]
    texts = [" ".join(words[n % 7 :] * (n % 9 + 1)) for n in range(300)]
    written(tmp_path / "corpora/wiki/a/0.jsonl", *({"text": text} for text in texts[:150]))
    written(tmp_path / "corpora/wiki/b/1.jsonl", *({"text": text, "url": "x"} for text in texts[150:]))
    (tmp_path / "data/news").mkdir(parents=True)
    pq.write_table(pa.table({"text": texts[::-1]}), tmp_path / "data/news/0.parquet", row_group_size=50)
    shutil.copy(TOKENIZER, tmp_path / "gpt2.json")
    monkeypatch.chdir(tmp_path)


def run(program: str, **names: Any) -> dict[str, Any]:
    exec(compile(program, "<as written>", "exec"), names)
    return names


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_example_of_the_design(backend: str) -> None:
    """Rank 3 of 8: the other ranks agree to what it says. The data is small, so the rows are made shorter."""
    steps: list[dict[str, Any]] = []

    async def train_step(step: dict[str, Any]) -> None:
        steps.append(step)

    program = EXAMPLE.replace("2048", "64").replace("1024", "4").replace("microbatch_size=8", "microbatch_size=1")
    assert "dp_rank=3)" in program
    program = program.replace("dp_rank=3)", "dp_rank=3, agree=lambda steps: steps)")
    state = anyio.run(run(program, train_step=train_step)["train"], backend=backend)
    assert isinstance(state, bytes)
    assert len(steps) >= 4
    assert len(steps) % 4 == 0  # 4 of the 32 microbatches of a step
    for step in steps:
        assert np.asarray(step["input_ids"]).shape == np.asarray(step["labels"]).shape == (1, 64)
    again = run(program, train_step=train_step)
    with again["pipeline"] as pipeline:
        assert list(pipeline.restore(state)) == []


def test_the_example_of_the_design_without_a_loop() -> None:
    """The same lines with all their numbers; a run without an end needs nobody to agree."""
    program = EXAMPLE.replace("seed=42,\n", "seed=42, epochs=None,\n", 1)
    with run(program)["pipeline"] as pipeline:
        told = pipeline.explain()
        state = pipeline.checkpoint()
    assert "rank 3 of 8 yields 4 and works lanes 12 to 15" in told
    with run(program.replace("1024", "4"))["pipeline"] as pipeline:
        for number, batch in enumerate(pipeline):
            assert np.asarray(batch.to_training()["input_ids"]).shape == (8, 2048)
            if number == 5:
                break
        assert pipeline.checkpoint() != state


def test_a_pipeline_written_for_the_reference_library() -> None:
    made = run(
        WRITTEN_FOR_THE_REFERENCE.format(library="zephon_async").replace(
            "seed=1234,\n    token", "seed=1234, epochs=None,\n    token"
        )
    )
    rows = []
    for rank in range(2):
        with made["make"](rank) as pipeline:
            for batch in pipeline:
                step = batch.to_training()
                assert {
                    "input_ids",
                    "labels",
                    "loss_mask",
                    "positions",
                    "cu_seqlens",
                    "padding_mask",
                    "document_ids",
                } <= step.keys()
                rows.append((rank, batch.step, batch.lane))
                if batch.step == 2:
                    break
            state = pipeline.checkpoint()
        with made["make"](rank) as pipeline:
            pipeline.restore(state)
            assert next(iter(pipeline)).step == 2
    assert rows == [
        (rank, step, lane)
        for rank in range(2)
        for step, lane in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
        for lane in [lane + 2 * rank]
    ]


def test_the_names_of_the_reference_library_and_ours_are_one() -> None:
    from zephon_async import Options

    theirs = Options().changed(
        {"canonical_replicas": 8, "dp_degree": 4, "dp_group_id": 3, "io_options": {"cache": {"enabled": True}}}
    )
    assert theirs == Options(lanes=8, dp_size=4, dp_rank=3, io_options={"cache": {"enabled": True}})
    assert theirs.io_options == {"cache": {"enabled": True}}


def test_names_can_be_imported_from_where_the_example_has_them() -> None:
    import zephon_async
    from zephon_async.io import Dataset, InMemoryShard
    from zephon_async.work import MixtureSpec, StaticMixtureWorkSource, TokenEstimation, WorkSource

    assert zephon_async.Dataset is Dataset
    assert zephon_async.MixtureSpec is MixtureSpec
    assert zephon_async.StaticMixtureWorkSource is StaticMixtureWorkSource
    assert zephon_async.TokenEstimation is TokenEstimation
    assert isinstance(InMemoryShard([{"text": "a"}])[0], dict)
    assert isinstance(WorkSource, type)
    assert all(hasattr(zephon_async, name) for name in zephon_async.__all__)
