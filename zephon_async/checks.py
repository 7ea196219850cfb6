"""What can be said of a call before it is made: names of settings that there are not, arguments that are missing, kinds of values.

Python would say `TypeError`; here it is a `RecipeError` with the nearest right name. A call that can be made costs nothing more:
only when Python has refused one is it looked at why.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from operator import index
from typing import Any, TypeVar, cast

from zephon_async.errors import RecipeError

F = TypeVar("F", bound=Callable[..., Any])

_ELSEWHERE = {
    "batch_size": "batch(microbatch_size=...)",
    "microbatch_size": "batch(microbatch_size=...)",
    "collate_fn": "map_batches(fn)",
    "drop_last": "options(on_end='drop')",
    "num_replicas": "options(dp_size=...)",
    "world_size": "options(dp_size=...)",
    "rank": "options(dp_rank=...)",
    "num_workers": "options(workers=...)",
    "prefetch_factor": "options(prefetch=...)",
}
"""Names that users of torch know, and what they are here. A hint, not an alias."""

_SAME = {
    **dict.fromkeys(("column", "text_column", "text_field", "text_key"), "field"),
    **dict.fromkeys(("max_len", "seq_len", "seq_length", "sequence_length", "block_size"), "max_length"),
    **dict.fromkeys(("shuffle_shards", "shuffle_within_shard", "shuffle_block_size"), "shuffle"),
    "label": "return_labels",
    "max_buffer_size": "buffer_tokens",
    "mixture": "target",
    "collate_fn": "collate",
}
"""What a setting is called elsewhere, and what it is called in the calls here that have it. A hint as well."""

_MADE_BY = {"Dataset": "Dataset.from_path(name, path), Dataset.from_dict or Dataset.from_arrow"}
"""How those are made whose own call is not for users."""

_OWNERS = ("self", "batch")  # parameters that stand for what a method is called on; `to_training` is one of a batch


def shown(value: object) -> str:
    """The begin of a value's text, for messages; of one that is nested too deep for Python to write, nothing."""
    try:
        text = repr(value)
    except RecursionError:
        return "..."
    return text if len(text) <= 80 else text[:77] + "..."


def _meant(name: object, known: Iterable[str]) -> str:
    """What to say of a name that is none of those known: the one that was probably meant; nothing, where none is near."""
    near = get_close_matches(str(name), sorted(known), 1)
    return f"did you mean {near[0]!r}?" if near else ""


def hint(name: object, known: Iterable[str]) -> str:
    """The name that was probably meant, to stand behind a message that lists those known; nothing, where none is near."""
    near = _meant(name, known)
    return f"; {near}" if near else ""


def nearest(name: object, known: Collection[str]) -> str:
    """The name that was probably meant, or else all that are known."""
    return _meant(name, known) or f"there are: {', '.join(sorted(known)) or 'none'}"


def refuse_unknown(who: str, settings: Iterable[str], known: Iterable[str]) -> None:
    """Raise `RecipeError` for the first of the settings that is not known."""
    names = tuple(known)
    for name in settings:
        if name not in names:
            elsewhere = f"here it is {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            instead = _same(name, names) or elsewhere or nearest(name, names)
            raise RecipeError(f"{who}() knows no {name!r}; {instead}") from None


def _same(name: str, known: Collection[str]) -> str:
    """What to say of a setting that is called otherwise elsewhere; nothing, where none of those known is it."""
    return f"did you mean {_SAME[name]!r}?" if _SAME.get(name) in known else ""


def _refuse_call(who: str, made: Callable[..., Any], given: Sequence[Any], settings: Mapping[str, Any]) -> None:
    """Raise `RecipeError` where `made` cannot be called so."""
    signature = inspect.signature(made)
    parameters = [p for p in signature.parameters.values() if p.name not in _OWNERS]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes = [p.name for p in named]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        takes.append("settings by name")
    else:
        refuse_unknown(who, settings, takes)
    try:
        bound = signature.bind_partial(*given, **settings).arguments
    except TypeError as error:
        raise RecipeError(f"{who}(): {error}; it takes {', '.join(takes)}") from None
    if missing := [p.name for p in named if p.default is p.empty and p.name not in bound]:
        refuse_unknown(who, [name for name in settings if _same(name, missing) or _meant(name, missing)], takes)
        raise RecipeError(f"{who}() needs {' and '.join(f'{name}=' for name in missing)}") from None


def checks_call(made: F) -> F:
    """Decorate a function or a class: calls that cannot be made are refused with a `RecipeError`."""
    found: Any = made
    if isinstance(found, type):
        found.__init__ = checked(found.__name__, found.__init__)  # type: ignore[misc]
        return made
    return checked(found.__name__, made)


def checked(who: str, function: F) -> F:
    """A function of which messages speak as `who`."""

    @wraps(function)
    def call(*given: Any, **settings: Any) -> Any:
        try:
            return function(*given, **settings)
        except TypeError:
            try:
                _refuse_call(who, function, given, settings)
            except RecipeError:
                if who in _MADE_BY:
                    raise RecipeError(f"{who}() itself is not for users; make one with {_MADE_BY[who]}") from None
                raise
            raise  # it came from inside

    return cast(F, call)


def whole(name: str, value: Any, least: int | None = None, instead: str = "") -> int:
    """A whole number of any kind (numpy's too) of at least `least`, as an int. instead: what else there is, for the message."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise RecipeError(
            f"{name} is {value!r}: it must be a whole number{'' if least is None else f' of at least {least}'}{instead}"
        )
    if not -(1 << 63) <= number < 1 << 64:  # checkpoints hold no others
        raise RecipeError(f"{name} is {number}: it must be a whole number of at most 64 bits")
    return number


def whole_or_none(name: str, value: Any, least: int = 1, instead: str = ", or None") -> int | None:
    """`whole`, or None."""
    return None if value is None else whole(name, value, least, instead)


def one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse what is none of the choices."""
    known = tuple(choices)
    if value not in known:
        raise RecipeError(f"{name} is {value!r:.80}: it must be one of {', '.join(map(repr, known))}")


def writable(name: str, text: str) -> None:
    """Refuse a text that cannot be written: checkpoints hold UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RecipeError(
            f"{name} is {text!r:.80}: it cannot be written as UTF-8; leave out the half of a surrogate pair"
        ) from None


def check_version(name: str, value: Any) -> None:
    """Refuse what is no version of a user's: None, a text, or a whole number."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise RecipeError(f"{name} is {value!r:.80}: it must be a text or a whole number")
    if isinstance(value, int):
        whole(name, value)
    if isinstance(value, str):
        writable(name, value)


def flag(name: str, value: Any) -> bool:
    """True or False itself: a text such as "no" would be taken as true."""
    if not isinstance(value, bool):
        raise RecipeError(f"{name} is {value!r:.80}: it must be True or False")
    return value


def column_names(name: str, value: Any) -> tuple[str, ...]:
    """Names given as a list or tuple; a lone text is more likely a slip than a name a letter."""
    if not isinstance(value, str) and isinstance(value, Iterable):
        names = tuple(value)
        if all(isinstance(each, str) for each in names):
            return names
    raise RecipeError(f"{name} is {value!r:.80}: it must be a list of names")


def different_names(name: str, value: Any, least: int = 1) -> tuple[str, ...]:
    """`column_names`, at least so many, each once."""
    names = column_names(name, value)
    if len(names) < least or len(set(names)) < len(names):
        raise RecipeError(f"{name} is {value!r:.80}: it must be a list of different names, at least {least}")
    return names
