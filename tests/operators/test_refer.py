"""`refer`: the same values, which are copied no more."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.taken import batches, column, in_order
from zephon_async import Dataset, Pipeline, RecipeError
from zephon_async.operators import Refer
from zephon_async.records import ORIGIN, Origins, Records

IMAGES = [b"x" * 100, None, b"short", b"y" * 50, b""]


def records(**columns: pa.Array) -> Records:
    return Records(pa.RecordBatch.from_pydict(columns), Origins(np.zeros(len(next(iter(columns.values()))), ORIGIN)))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_values_stay_where_they_are(kind: pa.DataType) -> None:
    image = pa.array(IMAGES, kind)
    lists = pa.array([IMAGES, [], None, IMAGES[:1], [None]], pa.list_(kind))
    large, n = lists.cast(pa.large_list(kind)), pa.array(range(5), pa.int64())
    taken = records(image=image, n=n, lists=lists, large=large).slice(1, 5)
    operator, schema = Refer(["image", "lists", "large"]), taken.columns.schema
    given = operator.apply(taken, Counter())
    assert given.columns.schema.equals(operator.output(schema), check_metadata=True)
    assert given.columns.schema.types == [pa.binary_view(), pa.int64(), pa.list_(pa.binary_view()), pa.large_list(pa.binary_view())]
    assert given.columns.to_pylist() == taken.columns.to_pylist()
    begins, ends = (end(b.address + at * b.size for b in image.buffers()[2:]) for end, at in ((min, 0), (max, 1)))
    assert all(begins <= buffer.address < ends for buffer in given.columns.column("image").buffers()[2:])
    again = operator.apply(given, Counter())
    assert again.columns.equals(given.columns)
    none = taken.slice(0, 0)
    assert len(operator.apply(none, Counter())) == 0


def test_what_is_no_bytes_is_refused() -> None:
    for kind in (pa.large_string(), pa.list_(pa.int8()), pa.list_(pa.list_(pa.binary())), pa.binary(5)):
        with pytest.raises(RecipeError, match=r"column 'image' is .*, not bytes or lists of bytes"):
            Refer().output(pa.schema([("image", kind)]))
    with pytest.raises(RecipeError, match="there is no column 'image' here"):
        Refer().output(pa.schema([("picture", pa.binary())]))
    made = Dataset.from_dict("d", {"image": ["text"], "n": [1]})
    with pytest.raises(RecipeError, match="column 'image' is"):
        batches(Pipeline(in_order(made)).refer().batch(1))


def test_functions_get_bytes_and_filters_keep_rows() -> None:
    rows: dict[str, list[Any]] = {"image": [bytes([n]) * (n + 5) for n in range(40)], "n": list(range(40))}

    def pipeline() -> Pipeline:
        return Pipeline(in_order(Dataset.from_dict("d", rows))).options(chunk_rows=7).refer()

    kept = batches(pipeline().filter(lambda row: row["image"][0] % 3 == 0).shuffle(5, seed=1).batch(1))
    assert sorted(column(kept, "image")) == rows["image"][::3]
    assert kept[0].records.columns.column("image").type == pa.binary_view()
    twice = batches(pipeline().flat_map(lambda row: [row] * (row["n"] % 3)).batch(1))
    assert column(twice, "image") == [image for n, image in enumerate(rows["image"]) for _ in range(n % 3)]
