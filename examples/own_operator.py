"""Operators of one's own: a stateless one on Arrow columns, and a state per lane with `accumulate`.

python examples/own_operator.py [texts]
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from made import texts

from zephon_async import Dataset, Operator, Pipeline, StaticMixtureWorkSource
from zephon_async.records import Records


class Capitals(Operator):
    """Begin every text with a capital. Row-wise: what becomes of a row depends on that row alone, so it may run anywhere."""

    name = "capitals"

    def requires(self) -> Mapping[str, str]:
        return {"text": "string"}

    def settings(self) -> Mapping[str, Any]:
        return {"version": 1}  # part of the recipe: raise it when the result changes

    def apply(self, records: Records, tally: Any) -> Records:
        text = records.columns.column("text")
        tally["texts_changed"] += pc.sum(pc.utf8_is_lower(pc.utf8_slice_codeunits(text, 0, 1))).as_py()
        return records.with_columns(pa.record_batch({"text": pc.utf8_capitalize(text)}))


# Join short texts to paragraphs of at least 400 characters. The list is the state of one lane, which sees its rows in order;
# it is flushed at the end of every segment (`flush_every` rows), so nothing of it has to be saved.


def push(held: list[str], record: dict[str, Any]) -> Iterable[dict[str, Any]]:
    held.append(record["text"])
    if sum(map(len, held)) >= 400:
        yield from flush(held)


def flush(held: list[str]) -> Iterable[dict[str, Any]]:
    if held:
        yield {"paragraph": " ".join(held), "texts": len(held)}
        held.clear()


def main(documents: int) -> None:
    source = StaticMixtureWorkSource([Dataset.from_dict("made", {"text": texts(documents, 1)})], {"made": 1}, seed=1)
    types = {"paragraph": pa.string(), "texts": pa.int64()}  # given, so nothing has to be tried out at the start
    with Pipeline(source).apply(Capitals()).accumulate(list, push, flush, schema=types).batch(16) as pipeline:
        for batch in pipeline:
            rows = [document.row for document in batch.documents()[0]]
            print(f"of {batch.columns['texts'][0]} texts, rows {rows}: {batch.to_pylist('paragraph')[0]:.50}...")
        print(dict(pipeline.statistics().counts))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
