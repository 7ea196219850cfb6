"""A program ends as it was meant to, with its own exit code and nothing on stderr, however it leaves its pipelines (D03)."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BEGIN = """
import signal, sys, time, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs this in the background has it ignored
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

def pipeline(fn=None, rows=10_000, epochs=None, **options):
    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"n": list(range(rows))})], {"d": 1}, epochs=epochs)
    made = Pipeline(source).options(runner="RUNNER", version=1, **options)  # of what -c gives there is no source
    return (made if fn is None else made.filter(fn)).batch(1)

"""


def start(program: str, runner: str) -> "subprocess.Popen[str]":
    text = (BEGIN + textwrap.dedent(program)).replace("RUNNER", runner)
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", text]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends(program: str, runner: str, code: int = 0) -> tuple[str, str]:
    with start(program, runner) as process:
        out, err = finished(process)
    assert process.returncode == code, err
    return out, err


def finished(process: "subprocess.Popen[str]") -> tuple[str, str]:
    try:
        out, err = process.communicate(timeout=20)
        slow = "Executing <"  # how long a callback took is the machine's
        return out, "".join(line for line in err.splitlines(keepends=True) if not line.startswith(slow))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # -X dev: it says where it hangs
        _, err = process.communicate()
        pytest.fail(f"it hangs:\n{err}")


LEAVINGS = {
    "never begun": ("p = pipeline()", 0),
    "only looked at": ("p = pipeline(); p.checkpoint(); p.explain()", 0),
    "begun and left": ("p = pipeline(); iter(p)", 0),
    "one taken": ("p = pipeline(); print(next(iter(p)).number)", 0),
    "one taken in main": ("def main():\n    p = pipeline()\n    for batch in p:\n        return\nmain()", 0),
    "the iterator dropped": ("p = pipeline()\nit = iter(p)\nnext(it)\ndel it", 0),
    "the pipeline dropped": ("p = pipeline()\nnext(iter(p))\ndel p", 0),
    "break": ("for batch in (p := pipeline()):\n    break", 0),
    "sys.exit": ("for batch in pipeline():\n    sys.exit(3)", 3),
    "sys.exit inside with": ("with pipeline() as p:\n    for batch in p:\n        sys.exit(3)", 3),
    "to the end": ("with pipeline(epochs=1, rows=9) as p:\n    assert len(list(p)) == 9", 0),
    "many": ("many = [pipeline() for _ in range(5)]\nfor p in many:\n    next(iter(p))", 0),
    "async": (
        "import asyncio\nasync def main():\n    async for batch in (p := pipeline()):\n        sys.exit(4)\nasyncio.run(main())",
        4,
    ),
    "async, left": ("import asyncio\nasync def main():\n    async for batch in pipeline():\n        break\nasyncio.run(main())", 0),
    "async function": (
        "async def keep(record):\n    return True\nfor batch in (p := pipeline(keep)):\n    break",
        0,
    ),
    "in a thread": ("p = pipeline()\nt = threading.Thread(target=lambda: next(iter(p)))\nt.start()\nt.join()", 0),
    "as a cycle": ("p = pipeline()\np.self = p\np.it = iter(p)\nnext(p.it)\ndel p", 0),
}


@pytest.mark.parametrize("runner", ["threads", "inline"])
@pytest.mark.parametrize("leaving", LEAVINGS)
def test_a_program_ends_with_its_own_code(leaving: str, runner: str) -> None:
    program, code = LEAVINGS[leaving]
    _, err = ends(program, runner, code)
    assert err == ""


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_a_forked_child_hangs_nowhere(runner: str) -> None:
    program = """
    import os, warnings
    warnings.simplefilter("ignore")
    p = pipeline()
    it = iter(p)
    next(it)
    codes = []
    for n in range(5):
        pid = os.fork()
        if not pid:
            for use in (lambda: next(it), lambda: next(iter(p))):
                try:
                    use()
                except Exception as error:
                    assert type(error).__name__ == "ClosedError" and "fork" in str(error), error
                else:
                    sys.exit(7)
            sys.exit(5)
        next(it)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(set(codes))
    """
    assert ends(program, runner) == ("{5}\n", "")


FORK = """
    import os, threading, warnings
    warnings.simplefilter("ignore")

    def child(use):
        pid = os.fork()
        if not pid:
            use()
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5

    def mapped(fn):
        source = StaticMixtureWorkSource([Dataset.from_dict("d", {"n": list(range(100))})], {"d": 1})
        return Pipeline(source).options(runner="RUNNER", version=1).map(fn).batch(1)
