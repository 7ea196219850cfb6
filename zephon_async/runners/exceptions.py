"""Exceptions on their way out of a worker process: type, message, notes, chained causes, and the traceback they had there.

One that cannot be pickled, or whose constructor wants arguments that it does not keep, goes as its class, its `args` and what of
its attributes can go; one whose class cannot go either becomes a `WorkerError` that names it.
"""

import pickle
import traceback
from typing import Any

from zephon_async.errors import WorkerError

_DEPTH = 8  # causes behind causes that are kept


def pack_exception(error: BaseException) -> bytes:
    """An exception with what it was raised from."""
    return pickle.dumps(_taken(error, _DEPTH))


def unpack_exception(data: bytes, where: str) -> BaseException:
    """The exception again, with its traceback as a note that says where it was."""
    taken = pickle.loads(data)
    error = _made(taken)
    error.add_note(f"the traceback in {where}:\n{taken['traceback']}")
    return error


def _taken(error: BaseException, depth: int) -> dict[str, Any]:
    cause, context = error.__cause__, error.__context__
    return {
        "forms": [_pickled(error), _pickled((type(error), error.args, _portable(vars(error))))],
        "named": f"{type(error).__module__}.{type(error).__qualname__}",
        "text": _text(error),
        "notes": [str(note) for note in getattr(error, "__notes__", ())],
        "cause": _taken(cause, depth - 1) if cause is not None and depth else None,
        "context": _taken(context, depth - 1) if context is not None and cause is None and depth else None,
        "suppressed": error.__suppress_context__,
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__, chain=False)).rstrip(),
    }


def _made(taken: dict[str, Any]) -> BaseException:
    error = _whole(taken) or _from_parts(taken) or WorkerError(f"{taken['named']}: {taken['text']}")
    error.__dict__.pop("__notes__", None)
    for note in taken["notes"]:
        error.add_note(note)
    if taken["cause"] is not None:
        error.__cause__ = _made(taken["cause"])
    if taken["context"] is not None:
        error.__context__ = _made(taken["context"])
    error.__suppress_context__ = taken["suppressed"]
    return error


def _whole(taken: dict[str, Any]) -> BaseException | None:
    """By its own way of being pickled, if that gives the same text."""
    error = _loaded(taken["forms"][0])
    return error if isinstance(error, BaseException) and _text(error) == taken["text"] else None


def _from_parts(taken: dict[str, Any]) -> BaseException | None:
    """Without its constructor, which may want other arguments than it keeps."""
    parts = _loaded(taken["forms"][1])
    if parts is None:
        return None
    kind, args, attributes = parts
    try:
        error: BaseException = kind.__new__(kind, *args)
        error.args = args
        error.__dict__.update(attributes)
    except Exception:
        return None
    return error if _text(error) == taken["text"] else None


def _portable(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != "__notes__" and _pickled(value) is not None}


def _pickled(value: Any) -> bytes | None:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception:
        return None
    return data


def _loaded(data: bytes | None) -> Any:
    try:
        return None if data is None else pickle.loads(data)
    except Exception:
        return None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:
        return f"<its text could not be made: {type(failed).__name__}>"
