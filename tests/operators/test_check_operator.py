"""Each promise that an operator can break, broken: `check_operator` finds it by its name, and nothing where they are kept."""

import datetime
import itertools
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from random import random as drawn
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.made_rows import byte_tokenizer
from zephon_async import RecipeError, check_operator
from zephon_async.operators import (
    Accumulate,
    Accumulator,
    Filter,
    FlatMap,
    Map,
    MapBatches,
    Operator,
    PackFlat,
    Shuffle,
    Tally,
    Tokenize,
    ValidationReport,
)
from zephon_async.operators.holding import Holding
from zephon_async.records import Marks, Records

SAMPLES = [{"x": number, "text": f"row {number}"} for number in range(12)]
X = {"x": pa.int64()}


def names(report: ValidationReport) -> set[str]:
    return {finding.name for finding in report.findings}


def numbered() -> Callable[[dict[str, Any]], dict[str, Any]]:
    numbers = itertools.count()
    return lambda row: {"x": next(numbers)}


def unseen() -> Callable[[dict[str, Any]], bool]:
    seen: set[int] = set()
    return lambda row: row["x"] not in seen and not seen.add(row["x"])  # type: ignore[func-returns-value]


def mean(columns: pa.RecordBatch) -> dict[str, Any]:
    return {"x": np.full(len(columns), columns.column("x").to_numpy().mean())}


def few(columns: pa.RecordBatch) -> dict[str, Any]:
    if len(columns) > 1:
        raise ValueError("too many")
    return {"x": columns.column("x")}


async def counted(row: dict[str, Any], numbers: Iterable[int]) -> dict[str, Any]:
    return {"x": next(iter(numbers))}


def locked() -> Callable[[dict[str, Any]], dict[str, Any]]:
    lock = Lock()

    def fn(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return row

    return fn


class Copied:
    """Another thing once it was pickled."""

    def __init__(self) -> None:
        self.add = 1

    def __reduce__(self) -> Any:
        return _copied, ()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["x"] + self.add}


def _copied() -> Copied:
    made = Copied()
    made.add = 2
    return made


class Bare(Operator):
    name = "bare"

    def apply(self, records: Records, tally: Tally) -> Any:
        return records.columns


class Liar(Operator):
    name = "liar"

    def output(self, schema: pa.Schema | None) -> pa.Schema | None:
        return pa.schema(X)

    def apply(self, records: Records, tally: Tally) -> Records:
        return records


