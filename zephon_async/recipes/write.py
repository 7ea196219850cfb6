"""A recipe written: the calls that made a pipeline become a TOML file. See `load` for what stands in it."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import tomli_w

from zephon_async.errors import RecipeError
from zephon_async.io import Dataset
from zephon_async.operators import Operator
from zephon_async.options import Options
from zephon_async.recipes.words import plain, written
from zephon_async.reference_names import Step
from zephon_async.work import MixtureSchedule, ScheduledMixtureWorkSource, StaticMixtureWorkSource, TokenEstimation, WorkSource

if TYPE_CHECKING:
    from zephon_async.pipeline import Pipeline

_SECRET = ("key", "secret", "token", "password", "credential", "sas")
_HERE = ("dp_size", "dp_rank", "agree")  # of a rank and a run, not of a recipe


def to_recipe(pipeline: "Pipeline", source: WorkSource, steps: list[Step], options: Options) -> str:
    """The text of a recipe file from which `load_recipe` makes this pipeline again, but for ranks and secrets of storage.

    Raises `RecipeError` for what a file cannot hold: data in memory, functions without a module, objects.
    """
    said: dict[str, Any] = {}
    if not isinstance(source, StaticMixtureWorkSource | ScheduledMixtureWorkSource):
        raise RecipeError(f"a recipe cannot hold a source of one's own, {type(source).__name__}")
    said["datasets"] = [_dataset(dataset) for dataset in source.everything]
    said["source"] = _source(source)
    if chosen := _options(options):
        said["options"] = chosen
    said["operators"] = [{step.method: _call(pipeline, step)} for step in steps]
    return tomli_w.dumps(said)


def _dataset(dataset: Dataset) -> dict[str, Any]:
    if not dataset.told:
        raise RecipeError(f"a recipe cannot hold the dataset {dataset.name!r}, which is in memory: write it to a file")
    told: dict[str, Any] = {"name": dataset.name, **dataset.told}
    if "storage_options" in told:
        told["storage_options"] = _without_secrets(told["storage_options"])
    for each in fields(dataset):
        if each.name in ("unit_bytes", "block_bytes", "expect_rows") and (value := getattr(dataset, each.name)) != each.default:
            told[each.name] = value
    if dataset.schema is not None:
        told["schema"] = dataset.schema
    return {name: written(name, value) for name, value in told.items()}


def _source(source: StaticMixtureWorkSource | ScheduledMixtureWorkSource) -> dict[str, Any]:
    usual = signature(StaticMixtureWorkSource.__init__).parameters
    names = ("unit", "seed", "shuffle", "epochs", "on_exhausted", "max_repeats")
    said = {name: written(name, value) for name in names if (value := getattr(source, name)) != usual[name].default}
    if source.token_estimation is not None:
        said["token_estimation"] = _changed(source.token_estimation)
    if isinstance(source, StaticMixtureWorkSource):
        return {**said, "mixture": plain("mixture", source.mixture.weights)}
    return {**said, "schedule": _schedule(source.schedule)}


def _schedule(schedule: MixtureSchedule) -> dict[str, Any]:
    points = [[place, plain("a point", spec.weights)] for place, spec in schedule.points]
    return {"by": schedule.by, "between": schedule.between, "change_rows": schedule.change_rows, "points": points}


def _options(options: Options) -> dict[str, Any]:
    said = _changed(options, _HERE)
    if "io_options" in said:
        said["io_options"] = _without_secrets(said["io_options"])
    return said


def _changed(value: Options | TokenEstimation, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields that are not as they are when nothing is said."""
    said = {}
    for each in fields(value):
        usual = each.default_factory() if each.default_factory is not MISSING else each.default
        if each.name not in but and (found := getattr(value, each.name)) != usual:
            said[each.name] = written(each.name, found)
    return said


def _call(pipeline: "Pipeline", step: Step) -> dict[str, Any]:
    """The settings of a call, those that were given by their places too."""
    method = getattr(type(pipeline), step.method)
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in signature(method).parameters.values() if p.kind in by_place][1:]
    settings = {**dict(zip(names, step.given, strict=False)), **step.settings}
    said = {}
    for name, value in settings.items():
        if isinstance(value, Operator):
            raise RecipeError(
                f"a recipe cannot hold {step.method}({value!r:.60}): write {step.method} = {{operator = 'module:Class', ...}} there"
            )
        said[name] = written(name, value)
    return said


def _without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a storage, but for those that must not stand in a file."""
    return {
        name: _without_secrets(value) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if not any(word in name.lower() for word in _SECRET)
    }
