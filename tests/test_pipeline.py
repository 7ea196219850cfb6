"""The face refuses what cannot be meant where it is written, and says what to write."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.numbered import source
from tests.taken import in_order, letters
from zephon_async import CheckpointError, Dataset, Operator, Options, Pipeline, RecipeError, inspect_checkpoint
from zephon_async.operators import Map
from zephon_async.records import Records

MADE = Dataset.from_dict("d", {"text": ["a", "b", "c", "d"]})


def pipeline() -> Any:
    return Pipeline(in_order(MADE))


def said(call: Any, *given: Any, **settings: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        call(*given, **settings)
    return str(caught.value)


class Nothing(Operator):
    name = "nothing"

    def apply(self, records: Records, tally: Any) -> Records:
        return records


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("apply", (3,), {}, "apply() takes an operator, an instance such as apply(YourOperator()), not 3"),
    ("apply", (Nothing,), {}, "an instance such as apply(YourOperator()), not <class"),
    ("apply", (), {}, "apply() needs operator="),
    ("apply", (Operator(),), {}, "overrides neither apply nor accumulator"),
    ("tokenize", (letters(),), {"fild": "text"}, "tokenize() knows no 'fild'; did you mean 'field'?"),
    ("tokenize", (letters(),), {}, "tokenize() needs field="),
    ("tokenize", (letters(),), {"column": "text"}, "tokenize() knows no 'column'; did you mean 'field'?"),
    ("tokenize", (letters(),), {"text_column": "text"}, "tokenize() knows no 'text_column'; did you mean 'field'?"),
    ("tokenize", (letters(),), {"text_field": "text"}, "tokenize() knows no 'text_field'; did you mean 'field'?"),
    ("map", (repr,), {"chunk": 3}, "map() knows no 'chunk'; there are: columns, concurrency, fn, parallelism, schema, version"),
    ("map", (repr,), {"num_workers": 3}, "map() knows no 'num_workers'; here it is options(workers=...)"),
    ("map", (repr, 3), {}, "map(): too many positional arguments"),
    ("map", (), {}, "map() needs fn="),
    ("filter", (bool,), {"column": ["text"]}, "filter() knows no 'column'; did you mean 'columns'?"),
    ("flat_map", (list,), {"schemas": {}}, "flat_map() knows no 'schemas'; did you mean 'schema'?"),
    ("map_batches", (repr,), {"row": 3}, "map_batches() knows no 'row'; did you mean 'rows'?"),
    ("map_batches", (repr,), {"batch_size": 3}, "map_batches() knows no 'batch_size'; here it is batch(microbatch_size=...)"),
    ("decode_text", (), {"encodings": "utf-8"}, "decode_text() knows no 'encodings'; did you mean 'encoding'?"),
    ("shuffle", (), {"buffer": 3}, "shuffle() knows no 'buffer'; did you mean 'buffer_size'?"),
    ("pack_flat", (8,), {"algoritm": "wrap"}, "pack_flat() knows no 'algoritm'; did you mean 'algorithm'?"),
    ("pack_flat", (), {"algorithm": "wrap"}, "pack_flat() needs max_length="),
    ("pack_flat", (), {"max_len": 4}, "pack_flat() knows no 'max_len'; did you mean 'max_length'?"),
    ("pack_flat", (), {"pad_id": 0, "seq_length": 4}, "pack_flat() knows no 'seq_length'; did you mean 'max_length'?"),
    ("accumulate", (list,), {}, "accumulate() needs push="),
    ("accumulate", (list, repr), {"schem": 3}, "accumulate() knows no 'schem'; did you mean 'schema'?"),
    ("batch", (), {}, "batch() needs microbatch_size="),
    ("batch", (), {"batch_size": 3}, "batch() knows no 'batch_size'; here it is batch(microbatch_size=...)"),
    ("batch", (True,), {}, "microbatch_size is True: it must be a whole number of at least 1"),
    ("batch", (0,), {}, "microbatch_size is 0"),
    ("options", (3,), {}, "options(): too many positional arguments; it takes settings by name"),
    ("options", (), {"lane": 3}, "options() knows no 'lane'; did you mean 'lanes'?"),
    ("options", (), {"num_workers": 4}, "options() knows no 'num_workers'; here it is options(workers=...)"),
    ("options", (), {"batch_size": 4}, "here it is batch(microbatch_size=...)"),
    ("options", (), {"world_size": 4}, "here it is options(dp_size=...)"),
    ("options", (), {"rank": 4}, "here it is options(dp_rank=...)"),
    ("options", (), {"prefetch_factor": 4}, "here it is options(prefetch=...)"),
    ("options", (), {"lanes": 1, "canonical_replicas": 1}, "'canonical_replicas' is another name of it"),
    ("options", (), {"dp_rank": True}, "dp_rank is True: it must be a whole number of at least 0"),
    ("options", (), {"dp_rank": -1}, "dp_rank is -1"),
    ("options", (), {"dp_size": None}, "dp_size is None: it must be a whole number of at least 1"),
    ("options", (), {"lanes": 1.0}, "lanes is 1.0"),
    ("options", (), {"prefetch": 0}, "prefetch is 0"),
    ("options", (), {"max_bad": -5}, "max_bad is -5: it must be a whole number of at least 0"),
    ("options", (), {"io_options": 3}, "io_options is 3: it must be a dict of settings"),
    ("options", (), {"version": 3.5}, "version is 3.5: it must be a text or a whole number"),
    ("options", (), {"version": "\ud800"}, r"version is '\ud800': it cannot be written as UTF-8"),
    ("map", (repr,), {"version": "\ud800"}, r"map: version is '\ud800': it cannot be written as UTF-8"),
    ("options", (), {"agree": 3}, "agree is 3: it must be a plain function"),
    ("options", (), {"memory_budget": 1.5}, "memory_budget is 1.5: give bytes as a positive whole number, or text such as '2GiB'"),
    ("options", (), {"memory_budget": "2 gigs"}, "memory_budget is '2 gigs'"),
    ("options", (), {"on_bad_record": "error"}, "on_bad_record is 'error': it must be one of 'raise', 'quarantine'"),
    ("options", (), {"runner": []}, "runner is []: it must be one of 'auto', 'threads', 'processes', 'inline'"),
    ("options", (), {"on_end": []}, "on_end is []: it must be one of 'drop', 'pad'"),
]


@pytest.mark.parametrize(("method", "given", "settings", "words"), CALLS, ids=[f"{c[0]}: {c[3]}" for c in CALLS])
def test_calls_that_cannot_be_meant(method: str, given: tuple[Any, ...], settings: dict[str, Any], words: str) -> None:
    assert words in said(getattr(pipeline(), method), *given, **settings)


def test_what_is_no_source() -> None:
    anything: Any = Pipeline
    for wrong in (3, None, "data/", MADE, type(in_order(MADE)), [MADE]):
        assert "Pipeline() takes a work source, such as StaticMixtureWorkSource(" in said(anything, wrong)
    assert said(anything) == "Pipeline() needs source="


def test_what_is_no_dataset() -> None:
    anything: Any = Dataset
    made = "Dataset() itself is not for users; make one with Dataset.from_path(name, path), Dataset.from_dict or Dataset.from_arrow"
    assert said(anything, "wiki", "data/wiki") == said(anything, "wiki", path="data/wiki") == said(anything) == made
    assert said(Dataset.from_dict, "\ud800", {"n": [1]}).startswith(r"the name of a dataset is '\ud800': it cannot be written")


def test_columns_that_are_kept_for_nothing_are_told(caplog: pytest.LogCaptureFixture) -> None:
    data = Dataset.from_dict("d", {"text": ["a"] * 4, "id": list(range(4)), "url": ["b"] * 4})

    def begun(*names: str) -> Any:
        return Pipeline(in_order(data)).tokenize(letters(), field="text", keep_columns=names)

    for used in (begun("id").shuffle(2), begun("id").map(dict), begun("id").filter(bool, columns=["id"]).shuffle(2)):
        used.batch(1).explain()
    begun().pack_flat(2).batch(1).explain()
    assert caplog.messages == []
    with begun("id", "url").filter(lambda row: row["id"] < 9, columns=["id"]).shuffle(2).pack_flat(2).batch(1) as packed:
        list(packed)
        list(packed)
    told = "tokenize(keep_columns=...) keeps 'url', but no later operator uses it or passes it on; it is read in vain"
    assert [message.startswith(told) for message in caplog.messages] == [True]


def test_an_agreement_that_is_a_coroutine() -> None:
    async def agree(step: int) -> int:
        return step

    assert "it must be a plain function" in said(Options, agree=agree)


def test_numbers_of_numpy_are_numbers() -> None:
    options = Options(lanes=np.int64(4), dp_size=np.int8(2))  # type: ignore[arg-type]
    assert (type(options.lanes), options) == (int, Options(lanes=4, dp_size=2))
    with pipeline().options(lanes=np.int64(2), version=2, max_bad=0).batch(np.int64(1)) as started:
        assert inspect_checkpoint(started.checkpoint()).lanes == 2


def test_settings_that_go_together_may_come_in_any_order() -> None:
    settings = {"lanes": 2, "dp_size": 2, "dp_rank": 1, "agree": max}
    for names in (list(settings), list(settings)[::-1]):
        built = pipeline()
        for name in names:
            built.options(**{name: settings[name]})
        with built.batch(1):
            assert "rank 1 of 2" in built.explain()


def test_what_two_settings_must_be_together_is_said_at_the_start() -> None:
    def start(**settings: Any) -> Any:
        return pipeline().options(agree=max, **settings).batch(1).explain

    assert said(start(lanes=2, dp_size=2, dp_rank=2)) == "dp_rank is 2: with dp_size=2 it must be from 0 to 1"
    assert said(start(dp_rank=1)) == "dp_rank is 1: with dp_size=1 it must be from 0 to 0"
    assert "lanes must be given when dp_size is 2" in said(start(dp_size=2))
    assert "cannot be shared evenly by dp_size=3 ranks" in said(start(lanes=2, dp_size=3))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Path("state.bin"), "not a path (PosixPath('state.bin')): read the file and give its bytes"),
        ("state.bin", "not a path ('state.bin'): read the file and give its bytes"),
        (b"", "restore() was given an empty checkpoint, of 0 bytes"),
        (bytearray(), "restore() was given an empty checkpoint, of 0 bytes"),
        (b"ck", "these 2 bytes are no checkpoint"),
        ([], "restore() was given no state"),
        (iter([]), "restore() was given no state"),
        (3, "or a list of those of all ranks, not 3"),
        (None, "or a list of those of all ranks, not None"),
        ([3], "a checkpoint is bytes, not int"),
        ([b""], "restore() was given an empty checkpoint, of 0 bytes"),
        (["state.bin"], "not a path ('state.bin'): read the file and give its bytes"),
        ([b"ck", Path("state.bin")], "not a path (PosixPath('state.bin')): read the file and give its bytes"),
    ],
)
def test_what_is_no_state(state: Any, words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        pipeline().batch(1).restore(state)
    assert words in str(caught.value)
    with pytest.raises(CheckpointError) as caught:
        inspect_checkpoint(state)
    assert ("read the file and give its bytes" in str(caught.value)) == isinstance(state, Path | str)


def test_restore_with_settings_that_there_are_not() -> None:
    with pipeline().batch(1) as started:
        state = started.checkpoint()
        assert said(started.restore, state, partial_step="unevn") == "partial_step is 'unevn': it must be one of 'refuse', 'uneven'"
        assert said(started.restore, state, partial="uneven") == "restore() knows no 'partial'; did you mean 'partial_step'?"
        assert started.restore(bytearray(state)) is started.restore(memoryview(state)) is started.restore(iter([state]))
    any_inspect: Any = inspect_checkpoint
    assert said(any_inspect) == "inspect_checkpoint() needs state="


def test_an_operator_in_two_pipelines_learns_for_each_of_them() -> None:
    """What one learns at its start must not change what another that runs gives."""
    same = Map(lambda record: {"n": record["n"]})
    whole, half = (
        Pipeline(source(Dataset.from_dict("d", {"n": values}))).apply(same).batch(1) for values in ([1, 2, 3], [0.5, 1.5])
    )
    with whole, half:
        batches = iter(whole)
        first = next(batches)
        assert [batch.columns["n"].dtype for batch in half] == [np.float64] * 2
        assert [batch.columns["n"].dtype for batch in (first, *batches)] == [np.int64] * 3
