"""Rows given as Python values or Arrow tables, made into one table per shard.

Columns are typed by all their values. Nested values other than lists of whole numbers become JSON text, as in JSON lines, so that
a record comes back as it was written, without the nulls of its neighbours. What Arrow cannot hold in one column is an error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from zephon_async.checks import shown
from zephon_async.errors import RecipeError
from zephon_async.kinds import json_field
from zephon_async.nesting import json_text


@dataclass(frozen=True, slots=True)
class InMemoryShard:
    """Rows of one shard, as dicts."""

    rows: Sequence[Any]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return self.rows[row]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def tables_of_rows(dataset: str, rows: Any, pins: pa.Schema | None) -> dict[str, pa.Table]:
    """The tables by shard name for the spellings that `Dataset.from_dict` takes."""
    if isinstance(rows, Mapping) and rows and all(isinstance(name, str) for name in rows):
        return {"0": _table(dataset, rows, pins)}
    if isinstance(rows, InMemoryShard) or (isinstance(rows, Sequence) and not isinstance(rows, str | bytes)):
        return {"0": _table(dataset, _columns(dataset, list(rows)), pins)}
    if not isinstance(rows, Mapping) or not rows or not all(type(number) is int and number >= 0 for number in rows):
        raise RecipeError(
            f"dataset {dataset!r}: give columns by name, a list of rows, or rows by the number of a shard, not {shown(rows)}"
        )
    for number, several in rows.items():
        if isinstance(several, str | bytes | Mapping) or not isinstance(several, Iterable):
            raise RecipeError(f"dataset {dataset!r}, shard {number}: its rows are a list of dicts, not {shown(several)}")
    shards = {number: list(rows[number]) for number in sorted(rows)}
    whole = _table(dataset, _columns(dataset, [row for several in shards.values() for row in several]), pins)
    width = len(str(max(shards)))
    tables, first = {}, 0
    for number, several in shards.items():
        tables[f"{number:0{width}d}"] = whole.slice(first, len(several))
        first += len(several)
    return tables


def tables_of_arrow(dataset: str, table: Any) -> dict[str, pa.Table]:
    """The tables by shard name for the spellings that `Dataset.from_arrow` takes."""
    shards = table if isinstance(table, Mapping) else {"0": table}
    tables = {name: pa.Table.from_batches([one]) if isinstance(one, pa.RecordBatch) else one for name, one in shards.items()}
    if not tables or not all(isinstance(name, str) and isinstance(one, pa.Table) for name, one in tables.items()):
        raise RecipeError(
            f"dataset {dataset!r}: give a pyarrow Table or RecordBatch, or several by the name of a shard, not {shown(table)}"
        )
    return tables


def _columns(dataset: str, rows: Sequence[Any]) -> dict[str, list[Any]]:
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise RecipeError(f"dataset {dataset!r}, row {number}: a row is a dict of values by column name, not {shown(row)}")
        names |= dict.fromkeys(row)
    if rows and not names:
        raise RecipeError(f"dataset {dataset!r}: its rows have no columns")
    return {name: [row.get(name) for row in rows] for name in names}


def _table(dataset: str, columns: Mapping[str, Sequence[Any]], pins: pa.Schema | None) -> pa.Table:
    for name, values in columns.items():
        if isinstance(values, str | bytes | Mapping) or not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
            raise RecipeError(f"dataset {dataset!r}, column {name!r}: its values are a list or an array, not {shown(values)}")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise RecipeError(f"dataset {dataset!r}: its columns have different lengths: {lengths}")
    made = [_column(dataset, name, values, pins) for name, values in columns.items()]
    return pa.table([array for array, _ in made], schema=pa.schema([field for _, field in made]))


def _column(dataset: str, name: str, values: Any, pins: pa.Schema | None) -> tuple[pa.Array, pa.Field]:
    if any(isinstance(value, set | frozenset) for value in values):
        raise RecipeError(f"dataset {dataset!r}, column {name!r}: a set has no order; give a list")
    pin = pins.field(name) if pins is not None and name in pins.names else None
    try:
        if pin is not None and not pin.metadata:
            return pa.array(values, pin.type), pin
        if pin is not None or any(_is_nested(value) for value in values):
            return pa.array([None if value is None else json_text(value) for value in values], pa.large_string()), json_field(name)
        array = pa.array(values)
        return array, pa.field(name, array.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RecipeError(f"dataset {dataset!r}, column {name!r}: its values cannot be of one type: {error}") from error


def _is_nested(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return not all(type(x) is int for x in value)
    return isinstance(value, Mapping)