@pytest.mark.parametrize(
    ("operator", "found"),
    [
        (Map(numbered()), {"runs_differ"}),
        (Filter(unseen()), {"runs_differ", "keeps_state"}),
        (Map(partial(counted, numbers=itertools.count())), {"runs_differ"}),
        (MapBatches(mean), {"cut_matters"}),
        (MapBatches(few), {"cut_matters"}),
        (Map(locked()), {"not_picklable"}),
        (Map(Copied()), {"copy_differs"}),
        (Map(lambda row: {"x": row["x"] // 0}), {"fails"}),
        (Bare(), {"no_records"}),
        (Liar(), {"other_columns"}),
    ],
)
def test_broken_stateless(operator: Operator, found: set[str]) -> None:
    report = check_operator(operator, SAMPLES)
    assert names(report) == found
    assert report.ok == (found <= {"not_picklable", "fails"})


@pytest.mark.parametrize(
    "operator",
    [
        Map(lambda row: {"x": row["x"] + 1, "nan": float("nan"), "lines": sorted({row["text"], "a"})}),
        Map(lambda row: {"x": random.Random(row["x"]).random(), "y": np.random.default_rng(row["x"]).random()}),
        Map(lambda row: {"x": 6 // (row["x"] - 3)}, schema=X),  # fails on a row
        Filter(lambda row: row["x"] % 2 == 0),
        FlatMap(lambda row: [{"x": n} for n in range(row["x"])]),
        MapBatches(lambda columns: columns.select(["x"])),
        MapBatches(mean, rows=5),
        Accumulate(list, lambda state, row: state.append(row), lambda state: state),
        Shuffle(3, seed=1),
        Tokenize(byte_tokenizer(), field="text", max_length=3),
    ],
    ids=lambda operator: operator.name,
)
def test_those_that_keep_their_promises(operator: Operator) -> None:
    assert str(check_operator(operator, SAMPLES)) == "nothing found"
    assert check_operator(operator, pa.Table.from_pylist(SAMPLES)) == ValidationReport(())


def test_packing_keeps_its_promises() -> None:
    documents = [{"input_ids": list(range(n % 5))} for n in range(20)]
    assert check_operator(PackFlat(4), documents).findings == ()
    assert check_operator(PackFlat(4, algorithm="best_fit"), documents).findings == ()


class Pairs(Holding):
    """Gives rows two by two; broken as it is told."""

    def __init__(self, broken: str, first: int, calls: list[int]) -> None:
        super().__init__()
        self.given, self._broken, self._calls = first, broken, calls
        self._taken = 0
        calls.append(0)

    def push(self, records: Records, skip: int, tally: Tally) -> tuple[Records | None, Marks]:
        if self._broken == "fails":
            raise ValueError("no")
        if self._broken == "cut_matters" or (self._broken == "runs_differ" and len(self._calls) % 2):
            records = records.take(np.arange(len(records))[::-1])
        self.hold(records)
        even = sum(map(len, self._held)) // 2 * 2
        outputs, rows = [self.given], [self._taken]
        out = self.release(even) if even else None
        if out is not None:
            self.given += len(out) + (self._broken == "given_is_wrong")
            self._taken += len(out)
            outputs, rows = [*outputs, self.given], [*rows, self._taken - (self._broken == "restart_differs")]
        if self._broken == "held_is_wrong":
            self.held_rows += 100
        if self._broken == "marks_are_wrong":
            return out, Marks([], [], [])
        return (out.columns if self._broken == "no_records" and out else out), Marks(outputs, rows, [0] * len(rows))

    def flush(self, tally: Tally) -> Records | None:
        self._taken = 0
        if self._broken == "lost_at_flush":
            self.let_go()
            return None
        if self._broken == "flush_differs":
            self._taken = 5
        out = self.release(sum(map(len, self._held))) if self._held else None
        self.given += 0 if out is None else len(out)
        return out


class PairsOf(Operator):
    name = "pairs"

    def __init__(self, broken: str) -> None:
        self.broken, self.calls = broken, list[int]()

    def accumulator(self, lane: int, first: int) -> Accumulator:
        return Pairs(self.broken, first, self.calls)


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "runs_differ",
        "cut_matters",
        "held_is_wrong",
        "given_is_wrong",
        "restart_differs",
        "marks_are_wrong",
        "no_records",
        "lost_at_flush",
        "flush_differs",
        "fails",
    ],
)
def test_broken_accumulators(broken: str) -> None:
    found = names(check_operator(PairsOf(broken), SAMPLES[:11]))
    assert broken in found if broken else not found


class Remembers(Operator):
    """Writes to itself where it may, and where not."""

    name = "remembers"

    def __init__(self) -> None:
        self.total = 0

    def told(self, datasets: Any) -> None:
        self.datasets = datasets

    def apply(self, records: Records, tally: Tally) -> Records:
        self.total += len(records)
        return records


class Callback:
    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self.last = row
        return row


TOTAL = 0
SEEN: set[str] = set()
TIMES: dict[str, int] = {}
LOOKED_UP = {"row": 1}


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    SEEN.add(row["text"])
    return {"x": row["x"], "n": len(SEEN)}  # in the trial always the same: all were seen when the types were learned


def counts_up(row: dict[str, Any]) -> dict[str, Any]:
    TIMES["rows"] = TIMES.get("rows", 0)
    TIMES["rows"] += 0
    return row


def keeps_what_is_its_own(row: dict[str, Any]) -> dict[str, Any]:
    SEEN = set()
    SEEN.add(LOOKED_UP.get(row["text"]))
    row.update(n=len(SEEN))
    return row


def adds(row: dict[str, Any]) -> dict[str, Any]:
    global TOTAL
    TOTAL = 1
    return row


def imports(row: dict[str, Any]) -> dict[str, Any]:
    import secrets as chance
    from time import monotonic as now

    return {"x": row["x"], "length": len(chance.token_bytes(2)) + 0 * int(now())}


def in_order_of_a_set(row: dict[str, Any]) -> dict[str, Any]:
    words = set(row["text"].split())
    return {"x": row["x"], "n": len(list(words))}


SOURCES: list[tuple[Any, set[str]]] = [
    (lambda row: {"x": random.random() * 0}, {"random"}),
    (lambda row: {"x": drawn() * 0}, {"random"}),
    (lambda row: {"x": np.random.rand() * 0}, {"random"}),
    (lambda row: {"x": np.random.default_rng().random() * 0}, {"random"}),
    (lambda row: {"x": len(str(uuid.uuid4()))}, {"random"}),
    (lambda row: {"x": len(os.urandom(3))}, {"random"}),
    (lambda row: {"x": time.time() * 0}, {"clock"}),
    (lambda row: {"x": len(str(datetime.datetime.now())) * 0}, {"clock"}),
    (lambda row: {"x": hash(row["text"])}, {"hash"}),
    (lambda row: {"x": " ".join({row["text"]})}, {"set_order"}),
    (lambda row: {"x": [word for word in set(row["text"].split()) if word == "row"]}, {"set_order"}),
    (in_order_of_a_set, {"set_order"}),
    (imports, {"random", "clock"}),
    (adds, {"keeps_state"}),
    (numbers, {"keeps_state"}),
    (counts_up, {"keeps_state"}),
    (keeps_what_is_its_own, set()),
    (Callback(), {"keeps_state"}),
    (Remembers(), {"keeps_state"}),
    (lambda row: {"x": len({1, 2}), "y": 1 in {1, 2}, "z": time.strftime("%Y", (2020,) + (0,) * 8)}, set()),
]


@pytest.mark.parametrize(("fn", "found"), SOURCES)
def test_what_the_source_says(fn: Any, found: set[str]) -> None:
    report = check_operator(fn, SAMPLES)
    assert names(report) == found
    assert report.ok


def test_a_finding_says_what_where_and_what_to_change() -> None:
    (finding,) = check_operator(adds, SAMPLES).findings
    line = adds.__code__.co_firstlineno + 1
    assert str(finding) == (
        f"map: keeps_state: {__name__}:adds writes to the global TOTAL (line {line}); keep nothing between calls: they come in any "
        "order, on any worker; accumulate() is for state"
    )
    assert finding.severity == "warning"


def test_a_class_is_no_operator() -> None:
    made: Any = Remembers
    with pytest.raises(
        RecipeError, match=r"check_operator: takes an operator, an instance such as Remembers\(...\), or a function"
    ):
        check_operator(made, SAMPLES)


@pytest.mark.parametrize("samples", [[], 5, [5], {}])
def test_samples_that_are_none(samples: Any) -> None:
    with pytest.raises(RecipeError, match="check_operator: samples= "):
        check_operator(adds, samples)
