"""A recipe read: a TOML file becomes the calls that make a pipeline.

    [[datasets]]                       Dataset.from_path(name, path, ...)
    [source]                           StaticMixtureWorkSource(datasets, mixture, ...), or with [source.schedule] instead of
                                       [source.mixture] ScheduledMixtureWorkSource; token_estimation = {primer = 0.25}, or {}
    [options]                          .options(...)
    [[operators]] tokenize = {...}     .tokenize(...), one table for each call in its order; the last is batch

Settings have the names of the arguments, and paths mean what they mean in Python: from the working directory. One that stands for
itself is the first argument: `batch = 8`. See `words` for what TOML has no words for. Errors name the line.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from zephon_async.checks import checks_call, nearest
from zephon_async.errors import DatasetError, RecipeError, ZephonError
from zephon_async.io import Dataset
from zephon_async.operators import Operator
from zephon_async.pipeline import Pipeline
from zephon_async.recipes.words import read_value
from zephon_async.work import MixtureSchedule, ScheduledMixtureWorkSource, StaticMixtureWorkSource, TokenEstimation, WorkSource

T = TypeVar("T")
PARTS = ("datasets", "source", "options", "operators")
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.\s*[\w."'-]+\s*)?=""")


def methods() -> dict[str, Callable[..., Any]]:
    """What adds to a pipeline, by name."""
    return {name: each for name in dir(Pipeline) if getattr(each := getattr(Pipeline, name), "is_step", False)}


@checks_call
def load_recipe(path: str | PathLike[str], **options: Any) -> Pipeline:
    """Read a pipeline from a TOML file: see `zephon_async.recipes.load`.

    options: of this run, beside those of the file and before them, such as dp_size= and dp_rank=.

    Raises `RecipeError` or `DatasetError` with the line of what cannot be meant, `OSError` where there is no such file.
    """
    text = Path(path).read_text("utf-8")
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: {error}") from None
    file = _File(str(path), text)
    for name in said:
        if name not in PARTS:
            raise file.error((name,), RecipeError(f"a recipe has no part {name!r}; {nearest(name, PARTS)}"))
    pipeline = Pipeline(_source(file, said))
    given = _table(file, ("options",), said.get("options", {}))
    file.call(("options",), given, lambda **settings: pipeline.options(**(settings | options)))
    known = methods()
    for n, entry in enumerate(_tables(file, "operators", said.get("operators", []))):
        if len(entry) != 1:
            raise file.error(("operators", n), RecipeError(f"an operator is one key, such as tokenize = {{...}}, not {len(entry)}"))
        ((method, value),) = entry.items()
        if method not in known:
            raise file.error(("operators", n, method), RecipeError(f"there is no operator {method!r}; {nearest(method, known)}"))
        _add(file, ("operators", n, method), pipeline, method, value)
    return pipeline


def _add(file: "_File", place: tuple[Any, ...], pipeline: Pipeline, method: str, value: Any) -> None:
    call = getattr(pipeline, method)
    if not isinstance(value, Mapping):
        file.call(place, {}, lambda: call(read_value("fn" if _is_function(value) else method, value)))
    elif method in ("apply", "add_op") and "operator" in value:
        file.call(place, value, lambda operator, **settings: call(_made(operator, settings)))
    else:
        file.call(place, value, call)


def _is_function(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w.]+:[\w.]+", value) is not None


def _made(operator: Any, settings: Mapping[str, Any]) -> Operator:
    """An operator of the user's: an instance, or what a class or function makes of the settings."""
    return operator if isinstance(operator, Operator) else operator(**settings)


def _source(file: "_File", said: Mapping[str, Any]) -> WorkSource:
    datasets = []
    for n, entry in enumerate(_tables(file, "datasets", said.get("datasets", []))):
        datasets.append(file.call(("datasets", n), entry, Dataset.from_path))
    settings = dict(_table(file, ("source",), said.get("source", {})))
    estimation = settings.pop("token_estimation", None)
    if estimation is not None:
        place = ("source", "token_estimation")
        settings["token_estimation"] = file.call(place, _table(file, place, estimation), TokenEstimation)
    schedule = settings.pop("schedule", None)
    if schedule is None:
        return file.call(("source",), settings, lambda **given: StaticMixtureWorkSource(datasets, **given))
    place = ("source", "schedule")
    settings["schedule"] = file.call(place, _table(file, place, schedule), MixtureSchedule)
    return file.call(("source",), settings, lambda **given: ScheduledMixtureWorkSource(datasets, **given))


def _table(file: "_File", place: tuple[Any, ...], value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise file.error(place, RecipeError(f"{'.'.join(map(str, place))} is {value!r:.60}: it must be a table of settings"))
    return value


def _tables(file: "_File", name: str, value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise file.error((name,), RecipeError(f"{name} is {value!r:.60}: it must be tables, each below [[{name}]]"))
    return [_table(file, (name, n), each) for n, each in enumerate(value)]


class _File:
    """The file that a recipe is read from: where in it what stands."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self._lines: dict[tuple[Any, ...], int] = {}
        counts: dict[str, int] = {}
        at: tuple[Any, ...] = ()
        for number, line in enumerate(text.splitlines(), 1):
            if header := _HEADER.match(line):
                parts = tuple(part.strip(" \"'") for part in header[2].split("."))
                if header[1] == "[[":
                    counts[parts[0]] = counts.get(parts[0], -1) + 1
                    self._lines.setdefault(parts[:1], number)
                at = (parts[0], counts[parts[0]], *parts[1:]) if parts[0] in counts else parts
                self._lines.setdefault(at, number)
            elif key := _KEY.match(line):
                self._lines.setdefault((*at, next(filter(None, key.groups()))), number)

    def call(self, place: tuple[Any, ...], settings: Mapping[str, Any], made: Callable[..., T]) -> T:
        """Call with the settings that stand at a place; errors say in which line."""
        try:
            given = {name: read_value(name, value) for name, value in settings.items()}
            return made(**given)
        except (RecipeError, DatasetError) as error:
            named = [name for name in settings if re.search(rf"\b{re.escape(name)}\b", str(error))]
            shown = [name for name, value in settings.items() if isinstance(value, str) and repr(value) in str(error)]
            told = named or sorted(shown, key=lambda name: -len(settings[name]))
            raise self.error((*place, *told[:1]), error) from error.__cause__

    def error(self, place: tuple[Any, ...], error: ZephonError) -> ZephonError:
        """The same error with the line of a place, or of what it is in."""
        while place and place not in self._lines:
            place = place[:-1]
        where = f"{self.path}, line {self._lines[place]}" if place else self.path
        return type(error)(f"{where}: {error}")
