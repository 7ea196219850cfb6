"""What of the source of users' functions is hashed: what they do, not how it is written nor what else stands on the line."""

import gc
import html
import operator
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Load
from zephon_async.operators import Map
from zephon_async.operators.source import defined, is_pythons, own_classes, source_hash

SHAPES = '''
    import asyncio
    import functools

    def kept(times):
        return lambda fn: fn

    def plain(row):
        return row

    def strings(row):
        a = "a" "b" f"{row!r:>{row['w']:d}}{{}}" "c" f"" f"{row=}" f'{row["x"]:}'
        return a, b"\\x00\\xff", "\\u00e9\\U0001fae8\\ud800\\N{BULLET}", u"u", r"\\d"

    def numbers(row):
        return 0xFFFF_FFFF_FFFF_FFFF_F, 1e999, 0.1, 2j, ..., -0.0, None, True

    def grammar(row, /, a: int = 1, *rest: "str", key=None, **others) -> "dict":
        global plain
        del (a, key)
        if (n := len(row)) > 10 and not n in (11, 12):
            return {**row, "n": plain[1:-1, ...], "m": [*rest, n]}
        try:
            with open("a") as x, open("b"):
                pass
        except* (ValueError, OSError) as error:
            raise TypeError from error
        else:
            y: int = 1
            (y): int
        for i, *j in [(k, v) for k, v in row.items() if k if v]:
            continue
        else:
            x @= i ** -j
        return lambda: (yield)

    def matched(row):
        match row:
            case {"a": 1 | 2 as n, **rest} if n:
                return rest
            case [1, *_, None] | (True, -1):
                return 2
            case str(real=x) | complex(imag=x):
                return x
            case _:
                return 3

    async def coroutine(row):
        async with row as r, asyncio.timeout(1):
            return [await x async for x in r]

    @functools.lru_cache(maxsize=1)
    @kept(1)
    def decorated(row):
        def inner():
            nonlocal row
            row = 1
        return inner

    class Callable(object, metaclass=type):
        """A docstring."""
        x: int
        def __call__(self, row):
            """Another."""
            return row

    one = lambda row: row["a"]
    first, second, third = lambda row: row["a"], lambda row: row["b"] + 1, (lambda: 3)
    nested = lambda a: lambda b: lambda: (a, b)
    middle = nested(1)
    inner = middle(2)
    several = (
        lambda row: row["a"] and
        row["b"]
    )
    given = (lambda f=lambda: 1: f, lambda: (lambda: 2)())
    default = given[0]()

    class Chain(list):
        def map(self, fn, **settings):
            self.append(fn)
            return self

    chain = (
        Chain()
        .map(lambda row: {"é": row}, parallelism=2).map(lambda row: {"é": row, "b": 1})
        .map(
            lambda row: {
                "text": f"{(lambda: row['text'])()}",
            }
        )
    )
'''


DIGESTS = {
    "plain": "03deb78dde",
    "strings": "13a11d504a",
    "numbers": "eb3a959b73",
    "grammar": "c92d93b853",
    "matched": "78636f44a8",
    "coroutine": "57a862cc96",
    "decorated": "fe047a7547",
    "Callable": "105d3a15e7",
    "one": "40a58f2ec8",
    "first": "40a58f2ec8",
    "second": "c2a18f3438",
    "third": "ea8066e182",
    "nested": "1e8d42ed39",
    "middle": "d417e49291",
    "inner": "004e13bc79",
    "several": "e143881175",
    "default": "5f485e6a3e",
    "given 0": "f18637f81d",
    "given 1": "6aea50becb",
    "chain 0": "8eb64e8f3f",
    "chain 1": "3a6e718ada",
    "chain 2": "4285cd0ef1",
}
"""These are written down: a checkpoint of one Python is restored on another, and by a later version of this package."""


def test_the_hash_is_the_same_on_every_python(load: Load) -> None:
    made, found = load(SHAPES), {}
    for name in DIGESTS:
        variable, *at = name.split()
        shape = getattr(made, variable)
        found[name] = (source_hash(shape[int(at[0])] if at else shape) or "none")[:10]
    assert found == DIGESTS


