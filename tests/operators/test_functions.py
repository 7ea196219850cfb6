"""What is fingerprinted of users' functions, and calls of coroutines."""

import asyncio
import functools
import pickle
from collections import Counter
from typing import Any

import pytest

from tests.made_rows import made, placed, run, texts
from zephon_async.errors import RecipeError
from zephon_async.operators.base import RecordFailed
from zephon_async.operators.filter import Filter
from zephon_async.operators.functions import function_name, function_settings, is_async
from zephon_async.operators.map import Map

HERE = __name__


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return row


def added(amount: int, row: dict[str, Any], *, name: str = "number") -> dict[str, Any]:
    return {name: row["number"] + amount}


class Adder:
    version = "v2"

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"number": row["number"] + self.amount}

    def method(self, row: dict[str, Any]) -> dict[str, Any]:
        return self(row)


class AsyncAdder(Adder):
    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return {"number": row["number"] + self.amount}


def closure(amount: int) -> Any:
    return lambda row: {"number": row["number"] + amount}


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (plain, "plain"),
        (functools.partial(added, 1), "added"),
        (functools.partial(functools.partial(added, 1), name="number"), "added"),
        (Adder(1), "Adder"),
        (Adder(1).method, "Adder.method"),
        (AsyncAdder(1), "AsyncAdder"),
        (closure(1), "closure.<locals>.<lambda>"),
    ],
)
def test_every_kind_of_function(fn: Any, name: str) -> None:
    settings = function_settings(fn, None)
    assert settings["function"] == f"{HERE}:{name}"
    assert isinstance(settings["source"], str)
    operator = Map(fn)
    trial = made({"number": [1, 2]})
    operator.recall(operator.learn(trial) if operator.concurrency is None else asyncio.run(operator.learn_async(trial)))
    assert placed(run(operator, made({"number": [4]}))[0]) == [({"number": 4 if fn is plain else 5}, 0, 0)]


def test_builtins_have_names_and_no_source() -> None:
    assert function_settings(dict, None) == {"function": "builtins:dict", "source": None, "version": None}
    assert function_name(len) == "builtins:len"
    assert function_name(str.upper) == "builtins:str.upper"


def test_versions_and_bound_arguments_are_fingerprinted() -> None:
    assert function_settings(Adder(1), None)["version"] == "v2"
    assert function_settings(Adder(1), 7)["version"] == 7
    any_fn: Any = added
    settings = function_settings(functools.partial(any_fn, 1.5, name=Adder(1)), None)
    assert (settings["arguments"], settings["keywords"]) == (["1.5"], {"name": f"{HERE}:Adder"})
    settings = function_settings(functools.partial(any_fn, 1 << 64, name=(1 << 64) - 1), None)
    assert (settings["arguments"], settings["keywords"]) == (["18446744073709551616"], {"name": (1 << 64) - 1})


def test_the_place_of_a_function_in_its_file_does_not_matter() -> None:
    # fmt: off
    if True:
        deep = lambda row: row  # noqa: E731
    deep_source = function_settings(deep, None)["source"]
    deep = lambda row: row  # noqa: E731
    # fmt: on
    assert function_settings(deep, None)["source"] == deep_source


def test_what_is_async() -> None:
    async def coroutine(row: Any) -> Any:
        return row

    assert [is_async(fn) for fn in (coroutine, functools.partial(coroutine), AsyncAdder(1), AsyncAdder(1).__call__)] == [True] * 4
    assert [is_async(fn) for fn in (plain, Adder(1), dict, functools.partial(plain))] == [False] * 4


async def awaited(row: dict[str, Any]) -> dict[str, Any]:
    return row


