"""Users' functions: what they are called, what of them is fingerprinted, and how they meet one record at a time.

`PerRecord` is the operator behind `map`, `flat_map` and `filter`: it calls the function for each record, in order, and says
which record failed and what came of those before. `async def` functions run on the users' loop, up to `concurrency` at once;
their results are put back in the order of the records, and a failure is that of the first record that fails.

A fingerprint knows a function by module and qualified name, by a hash of its source (see `source`), and by `version=` (or the
function's own attribute `version`). It does not see what a closure or an object holds, nor what the function calls: change
`version=` then.

Threads: `fn` is called from several workers at once. `_places` is thread-local: a loop has a thread, and an operator may be in
several pipelines, each with a loop of its own.
"""

import asyncio
import builtins
import functools
import inspect
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from zephon_async.checks import check_version, different_names, whole_or_none
from zephon_async.errors import RecipeError
from zephon_async.operators.base import Columns, Operator, RecordFailed, Tally
from zephon_async.operators.rows import find_field, to_dicts
from zephon_async.operators.source import is_pythons, own_classes, source_hash
from zephon_async.records import Records

DEFAULT_CONCURRENCY = 16
FAILURES = (Exception, KeyboardInterrupt, SystemExit, GeneratorExit)  # what a coroutine may raise for a record


def function_name(fn: Any) -> str:
    """`module:qualname` of a function, of what a partial calls, or of the class of a callable object."""
    named = _named(fn)
    return f"{getattr(named, '__module__', None) or 'builtins'}:{named.__qualname__}"


def function_settings(fn: Any, version: str | int | None, role: str = "") -> dict[str, Any]:
    """What is fingerprinted of a function. role: to stand before each name, where an operator has several."""
    found = getattr(fn, "version", None) if version is None else version
    settings: dict[str, Any] = {
        f"{role}function": function_name(fn),
        f"{role}source": source_hash(_named(fn)),
        f"{role}version": _plain(found) if isinstance(found, str | int) else None,
    }
    if isinstance(fn, functools.partial):
        settings[f"{role}arguments"] = [_plain(value) for value in fn.args]
        settings[f"{role}keywords"] = {name: _plain(value) for name, value in sorted(fn.keywords.items())}
    return settings


class Fingerprint(NamedTuple):
    """What is fingerprinted of an operator.

    sources: those of the settings that are the hash of a user's source, with what each is the source of.
    unread: what has no hash and no version, so that it cannot be told from another of its name.
    """

    settings: Mapping[str, Any]
    sources: Mapping[str, str]
    unread: Sequence[str]


def fingerprint(operator: Operator) -> Fingerprint:
    """The settings of an operator, and the source of its class where that is a user's."""
    settings = dict(operator.settings())
    roles = [name.removesuffix("source") for name in settings if name.endswith("source")]
    sources = {f"{role}source": settings[f"{role}function"] for role in roles if f"{role}function" in settings}
    versions = {name: settings.get(f"{name.removesuffix('source')}version") for name in sources}
    if own_classes(type(operator)):
        settings["class source"] = source_hash(type(operator))
        sources["class source"], versions["class source"] = function_name(type(operator)), settings.get("version")
    unread = [of for name, of in sources.items() if settings[name] is None and versions[name] is None and not _is_pythons(of)]
    return Fingerprint(settings, sources, unread)


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an exception is meant to end the program; it may be a real Ctrl-C."""
    return isinstance(error, KeyboardInterrupt | SystemExit)


def is_async(fn: Any) -> bool:
    """Whether calling it gives a coroutine: `async def`, a partial of one, or an object whose `__call__` is one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def check_function(who: str, fn: Any, version: Any) -> None:
    if not callable(fn):
        raise RecipeError(f"{who}: wanted a function, found {type(fn).__name__} {fn!r:.80}")
    if inspect.isasyncgenfunction(fn):
        raise RecipeError(f"{who}: {function_name(fn)} is an async generator; make it an `async def` that returns a list")
    check_version(f"{who}: version", version)


