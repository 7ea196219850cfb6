"""Row blocks of record batches: of every spelling the right rows, which hold no more than themselves; broken bytes kill nothing."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pytest

from tests.whole import block_numbers, ones, schema_of, whole
from zephon_async.errors import DatasetError
from zephon_async.io import Dataset, Reader

ROWS = 300
TEXTS = [None if n % 7 == 3 else f"{n} äß" * (n % 5 + 1) for n in range(ROWS)]
NESTED = [[text, text] if text else [] for text in TEXTS]


def columns() -> dict[str, pa.Array]:
    """The same texts in every spelling, alone and inside of others."""
    return {
        "string": pa.array(TEXTS),
        "large": pa.array(TEXTS, pa.large_string()),
        "view": pa.array(TEXTS, pa.string_view()),
        "binary": pa.array([text and text.encode() for text in TEXTS]),
        "dictionary": pa.array(TEXTS).dictionary_encode(),
        "runs": pc.run_end_encode(pa.array(TEXTS)),
        "number": pa.array(range(ROWS)),
        "list": pa.array(NESTED),
        "of views": pa.array(NESTED, pa.large_list(pa.string_view())),
        "list view": pa.array(NESTED, pa.list_view(pa.string())),
        "fixed": pa.array([[n, n] for n in range(ROWS)], pa.list_(pa.int32(), 2)),
        "deep": pa.array([[{"a": [text]}, None] for text in TEXTS]),
    }


def written(folder: Path, names: list[str]) -> Path:
    table = pa.table({name: column for name, column in columns().items() if name in names})
    with pyarrow.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    return folder / "a.arrow"


@pytest.mark.parametrize("name", columns())
def test_row_blocks_are_their_own(name: str, tmp_path: Path) -> None:
    written(tmp_path, [name])
    dataset = Dataset.from_path("d", tmp_path).with_sizes(block_bytes=600)
    reader = Reader([dataset], schema_of(dataset), ones)
    blocks = [reader.read(0, *number) for number in block_numbers(dataset.catalog())]
    assert len(blocks) > 2
    assert [row for block in blocks for row in block.columns.column(name).to_pylist()] == columns()[name].to_pylist()
    for block in blocks:
        block.columns.validate(full=True)
        assert block.columns.get_total_buffer_size() < 2 * block.columns.nbytes + 500
    reader.close()


@pytest.mark.parametrize(
    "names", [["string", "binary"], ["list", "of views"], ["deep", "runs"], ["list view", "dictionary"]], ids=str
)
def test_a_broken_byte_of_what_is_inside_kills_nothing(names: list[str], tmp_path: Path) -> None:
    path, chance, errors = written(tmp_path, names), random.Random(1), 0
    good = path.read_bytes()
    for _ in range(150):
        at = chance.randrange(len(good) // 8, len(good))  # behind the schema
        path.write_bytes(good[:at] + bytes([chance.randrange(256)]) * 2 + good[at + 2 :])
        try:
            found: Any = whole(Dataset.from_path("d", path).with_sizes(block_bytes=600))
        except DatasetError:
            errors += 1
        else:
            assert len(found.rows) + len(found.bad) >= ROWS
    assert errors
