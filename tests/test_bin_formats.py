"""Formats of `.bin` files through the whole pipeline: from far away and over lanes, rows and their order are those of the files."""

from pathlib import Path

import pytest

from tests.system.fake_s3 import FakeS3
from tests.taken import batches, column, in_order
from tests.writers import WRITERS, Row, Writer
from zephon_async import Dataset, Pipeline

ROWS: list[Row] = [
    {"id": n, "text": f"row {n} " * (n % 4), "score": n / 4, "input_ids": list(range(n, n + n % 6)), "flag": n % 2 == 0}
    for n in range(300)
]


def tokens(dataset: Dataset, lanes: int) -> list[list[int]]:
    pipeline = Pipeline(in_order(dataset)).options(lanes=lanes).pack_flat(16, field="input_ids").batch(2)
    return column(batches(pipeline), "input_ids")


@pytest.mark.parametrize("writer", [one for one in WRITERS if one.suffix.endswith(".bin")], ids=str)
def test_near_and_far_and_over_lanes(writer: Writer, tmp_path: Path) -> None:
    writer.write(tmp_path, {"a": ROWS[:120], "c/d": ROWS[120:]})
    near = Dataset.from_path("d", tmp_path, unit_bytes=2000, block_bytes=500)
    assert near.ignored == (), "what must lie beside a shard is not ignored"
    right = [token for row in ROWS for token in row["input_ids"]]
    laid = [token for row in tokens(near, 1) for token in row]
    assert (laid, len(laid)) == (right[: len(laid)], len(right) // 32 * 32)  # a batch that is not full is left out
    with FakeS3() as store:
        for path in tmp_path.rglob("*"):
            if path.is_file():
                store.put(f"x/{path.relative_to(tmp_path).as_posix()}", path.read_bytes())
        far = Dataset.from_path("d", f"{store.root}x", storage_options=store.options, unit_bytes=2000, block_bytes=500)
        for lanes in (1, 4):
            assert tokens(far, lanes) == tokens(near, lanes)
