"""Small inputs for the tests of operators, and ways to look at what comes out."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from zephon_async.operators.base import Operator, RecordFailed, Tally
from zephon_async.records import CHILD_BITS, ORIGIN, Origins, Records


def made(columns: Mapping[str, Any]) -> Records:
    """Records of columns (Arrow arrays or lists), row i being row i of a shard."""
    batch = pa.RecordBatch.from_pydict(dict(columns))
    origins = np.zeros(batch.num_rows, ORIGIN)
    origins["row"], origins["stop"] = np.arange(batch.num_rows), -1
    return Records(batch, Origins(origins))


def texts(values: Sequence[str | None], name: str = "text") -> Records:
    return made({name: pa.array(values, pa.large_string())})


def placed(records: Records | None) -> list[tuple[dict[str, Any], int, int]]:
    """Every row with the row and part of its origin."""
    if records is None:
        return []
    segments = records.origins.segments
    assert records.origins.offsets is None
    return list(zip(records.columns.to_pylist(), segments["row"].tolist(), segments["part"].tolist(), strict=True))


def run(
    operator: Operator, records: Records, tally: Tally | None = None
) -> tuple[Records | None, int | None, BaseException | None]:
    """Apply either half; gives what came out, the number of the record that failed, and why."""
    tally = Counter() if tally is None else tally
    try:
        if operator.concurrency is None:
            return operator.apply(records, tally), None, None
        return asyncio.run(operator.apply_async(records, tally)), None, None
    except RecordFailed as failed:
        return failed.done, failed.at, failed.__cause__


def expected(
    records: Records, oracle: Callable[[dict[str, Any]], list[dict[str, Any]]], numbered: bool
) -> tuple[list[tuple[dict[str, Any], int, int]], int | None, type[BaseException] | None]:
    """What `placed` and `run` should say, one record at a time. numbered: the outputs of a record are its children."""
    out: list[tuple[dict[str, Any], int, int]] = []
    rows = records.origins.segments
    for at, row in enumerate(records.columns.to_pylist()):
        try:
            results = oracle(row)
        except Exception as error:
            return out, at, type(error)
        for number, result in enumerate(results):
            part = int(rows["part"][at])
            out.append((result, int(rows["row"][at]), part << CHILD_BITS | number if numbered else part))
    return out, None, None


def byte_tokenizer(merges: Sequence[str] = ("th", "he", "in")) -> Tokenizer:
    """A byte-level BPE: byte b is token b, but 256 for byte 0; 0 is <|endoftext|>, 257 is <s>; merges from 300 on."""
    alphabet = byte_characters()
    vocabulary = {alphabet[byte]: byte or 256 for byte in range(256)}
    vocabulary |= {merge: 300 + number for number, merge in enumerate(merges)}
    vocabulary |= {"<|endoftext|>": 0, "<s>": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(merge[0], merge[1:]) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True), AddedToken("<s>", special=True)])
    return tokenizer


def byte_characters() -> list[str]:
    """The character that byte-level BPE writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