async def generated(row: dict[str, Any]) -> Any:
    yield row


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Map(5), "map: wanted a function, found int 5"),  # type: ignore[arg-type]
        (lambda: Map(generated), "async generator"),
        (lambda: Map(plain, concurrency=4), "not async, so use parallelism="),
        (lambda: Map(awaited, parallelism=4), "is async, so use concurrency="),
        (lambda: Map(plain, parallelism=0), "map: parallelism is 0: it must be a whole number of at least 1, or None"),
        (lambda: Map(plain, parallelism=True), "parallelism is True"),
        (lambda: Map(awaited, concurrency=1.5), "concurrency is 1.5"),  # type: ignore[arg-type]
        (lambda: Map(plain, version=1.5), "map: version is 1.5: it must be a text or a whole number"),  # type: ignore[arg-type]
        (lambda: Filter(plain, columns="text"), "filter: columns is 'text': it must be a list of names"),
        (lambda: Filter(plain, columns=[]), "at least 1"),
        (lambda: Filter(plain, columns=["a", "a"]), "different"),
        (lambda: Filter(plain, columns=[1]), "list of names"),  # type: ignore[list-item]
    ],
)
def test_wrong_settings_are_refused_at_once(wrong: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        wrong()


def test_columns_say_what_is_read() -> None:
    assert Map(plain).reads(frozenset({"a"})) is None
    assert Map(plain, columns=["b"]).reads(frozenset({"a"})) == frozenset({"b"})
    assert Map(plain, columns=["b"]).requires() == {"b": "any"}
    assert Filter(plain, columns=["b"]).reads(frozenset({"a"})) == frozenset({"a", "b"})
    assert Filter(plain, columns=["b"]).reads(None) is None
    assert Filter(plain).reads(frozenset({"a"})) is None
    assert Filter(plain).requires() == {}
    out, _, _ = run(Filter(lambda row: row == {"b": 2}, columns=["b"]), made({"a": [1, 1], "b": [2, 3]}))
    assert placed(out) == [({"a": 1, "b": 2}, 0, 0)]


def test_coroutines_keep_their_order_and_their_limit() -> None:
    running = most = 0
    gates: dict[int, asyncio.Event] = {}

    async def backwards(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3 or row["number"] == 8:  # as many as there may be, or the last: let them go, the newest first
            for gate in reversed(gates.values()):
                gate.set()
        else:
            await gates.setdefault(row["number"], asyncio.Event()).wait()
        running -= 1
        return row

    operator = Map(backwards, concurrency=3)
    operator.recall(Map(plain).learn(made({"number": [1]})))
    out, _, _ = run(operator, made({"number": list(range(9))}))
    assert [row["number"] for row, _, _ in placed(out)] == list(range(9))
    assert most == 3


def test_the_limit_is_that_of_the_operator_not_of_a_call() -> None:
    running = most = 0

    async def counted(row: dict[str, Any]) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return True

    async def several() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(operator.apply_async(made({"number": list(range(5))}), Counter()))

    operator = Filter(counted, concurrency=2)
    for _ in range(2):  # another loop each time
        asyncio.run(several())
    assert most == 2
    assert pickle.loads(pickle.dumps(Map(awaited, concurrency=2))).concurrency == 2


def test_loops_at_once_have_places_of_their_own() -> None:
    log: list[str] = []
    begun, later = asyncio.Event(), asyncio.Event()

    async def logged(row: dict[str, Any]) -> bool:
        log.append(f"begin {row['number']}")
        if row["number"] == 0:
            begun.set()
            await later.wait()
        log.append(f"end {row['number']}")
        return True

    operator = Filter(logged, concurrency=1)

    async def two_and_another_loop() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(operator.apply_async(made({"number": [0]}), Counter()))
            await begun.wait()
            await asyncio.to_thread(lambda: asyncio.run(operator.apply_async(made({"number": [9]}), Counter())))
            group.create_task(operator.apply_async(made({"number": [1]}), Counter()))
            for _ in range(9):
                await asyncio.sleep(0)
            later.set()

    asyncio.run(two_and_another_loop())
    assert log == ["begin 0", "begin 9", "end 9", "end 0", "begin 1", "end 1"]


def test_the_first_record_that_fails_is_the_one_whichever_fails_first() -> None:
    later = asyncio.Event()
    begun: list[int] = []

    async def failing(row: dict[str, Any]) -> bool:
        begun.append(row["number"])
        if row["number"] == 2:
            await later.wait()
            raise ValueError("two")
        if row["number"] == 3:
            later.set()
            raise ValueError("three")
        await later.wait()
        return True

    out, at, cause = run(Filter(failing, concurrency=4), made({"number": list(range(40))}))
    assert (len(placed(out)), at, str(cause)) == (2, 2, "two")
    assert len(begun) < 10  # what comes after a failure is not begun


def test_a_coroutine_that_cancels_itself_is_an_error() -> None:
    async def cancelled(row: dict[str, Any]) -> bool:
        if row["number"] == 1:
            raise asyncio.CancelledError
        return True

    out, at, cause = run(Filter(cancelled), made({"number": [0, 1, 2]}))
    assert (len(placed(out)), at) == (1, 1)
    assert "cancelled itself" in str(cause)


def test_exceptions_keep_their_type_and_traceback() -> None:
    def wrong(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 // (len(row["text"]) - 1)}

    operator = Map(wrong)
    operator.recall(operator.learn(texts(["", "abc"])))
    with pytest.raises(RecordFailed) as caught:
        operator.apply(texts(["", "b", ""]), Counter())
    assert caught.value.at == 1
    assert placed(caught.value.done) == [({"x": -1}, 0, 0)]
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert cause.__traceback__ is not None
