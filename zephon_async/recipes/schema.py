"""A JSON schema of recipe files, for editors: made from the signatures of what a recipe calls."""

from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from zephon_async import operators
from zephon_async.io import Dataset
from zephon_async.operators import Operator
from zephon_async.options import ALIASES, Options
from zephon_async.recipes.load import methods
from zephon_async.recipes.words import NONE
from zephon_async.work import MixtureSchedule, ScheduledMixtureWorkSource, StaticMixtureWorkSource, TokenEstimation

_KINDS: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
_TEXT = {"type": "string"}
_OWN = ("self", "datasets", "source")


def recipe_schema() -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of the TOML files that `load_recipe` reads; see `zephon-async schema`."""
    source = _settings(StaticMixtureWorkSource.__init__, ScheduledMixtureWorkSource.__init__)
    source["token_estimation"] = _table(_settings(TokenEstimation.__init__))
    source["schedule"] = _table(_settings(MixtureSchedule.__init__))
    options = _settings(Options.__init__)
    options |= {name: options[ours] for name, ours in ALIASES.items()}
    each = {name: _operator(name, method) for name, method in methods().items()}
    operator = {"type": "object", "properties": each, "additionalProperties": False, "minProperties": 1, "maxProperties": 1}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A recipe of zephon_async",
        **_table(
            {
                "datasets": {"type": "array", "items": _table(_settings(Dataset.from_path), ("name", "path"))},
                "source": _table(source),
                "options": _table(options),
                "operators": {"type": "array", "items": operator},
            },
            ("datasets", "source", "operators"),
        ),
    }


def _operator(name: str, method: Callable[..., Any]) -> dict[str, Any]:
    """A call of a builder method: its settings, with those of the operator that it makes where it hands them on."""
    made = next((each for each in vars(operators).values() if _makes(each, name)), None)
    settings = _settings(method, *([made.__init__] if made is not None else []))
    settings |= {"operator": _TEXT} if name in ("apply", "add_op") else {}
    open_ended = name in ("apply", "add_op") or (made is None and _takes_any(method))
    table = _table(settings) | ({"additionalProperties": True} if open_ended else {})
    return {"description": (method.__doc__ or "").split("\n")[0], "anyOf": [table, {"type": ["string", "number", "array"]}]}


def _makes(kind: Any, name: str) -> bool:
    return isinstance(kind, type) and issubclass(kind, Operator) and kind is not Operator and getattr(kind, "name", "") == name


def _takes_any(method: Callable[..., Any]) -> bool:
    return any(p.kind is Parameter.VAR_KEYWORD for p in signature(method).parameters.values())


def _table(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}


def _settings(*calls: Callable[..., Any]) -> dict[str, Any]:
    """The settings that calls take by name."""
    found: dict[str, Any] = {}
    for call in calls:
        hints = get_type_hints(call)
        for name, parameter in signature(call).parameters.items():
            if parameter.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL) and name not in _OWN:
                found[name] = _schema_of(hints.get(name, Any))
    return found


def _schema_of(hint: Any) -> dict[str, Any]:
    """The schema of what a file may say for a type; anything, where that is not known."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        each = [_schema_of(one) for one in inner if one is not NoneType]
        return {"anyOf": [*each, {"const": NONE}]} if NoneType in inner else {"anyOf": each}
    if origin is Literal:
        return {"enum": list(inner)}
    if hint in _KINDS:
        return {"type": _KINDS[hint]}
    if origin is not None and isinstance(origin, type):
        if issubclass(origin, Mapping):
            return {"type": "object"}
        if origin.__name__ == "Callable":
            return {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}
        if issubclass(origin, Collection):
            return {"type": "array"}
    return {}