SAME = [
    (
        "def fn(row):\n    return row['a'], 'b'\n",
        'def fn(\n    row,\n):\n    "doc"\n\n    # why\n    return (\n        row["a"],\n        "b",\n    )\n',
    ),
    ("def fn(row): return 0x10, 'it''s'\n", 'def fn(row):\n    return 16, "its"\n'),
    ("def fn(row):\n    'doc'\n", "def fn(row):\n    '''another\n    doc'''\n"),
    ("def fn(row):\n    del (row)\n", "def fn(row):\n    del row\n"),
    ("def fn(row):\n    a = b = 1\n    del (a, b)\n", "def fn(row):\n    a = b = 1\n    del a, b\n"),
    ("if True:\n    def fn(row):\n        return '''\nx'''\n", "def fn(row):  # not deeper\n    return '\\nx'\n"),
    (
        "class fn:\n    def __call__(self, row): return row\n",
        "class fn:\n    'doc'\n\n    def __call__(self, row):\n        # why\n        return row\n",
    ),
    ("fn = lambda row: row['a']\n", 'before = 1\nfn = (  # why\n    lambda row: row["a"]\n)\n'),
    ("fn = lambda row: (row['a'] and\n    row['b'])\n", "fn = (\n    lambda row: row['a']\n    and row['b']\n)\n"),
    ("fn = dict(fn=lambda row: row, dp_size=1)['fn']\n", "fn = dict(dp_size=2, fn=lambda row: row, n=lambda: 2)['fn']\n"),
    ("fn = [lambda: 1, lambda row: row][1]\n", "fn = [lambda: 2, lambda row: row][1]\n"),
    ("fn = (lambda a: lambda row: row)(1)\n", "fn = (lambda a: [lambda row: row, a][0])(2)\n"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_how_it_is_written_does_not_matter(one: str, other: str, load: Load) -> None:
    assert source_hash(load(one).fn) == source_hash(load(other).fn) is not None


OTHER = [
    ("def fn(row): return row\n", "def fn(row): return -row\n"),
    ("def fn(row): return 1\n", "def fn(row): return True\n"),
    ("def fn(row): return 1\n", "def fn(row): return 1.0\n"),
    ("def fn(row): return 'a'\n", "def fn(row): return b'a'\n"),
    ("def fn(row): return None\n", "def fn(row): return\n"),
    ("def fn(row): return 'a', 'b'\n", "def fn(row): return 'a' 'b'\n"),
    ("def fn(row): return [row], []\n", "def fn(row): return [row, []]\n"),
    ("def fn(row):\n    'doc'\n    return 'a'\n", "def fn(row):\n    'doc'\n    return 'b'\n"),
    ("def fn(row): return row\n", "async def fn(row): return row\n"),
    ("def fn(row): return row\n", "@staticmethod\ndef fn(row): return row\n"),
    ("fn = lambda row: (row['a']\n    + 1)\n", "fn = lambda row: (row['a']\n    + 2)\n"),
    ("fn = [lambda row: row, lambda row: 1][0]\n", "fn = [lambda row: row, lambda row: 1][1]\n"),
    ("fn = (lambda a: lambda row: a)(1)\n", "fn = lambda a: lambda row: a\n"),
    ("class B:\n    x = 1\nclass fn(B): ...\n", "class B:\n    x = 2\nclass fn(B): ...\n"),
]


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_what_it_does_matters(one: str, other: str, load: Load) -> None:
    hashes = {source_hash(load(one).fn), source_hash(load(other).fn)}
    assert len(hashes) == 2
    assert None not in hashes


def test_where_the_lambda_of_a_line_cannot_be_told_all_of_them_are_hashed(tmp_path: Path) -> None:
    program = """if True:
        from zephon_async.operators.source import source_hash
        one = lambda row: row
        a, b = lambda row: row, lambda row: 2
        print(source_hash(one), source_hash(a), source_hash(b))
    """
    (tmp_path / "program.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    hashes = []
    for options in ([], ["-X", "no_debug_ranges"]):
        run = subprocess.run(
            [sys.executable, *options, tmp_path / "program.py"], capture_output=True, text=True, check=True, env=env
        )
        hashes.append(run.stdout.split())
    (one, a, b), (alone, *two) = hashes
    assert a == one == alone
    assert two[0] == two[1] not in (a, b, None)


def test_a_file_that_was_changed_under_a_running_program_gives_its_text(load: Load) -> None:
    module = load("def fn(row):\n    return row\n\ndef other(row):\n    return 1\n")
    before = source_hash(module.fn)
    path = Path(str(module.__file__))
    path.write_text("def fn(row):\n    return row\n\ndef other(row:\n    return 1\n")
    assert source_hash(module.fn) not in (before, None)
    path.write_text("def fn(row):  # why\n    return row\n\ndef other(row):\n    return 100\n")
    assert source_hash(module.fn) == before


def test_what_has_no_source_has_no_hash() -> None:
    made: dict[str, type] = {}
    exec("def fn(row): return row\nclass Made: ...", made)
    assert [source_hash(each) for each in (made["fn"], made["Made"], len, dict, object(), None)] == [None] * 6


def test_trees_deeper_than_the_stack_and_numbers_longer_than_python_writes(load: Load) -> None:
    texts = [f"def fn(row):  # {why}\n    return row{' + 1' * 600}, 0x{'f' * 9000}\n" for why in "ab"]
    assert len({source_hash(load(text).fn) for text in texts}) == 1


def test_what_python_brings_is_known_by_its_name(load: Load) -> None:
    """Its source, or whether there is any, differs between versions."""
    assert [source_hash(each) for each in (html.unescape, operator.itemgetter, textwrap.TextWrapper)] == [None] * 3
    assert [is_pythons(name) for name in ("builtins", "html.parser", "_io", "__main__", "numpy", __name__)] == [
        *(True, True, True, False, False, False)
    ]


def test_a_users_module_may_have_the_name_of_one_of_pythons(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("def fn(row): return row\n")
    module.fn.__module__ = "this"
    monkeypatch.setitem(sys.modules, "this", module)
    assert source_hash(module.fn) is not None


def test_own_classes_are_those_of_users() -> None:
    class Base(Map):
        pass

    class Own(Base):
        pass

    assert own_classes(Own) == [Own, Base]
    assert own_classes(Map) == []


class Garbage:
    """Python code that the garbage collector runs, wherever it comes."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(1000):
            pass


def test_files_are_parsed_by_several_threads() -> None:
    """CPython 3.11 counts the depth of all trees that are being made together, and refuses one where others were made meanwhile."""
    text = Path(__file__).read_text()
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()

    def parsed(n: int) -> int:
        for _ in range(20):
            Garbage()
        return len(defined(f"{text}\n# {n}"))

    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(parsed, range(40)))
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
    assert found == [len(defined(text))] * 40
