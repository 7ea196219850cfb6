"""A column that an operator requires is there and can be of its kind, or the run does not start; so too behind operators that keep
columns."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.taken import batches, column, counted, ids_of, in_order, letters, said
from zephon_async import Dataset, DatasetError, Operator, Pipeline, RecipeError
from zephon_async.records import Records

ROWS = {"text": ["a", "b"], "raw": [b"a", b"b"], "n": [1, 2], "ids": [[1, 2], [3]]}
Step = Callable[[Any], Pipeline]


def odd(record: dict[str, Any]) -> bool:
    return True


BEFORE: dict[str, Step] = {
    "nothing": lambda p: p,
    "filter": lambda p: p.filter(odd),
    "filter of a column": lambda p: p.filter(odd, columns=["n"]),
    "shuffle": lambda p: p.shuffle(2),
    "several": lambda p: p.shuffle(2).filter(odd, columns=["n", "text"]).decode_text(["raw"]),
}
WRONG: list[tuple[Step, str]] = [
    (lambda p: p.pack_flat(4, field="text"), "column 'text' is large_string, and pack_flat needs a list of integers; put tokenize"),
    (
        lambda p: p.pack_flat(4, field="n"),
        "column 'n' is int64, and pack_flat needs a list of integers; name a column of token ids",
    ),
    (lambda p: p.tokenize(letters(), field="n"), "column 'n' is int64, and tokenize needs text"),
    (lambda p: p.tokenize(letters(), field="ids"), "column 'ids' is list<item: int64>, and tokenize needs text; name a column"),
    (lambda p: p.decode_text(["n"]), "column 'n' is int64, and decode_text needs text or bytes; name a column of text or bytes"),
    (
        lambda p: p.filter(odd, columns=["ids"]).decode_text(["ids"]),
        "column 'ids' is list<item: int64>, and decode_text needs text",
    ),
]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(("step", "words"), WRONG, ids=[words for _, words in WRONG])
@pytest.mark.parametrize("bad", ["raise", "quarantine"])
def test_what_a_column_cannot_be_is_said_at_the_start(before: str, step: Step, words: str, bad: str) -> None:
    made = Dataset.from_dict("d", ROWS)
    pipeline = step(BEFORE[before](Pipeline(in_order(made)).options(on_bad_record=bad))).batch(1)
    with pipeline, pytest.raises(DatasetError) as caught:
        pipeline.explain()
    assert f"dataset 'd', shard '0': {words}" in str(caught.value)


def test_bytes_for_text() -> None:
    words = "column 'raw' is large_binary, and tokenize needs text; put decode_text before it"
    made = Dataset.from_dict("d", ROWS)
    assert words in said(Pipeline(in_order(made)).tokenize(letters(), field="raw").batch(1), DatasetError)
    pipeline = Pipeline(in_order(made)).filter(odd, columns=["raw"]).tokenize(letters(), field="raw").batch(1)
    assert words in said(pipeline, DatasetError)
    pipeline = Pipeline(in_order(made)).decode_text(["raw"]).tokenize(letters(), field="raw").batch(1)
    assert column(batches(pipeline), "input_ids") == [ids_of("a"), ids_of("b")]


def test_the_dataset_of_a_mixture_that_has_it_otherwise_is_named() -> None:
    good, bad = Dataset.from_dict("good", {"text": ["a"]}), Dataset.from_dict("bad", {"text": [1]})
    pipeline = Pipeline(in_order(good, bad)).tokenize(letters(), field="text").batch(1)
    assert "dataset 'bad', shard '0': column 'text' is int64" in said(pipeline, DatasetError)


def test_a_column_that_is_not_there_may_have_been_meant_otherwise() -> None:
    made = Dataset.from_dict("d", ROWS)
    message = said(Pipeline(in_order(made)).filter(odd).shuffle(2).tokenize(letters(), field="texts").batch(1), DatasetError)
    assert "there is no column 'texts' in shard '0', and tokenize needs it; columns seen: " in message
    assert message.endswith("; did you mean 'text'?")


class Keeps(Operator):
    """Requires a column and keeps all."""

    keeps_columns = True

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind

    def apply(self, records: Records, tally: Any) -> Records:
        return records

    def requires(self) -> dict[str, str]:
        return {"text": self.kind}


def test_two_operators_that_take_a_column_as_two_kinds() -> None:
    for kinds in (("string", "integers"), ("integers", "string"), ("text", "integers")):
        pipeline = Pipeline(in_order(Dataset.from_dict("d", ROWS)))
        for kind in kinds:
            pipeline.apply(Keeps(f"a_{kind}", kind))
        with pytest.raises(RecipeError, match=f"a_{kinds[0]} and a_{kinds[1]} both take column 'text'"):
            pipeline.batch(1).explain()


def test_two_operators_that_take_a_column_as_one_kind() -> None:
    for kinds in (("any", "string"), ("string", "any"), ("text", "string"), ("string", "string"), ("any", "any")):
        pipeline = Pipeline(in_order(Dataset.from_dict("d", ROWS)))
        for kind in kinds:
            pipeline.apply(Keeps(kind, kind))
        found, counts = counted(pipeline.batch(1))
        assert (column(found, "text"), counts) == (["a", "b"], {})


@pytest.mark.parametrize(
    ("required", "said"),
    [
        (
            {"id": "str"},
            "own: requires() wants a kind for column 'id' that is 'str': it must be one of 'string', 'integers', 'text', 'any'",
        ),
        ({"text": "str"}, "own: requires() wants a kind for column 'text' that is 'str': it must be one of"),
        ({"text": None}, "own: requires() wants a kind for column 'text' that is None: it must be one of"),
        (["text"], "own: requires() gave ['text'], wanted a dict of kinds by the names of columns, such as {'text': 'string'}"),
        ({1: "any"}, "own: requires() gave {1: 'any'}, wanted a dict"),
        (None, "own: requires() gave None, wanted a dict"),
    ],
)
def test_an_operator_of_ones_own_that_requires_what_there_is_not(required: Any, said: str) -> None:
    class Own(Keeps):
        def requires(self) -> Any:
            return required

    pipeline = Pipeline(in_order(Dataset.from_dict("d", {"text": ["a"], "id": [1]}))).apply(Own("own", "any"))
    with pytest.raises(RecipeError, match=re.escape(said)):
        pipeline.batch(1).explain()
