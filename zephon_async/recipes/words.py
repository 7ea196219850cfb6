"""How values that TOML has no words for are written: functions, Arrow types, None. Both ways.

A function is `"module:name"`; an Arrow type is as pyarrow prints it, such as `"int64"` or `"list<item: int32>"`; None is `"none"`,
where a setting may be None and is something else when nothing is said.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from os import PathLike, fspath
from typing import Any

import pyarrow as pa

from zephon_async.errors import RecipeError

NONE = "none"
FUNCTIONS = ("fn", "init", "push", "flush", "init_state", "process_one", "operator", "agree")
"""Settings that are functions, or make operators."""
TYPES = ("schema",)
"""Settings that are Arrow types by column."""


def function_of(name: str, text: Any) -> Callable[..., Any]:
    """What "module:name" stands for; `name` is that of the setting. Raises `RecipeError`."""
    module, colon, inside = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not (module and colon and inside):
        raise RecipeError(f"{name} is {text!r:.80}: name a function as 'module:function'")
    try:
        found: Any = import_module(module)
        for part in inside.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise RecipeError(f"{name} is {text!r}, which cannot be imported: {error}") from error
    if not callable(found):
        raise RecipeError(f"{name} is {text!r}, which is {found!r:.60}: name a function")
    made: Callable[..., Any] = found
    return made


def text_of(name: str, function: Any) -> str:
    """A function as "module:name". Raises `RecipeError` for one that cannot be found again by it."""
    module, inside = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    text = f"{module}:{inside}"
    try:
        if module and inside and module != "__main__" and function_of(name, text) is function:
            return text
    except RecipeError:
        pass
    raise RecipeError(
        f"{name} is {function!r:.80}, which a recipe cannot name: give a function at the top of a module that can be imported, "
        "not a lambda, not one inside of another, and not one of the program itself"
    )


def types_of(name: str, types: Any) -> pa.Schema:
    """Arrow types by column, from their texts. Raises `RecipeError`."""
    if not isinstance(types, Mapping):
        raise RecipeError(f"{name} is {types!r:.80}: give a table of types by column, such as {{text = 'string'}}")
    return pa.schema([(column, type_of(f"{name}: {column}", text)) for column, text in types.items()])


def type_of(name: str, text: Any) -> pa.DataType:
    """An Arrow type from its text, as pyarrow prints it. Raises `RecipeError`."""
    if isinstance(text, str):
        for begin, made in (("list<", pa.list_), ("large_list<", pa.large_list)):
            if text.startswith(begin) and text.endswith(">"):
                return made(type_of(name, text[len(begin) : -1].removeprefix("item: ").removeprefix("element: ")))
        if text.startswith("fixed_size_list<") and text.endswith("]"):
            inner, _, size = text[len("fixed_size_list<") : -1].rpartition(">[")
            if size.isdigit():
                return pa.list_(type_of(name, inner.removeprefix("item: ").removeprefix("element: ")), int(size))
        try:
            return pa.type_for_alias(text)
        except (ValueError, TypeError):
            pass
    raise RecipeError(
        f"{name} is {text!r:.80}: write a type as pyarrow prints it, such as 'int64', 'string' or 'list<item: int32>'"
    )


def texts_of(name: str, schema: Any) -> dict[str, str]:
    """The texts of Arrow types by column. Raises `RecipeError` for types that cannot be written."""
    fields = schema.items() if isinstance(schema, Mapping) else [(field.name, field.type) for field in schema]
    texts = {column: str(kind) for column, kind in fields}
    for column, text in texts.items():
        if not _is_written(text, dict(fields)[column]):
            raise RecipeError(f"{name}: a recipe cannot write the type {text} of the column {column!r}")
    return texts


def _is_written(text: str, kind: pa.DataType) -> bool:
    try:
        return bool(type_of("", text) == kind)
    except RecipeError:
        return False


def read_value(name: str, value: Any) -> Any:
    """The value of a setting, from what a file says."""
    if name in FUNCTIONS and value != NONE:
        return function_of(name, value)
    if name in TYPES and value != NONE:
        return types_of(name, value)
    return None if value == NONE and isinstance(value, str) else value


def written(name: str, value: Any) -> Any:
    """What a file says of the value of a setting. Raises `RecipeError` for one that cannot be written."""
    if value is None:
        return NONE
    if name in FUNCTIONS:
        return text_of(name, value)
    if name in TYPES:
        return texts_of(name, value)
    return plain(name, value)


def plain(name: str, value: Any) -> Any:
    """A value of TOML. Raises `RecipeError` for one that is none."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(f"{name}: {key}", each) for key, each in value.items() if each is not None}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(name, each) for each in (value if isinstance(value, Sequence) else sorted(value))]
    if hasattr(value, "item") and not getattr(value, "shape", None):  # a number of numpy's
        return plain(name, value.item())
    raise RecipeError(f"{name} is {value!r:.80}, which a recipe cannot hold: give a number, a text, a list or a table")
