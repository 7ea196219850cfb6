"""Rows that are made up have the columns of the others, known at the start; columns that cannot be taken are refused there."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.made_rows import byte_tokenizer
from tests.numbered import source
from tests.recipes import job
from zephon_async import Batch, Dataset, Pipeline, RecipeError
from zephon_async.kinds import json_field
from zephon_async.operators import Operator, Tally
from zephon_async.records import Records

ROWS, KEPT = 160, 150  # on two lanes, of which the first keeps nothing, and no trial sees what the second keeps
DATA = pa.table(
    {
        "n": list(range(ROWS)),
        "text": [f"t{n}" for n in range(ROWS)],
        "raw": [b"%d" % n for n in range(ROWS)],
        "ids": pa.array([[n] * (n % 3 + 1) for n in range(ROWS)], pa.list_(pa.int32())),
        "meta": [f'{{"n": {n}}}' for n in range(ROWS)],
    },
)
PINS = pa.schema([json_field("meta")])
N = {"n": pa.int64()}
TENSOR = pa.list_(pa.list_(pa.float64(), 3), 2)


class Passing(Operator):
    """An operator of one's own that tells nothing of what it gives."""

    name = "passing"

    def apply(self, records: Records, tally: Tally) -> Records:
        return records


class Telling(Passing):
    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        return schema


def late(record: dict[str, Any]) -> bool:
    return bool(record["n"] >= KEPT)


def push(state: list[int], record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"n": record["n"]}


CHAINS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "nothing": lambda p: p,
    "shuffle": lambda p: p.shuffle(4, seed=1),
    "map": lambda p: p.map(lambda record: {"n": record["n"], "meta": record["meta"]}, schema=pa.schema([("n", pa.int64()), *PINS])),
    "flat_map": lambda p: p.flat_map(lambda record: [{"n": record["n"]}] * 2, schema=N),
    "map_batches": lambda p: p.map_batches(lambda batch: {"image": np.ones((len(batch), 2, 3))}, schema={"image": TENSOR}),
    "map_batches, rows": lambda p: p.map_batches(lambda batch: batch.select(["n"]), rows=3, schema=N),
    "accumulate": lambda p: p.accumulate(list, push, schema=N),
    "decode_text": lambda p: p.decode_text(["raw", "text"]),
    "tokenize": lambda p: p.tokenize(byte_tokenizer(), field="text", keep_columns=["meta", "n"]),
    "pack_flat": lambda p: p.pack_flat(4, field="ids", pad_id=7),
    "all text": lambda p: p.decode_text(["raw"]).tokenize(byte_tokenizer(), field="raw").shuffle(3, seed=0).pack_flat(5),
    "unknown before": lambda p: p.apply(Passing()).tokenize(byte_tokenizer(), field="text").pack_flat(5),
    "own": lambda p: p.apply(Telling()),
}


def padded(ranks: int = 1, rank: int = 0, more: dict[str, Any] | None = None) -> Pipeline:
    data = Dataset.from_arrow("d", DATA, schema=PINS)
    return Pipeline(source(data)).options(lanes=2, on_end="pad", dp_size=ranks, dp_rank=rank, **(more or {}))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", CHAINS)
def test_rows_are_made_up_of_columns_that_no_row_has_shown(name: str, ranks: int) -> None:
    def make(ranks: int, rank: int, more: dict[str, Any]) -> Pipeline:
        return CHAINS[name](padded(ranks, rank, more).filter(late)).batch(1)

    batches: list[Batch] = job(make, ranks, None, choose=max)[0]
    made_up, real = batches[::2], batches[1::2]
    assert len(real) == len(made_up) > 0
    assert {bool(batch.mask.all()) for batch in real} == {True}
    assert {bool(batch.mask.any()) for batch in made_up} == {False}
    for batch in made_up:
        assert batch.records.columns.schema.equals(real[0].records.columns.schema, check_metadata=True)


@pytest.mark.parametrize("name", ["map", "accumulate"])
def test_learned_columns_will_do(name: str) -> None:
    for rows in (0, 3):  # of three rows, the lanes have one and two
        with Pipeline(source(Dataset.from_dict("d", {"n": list(range(rows))}, schema=N))).options(
            lanes=2, on_end="pad"
        ) as pipeline:
            added = pipeline.map(lambda record: record) if name == "map" else pipeline.accumulate(list, push)
            found = [batch.to_pylist("n") for batch in added.batch(1)]
        assert found == ([] if rows == 0 else [[0], [1], [0], [2]])


def test_columns_that_nobody_tells_are_refused_at_the_start() -> None:
    said = r"on_end='pad' makes up rows, but passing does not tell what columns it gives: .* method output\(schema\); on_end='drop'"
    adds: list[Callable[[Pipeline], Pipeline]] = [
        lambda p: p.filter(late).apply(Passing()),
        lambda p: p.apply(Passing()).shuffle(4).filter(late),
    ]
    for add in adds:
        with add(padded()).batch(1) as pipeline, pytest.raises(RecipeError, match=said):
            iter(pipeline)
        with add(padded()).batch(1).options(on_end="drop") as pipeline:
            assert list(pipeline) == []


def test_a_function_that_fails_on_the_whole_trial_is_refused_with_what_to_do() -> None:
    with (
        padded().map(lambda record: {"n": record["no"]}).batch(1) as pipeline,
        pytest.raises(RecipeError, match="pass schema= to it"),
    ):
        iter(pipeline)


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (lambda p: p.filter(late, columns=["n", "x"]), "filter: there is no column 'x' here, there are "),
        (lambda p: p.map_batches(dict, columns=["x"], rows=2, schema=N), "map_batches: there is no column 'x' here"),
        (lambda p: p.accumulate(list, push, columns=["x"], schema=N), "accumulate: there is no column 'x' here"),
        (lambda p: p.decode_text(["nn"]), "no column 'nn' here, there are ..n..; did you mean 'n'"),
        (lambda p: p.decode_text(["x"]), "decode_text: there is no column 'x' here"),
        (lambda p: p.tokenize(byte_tokenizer(), field="x"), "tokenize: there is no column 'x' here"),
        (lambda p: p.tokenize(byte_tokenizer(), field="n", keep_columns=["x"]), "tokenize: there is no column 'x' here"),
        (lambda p: p.pack_flat(4), r"pack_flat\(field='input_ids'\): there is no such column, there are \['n'\]"),
        (lambda p: p.pack_flat(4, field="n"), r"pack_flat\(field='n'\): the column is int64, not a list of integers"),
    ],
)
def test_columns_that_an_operator_cannot_take_are_refused_at_the_start(add: Callable[[Pipeline], Pipeline], said: str) -> None:
    mapped = padded().map(lambda record: {"n": record["n"]}, schema=N)
    with add(mapped).batch(1).options(on_end="drop") as pipeline, pytest.raises(RecipeError, match=said):
        iter(pipeline)
