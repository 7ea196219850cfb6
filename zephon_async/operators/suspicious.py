"""What the source of users' functions and operators says of chance, clocks, and state: warnings, for it may be meant well.

Looked for in the syntax tree: random generators without a seed, clocks, `hash` and `id` (other numbers in every process), sets
that are iterated (in another order in every process), and writes to `self`, globals and variables of an outer function, and to a
list, set or dict that is one (to set an entry is none: this is how results are remembered). Names are looked up where the
function would find them, so it is seen through `import numpy as np` and `from time import time`. What the functions call is not
looked into; the trial of `contract` sees what comes of that.
"""

import ast
import functools
import inspect
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from zephon_async.operators.base import Operator
from zephon_async.operators.contract import Finding
from zephon_async.operators.functions import OwnFunction, function_name
from zephon_async.operators.source import own_classes, syntax

CHANCE = ("random.", "numpy.random.", "secrets.", "uuid.uuid1", "uuid.uuid4", "os.urandom", "torch.rand", "torch.normal")
SEEDED = ("random.Random", "numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.Generator", "numpy.random.Philox")
"""Of these, what gives the same each time where it is given a seed."""
CLOCKS = (
    "time.time",
    "time.monotonic",
    "time.perf_counter",
    "time.process_time",
    "time.localtime",
    "time.gmtime",
    "time.ctime",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
)
NUMBERS = ("builtins.hash", "builtins.id")
SETS = ("builtins.set", "builtins.frozenset")
ORDERED = (
    "builtins.list",
    "builtins.tuple",
    "builtins.enumerate",
    "builtins.iter",
    "builtins.next",
    "builtins.zip",
    "builtins.map",
)
"""Calls that see the order of what they are given."""
CHANGES = ("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft", "remove", "update")
"""Methods that write to a container."""

_ADVICE = {
    "random": "take randomness from the record, as random.Random(seed of the record), so that it is the same in every run",
    "clock": "leave the time out of what decides the data, or put it into the datasets",
    "hash": "use hashlib, whose numbers are the same in every process",
    "set_order": "sort it, as in sorted(...), or use a dict",
    "keeps_state": "keep nothing between calls: they come in any order, on any worker; accumulate() is for state",
}
_UNMADE = ("__init__", "__new__", "__setstate__", "__init_subclass__", "told", "learn", "learn_async", "recall")
"""Methods of an operator that may write to it: they are called before it runs."""


def look_at_source(operator: Operator) -> list[Finding]:
    """Findings of the functions that an operator was given, and of its class where that is a user's."""
    functions = operator.functions() if isinstance(operator, OwnFunction) else ()
    found = [each for fn in functions for each in _of_function(operator.name, fn)]
    for made in own_classes(type(operator)):
        found += _of_class(operator.name, made, ())
    if operator.serial and not functions:
        found += [each for made in own_classes(type(_accumulator(operator))) for each in _of_class(operator.name, made, None)]
    return list(dict.fromkeys(found))


def _accumulator(operator: Operator) -> Any:
    try:
        return operator.accumulator(0, 0)
    except Exception:  # it is told when the operator is tried
        return None


def _of_function(who: str, fn: Any) -> Iterator[Finding]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    named = inspect.unwrap(fn)
    if inspect.ismethod(named) or not hasattr(named, "__code__"):
        made = type(getattr(named, "__self__", named))
        for each in [] if made is ModuleType else own_classes(made):
            yield from _of_class(who, each, ())
        return
    names = {**named.__globals__, **_enclosed(named)}
    for tree in syntax(named):
        yield from _Look(who, function_name(named), names).at(tree)


def _of_class(who: str, made: type, writes: Sequence[str] | None) -> Iterator[Finding]:
    """writes: None where a class may write to itself at any time."""
    names = vars(sys.modules[made.__module__]) if made.__module__ in sys.modules else {}
    for tree in syntax(made):
        look = _Look(who, function_name(made), names)
        yield from look.at(tree)
        if writes is not None:
            yield from look.writes_to_self(tree)


def _enclosed(fn: Any) -> dict[str, Any]:
    """The variables of outer functions that it sees."""
    found = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it is not set yet
            continue
    return found


