"""What a pipeline was told, on its way into the child process, once: pickled, and behind that the buffers of what it holds, such as
in-memory data, which the child uses where they lie."""

import pickle
from collections.abc import Mapping
from typing import Any

from zephon_async.engine import Deadly, Spec
from zephon_async.errors import RecipeError
from zephon_async.runners import Arena, aligned, load


def put_letter(arena: Arena, spec: Spec, facts: Mapping[str, Any] | None, deadly: Deadly) -> tuple[int, ...]:
    """Lay it down; gives the sizes of its parts. Raises `RecipeError`, with its name, for what cannot be pickled."""
    import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    told = (spec.source, spec.operators, spec.options.changed({"isolate": False, "agree": None}), spec.microbatch_size)
    try:
        body = cloudpickle.dumps((*told, spec.fingerprints, facts, deadly.rows), protocol=5, buffer_callback=buffers.append)
    except Exception as error:
        culprit = next((name for name, each in _named(spec) if _cannot_travel(each)), "its settings")
        raise RecipeError(
            f"options(isolate=True) sends the pipeline to another process, and {culprit} cannot be pickled "
            f"({type(error).__name__}: {error}): make what it holds, such as a lock, a file or a client, where it is first used"
        ) from error
    parts = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    memory, at = arena.room(sum(aligned(len(part)) for part in parts)), 0
    for part in parts:
        memory[at : at + len(part)] = part
        at += aligned(len(part))
    return tuple(map(len, parts))


def get_letter(arena: Arena, sizes: tuple[int, ...]) -> Any:
    """In the child: what was laid down. Its buffers stay where they are."""
    memory, at, parts = arena.view(sum(map(aligned, sizes))), 0, list[memoryview]()
    for size in sizes:
        parts.append(memory[at : at + size].toreadonly())
        at += aligned(size)
    return load(parts[0], parts[1:])


def _named(spec: Spec) -> list[tuple[str, Any]]:
    operators = [(f"{operator.name}, operator {i + 1},", operator) for i, operator in enumerate(spec.operators)]
    return [*operators, *((f"dataset {each.name!r}", each) for each in spec.source.datasets), ("its work source", spec.source)]


def _cannot_travel(each: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(each)
    except Exception:
        return True
    return False
