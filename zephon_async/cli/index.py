"""`zephon-async index FORMAT DIR`: write the index of a folder, with which datasets see what is missing, cut or changed."""

import argparse
from typing import Any

from zephon_async.cli.paths import add_options, options_of
from zephon_async.io import build_index


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("index", help="write an index: rows, sizes, hashes, and where rows begin")
    parser.add_argument("format", help="jsonl, parquet, vortex or webdataset")
    parser.add_argument("dir", help="the folder, or its URL")
    parser.add_argument("--output", metavar="PATH", help="the file (default: index.json in the folder)")
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write it, and say where."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading")
        path = build_index(
            arguments.format,
            arguments.dir,
            arguments.output,
            storage_options=options_of(arguments),
            progress=lambda done, shards: bar.update(task, completed=done, total=shards),
        )
    print(path)
    return 0