class _Look:
    """A look at one tree, with the values of the names in it as far as they are known."""

    def __init__(self, who: str, where: str, names: Mapping[str, Any]) -> None:
        self._who, self._where, self._names = who, where, dict(names)
        self._sets: set[str] = set()  # local variables that hold one
        self._own: set[str] = set()  # local variables and arguments

    def at(self, tree: ast.AST) -> Iterator[Finding]:
        for node in ast.walk(tree):
            self._import(node)
            if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
                self._own.add(node.arg if isinstance(node, ast.arg) else node.id)
            if isinstance(node, ast.Assign) and self._is_set(node.value):
                self._sets |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(tree):
            yield from self._node(node)

    def _node(self, node: ast.AST) -> Iterator[Finding]:
        if isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.For | ast.comprehension) and self._is_set(node.iter):
            yield self._found("set_order", node.iter, "iterates a set")
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript) and self._outlives(node.target.value):
            yield self._found("keeps_state", node, f"writes to {ast.unparse(node.target.value)}, which is not its own")
        elif isinstance(node, ast.Global | ast.Nonlocal):
            kind = "the global" if isinstance(node, ast.Global) else "the outer function's"
            yield self._found("keeps_state", node, f"writes to {kind} {', '.join(node.names)}")

    def _call(self, node: ast.Call) -> Iterator[Finding]:
        name = self._full(node.func)
        given = bool(node.args or node.keywords)
        if name.startswith(CHANCE) and not (name in SEEDED and given):
            yield self._found("random", node, f"calls {name}")
        elif name.startswith(CLOCKS) and not (given and name in ("time.localtime", "time.gmtime", "time.ctime")):
            yield self._found("clock", node, f"calls {name}")
        elif name in NUMBERS:
            yield self._found("hash", node, f"calls {name.removeprefix('builtins.')}")
        if isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES and self._outlives(node.func.value):
            yield self._found("keeps_state", node, f"writes to {ast.unparse(node.func.value)}, which is not its own")
        joins = isinstance(node.func, ast.Attribute) and node.func.attr == "join"
        if (name in ORDERED or joins) and any(self._is_set(argument) for argument in node.args):
            yield self._found("set_order", node, "takes the order of a set")

    def writes_to_self(self, tree: ast.AST) -> Iterator[Finding]:
        for method in getattr(tree, "body", []):
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name in _UNMADE or not method.args.args:
                continue
            own = method.args.args[0].arg
            for node in ast.walk(method):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == own:
                    yield self._found("keeps_state", node, f"writes to {own}.{node.attr} in {method.name}")

    def _found(self, name: str, node: ast.AST, does: str) -> Finding:
        line = getattr(node, "lineno", 0)
        return Finding(self._who, name, "warning", f"{self._where} {does} (line {line})", _ADVICE[name])

    def _import(self, node: ast.AST) -> None:
        """What is imported inside the function itself."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._names[(alias.asname or alias.name).partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self._names[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _full(self, node: ast.AST) -> str:
        """The full name of what is called, such as numpy.random.rand; "" where it is not known."""
        inner: list[str] = []
        while isinstance(node, ast.Attribute):
            inner.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        if node.id not in self._names:
            return f"builtins.{node.id}" if not inner else ""
        return ".".join([_name_of(self._names[node.id]), *inner])

    def _outlives(self, node: ast.AST) -> bool:
        """Whether it is a container of the module or of an outer function."""
        if not isinstance(node, ast.Name) or node.id in self._own:
            return False
        return isinstance(self._names.get(node.id), list | set | dict | deque)

    def _is_set(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._sets
        if isinstance(node, ast.BinOp):
            return self._is_set(node.left) or self._is_set(node.right)
        return isinstance(node, ast.Set | ast.SetComp) or (isinstance(node, ast.Call) and self._full(node.func) in SETS)


def _name_of(value: Any) -> str:
    """The full name of a module, a class or a function; of a bound method that of its class's module."""
    if isinstance(value, str):  # imported inside the function
        return value
    if isinstance(value, ModuleType):
        return value.__name__
    own = getattr(value, "__self__", None)
    if own is not None and not isinstance(own, ModuleType):  # `random.random` is a method of the module's own generator
        return f"{type(own).__module__}.{getattr(value, '__name__', '')}"
    module = getattr(value, "__module__", None)
    return f"{module}.{value.__qualname__}" if isinstance(module, str) and hasattr(value, "__qualname__") else ""
