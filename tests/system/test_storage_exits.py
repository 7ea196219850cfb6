"""A program ends, with its own exit code, also while a store does not answer; a forked child harms neither parent nor itself."""

import subprocess
import sys
from collections.abc import Iterator
from textwrap import dedent

import pytest

from tests.system.fake_s3 import FakeS3, Twist

BEGIN = """
import asyncio, os, signal, sys, threading
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_async.io import Access

asked, fetch = threading.Event(), Access.fetch  # asked: the catalog waits for an answer

def noted(*arguments):
    asked.set()
    return fetch(*arguments)

Access.fetch = noted
datasets = [Dataset.from_path("j", {root!r} + "j", storage_options={options!r})]

def new():
    return Pipeline(StaticMixtureWorkSource(datasets, {{"j": 1}}, epochs=None)).options(lanes=2).batch(4)

async def take(pipeline):
    async for batch in pipeline:
        pass
"""
WAITING = {  # each while the catalog waits for an answer that never comes
    "a consumer that is cancelled": """
        async def main():
            task = asyncio.create_task(take(new()))
            await asyncio.to_thread(asked.wait)
            task.cancel()
            await asyncio.wait([task])
        asyncio.run(main())
    """,
    "and closes": """
        async def main():
            async with new() as pipeline:
                task = asyncio.create_task(take(pipeline))
                await asyncio.to_thread(asked.wait)
                task.cancel()
                await asyncio.wait([task])
        asyncio.run(main())
    """,
    "a daemon thread": """
        threading.Thread(target=lambda: list(new()), daemon=True).start()
        asked.wait()
    """,
    "Ctrl-C under asyncio": """
        threading.Thread(target=lambda: (asked.wait(), os.kill(os.getpid(), signal.SIGINT))).start()
        try:
            asyncio.run(take(new()))
        except KeyboardInterrupt:
            pass
    """,
    "Ctrl-C": """
        threading.Thread(target=lambda: (asked.wait(), os.kill(os.getpid(), signal.SIGINT))).start()
        try:
            list(new())
        except KeyboardInterrupt:
            pass
    """,
    "close by another thread": """
        pipeline = new()
        threading.Thread(target=lambda: (asked.wait(), pipeline.close())).start()
        try:
            list(pipeline)
        except Exception as error:
            assert type(error).__name__ == "ClosedError", error
    """,
}


@pytest.fixture
def store() -> Iterator[FakeS3]:
    with FakeS3() as server:
        for n in range(40):
            server.put(f"j/{n:02}.jsonl", b"".join(b'{"text": "%d of %d"}\n' % (i, n) for i in range(50)))
        yield server


def ran(store: FakeS3, program: str) -> "subprocess.CompletedProcess[str]":
    program = BEGIN.format(root=store.root, options=store.options) + dedent(program) + "\nsys.exit(7)\n"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("name", WAITING)
def test_a_store_that_does_not_answer_keeps_no_program_from_ending(name: str, store: FakeS3) -> None:
    store.faults = lambda request: Twist(silent=True) if request.method == "GET" and request.key else None
    done = ran(store, WAITING[name])
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("then", ["os._exit(0)", "sys.exit(0)", "gc.collect(); os._exit(0)", "run.close(); os._exit(0)"])
def test_a_forked_child_harms_neither_its_parent_nor_itself(then: str, store: FakeS3) -> None:
    done = ran(
        store,
        f"""
        import gc, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork in a program with threads
        run = new()
        batches = iter(run)
        for _ in range(20):
            next(batches)
        for _ in range(3):
            if (child := os.fork()) == 0:
                {then}
            assert os.waitpid(child, 0)[1] == 0
            for _ in range(20):
                next(batches)
        assert run.statistics().storage["retries"] == 0, run.statistics()
        run.close()
        """,
    )
    assert (done.returncode, done.stderr) == (7, "")
