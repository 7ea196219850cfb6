"""`zephon-async lint PATH`: read everything, and name every bad record and every broken shard."""

import argparse
from typing import Any

from zephon_async.cli.paths import add_path, dataset_of, shown_progress
from zephon_async.io import check


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("lint", help="read all of it, and name every bad record")
    add_path(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the problems; gives 1 where there are any."""
    dataset = dataset_of(arguments)
    rows = problems = 0
    for shard in shown_progress(check(dataset), len(dataset.shards), "reading"):
        rows += shard.rows
        problems += len(shard.problems)
        for problem in shard.problems:
            print(problem)
    print(f"{len(dataset.shards):,} shards, {rows:,} rows, {problems:,} problems")
    return int(problems > 0)