def _named(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn if hasattr(fn, "__qualname__") else type(fn)


def _is_pythons(name: str) -> bool:
    """Whether a `function_name` says all. What `exec` made may be told to be of `builtins`, and is not there."""
    module, _, inside = name.partition(":")
    return is_pythons(module) and (module != "builtins" or hasattr(builtins, inside.partition(".")[0]))


def _plain(value: Any) -> Any:
    """A bound argument of a partial: by value where that is plain, else by its class."""
    if isinstance(value, float) or (isinstance(value, int) and not -(1 << 63) <= value < 1 << 64):  # too large for a checkpoint
        return repr(value)
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return function_name(value) if callable(value) else type(value).__qualname__


class OwnFunction(Operator):
    """An operator that calls a user's function with the columns that `columns=` names (default: all); no others are read for it."""

    def __init__(self, columns: Sequence[str] | None, version: str | int | None) -> None:
        self.columns = None if columns is None else different_names(f"{self.name}: columns", columns)
        self.version = version

    def functions(self) -> Sequence[Callable[..., Any]]:
        """The user's functions."""
        fn: Callable[..., Any] = self.fn  # type: ignore[attr-defined]
        return (fn,)

    def settings(self) -> Mapping[str, Any]:
        return {"columns": None if self.columns is None else list(self.columns)}

    def reads(self, wanted: Columns) -> Columns:
        return None if self.columns is None else frozenset(self.columns)

    def requires(self) -> Mapping[str, str]:
        return dict.fromkeys(self.columns or (), "any")

    def check_columns(self, schema: pa.Schema | None) -> None:
        """Refuse an input without the columns that are named."""
        for name in self.columns or ():
            find_field(schema, name, self.name)

    def selected(self, records: Records) -> pa.RecordBatch:
        """The columns that the function gets."""
        return records.columns if self.columns is None else records.columns.select(self.columns)


class PerRecord(OwnFunction):
    """A stateless operator that calls a user's function with one record, a dict, at a time."""

    gives_views = False

    def __init__(
        self,
        fn: Callable[[dict[str, Any]], Any],
        *,
        columns: Sequence[str] | None = None,
        version: str | int | None = None,
        parallelism: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        check_function(self.name, fn, version)
        parallelism = whole_or_none(f"{self.name}: parallelism", parallelism)
        concurrency = whole_or_none(f"{self.name}: concurrency", concurrency)
        if is_async(fn) and parallelism is not None:
            raise RecipeError(f"{self.name}: {function_name(fn)} is async, so use concurrency= (records at once), not parallelism=")
        if not is_async(fn) and concurrency is not None:
            raise RecipeError(
                f"{self.name}: {function_name(fn)} is not async, so use parallelism= (workers at once), not concurrency="
            )
        super().__init__(columns, version)
        self.fn = fn
        self.parallelism = parallelism
        self.concurrency = (concurrency or DEFAULT_CONCURRENCY) if is_async(fn) else None
        self._places = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_places"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._places = threading.local()

    def settings(self) -> Mapping[str, Any]:
        return {**function_settings(self.fn, self.version), **super().settings()}

    def apply(self, records: Records, tally: Tally) -> Records:
        return self._finish(records, *self._call(records), tally)

    async def apply_async(self, records: Records, tally: Tally) -> Records:
        return self._finish(records, *await self._call_async(records), tally)

    @abstractmethod
    def _checked(self, result: Any) -> Any:
        """What the function gave for a record, or TypeError where it is nothing of the right kind."""

    @abstractmethod
    def _give(self, records: Records, results: list[Any], tally: Tally) -> Records:
        """Make the output of records and their checked results."""

    def _call(self, records: Records) -> tuple[list[Any], BaseException | None]:
        """The results of the records before the first that fails, and its failure."""
        results: list[Any] = []
        fn, checked, keep = self.fn, self._checked, results.append
        try:
            for row in to_dicts(self.selected(records)):
                keep(checked(fn(row)))
        except BaseException as error:
            return results, error
        return results, None

    async def _call_async(self, records: Records) -> tuple[list[Any], BaseException | None]:
        """The same for coroutines, several at once; what comes after a failure is not begun."""
        places = self._places_on(asyncio.get_running_loop())
        rows: list[dict[str, Any]] = []
        results: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        try:
            for row in to_dicts(self.selected(records)):
                rows.append(row)  # noqa: PERF402 (those before a failure are wanted)
        except Exception as error:
            errors[len(rows)] = error

        async def call(number: int, row: dict[str, Any]) -> None:
            async with places:
                if min(errors, default=number) < number:
                    return
                try:
                    results[number] = self._checked(await self.fn(row))
                except FAILURES as error:
                    errors[number] = error

        async with asyncio.TaskGroup() as group:
            for number, row in enumerate(rows):
                group.create_task(call(number, row))
        at = next((number for number in range(len(rows)) if number not in results), len(rows))
        if at < len(rows) and at not in errors:  # a task group says nothing of a child that was cancelled
            errors[at] = RuntimeError(f"{self.name}: {function_name(self.fn)} cancelled itself")
        return [results[number] for number in range(at)], errors.get(at)

    def _places_on(self, loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
        """The places for calls at once; new on a new loop, to which a semaphore is bound."""
        mine = self._places.__dict__
        if mine.get("loop") is not loop:
            mine.update(loop=loop, places=asyncio.Semaphore(self.concurrency or DEFAULT_CONCURRENCY))
        places: asyncio.Semaphore = mine["places"]
        return places

    def _finish(self, records: Records, results: list[Any], error: BaseException | None, tally: Tally) -> Records:
        try:
            given = self._give(records.slice(0, len(results)) if error else records, results, tally)
        except RecordFailed:
            if is_interrupt(error):  # it comes once: it must not be forgotten over a record that can be skipped
                raise RecordFailed(len(results), None) from error
            raise
        if error is not None:
            raise RecordFailed(len(results), given) from error
        return given
