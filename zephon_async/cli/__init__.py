"""The command: `zephon-async <what>`. One file each; this is their table."""

import argparse
from collections.abc import Sequence

from zephon_async import __version__
from zephon_async.errors import ZephonError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives the exit code."""
    from zephon_async.cli import demo, doctor, index, inspect, lint, schema, simulate

    parser = argparse.ArgumentParser(
        prog="zephon-async", description="An elastically deterministic data loader for foundation models."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    for module in (demo, doctor, index, inspect, lint, schema, simulate):
        module.add_to(commands)
    chosen = parser.parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except ZephonError as error:
        parser.exit(1, f"zephon-async {chosen.command}: {error}\n")
    except KeyboardInterrupt:
        return 130
