"""`zephon-async schema`: the JSON schema of recipe files, for editors."""

import argparse
import json
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    commands.add_parser("schema", help="print the JSON schema of recipe files, for editors").set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    from zephon_async.recipes import recipe_schema

    print(json.dumps(recipe_schema(), indent=2))
    return 0
