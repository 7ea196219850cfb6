"""A loop in a thread: it starts once, ends once, and leaves nobody waiting."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from pydoc import locate
from typing import Any, cast

import pytest

from zephon_async.errors import ClosedError, WorkerError
from zephon_async.loops import LoopThread

NAME = "zephon-tried"
CLOSED = "^the loop of zephon-tried is closed$"
T_S = 20.0  # it does not take as long


def threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


async def turns(n: int) -> int:
    for _ in range(n):
        await asyncio.sleep(0)
    return n


def is_closed(coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Whether it will not be complained of that nobody has awaited it."""
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


class Ends:
    """What is awaited at the end, and how it went. n: loop turns that it takes."""

    def __init__(self, n: int = 20) -> None:
        self._n, self.went = n, list[str]()

    async def __call__(self) -> None:
        self.went.append("begun")
        try:
            await turns(self._n)
            self.went.append("ended")
        except asyncio.CancelledError:
            self.went.append("cancelled")
            raise


def held(loop: LoopThread, at_cancel: Callable[[], Awaitable[Any]] | None = None) -> "Future[None]":
    """A coroutine that runs until it is cancelled, and then awaits something."""
    begun = threading.Event()

    async def one() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if at_cancel is not None:
                await at_cancel()

    future = loop.submit(one())
    assert begun.wait(T_S)
    return future


def test_coroutines_run_in_one_thread_that_starts_with_the_first() -> None:
    loop = LoopThread(NAME)
    assert threads() == 0

    async def where() -> str:
        await turns(1)
        return threading.current_thread().name

    assert [loop.submit(where()).result(T_S) for _ in range(3)] == [NAME] * 3
    assert threads() == 1
    assert loop.close(T_S) == []
    assert threads() == 0


@pytest.mark.parametrize("repeat", range(10))
def test_many_that_begin_at_once_have_one_thread(repeat: int) -> None:
    loop, ready = LoopThread(NAME), threading.Barrier(8)

    async def where() -> int:
        return threading.get_ident()

    def one(_: int) -> set[int]:
        ready.wait(T_S)
        return {loop.submit(where()).result(T_S) for _ in range(20)}

    with ThreadPoolExecutor(8) as pool:
        found = set[int]().union(*pool.map(one, range(8)))
    assert len(found) == 1
    assert threads() == 1
    assert loop.close(T_S) == []


def test_behind_close_nothing_runs() -> None:
    for used in (False, True):
        loop = LoopThread(NAME)
        if used:
            assert loop.submit(turns(3)).result(T_S) == 3
        assert loop.close(T_S) == []
        coroutine = turns(3)
        with pytest.raises(ClosedError, match=CLOSED):
            loop.submit(coroutine)
        assert is_closed(coroutine)
        assert loop.close(T_S) == []
        assert threads() == 0


@pytest.mark.parametrize("ways", ["c", "cc", "s", "sc", "ss", "ssc", "sss", "scs", "csc"])
def test_the_end_comes_once_and_whole(ways: str) -> None:
    ends = Ends()
    loop = LoopThread(NAME, ends)
    running = held(loop)
    for way in ways:
        if way == "s":
            loop.close_soon()
        else:
            assert loop.close(T_S) == []
    with pytest.raises(CancelledError):
        running.result(T_S)
    assert loop.close(T_S) == []
    assert ends.went == ["begun", "ended"]
    assert threads() == 0


@pytest.mark.parametrize("repeat", range(10))
def test_closed_by_many_at_once(repeat: int) -> None:
    ends = Ends(100)
    loop, ready = LoopThread(NAME, ends), threading.Barrier(8)
    running = held(loop)

    def one(n: int) -> list[str] | None:
        ready.wait(T_S)
        if n % 2:
            return loop.close(T_S)
        loop.close_soon()
        return None

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == [None, []] * 4
    assert running.cancelled()
    loop.close(T_S)
    assert ends.went == ["begun", "ended"]


def test_without_a_coroutine_there_is_no_end() -> None:
    ends = Ends()
    assert LoopThread(NAME, ends).close(T_S) == []
    LoopThread(NAME, ends).close_soon()
    assert ends.went == []


def test_what_is_cancelled_may_end_in_order() -> None:
    went: list[str] = []

    async def tidy() -> None:
        await turns(10)
        went.append("tidied")

    async def end() -> None:
        went.append("end")

    loop = LoopThread(NAME, end)
    running = [held(loop, tidy) for _ in range(3)]
    assert loop.close(T_S) == []
    assert went == ["tidied", "tidied", "tidied", "end"]
    assert all(future.cancelled() for future in running)


def test_what_the_cancelled_begin_is_cancelled_too() -> None:
    """A task that is made by one that ends must not be waited for by nobody."""
    begun: list[asyncio.Task[None]] = []

    async def more() -> None:
        await asyncio.get_running_loop().create_future()

    async def tidy() -> None:
        begun.append(asyncio.create_task(more()))

    loop = LoopThread(NAME)
    held(loop, tidy)
    assert loop.close(T_S) == []
    assert [task.cancelled() for task in begun] == [True]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError, asyncio.CancelledError])