"""


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_a_pipeline_that_was_not_iterated_starts_anew_in_a_forked_child(runner: str) -> None:
    program = """
    async def same(record):
        return record

    p = mapped(same)
    p.checkpoint()
    child(lambda: next(iter(p)))
    next(iter(p))
    """
    assert ends(FORK + program, runner) == ("", "")


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_a_fork_in_the_middle_of_a_start(runner: str) -> None:
    program = """
    begun, may = threading.Event(), threading.Event()

    def slow(record):
        begun.set()
        may.wait(20)
        return record

    p = mapped(slow)
    starting = threading.Thread(target=lambda: next(iter(p)))
    starting.start()
    begun.wait()
    child(lambda: (may.set(), p.checkpoint(), next(iter(p))))
    may.set()
    starting.join()
    """
    assert ends(FORK + program, runner) == ("", "")


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_an_exception_in_the_loop_is_all_that_is_said(runner: str) -> None:
    _, err = ends("for batch in (p := pipeline()):\n    raise ValueError('mine')", runner, 1)
    assert err.splitlines()[0] == "Traceback (most recent call last):"
    assert err.splitlines()[-1] == "ValueError: mine"
    assert err.count("Traceback") == 1


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_an_error_of_a_function_has_its_traceback(runner: str) -> None:
    _, err = ends("def bad(record):\n    return 1 / 0\nlist(pipeline(bad))", runner, 1)
    assert "ZeroDivisionError: division by zero\nzephon_async: in filter, dataset 'd'" in err
    assert "in bad" in err


WAIT = """
first = threading.Lock()
def slow(record):
    if first.acquire(blocking=False):  # several workers come at once
        print("waiting", flush=True)
    {block}
    return True
"""
ASYNC = """
import asyncio
async def main():
    async with pipeline(slow{how}) as p:
        async for batch in p: pass
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("block", "begin"),
    [
        ("time.sleep(60)", "for batch in pipeline(slow, validate='off'): pass"),
        ("time.sleep(60)", "with pipeline(slow, validate='off') as p:\n    for batch in p: pass"),
        ("time.sleep(60)", ASYNC.format(how=", validate='off'")),
        ("time.sleep(60)", ASYNC.format(how="")),
        ("return False", "for batch in pipeline(slow, rows=1_000_000): pass"),
    ],
    ids=["for", "with", "async", "async, in the check at the start", "nothing comes"],
)
def test_ctrl_c_while_waiting(block: str, begin: str) -> None:
    with start(WAIT.format(block=block) + begin, "threads") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, err = finished(process)
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().splitlines()[-1].startswith(("KeyboardInterrupt", "closed, but these threads"))
    assert "KeyboardInterrupt" in err


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_a_checkpoint_and_a_close_inside_a_signal_handler(runner: str) -> None:
    """As trainers do on SIGTERM; the signal comes at any moment of `next`, and the state is always that of what was taken."""
    program = """
    import signal
    states = []
    def save(*_):
        if len(states) > 200:
            return  # a signal that came before the timer was stopped is told behind it, of the next pipeline
        states.append((taken[-1], p.checkpoint()))
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + len(states) % 7 * 0.0001)
    with pipeline() as p:
        signal.signal(signal.SIGALRM, save)
        taken = [-1]
        for batch in p:
            if not states:
                save()
            taken.append(batch.step)
            if len(states) > 200:
                break
        signal.setitimer(signal.ITIMER_REAL, 0)
    order = []
    with pipeline() as p:
        for batch in p:
            order.append(batch.digest())
            if len(order) > taken[-1] + 3:
                break
    for last, state in states[::20]:
        with pipeline().restore(state) as p:
            assert next(iter(p)).digest() in order[last + 1 : last + 3], last  # a batch may be taken and not given yet
    signal.signal(signal.SIGALRM, lambda *_: p.close())
    p = pipeline()
    it = iter(p)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        for batch in it:
            pass
    except Exception as error:
        print(error)
    """
    out, err = ends(program, runner)
    assert (out, err) == ("the pipeline is closed\n", "")


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_debug_mode_of_asyncio_has_nothing_to_say(runner: str) -> None:
    program = """
    import asyncio, gc, logging
    said = []
    class Keep(logging.Handler):
        def emit(self, record):
            if not record.getMessage().startswith("Executing"):
                said.append(record.getMessage())
    logging.getLogger("asyncio").addHandler(Keep())
    logging.getLogger("asyncio").propagate = False
    async def main():
        for n in range(5):
            async with pipeline(rows=100) as p:
                async for batch in p:
                    if batch.step == 5 * n:
                        break
                try:
                    await asyncio.wait_for(anext(aiter(p)), 0)
                except asyncio.TimeoutError:
                    pass
    asyncio.run(main())
    gc.collect()
    assert said == [], said
    """
    assert ends(program, runner) == ("", "")


@pytest.mark.parametrize("runner", ["threads", "inline"])
def test_ctrl_c_at_any_moment_of_next_and_going_on(runner: str) -> None:
    """Each may cost the batch that was taken and not given yet, and nothing else."""
    program = """
    import random
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    dice, steps, stopped = random.Random(0), [], 0
    with pipeline() as p:
        it = iter(p)
        while stopped < 300:
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.00005, 0.002))
                while True:
                    steps.append(next(it).step)
            except KeyboardInterrupt:
                stopped += 1
        for _ in range(10):
            steps.append(next(it).step)
    gaps = [after - before for before, after in zip(steps, steps[1:])]
    assert min(gaps) == 1 and sum(gaps) - len(gaps) <= stopped, set(gaps)
    """
    assert ends(program, runner) == ("", "")
