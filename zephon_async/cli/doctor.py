"""`zephon-async doctor`: find and remove what crashes and power cuts have left, and never what is alive."""

import argparse
from pathlib import Path
from typing import Any

from zephon_async.errors import ZephonError
from zephon_async.io import CACHE, WRITING
from zephon_async.leftovers import leftovers


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("doctor", help="find and remove temporary files that belong to nobody any more")
    parser.add_argument("folder", nargs="*", type=Path, help="where to look, also for a cache (default: the temporary folder)")
    parser.add_argument("--dry-run", action="store_true", help="only say what there is")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Say what there is, remove it, and give 1 where something could not be removed."""
    found = failed = 0
    for folder in arguments.folder or [None]:
        if folder is not None and not folder.is_dir():
            raise ZephonError(f"there is no folder {folder}")
        for each in (left for place in _places(folder) for left in leftovers(place)):
            found += 1
            print(f"{each.path}: {each.nbytes:,} bytes, of a process that is not there any more")
            if not arguments.dry_run:
                try:
                    each.remove()
                except OSError as error:
                    failed += 1
                    print(f"  cannot be removed: {error}")
    left = f"{failed} could not be removed" if failed else "left as they are" if arguments.dry_run else "removed"
    print(f"{found} found, {left}" if found else "nothing was left behind")
    return int(failed > 0)


def _places(folder: Path | None) -> list[Path | None]:
    """A folder, and where the cache that is in it writes."""
    inside = [] if folder is None else [place for place in (folder / CACHE / WRITING, folder / WRITING) if place.is_dir()]
    return [folder, *inside]
