"""What commands that are given data have together: the path or URL, and how it is read."""

import argparse
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from zephon_async.errors import RecipeError
from zephon_async.io import Dataset

T = TypeVar("T")


def add_path(parser: Any) -> None:
    """Add the arguments that say which data is meant."""
    parser.add_argument("path", help="a file, a folder, a pattern or a URL")
    parser.add_argument("--format", help="its format, where names do not tell it")
    add_options(parser)


def add_options(parser: Any) -> None:
    """Add the argument that says how a URL is read."""
    parser.add_argument(
        "--storage-option", action="append", default=[], metavar="NAME=VALUE", help="of a URL, such as endpoint_url="
    )


def dataset_of(arguments: argparse.Namespace) -> Dataset:
    """The dataset that is meant; it is called by its path."""
    return Dataset.from_path(arguments.path, arguments.path, format=arguments.format, storage_options=options_of(arguments))


def options_of(arguments: argparse.Namespace) -> dict[str, object]:
    """How a URL is read."""
    return dict(_pair(text) for text in arguments.storage_option)


def _pair(text: str) -> tuple[str, object]:
    name, is_there, value = text.partition("=")
    if not is_there:
        raise RecipeError(f"--storage-option is NAME=VALUE, not {text!r}")
    return name, {"true": True, "false": False}.get(value.lower(), value)


def shown_progress(steps: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The same steps, with a bar on a terminal that goes away at the end."""
    from rich.console import Console
    from rich.progress import track

    yield from track(steps, what, total=total, console=Console(stderr=True), transient=True)
