"""The contract of stateless operators, over all of them, against slow oracles that see one record at a time.

apply(a + b) is apply(a) and then apply(b), for any cut; a failure names its record and gives what came of those before; schemas and
counts do not depend on the cut. A new stateless operator is one more line in `CASES`.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made_media import audio, drawn, encoded, tone
from tests.made_rows import byte_tokenizer, expected, made, placed, run
from zephon_async.errors import BadRecord
from zephon_async.operators.base import Operator
from zephon_async.operators.decode_audio import DecodeAudio
from zephon_async.operators.decode_image import DecodeImage
from zephon_async.operators.decode_text import DecodeText
from zephon_async.operators.expand_chat import ExpandChat
from zephon_async.operators.expand_images import ExpandImages
from zephon_async.operators.filter import Filter
from zephon_async.operators.filter_batches import FilterBatches
from zephon_async.operators.filter_length import FilterLength
from zephon_async.operators.filter_regex import FilterRegex
from zephon_async.operators.flat_map import FlatMap
from zephon_async.operators.map import Map
from zephon_async.operators.map_batches import MapBatches
from zephon_async.operators.map_transform import MapTransform
from zephon_async.operators.patch_grid import PatchGrid
from zephon_async.operators.tokenize import Tokenize
from zephon_async.operators.tokenize_chat import TokenizeChat
from zephon_async.operators.tokenize_completion import TokenizeCompletion
from zephon_async.records import Records

BROKEN = 13  # the number on which users' functions fail
ODD = 11  # the number for which they give a value of another type
TOKENIZER = byte_tokenizer()
SHARED = byte_tokenizer()
SHARED.encode_special_tokens = True
NUMBERS = [number for number in range(14) if number != BROKEN]
PICTURES = [drawn(4 + number, 4) for number in NUMBERS]
MEDIA = {  # a file for each number, and of the one that is broken something else
    "image": [*map(encoded, PICTURES), b"broken"],
    "sound": [*(audio(tone(0.01 + number / 1000, 1000), 1000, subtype="FLOAT") for number in NUMBERS), b"broken"],
}


class Broken(Exception):
    pass


def checked(row: dict[str, Any]) -> dict[str, Any]:
    if row["number"] == BROKEN:
        raise Broken
    return row


def change(row: dict[str, Any]) -> dict[str, Any]:
    checked(row)
    return {"text": row["text"], "twice": "odd" if row["number"] == ODD else row["number"] * 2}


async def change_async(row: dict[str, Any]) -> dict[str, Any]:
    return change(row)


def split(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"piece": piece} for piece in range(checked(row)["number"] % 4)] + ([{"piece": "odd"}] if row["number"] == ODD else [])


async def split_async(row: dict[str, Any]) -> list[dict[str, Any]]:
    return split(row)


def keep(row: dict[str, Any]) -> bool:
    return bool(checked(row)["number"] % 3)


def thirds(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row] * (row["number"] % 3 > 0)


def thirds_or_none(row: dict[str, Any]) -> dict[str, Any] | None:
    return change(row) if row["number"] % 3 else None


async def keep_async(row: dict[str, Any]) -> bool:
    return keep(row)


def batch(columns: pa.RecordBatch) -> dict[str, Any]:
    return {"twice": pa.compute.multiply(columns.column("number"), 2), "text": columns.column("text")}


def decoded(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row["raw"] == b"\xff":
        raise BadRecord
    return [row | {"raw": row["raw"].decode().replace("\r\n", "\n").replace("\r", "\n").lower()}]


def fits(row: dict[str, Any], name: str) -> dict[str, Any]:
    if row[name] == "odd":
        raise BadRecord
    return row


def tokens(settings: dict[str, Any]) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """The oracle of Tokenize, for the settings it is given."""
    most, brackets = settings.get("max_length"), settings.get("special_tokens", "eos").split("_")

    def oracle(row: dict[str, Any]) -> list[dict[str, Any]]:
        text = row["text"]
        if text is None:
            if settings["on_null"] == "error":
                raise BadRecord
            text = ""
            if settings["on_null"] == "skip":
                return []
        begin, end = [257] * ("bos" in brackets), [0] * ("eos" in brackets)
        inner = SHARED.encode(text, add_special_tokens=False).ids
        ids, kept = begin + inner + end, {"number": row["number"]}
        if most is None or (len(ids) <= most and settings["on_long"] != "split"):
            return [{"input_ids": ids, **kept}]
        if settings["on_long"] == "error":
            raise BadRecord
        if settings["on_long"] == "drop":
            return []
        if settings["on_long"] == "truncate":
            return [{"input_ids": begin + inner[: most - len(begin) - len(end)] + end, **kept}]
        return [{"input_ids": ids[start : start + most], **kept} for start in range(0, max(1, len(ids)), most)]

    return oracle


class Case(NamedTuple):
    operator: Operator
    oracle: Callable[[dict[str, Any]], list[dict[str, Any]]]
    numbered: bool = False


def supervised(ids: list[int], mask: list[int], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """What becomes of a row of tokens by its settings."""
    most = settings.get("max_length") or len(ids)
    if len(ids) > most and settings["on_long"] != "truncate":
        if settings["on_long"] == "error":
            raise BadRecord
        return []
    if not any(mask[1:most]) and settings["on_no_loss"] != "keep":
        if settings["on_no_loss"] == "error":
            raise BadRecord
        return []
    return [{"input_ids": ids[:most], "loss_mask": mask[:most]}]


def chat(settings: dict[str, Any]) -> Case:
    """The user says the text, and the assistant the number; without a text there is no conversation."""

    def oracle(row: dict[str, Any]) -> list[dict[str, Any]]:
        if row["text"] is None:
            raise BadRecord
        asked, answer = (SHARED.encode(text, add_special_tokens=False).ids for text in (row["text"], str(row["number"])))
        return supervised([257, *asked, 257, *answer], [0] * (len(asked) + 2) + [1] * len(answer), settings)

    template = "{% for m in messages %}<s>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    return Case(
        TokenizeChat(TOKENIZER, chat_template=template + "{% else %}{{ m.content }}{% endif %}{% endfor %}", **settings), oracle
    )


def completion(settings: dict[str, Any]) -> Case:
    def oracle(row: dict[str, Any]) -> list[dict[str, Any]]:
        if row["text"] is None:
            raise BadRecord
        ids = SHARED.encode(row["text"] + row["text"], add_special_tokens=False)
        mask = [int(stop > len(row["text"])) for _, stop in ids.offsets]
        return supervised([*ids.ids, 0], [*mask, 1], settings)

    return Case(TokenizeCompletion(TOKENIZER, prompt_field="text", completion_field="text", **settings), oracle)


def expanded(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row["messages"] is None:
        raise BadRecord
    return [row]


def tensor(row: dict[str, Any], name: str, array: Any, shape: list[int]) -> list[dict[str, Any]]:
    """The row with the tensor of its file."""
    if row[name] == b"broken":
        raise BadRecord
    return [{**row, "out": {"data": array.reshape(-1).tolist(), "shape": shape}}]


def decoded_image(row: dict[str, Any]) -> list[dict[str, Any]]:
    return tensor(row, "image", PICTURES[min(row["number"], 12)], [4 + row["number"], 4, 3])


def decoded_audio(row: dict[str, Any]) -> list[dict[str, Any]]:
    return tensor(row, "sound", tone(0.01 + row["number"] / 1000, 1000), [10 + row["number"]])


def expanded_image(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row["image"] == b"broken":
        raise BadRecord
    rows, columns = PatchGrid(2, 1, 16, 64).patches(4 + row["number"], 4)
    return [{**row, "ids": [1, *[7] * (rows * columns)], "image_grid": [[rows, columns]]}]


def tokenizing(settings: dict[str, Any]) -> Case:
    operator = Tokenize(TOKENIZER, field="text", keep_columns=["number"], **settings)
    return Case(operator, tokens(settings), "max_length" in settings and settings["on_long"] == "split")


MAP_TYPES = {"text": pa.string(), "twice": pa.int64()}
SETTINGS = st.fixed_dictionaries(
    {
        "on_null": st.sampled_from(["error", "skip", "empty"]),
        "on_long": st.sampled_from(["split", "truncate", "drop", "error"]),
        "special_tokens": st.sampled_from(["eos", "bos", "bos_eos", "none"]),
    },
    optional={"max_length": st.integers(3, 9)},
)
MASKED = st.fixed_dictionaries(
    {
        "on_long": st.sampled_from(["truncate", "drop", "error"]),
        "on_no_loss": st.sampled_from(["drop", "keep", "error"]),
    },
    optional={"max_length": st.integers(3, 9)},
)
CASES: dict[str, st.SearchStrategy[Case]] = {
    "map": st.just(Case(Map(change, schema=MAP_TYPES), lambda row: [fits(change(row), "twice")])),
    "map async": st.just(Case(Map(change_async, schema=MAP_TYPES, concurrency=3), lambda row: [fits(change(row), "twice")])),
    "flat_map": st.just(
        Case(FlatMap(split, schema={"piece": pa.int8()}), lambda row: [fits(r, "piece") for r in split(row)], True)
    ),
    "flat_map async": st.just(
        Case(FlatMap(split_async, schema={"piece": pa.int8()}), lambda row: [fits(r, "piece") for r in split(row)], True)
    ),
    "filter": st.just(Case(Filter(keep, columns=["number"]), lambda row: [row] * keep(row))),
    "filter async": st.just(Case(Filter(keep_async), lambda row: [row] * keep(row))),
    "filter_batches": st.just(
        Case(FilterBatches(lambda columns: [n % 3 > 0 for n in columns.column(0).to_pylist()], columns=["number"]), thirds)
    ),
    "filter_length": st.tuples(st.integers(0, 3), st.integers(3, 9)).map(
        lambda ends: Case(
            FilterLength("text", min=ends[0], max=ends[1]),
            lambda row: [row] * (row["text"] is not None and ends[0] <= len(row["text"]) <= ends[1]),
        )
    ),
    "filter_regex": st.booleans().map(
        lambda keep: Case(
            FilterRegex("text", "^[the]+ ?", keep=keep), lambda row: [row] * (bool(re.match("[the]", row["text"] or "")) is keep)
        )
    ),
    "map_transform": st.just(
        Case(MapTransform(thirds_or_none, schema=MAP_TYPES), lambda row: [fits(change(row), "twice")] * (row["number"] % 3 > 0))
    ),
    "map_batches": st.just(
        Case(MapBatches(batch, schema=MAP_TYPES), lambda row: [{"text": row["text"], "twice": row["number"] * 2}])
    ),
    "decode_text": st.just(Case(DecodeText(["raw"], lowercase=True), decoded)),
    "decode_image": st.just(Case(DecodeImage("image", field_out="out"), decoded_image)),
    "decode_audio": st.just(Case(DecodeAudio("sound", rate=1000, field_out="out"), decoded_audio)),
    "expand_images": st.just(
        Case(ExpandImages("image", placeholder=7, tokens="ids", grid=PatchGrid(2, 1, 16, 64)), expanded_image)
    ),
    "tokenize": SETTINGS.map(tokenizing),
    "tokenize_chat": MASKED.map(chat),
    "tokenize_completion": MASKED.map(completion),
    "expand_chat": st.just(Case(ExpandChat(), expanded, True)),
}
TEXT = st.one_of(st.none(), st.text(st.sampled_from("thein A\u00e9\n"), max_size=14), st.sampled_from(["<|endoftext|>", "<s>x"]))
RAW = st.one_of(st.sampled_from([b"A\r\n", b"\rb", "\u00c9t\u00e9".encode()] * 3 + [b"\xff"]))
ROWS = st.lists(st.tuples(TEXT, st.integers(0, 13), RAW), max_size=20)
each = pytest.mark.parametrize("name", CASES)


def records_of(rows: list[tuple[str | None, int, bytes]]) -> Records:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    kinds = {"text": pa.large_string(), "number": pa.int64(), "raw": pa.large_binary()}
    conversations = [
        None if text is None else [{"role": "user", "content": text}, {"role": "assistant", "content": str(number)}]
        for text, number, _ in rows
    ]
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    plain = {name: pa.array(values, kind) for values, (name, kind) in zip(columns, kinds.items(), strict=True)}
    media = {name: pa.array([files[number] for number in columns[1]], pa.binary()) for name, files in MEDIA.items()}
    ids = pa.array([[1, 7]] * len(rows), pa.list_(pa.int32()))
    return made({**plain, "messages": pa.array(conversations, kind), **media, "ids": ids})


@each
@given(rows=ROWS, chosen=st.data())
def test_as_the_oracle_says(name: str, rows: list[tuple[str | None, int, bytes]], chosen: st.DataObject) -> None:
    case = chosen.draw(CASES[name])
    records = records_of(rows)
    out, at, cause = run(case.operator, records)
    wanted, wanted_at, wanted_cause = expected(records, case.oracle, case.numbered)
    assert (placed(out), at) == (wanted, wanted_at)
    assert out is None or out.columns.schema.equals(case.operator.output(records.columns.schema), check_metadata=True)
    assert wanted_cause is None or isinstance(cause, wanted_cause)


@each
@given(rows=ROWS, cut=st.integers(0, 20), chosen=st.data())
def test_row_wise_for_any_cut(name: str, rows: list[tuple[str | None, int, bytes]], cut: int, chosen: st.DataObject) -> None:
    case = chosen.draw(CASES[name])
    records = records_of([row for row in rows if row[1] not in (BROKEN, ODD) and row[2] != b"\xff"])
    cut = min(cut, len(records))
    tally, tallies = Counter[str](), Counter[str]()
    out, at, _ = run(case.operator, records, tally)
    if at is not None:
        return  # what is before a failure is what the test above is about
    pieces = [run(case.operator, records.slice(*ends), tallies)[0] for ends in ((0, cut), (cut, len(records)))]
    assert placed(out) == [row for piece in pieces for row in placed(piece)]
    assert tally == tallies
    assert all(piece is not None and out is not None and piece.columns.schema.equals(out.columns.schema, True) for piece in pieces)
