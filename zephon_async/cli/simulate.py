"""`zephon-async simulate PATH`: how well rows are mixed, by the plan alone, for some sizes of a shuffle's window."""

import argparse
from typing import Any

from zephon_async.cli.paths import add_path, dataset_of
from zephon_async.work import StaticMixtureWorkSource, simulate


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("simulate", help="say how well rows are mixed, for some sizes of shuffle(); reads no row")
    add_path(parser)
    parser.add_argument("--shuffle", default="units", help="of the source: units, blocks, rows or none (default: units)")
    parser.add_argument("--lanes", type=int, default=1, help="as in options() (default: 1)")
    parser.add_argument("--rows-per-step", type=int, default=512, help="of a global batch (default: 512)")
    parser.add_argument("--buffer-sizes", type=int, nargs="+", default=[1, 256, 1024, 4096, 16384], metavar="ROWS")
    parser.add_argument("--block-size", type=int, default=1, metavar="ROWS", help="of shuffle() (default: 1)")
    parser.add_argument("--rows", type=int, default=1 << 18, help="that are drawn at most (default: 262,144)")
    parser.add_argument(
        "--near", type=int, default=1000, metavar="ROWS", help="rows that near in storage are alike (default: 1000)"
    )
    parser.add_argument("--row-bytes", type=int, default=2000, metavar="BYTES", help="of a row, where rows are not counted")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each size."""
    dataset = dataset_of(arguments)
    shuffle = False if arguments.shuffle == "none" else arguments.shuffle
    source = StaticMixtureWorkSource([dataset], {dataset.name: 1}, shuffle=shuffle)
    found = simulate(
        source,
        buffer_sizes=arguments.buffer_sizes,
        lanes=arguments.lanes,
        rows_per_step=arguments.rows_per_step,
        block_size=arguments.block_size,
        rows=arguments.rows,
        near=arguments.near,
        row_bytes=arguments.row_bytes,
    )
    print("buffer_size  displacement  variety  worth of a step")
    for each in found:
        worth = f"{each.variety * arguments.rows_per_step:,.1f} rows"
        print(f"{each.buffer_size:11,}  {each.displacement:12.3f}  {each.variety:7.3f}  {worth:>15}")
    return 0
