"""An asyncio-native, elastically deterministic data loader for foundation-model training.

    errors      every exception, drawn as a tree
    records     what travels: record batches with origins, parcels, blocks
    kinds       families of Arrow types, and the marks that a field may carry
    nesting     how deep JSON values may be, and their text
    randomness  the only source of it
    checks      what a call must be, and the nearest right name
    loops       event loops in threads of their own
    forks       what a forked child must not take over
    leftovers   temporary files, named by their owner
    options     settings, and which of them decide the data
    work/       what to train on, and the plan
    io/         datasets, catalogs, formats, stores, row blocks
    operators/  the steps of a pipeline, one file each
    lanes/      the rules of order, which never wait
    runners/    where work runs
    engine/     the traffic
    isolation/  the engine in a child process
    starting    from what a pipeline was told to an engine
    batch       what the trainer receives
    ragged      tensors of differing shapes in a column
    training    what a training step is made of; token_rows: the rows in it, tensors: where they are
    checkpoints what a user holds of one
    faces       for, async for (asyncio, trio)
    pipeline    the fluent face; building: the methods that add operators; reference_names: those of the reference
    recipes/    pipelines as TOML files
    explain     the compiled pipeline in text
    cli/        the command

Public names are loaded on first use, so `import zephon_async` is quick.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Batch": "batch",
    "global_digest": "batch",
    "BadRecord": "errors",
    "CheckpointError": "errors",
    "ClosedError": "errors",
    "DatasetError": "errors",
    "EstimationError": "errors",
    "InternalError": "errors",
    "RecipeError": "errors",
    "ShardError": "errors",
    "ColumnError": "errors",
    "MissingError": "errors",
    "StorageError": "errors",
    "WorkerDied": "errors",
    "WorkerError": "errors",
    "ZephonError": "errors",
    "Dataset": "io",
    "build_index": "io",
    "Operator": "operators",
    "PatchGrid": "operators",
    "ValidationReport": "operators",
    "check_operator": "operators",
    "Options": "options",
    "Pipeline": "pipeline",
    "Ragged": "ragged",
    "CheckpointSummary": "checkpoints",
    "inspect_checkpoint": "checkpoints",
    "Statistics": "engine",
    "load_recipe": "recipes",
    "recipe_schema": "recipes",
    "MixtureSchedule": "work",
    "MixtureSpec": "work",
    "ScheduledMixtureWorkSource": "work",
    "StaticMixtureWorkSource": "work",
    "TokenEstimation": "work",
}

__all__ = [
    "BadRecord",
    "Batch",
    "CheckpointError",
    "CheckpointSummary",
    "ClosedError",
    "ColumnError",
    "Dataset",
    "DatasetError",
    "EstimationError",
    "InternalError",
    "MissingError",
    "MixtureSchedule",
    "MixtureSpec",
    "Operator",
    "Options",
    "PatchGrid",
    "Pipeline",
    "Ragged",
    "RecipeError",
    "ScheduledMixtureWorkSource",
    "ShardError",
    "StaticMixtureWorkSource",
    "Statistics",
    "StorageError",
    "TokenEstimation",
    "ValidationReport",
    "WorkerDied",
    "WorkerError",
    "ZephonError",
    "__version__",
    "build_index",
    "check_operator",
    "global_digest",
    "inspect_checkpoint",
    "load_recipe",
    "recipe_schema",
]

if TYPE_CHECKING:
    from zephon_async.batch import Batch, global_digest
    from zephon_async.checkpoints import CheckpointSummary, inspect_checkpoint
    from zephon_async.engine import Statistics
    from zephon_async.errors import (
        BadRecord,
        CheckpointError,
        ClosedError,
        ColumnError,
        DatasetError,
        EstimationError,
        InternalError,
        MissingError,
        RecipeError,
        ShardError,
        StorageError,
        WorkerDied,
        WorkerError,
        ZephonError,
    )
    from zephon_async.io import Dataset, build_index
    from zephon_async.operators import Operator, PatchGrid, ValidationReport, check_operator
    from zephon_async.options import Options
    from zephon_async.pipeline import Pipeline
    from zephon_async.ragged import Ragged
    from zephon_async.recipes import load_recipe, recipe_schema
    from zephon_async.work import (
        MixtureSchedule,
        MixtureSpec,
        ScheduledMixtureWorkSource,
        StaticMixtureWorkSource,
        TokenEstimation,
    )


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
