"""Exceptions on their way out of a worker process: type, message, notes, chained causes, and the traceback they had there.

One that cannot be pickled, or whose constructor wants arguments that it does not keep, goes as its class, its `args` and what of
its attributes can go; with its text for `args` where these cannot go; one whose class cannot go either becomes a `WorkerError` that
names it.
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
    BaseException.add_note(error, f"the traceback in {where}:\n{taken['traceback']}")
    return error


def _taken(error: BaseException, depth: int) -> dict[str, Any]:
    cause, context = error.__cause__, error.__context__
    return {
        "forms": [_pickled(error), _pickled((type(error), _args(error), _portable(vars(error))))],
        "named": f"{type(error).__module__}.{type(error).__qualname__}",
        "text": _text(error),
        "notes": _notes(error),
        "cause": _taken(cause, depth - 1) if cause is not None and depth else None,
        "context": _taken(context, depth - 1) if context is not None and cause is None and depth else None,
        "suppressed": error.__suppress_context__,
        "traceback": _traceback(error),
    }


def _made(taken: dict[str, Any]) -> BaseException:
    error = _whole(taken) or _from_parts(taken) or WorkerError(f"{taken['named']}: {taken['text']}")
    error.__dict__.pop("__notes__", None)
    for note in taken["notes"]:
        BaseException.add_note(error, note)  # a class may have another
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
    except BaseException:
        return None
    return error if _text(error) == taken["text"] else None


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__, chain=False)).rstrip()
    except BaseException:  # what its class does
        return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


def _args(error: BaseException) -> tuple[Any, ...]:
    return error.args if _pickled(error.args) is not None else (_text(error),)


def _portable(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != "__notes__" and _pickled(value) is not None}


def _pickled(value: Any) -> bytes | None:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except BaseException:
        return None
    return data


def _loaded(data: bytes | None) -> Any:
    try:
        return None if data is None else pickle.loads(data)
    except BaseException:  # what its class does
        return None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as failed:
        return f"<its text could not be made: {type(failed).__name__}>"
