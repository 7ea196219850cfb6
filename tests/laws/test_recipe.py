"""What a checkpoint is tied to: every setting that decides the data, no other; its bytes are whole and few."""

import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import AddedToken, processors

from tests.taken import letters, taken
from zephon_async import (
    CheckpointError,
    ClosedError,
    Dataset,
    Pipeline,
    StaticMixtureWorkSource,
    TokenEstimation,
    inspect_checkpoint,
)


def upper(record: dict[str, Any]) -> dict[str, Any]:
    return {"text": record["text"].upper()}


def renamed(source: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function of the same module and name as `upper`, with other source."""
    made: dict[str, Any] = {}
    exec(compile(source, "<changed>", "exec"), made)
    made["upper"].__module__ = upper.__module__
    return made["upper"]  # type: ignore[no-any-return]


def bigger_tokenizer() -> Any:
    made = letters()
    made.add_tokens([AddedToken("TEXT")])
    return made


def build(folder: Path, **changes: Any) -> Pipeline:
    """The one recipe of this file, with some of its settings changed."""
    has = {
        "names": ("a", "b"),
        "rows": 30,
        "format": "jsonl",
        "weights": {"a": 1, "b": 2},
        "pin": "0.5",
        "unit": None,
        "seed": 1,
        "shuffle": True,
        "epochs": 3,
        "on_exhausted": "repeat",
        "max_repeats": None,
        "block_bytes": 1 << 20,
        "unit_bytes": 1 << 24,
        "schema": None,
        "options": {},
        "map": upper,
        "version": None,
        "map_schema": {"text": pa.string()},
        "filter": False,
        "tokenizer": letters(),
        "tokenize": {},
        "pack": {},
        "length": 8,
        "buffer": 4,
        "shuffle_seed": 2,
        "batch": 1,
        **changes,
    }
    folder = folder / f"{has['rows']} {has['format']}"
    datasets = []
    for name in has["names"]:
        path = folder / f"{name}.{has['format']}"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f'{{"text": "text {n} of {name}"}}\n' for n in range(has["rows"])))
        sizes = {"block_bytes": has["block_bytes"], "unit_bytes": has["unit_bytes"]}
        datasets.append(Dataset.from_path(name, path, schema=has["schema"], **sizes))
    estimation = None if has["unit"] else TokenEstimation(has["pin"])
    ends = {key: has[key] for key in ("unit", "seed", "shuffle", "epochs", "on_exhausted", "max_repeats")}
    pipeline = Pipeline(StaticMixtureWorkSource(datasets, has["weights"], token_estimation=estimation, **ends))
    pipeline.options(**{"lanes": 2, "version": "1", **has["options"]})
    pipeline.map(has["map"], version=has["version"], schema=has["map_schema"])
    if has["filter"]:
        pipeline.filter(bool)
    pipeline.tokenize(has["tokenizer"], **{"field": "text", "max_length": 12, **has["tokenize"]})
    return pipeline.pack_flat(has["length"], **has["pack"]).shuffle(has["buffer"], seed=has["shuffle_seed"]).batch(has["batch"])


CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"weights": {"a": 1, "b": 3}}, "source weights"),
    ({"weights": {"a": 1, "b": 0}}, "source weights"),
    ({"names": ("a",), "weights": {"a": 1}}, "dataset b"),
    ({"names": ("a", "b", "c"), "weights": {"a": 1, "b": 2, "c": 1}}, "dataset c"),
    ({"names": ("a", "x"), "weights": {"a": 1, "x": 2}}, "dataset x"),
    ({"rows": 31}, "dataset a"),
    ({"format": "ndjson"}, "dataset a"),
    ({"block_bytes": 100}, "dataset a"),
    ({"unit_bytes": 100}, "dataset a"),
    ({"schema": {"text": pa.string()}}, "dataset a"),
    ({"pin": "0.25"}, "source tokens per byte"),
    ({"unit": "bytes"}, "source unit"),
    ({"unit": "samples"}, "source unit"),
    ({"seed": 3}, "source seed"),
    ({"shuffle": False}, "source shuffle"),
    ({"epochs": 4}, "source epochs"),
    ({"epochs": None}, "source epochs"),
    ({"on_exhausted": "stop"}, "source on_exhausted"),
    ({"on_exhausted": "drop_out"}, "source on_exhausted"),
    ({"max_repeats": 1}, "source max_repeats"),
    ({"options": {"lanes": 4}}, "lanes: 2 in the checkpoint, 4 here"),
    ({"options": {"microbatches_per_step": 4}}, "microbatches_per_step: 2 in the checkpoint, 4 here"),
    ({"options": {"flush_every": 16}}, "flush_every: 8192 in the checkpoint, 16 here"),
    ({"options": {"on_end": "pad"}}, "on_end: 'drop' in the checkpoint, 'pad' here"),
    ({"options": {"on_bad_record": "quarantine"}}, "on_bad_record: 'raise' in the checkpoint, 'quarantine' here"),
    ({"options": {"version": "2"}}, "version: '1' in the checkpoint, '2' here"),
    ({"map": lambda record: record}, "1 map function"),
    ({"map": renamed("def upper(record):\n    return {'text': record['text']}\n")}, "1 map source"),
    ({"version": 2}, "1 map version"),
    ({"map_schema": None}, "1 map schema"),
    ({"filter": True}, "2 filter"),
    ({"tokenizer": bigger_tokenizer()}, "2 tokenize tokenizer"),
    ({"tokenize": {"special_tokens": "bos_eos"}}, "2 tokenize special_tokens"),
    ({"tokenize": {"eos_token": 1}}, "2 tokenize eos"),
    ({"tokenize": {"max_length": 13}}, "2 tokenize max_length"),
    ({"tokenize": {"on_long": "truncate"}}, "2 tokenize on_long"),
    ({"tokenize": {"on_null": "skip"}}, "2 tokenize on_null"),
    ({"tokenize": {"keep_columns": ["text"]}}, "2 tokenize keep_columns"),
    ({"length": 9}, "3 pack_flat max_length"),
    ({"pack": {"pad_id": 5}}, "3 pack_flat pad_id"),
    ({"pack": {"on_long": "truncate"}}, "3 pack_flat on_long"),
    ({"buffer": 5}, "4 shuffle buffer_size"),
    ({"shuffle_seed": 3}, "4 shuffle seed"),
    ({"batch": 2}, "microbatch_size: 1 in the checkpoint, 2 here"),
]


@pytest.mark.parametrize(("changes", "name"), CHANGED, ids=[f"{next(iter(c))}-{n}" for c, n in CHANGED])
def test_another_recipe_is_refused_with_what_differs(changes: dict[str, Any], name: str, tmp_path: Path) -> None:
    with build(tmp_path) as pipeline:
        taken(pipeline, 3)
        state = pipeline.checkpoint()
    with build(tmp_path, **changes) as other:
        with pytest.raises(CheckpointError) as caught:
            other.restore(state)
        found = str(caught.value).splitlines()[1:]
        assert any(line.startswith(f"  {name}") for line in found)
        if next(iter(changes)) in ("pack", "seed", "buffer", "length", "batch", "pin", "version", "epochs"):
            assert len(found) == 1
        after = [batch.digest() for batch in taken(other, 3)]
    with build(tmp_path, **changes) as fresh:
        assert after == [batch.digest() for batch in taken(fresh, 3)]  # what was refused has left no trace


def test_a_started_pipeline_goes_on_after_a_refusal(tmp_path: Path) -> None:
    with build(tmp_path) as pipeline:
        whole = [batch.digest() for batch in taken(pipeline, 6)]
    state = state_of(tmp_path)
    with build(tmp_path, seed=5) as other:
        foreign = (taken(other, 1), other.checkpoint())[1]
    with build(tmp_path) as pipeline:
        batches = iter(pipeline)
        found = [next(batches).digest() for _ in range(3)]
        with pytest.raises(CheckpointError):
            pipeline.restore(foreign)
        assert found + [next(batches).digest() for _ in range(3)] == whole
        pipeline.restore(state)
        with pytest.raises(ClosedError, match="restored to another state"):
            next(batches)


def test_what_was_measured_goes_with_the_checkpoint(tmp_path: Path) -> None:
    """Tokens per byte are measured once a run, so that all of it goes by the same; also in a pipeline that has its own already."""
    other = TokenEstimation(blocks=1, rows=1)

    def make(estimation: TokenEstimation) -> Pipeline:
        texts = {"a": ["a b " * (n % 7 + 1) for n in range(40)], "b": ["bbbbbb" * (n % 5 + 1) for n in range(40)]}
        made = [Dataset.from_dict(name, {"text": each}) for name, each in texts.items()]
        source = StaticMixtureWorkSource(made, {"a": 1, "b": 1}, token_estimation=estimation, epochs=None)
        tokenizer = letters(processors.TemplateProcessing("<s> <s> <s> $A", special_tokens=[("<s>", 1)]))
        return Pipeline(source).tokenize(tokenizer, field="text", special_tokens="tokenizer_default").batch(1)

    with make(TokenEstimation()) as pipeline:
        taken(pipeline, 20)
        state = pipeline.checkpoint()
        rest = [batch.digest() for batch in taken(pipeline.restore(state), 60)]
    for started in (False, True):
        with make(other) as pipeline:
            if started:
                taken(pipeline, 3)
                assert inspect_checkpoint(pipeline.checkpoint()).facts != inspect_checkpoint(state).facts
            assert [batch.digest() for batch in taken(pipeline.restore(state), 60)] == rest
            assert inspect_checkpoint(pipeline.checkpoint()).facts == inspect_checkpoint(state).facts


def test_every_performance_setting_may_change_at_once(tmp_path: Path) -> None:
    with build(tmp_path) as pipeline:
        whole = [batch.digest() for batch in pipeline]
    with build(tmp_path, options={"runner": "inline"}) as pipeline:
        taken(pipeline, 5)
        state = pipeline.checkpoint()
    changed = {
        "runner": "threads",
        "workers": 3,
        "prefetch": 1,
        "chunk_rows": 2,
        "memory_budget": "64MiB",
        "max_bad": 7,
        "read_ahead": 4,
        "io_options": {"cache": {"enabled": True}},
        "agree": lambda steps: steps,
    }
    (tmp_path / "30 jsonl").rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moved").rename(tmp_path / "elsewhere/30 jsonl")  # another root, the same names
    with build(tmp_path / "elsewhere", options=changed, tokenize={"parallelism": 1}) as pipeline:
        assert [batch.digest() for batch in pipeline.restore(state)] == whole[5:]


def test_shards_of_other_times_than_at_the_checkpoint_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case of a shard whose content was changed and whose size was not: it may be a copy, so it is no error."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n')

    def make() -> Pipeline:
        made = [Dataset.from_path(name, tmp_path / f"{name}.jsonl") for name in ("a", "b")]
        return Pipeline(StaticMixtureWorkSource(made, {"a": 1, "b": 1}, shuffle=False)).batch(1)

    with make() as pipeline:
        taken(pipeline, 2)
        state = pipeline.checkpoint()
    with caplog.at_level(logging.WARNING), make() as pipeline:
        taken(pipeline.restore(state), 1)
    assert caplog.text == ""
    before = (tmp_path / "b.jsonl").stat()
    (tmp_path / "b.jsonl").write_text('{"n": 1}\n{"n": 5}\n{"n": 6}\n')
    os.utime(tmp_path / "b.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with caplog.at_level(logging.WARNING), make() as pipeline:
        assert [batch.to_pylist("n") for batch in pipeline.restore(state)] == [[2], [5], [3], [6]]
        pipeline.restore(pipeline.checkpoint())
    assert len(caplog.records) == 1
    assert caplog.text.count("dataset 'b': the times or entity tags of its shards are not those of the checkpoint") == 1


def state_of(tmp_path: Path) -> bytes:
    with build(tmp_path) as pipeline:
        taken(pipeline, 7)
        return pipeline.checkpoint()


def test_a_checkpoint_damaged_in_any_byte_is_refused(tmp_path: Path) -> None:
    state = state_of(tmp_path)
    for at, bit in itertools.product(range(len(state)), (1, 128)):
        broken = bytearray(state)
        broken[at] ^= bit
        with pytest.raises(CheckpointError):
            inspect_checkpoint(bytes(broken))
    for length in range(len(state)):
        with pytest.raises(CheckpointError):
            inspect_checkpoint(state[:length])
    for other in (state + b"\0", state * 2, b"", b"\0" * len(state), "text", None, 5):
        with pytest.raises(CheckpointError):
            inspect_checkpoint(other)  # type: ignore[arg-type]
    with build(tmp_path) as pipeline:
        for wrong in (state[:-1], [state, state[:-1]], "text", [None], []):
            with pytest.raises(CheckpointError):
                pipeline.restore(wrong)  # type: ignore[arg-type]
        taken(pipeline.restore(bytearray(state)), 1)  # type: ignore[arg-type]
        taken(pipeline.restore(memoryview(state)), 1)


def test_a_checkpoint_can_be_looked_into(tmp_path: Path) -> None:
    found = inspect_checkpoint(state_of(tmp_path))
    assert (found.lanes, found.microbatches_per_step, found.dp_size, found.dp_rank) == (2, 2, 1, 0)
    assert (found.step, found.taken, found.rows) == (3, 1, {0: 4, 1: 3})
    assert found.recipe["source seed"] == 1
    assert found.recipe["microbatch_size"] == 1
    assert found.nbytes == len(state_of(tmp_path))


@pytest.mark.parametrize(("lanes", "datasets"), [(1, 1), (4, 3), (64, 4), (3, 40)])
def test_a_checkpoint_is_small_and_stays_so(lanes: int, datasets: int) -> None:
    names = [f"dataset {n}" for n in range(datasets)]
    made = [Dataset.from_dict(name, {"text": [f"{name} {n}" * (n % 3 + 1) for n in range(70)]}) for name in names]
    source = StaticMixtureWorkSource(
        made, {name: n + 1 for n, name in enumerate(names)}, token_estimation=TokenEstimation(0.3), epochs=None
    )
    pipeline = Pipeline(source).options(lanes=lanes).tokenize(letters(), field="text").pack_flat(8).shuffle(8).batch(1)
    sizes = {}
    with pipeline:
        for number, batch in enumerate(pipeline, 1):
            if number in (10 * lanes, 1000) or (number == 1000 * lanes and lanes < 5):
                sizes[batch.step] = len(pipeline.checkpoint())
            if number >= max(1000, 1000 * lanes if lanes < 5 else 10 * lanes):
                break
    assert max(sizes.values()) <= 1024 + lanes * (128 + 32 * datasets)
    first, *others = sizes.values()
    assert all(size <= first + lanes * (datasets + 4) * 16 for size in others)  # whole numbers of 9 bytes in place of 1
