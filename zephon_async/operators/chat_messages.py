"""Conversations: from Arrow columns to the lists of dicts that a chat template takes, as transformers makes them.

A column holds lists of structs, or JSON text. In structs a null stands for a key that is not there, at every depth: Arrow cannot
tell the two, and templates ask which keys there are. In JSON text nulls are as written, but for those of a message itself.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_async.checks import shown
from zephon_async.errors import BadRecord, RecipeError
from zephon_async.kinds import is_list, is_text, json_field, list_lengths
from zephon_async.operators.rows import decoded, find_field, to_python

_REASONING = ("reasoning_content", "thinking", "reasoning")  # the first is what templates read; `thinking` is what gpt-oss reads


def check_messages(schema: pa.Schema | None, name: str, who: str) -> None:
    """Refuse a column that can hold no conversations. `RecipeError`."""
    field = find_field(schema, name, who)
    if field is None or is_text(_plain(field.type)) or pa.types.is_null(field.type):
        return
    if not is_list(field.type) or not pa.types.is_struct(field.type.value_type):
        raise RecipeError(f"{who}: column {name!r} is {field.type}, wanted messages: a list of structs, or text that is JSON")


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def nested(column: pa.Array, name: str) -> Iterable[Any]:
    """The values of a column; text is taken for JSON, and raises `BadRecord` when its turn comes."""
    column = column.cast(_plain(column.type))
    return decoded(column, json_field(name)) if is_text(column.type) else _values(column)


def _values(column: pa.Array) -> list[Any]:
    """Arrow to Python, without what is null in structs."""
    if pa.types.is_struct(column.type):
        names = [field.name for field in column.type]
        rows = zip(*map(_values, column.flatten()), strict=True) if names else ((),) * len(column)
        dicts = [{name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows]
        return _with_nulls(column, dicts)
    if is_list(column.type):
        inner = _values(column.flatten())
        ends = np.concatenate(([0], np.cumsum(list_lengths(column)))).tolist()
        return _with_nulls(column, [inner[start:stop] for start, stop in pairwise(ends)])
    return to_python(column)


def _with_nulls(column: pa.Array, values: list[Any]) -> list[Any]:
    if not column.null_count:
        return values
    return [value if there else None for value, there in zip(values, column.is_valid().to_pylist(), strict=True)]


def messages_of(value: Any, name: str, least: int = 1) -> list[dict[str, Any]]:
    """A conversation of at least so many messages; `BadRecord` where it is none."""
    if not isinstance(value, list) or len(value) < least:
        raise BadRecord(f"column {name!r}: wanted a list of messages, found {shown(value)}")
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            other = isinstance(message, dict) and {"from", "value"} <= message.keys()  # as ShareGPT names them
            change = "; make its from and value role and content, with map before it" if other else ""
            raise BadRecord(f"column {name!r}: message {number} is no dict with a role: {shown(message)}{change}")
    return [_message(message) for message in value]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    made = {key: value for key, value in message.items() if value is not None}
    reasoning = next((made[key] for key in _REASONING if key in made), None)
    return made if reasoning is None else {"thinking": reasoning, **made, "reasoning_content": reasoning}


def tools_of(value: Any, name: str) -> list[Any] | None:
    """What a record says of tools: a list of JSON schemas, each a dict or its JSON text; None for none."""
    import msgspec

    if value is None:
        return None
    try:
        tools = [msgspec.json.decode(tool) if isinstance(tool, str) else tool for tool in value] if isinstance(value, list) else []
    except msgspec.MsgspecError as error:
        raise BadRecord(f"column {name!r}: a tool is no JSON text ({error})") from error
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRecord(f"column {name!r}: wanted a list of tools, each a JSON schema, found {shown(value)}")
    return tools


def walked(value: Any, change: Callable[[str], str]) -> Any:
    """A value with each of its texts changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): walked(inner, change) for key, inner in value.items()}
    return [walked(inner, change) for inner in value] if isinstance(value, list) else value


def strings(value: Any) -> Iterator[str]:
    """All texts of a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
