"""`zephon-async inspect PATH`: what lies there, in short: format, shards, units, rows, schema, bytes, a few rows, what is odd."""

import argparse
from typing import Any

from zephon_async.cli.paths import add_path, dataset_of
from zephon_async.errors import DatasetError
from zephon_async.io import Catalog, Dataset, dataset_schema
from zephon_async.kinds import type_name

_MOST_SHOWN, _MOST_WIDE = 5, 100


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("inspect", help="say what data is there, and show a few rows")
    add_path(parser)
    parser.add_argument("--rows", type=int, default=3, help="how many rows are shown (default: 3)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it; gives 1 where a problem was found."""
    dataset = dataset_of(arguments)
    catalog = dataset.catalog(lenient=True)
    known = sum(entry.rows for entry in dataset.index) if dataset.index else catalog.rows
    rows = f"{known:,}" if known is not None else "not counted (zephon-async lint counts them)"
    print(f"format   {dataset.format}\nshards   {len(dataset.shards):,}\nbytes    {catalog.bytes:,}")
    print(f"units    {len(catalog.units):,}\nrows     {rows}")
    for field in dataset_schema(dataset, None, {}, lenient=True):
        print(f"column   {field.name}: {type_name(field)}")
    problems = _show_rows(dataset, catalog, arguments.rows)
    problems += [str(error).removeprefix(f"dataset {dataset.name!r}, ") for error in catalog.lost.values()]
    problems += [f"shard {shard.name!r}: is empty" for shard in catalog.shards if not shard.size]
    _listed("ignored", list(catalog.ignored))
    _listed("problem", problems)
    return int(bool(problems))


def _show_rows(dataset: Dataset, catalog: Catalog, most: int) -> list[str]:
    """The first rows of the first shard that has any; gives what is wrong with them."""
    if not len(catalog.units) or most < 1:
        return []
    shard = int(catalog.units["shard"][0])
    counted = int(catalog.units["length"][catalog.units["shard"] == shard].sum())
    try:
        rows = dataset.read(shard, range(most if catalog.rows is None else min(most, counted)))
    except DatasetError as error:
        return [str(error).removeprefix(f"dataset {dataset.name!r}, ")]
    for row in rows.to_pylist():
        print("row      " + ", ".join(f"{name}={_short(value)}" for name, value in row.items()))
    return []


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_WIDE else f"{text[:_MOST_WIDE]}..."


def _listed(what: str, lines: list[str]) -> None:
    for line in lines[:_MOST_SHOWN]:
        print(f"{what}  {line}")
    if len(lines) > _MOST_SHOWN:
        print(f"{what}  and {len(lines) - _MOST_SHOWN:,} more")
