"""A format whose datasets are stores of their own, as a third party would write one."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.whole import whole
from zephon_async.errors import DatasetError
from zephon_async.io import Dataset, formats
from zephon_async.io.formats import Decoder, Format, Measure, UnitSpan
from zephon_async.io.formats.memory import MemoryFormat
from zephon_async.io.pool import Pool
from zephon_async.io.stores import MemoryStore, Source, Store


class Tables(Format):
    """Folders that end in .tables; how many tables there are is in an option, and "-" stands for none of its own."""

    name = "tables"
    suffixes = (".tables",)
    typed = True

    def store(self, path: str, options: Mapping[str, Any]) -> Store | None:
        if path.endswith("-"):
            return None
        return MemoryStore({f"t{n}": pa.table({"n": [10 * n, 10 * n + 1]}) for n in range(options.get("tables", 1))})

    def measure(self, total_bytes: int) -> Measure:
        return "rows"

    def units(self, source: Source, measure: Measure, unit_bytes: int, block_bytes: int) -> Sequence[UnitSpan]:
        return MemoryFormat().units(source, measure, unit_bytes, block_bytes)

    def look(self, source: Source, unit: Any, block_bytes: int, columns: Collection[str] | None) -> pa.Schema:
        return MemoryFormat().look(source, unit, block_bytes, columns)

    def decoder(self, schema: pa.Schema, required: Collection[str], pool: Pool) -> Decoder:
        return MemoryFormat().decoder(schema, required, pool)


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_foreign", lambda: {"tables": Tables()})


@pytest.mark.parametrize("path", ["nowhere.tables", "nowhere.tables/", "s3://bucket/nowhere.TABLES"])
def test_the_ending_of_a_path_tells(path: str) -> None:
    dataset = Dataset.from_path("d", path, storage_options={"tables": 2})
    assert (dataset.format, [shard.name for shard in dataset.shards], dataset.ignored) == ("tables", ["t0", "t1"], ())
    assert whole(dataset).column("n") == [0, 1, 10, 11]


def test_the_format_may_be_said(tmp_path: Path) -> None:
    assert whole(Dataset.from_path("d", tmp_path / "any", format="tables")).column("n") == [0, 1]
    with pytest.raises(DatasetError, match="does not exist"):
        Dataset.from_path("d", tmp_path / "any")


def test_none_of_its_own(tmp_path: Path) -> None:
    """Then its shards are files like all others."""
    folder = tmp_path / "a-"
    folder.mkdir()
    (folder / "x.tables").touch()
    (folder / "x.unknown").touch()
    dataset = Dataset.from_path("d", folder, format="tables")
    assert ([shard.name for shard in dataset.shards], dataset.ignored) == (["x.tables"], ("x.unknown",))