def test_a_coroutine_that_raises_anything_ends_nothing_else(error: type[BaseException]) -> None:
    ends = Ends()
    loop = LoopThread(NAME, ends)
    running = held(loop)

    async def raising() -> None:
        await turns(1)
        raise error

    for _ in range(3):
        with pytest.raises(CancelledError if error is asyncio.CancelledError else error):
            loop.submit(raising()).result(T_S)
    assert loop.submit(turns(2)).result(T_S) == 2
    assert not running.done()
    assert loop.close(T_S) == []
    assert running.cancelled()
    assert ends.went == ["begun", "ended"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_one_that_raises_while_it_is_cancelled(error: type[BaseException]) -> None:
    ends = Ends()
    loop = LoopThread(NAME, ends)

    async def raising() -> None:
        raise error

    running, other = held(loop, raising), held(loop, Ends())
    assert loop.close(T_S) == []
    assert isinstance(running.exception(T_S), error)
    assert other.cancelled()
    assert ends.went == ["begun", "ended"]
    assert threads() == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_an_end_that_fails_leaves_no_loop_open(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    raised: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))

    async def end() -> None:
        loops.append(asyncio.get_running_loop())
        raise error

    loop = LoopThread(NAME, end)
    loop.submit(turns(1)).result(T_S)
    assert loop.close(T_S) == []
    assert [each.is_closed() for each in loops] == [True]
    assert raised == [error]


def test_a_future_that_is_cancelled_cancels_its_coroutine() -> None:
    ended = threading.Event()

    async def end() -> None:
        ended.set()

    loop = LoopThread(NAME)
    future = held(loop, end)
    future.cancel()
    assert ended.wait(T_S)
    assert loop.close(T_S) == []


@pytest.mark.parametrize("soon", [False, True])
@pytest.mark.parametrize("repeat", range(20))
def test_whatever_is_submitted_while_it_closes_comes_to_an_end(soon: bool, repeat: int) -> None:
    """Either it is refused, or it is cancelled or done; never is it forgotten."""
    loop, ready = LoopThread(NAME), threading.Barrier(5)
    running = held(loop, Ends())

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    def submit() -> list["Future[None]"]:
        futures: list[Future[None]] = []
        ready.wait(T_S)
        try:
            while len(futures) < 10_000:
                futures.append(loop.submit(never()))
        except ClosedError:
            pass
        return futures

    with ThreadPoolExecutor(4) as pool:
        submitted = [pool.submit(submit) for _ in range(4)]
        ready.wait(T_S)
        if soon:
            loop.close_soon()
        else:
            assert loop.close(T_S) == []
        futures = [running, *(future for each in submitted for future in each.result())]
    assert wait(futures, T_S).not_done == set()
    assert all(future.cancelled() for future in futures)
    assert loop.close(T_S) == []


@pytest.mark.parametrize("repeat", range(20))
def test_soon_closed_while_it_starts(repeat: int) -> None:
    loop, ready = LoopThread(NAME), threading.Barrier(2)

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    def submit() -> "Future[None] | None":
        ready.wait(T_S)
        try:
            return loop.submit(never())
        except ClosedError:
            return None

    with ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(submit)
        ready.wait(T_S)
        loop.close_soon()
        future = submitted.result(T_S)
    if future is not None:  # nobody else need close it
        assert wait([future], T_S).done == {future}
        assert future.cancelled()
    assert loop.close(T_S) == []


def finalized(loop: LoopThread, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that runs behind a finalizer which closes the loop."""
    thread = loop._thread

    def called(*args: Any) -> Any:
        loop.close_soon()
        if thread is not None:
            thread.join(0.05)  # it waits for whoever is let in
        return call(*args)

    return called


def test_soon_closed_by_a_finalizer_inside_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every place of `submit` at which other code may run: before there is a loop, and when it is let in."""
    for place in ("zephon_async.loops.new_loop", "zephon_async.loops.begin", "asyncio.run_coroutine_threadsafe"):
        for used in (False, True):
            loop = LoopThread(NAME)
            if used:
                loop.submit(turns(1)).result(T_S)
            with monkeypatch.context() as patch:
                patch.setattr(place, finalized(loop, cast(Callable[..., Any], locate(place))))
                future = loop.submit(turns(1_000_000))
            if used and place != "asyncio.run_coroutine_threadsafe":
                loop.close_soon()
            assert wait([future], T_S).done == {future}
            assert future.cancelled()
            assert loop.close(T_S) == []


def test_one_that_does_not_come_back_is_named() -> None:
    blocked, leave = threading.Event(), threading.Event()

    async def block() -> None:
        blocked.set()
        leave.wait(T_S)

    loop = LoopThread(NAME)
    loop.submit(block())
    assert blocked.wait(T_S)
    assert loop.close(0.01) == [NAME]
    leave.set()


def test_what_runs_in_threads_of_the_loop_is_waited_for() -> None:
    went: list[str] = []
    begun, leave = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        leave.wait(T_S)
        went.append("worked")

    loop = LoopThread(NAME)
    future = loop.submit(asyncio.to_thread(work))
    assert begun.wait(T_S)
    loop.close_soon()
    leave.set()
    assert loop.close(T_S) == []
    assert went == ["worked"]
    assert future.done()


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == NAME:
            raise RuntimeError("can't start new thread")
        start(thread)

    loop, coroutine = LoopThread(NAME), turns(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(WorkerError, match=r"^the thread zephon-tried cannot be started \(can't start new thread\)"):
            loop.submit(coroutine)
    assert is_closed(coroutine)
    assert loop.submit(turns(1)).result(T_S) == 1
    assert loop.close(T_S) == []


@pytest.mark.parametrize("used", [False, True])
def test_closed_by_a_finalizer(used: bool) -> None:
    """A finalizer runs inside any code, also where this thread holds the lock of the loop."""
    ends = Ends()
    loop = LoopThread(NAME, ends)
    running = held(loop) if used else None
    thread = loop._thread
    with loop._lock:
        loop.close_soon()
    if thread is not None and running is not None:
        thread.join(T_S)
        assert not thread.is_alive()
        assert running.cancelled()
    assert ends.went == (["begun", "ended"] if used else [])
    with pytest.raises(ClosedError, match=CLOSED):
        loop.submit(turns(1))
    assert loop.close(T_S) == []
