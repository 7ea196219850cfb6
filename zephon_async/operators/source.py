"""A hash of the source of users' functions and classes, for fingerprints.

It is that of the syntax tree: comments, docstrings, blank lines, quotes, line breaks and where in its file a thing stands do not
change it; decorators do. It is the same on every Python that can parse the source, so the tree is written out here: `ast.dump`
differs from version to version.

The whole file is parsed, not the lines of the function alone: those of a lambda hold what else stands on them, such as
`.options(dp_size=2)`. Which lambda of a line is meant is told by the positions of its instructions. Where Python keeps none
(`-X no_debug_ranges`), all the lambdas that begin on that line are hashed.

What Python brings itself has no hash: its name says enough, and its source differs from version to version.

Threads: files are parsed one at a time, see `_Parser`.
"""

import ast
import hashlib
import inspect
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from os.path import dirname
from tokenize import TokenError
from types import CodeType
from typing import Any, TypeAlias, TypeVar

from zephon_async.forks import tell_of_forks

_PACKAGE = __name__.partition(".")[0]
_STANDARD_LIBRARY = dirname(inspect.__file__)
_TRIES = 20
_SILENT = {"ctx", "type_comment", "kind"}  # fields that say nothing, or what other fields say

T = TypeVar("T")
Place: TypeAlias = tuple[int, int]
"""A line of a file, and a byte of it."""


def source_hash(named: Any) -> str | None:
    """The hash of what `def`, `lambda` or `class` made, of a class with its `own_classes`; None where there is no source."""
    found = [_source(each) for each in (own_classes(named) if isinstance(named, type) else [named])]
    if not found or found[0] is None:
        return None
    return hashlib.sha256("\n\n".join(each for each in found if each is not None).encode()).hexdigest()


def own_classes(made: type) -> list[type]:
    """A class and those that it is derived from, without Python's and this package's."""
    return [each for each in made.__mro__ if each.__module__.partition(".")[0] != _PACKAGE and not is_pythons(each.__module__)]


def is_pythons(module: str) -> bool:
    """Whether a module is part of Python, and not a user's of the same name."""
    top = module.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    return top in sys.stdlib_module_names and (file is None or file.startswith(_STANDARD_LIBRARY))


def syntax(named: Any) -> list[ast.AST]:
    """The syntax tree of what `def`, `lambda` or `class` made, of several where it cannot be told which; none without a source."""
    try:
        named = inspect.unwrap(named)
        lines, at = _parser.alone(lambda: inspect.findsource(named))
        return _nodes("".join(lines), at + 1, named)
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []


def _source(named: Any) -> str | None:
    """The syntax tree as text; the source itself where that cannot be parsed; None where there is none."""
    try:
        named = inspect.unwrap(named)
        if is_pythons(str(getattr(named, "__module__", None))):
            return None
        lines, at = _parser.alone(lambda: inspect.findsource(named))  # which parses, for a class
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError):
        return None
    try:
        if nodes := _nodes("".join(lines), at + 1, named):
            return "\n\n".join(map(dumped, nodes))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    try:
        return textwrap.dedent(_parser.alone(lambda: inspect.getsource(named)))
    except (OSError, SyntaxError, TokenError):
        return None


def _nodes(text: str, line: int, named: Any) -> list[ast.AST]:
    """Where a file defines it; nowhere, where the file is no longer what it was."""
    code = getattr(named, "__code__", None)
    if not isinstance(code, CodeType):
        return defined(text).get((line, named.__name__), [])
    found = defined(text).get((code.co_firstlineno, code.co_name), [])
    held = list(_places(code))
    if len(found) < 2 or not held:
        return found
    fitting = []
    for node in found:
        body = getattr(node, "body", None)  # not the node: what it holds may be another lambda and nothing else
        if isinstance(body, ast.expr) and all(_start(body) <= start and end <= _end(body) for start, end in held):
            fitting.append((_start(body), node))
    return [max(fitting, key=lambda each: each[0])[1]] if fitting else found  # the innermost begins last


class _Parser:
    """Parses one file at a time: CPython 3.11 counts the depth of all trees that are being made together, and refuses one during
    which another was made. Where the program itself makes one at that moment, it is tried again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        tell_of_forks(self)

    def forked(self) -> None:
        """A thread that is not there any more may have held the lock."""
        self._lock = threading.RLock()

    def alone(self, parse: Callable[[], T]) -> T:
        """What something that parses gives."""
        with self._lock:
            for _ in range(_TRIES):
                try:
                    return parse()
                except SystemError:
                    continue
            return parse()


_parser = _Parser()


@lru_cache(maxsize=4)
def defined(text: str) -> dict[tuple[int, str], list[ast.AST]]:
    """What a file defines, by the line on which it begins, as `co_firstlineno` counts, and its name."""
    found: dict[tuple[int, str], list[ast.AST]] = {}
    for node in ast.walk(_parser.alone(lambda: ast.parse(text))):
        if isinstance(node, ast.Lambda):
            found.setdefault((node.lineno, "<lambda>"), []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            line = node.decorator_list[0].lineno if node.decorator_list else node.lineno
            found.setdefault((line, node.name), []).append(node)
    return found


def _places(code: CodeType) -> Iterator[tuple[Place, Place]]:
    """From where to where the instructions stand; without those that stand for no text."""
    for line, end_line, column, end_column in code.co_positions():
        if line is None or end_line is None or column is None or end_column is None:
            continue
        if (line, column) < (end_line, end_column):
            yield (line, column), (end_line, end_column)


def _start(node: ast.expr) -> Place:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> Place:
    return node.end_lineno or 0, node.end_col_offset or 0


def dumped(tree: ast.AST) -> str:
    """A syntax tree as text, in the order of the file: a line for each node with its fields' names, each list, each plain value.

    It does not call itself: a tree may be deeper than Python's stack.
    """
    lines: list[str] = []
    left: list[Any] = [tree]
    while left:
        each = left.pop()
        if isinstance(each, ast.AST):
            fields = {name: _field(each, name) for name in each._fields if name not in _SILENT}
            fields = {name: value for name, value in fields.items() if value is not None and value != []}
            lines.append(" ".join([type(each).__name__, *fields]))
            left += reversed(fields.values())
        elif isinstance(each, list):
            lines.append(f"list {len(each)}")
            left += reversed(each)
        else:  # what `repr` escapes depends on the version of Unicode, and it refuses numbers of very many digits
            lines.append(f"{type(each).__name__} {hex(each) if type(each) is int else ascii(each)}")
    return "\n".join(lines)


def _field(node: ast.AST, name: str) -> Any:
    """A field of a node, without a docstring, and without parentheses that only formatters take for different."""
    value: Any = getattr(node, name, None)
    if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return value[1:] if ast.get_docstring(node, clean=False) is not None else value
    if name == "targets" and isinstance(node, ast.Delete):  # `del (a, b)` is `del a, b`
        return [part for each in value for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return value
