"""Recipes for the laws: pipelines over small token documents, how to run them on any ranks, and what the oracle says of them."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import anyio
import pyarrow as pa
from hypothesis import reject
from hypothesis import strategies as st

from tests import oracle
from tests.scheduled_oracle import Points, Scheduled
from zephon_async import Batch, Dataset, MixtureSchedule, Pipeline, ScheduledMixtureWorkSource, StaticMixtureWorkSource

_MOST_DRAWN = 20_000
TOKENS = pa.schema([("input_ids", pa.list_(pa.int32()))])
Document = tuple[int, ...]
Step = tuple[str, int]  # an operator and its number


@dataclass(frozen=True)
class Recipe:
    """Documents of datasets by name, weights, and a chain of operators."""

    documents: dict[str, tuple[Document, ...]]
    weights: dict[str, int]
    chain: tuple[Step, ...]
    seed: int = 0
    shuffle: Any = True
    unit: str = "bytes"
    epochs: int | None = None
    on_exhausted: str = "repeat"
    lanes: int = 1
    per_lane: int = 1
    rows: int = 2
    flush_every: int = 8192
    sizes: dict[str, int] = field(default_factory=dict)  # of units and row blocks
    extra: dict[str, Any] = field(default_factory=dict)
    points: Points | None = None  # of a mixture that changes every `change_rows` rows at most
    by: str = "samples"
    between: str = "constant"
    change_rows: int = 4

    @property
    def microbatches(self) -> int:
        return self.lanes * self.per_lane

    def datasets(self) -> list[Dataset]:
        return [
            Dataset.from_arrow(
                name, pa.table({"input_ids": pa.array(list(map(list, documents)), pa.list_(pa.int32()))})
            ).with_sizes(**self.sizes)
            for name, documents in self.documents.items()
        ]

    def pipeline(self, ranks: int = 1, rank: int = 0, **options: Any) -> Pipeline:
        return self.chained(self.begun(ranks, rank, **options))

    def begun(self, ranks: int = 1, rank: int = 0, **options: Any) -> Pipeline:
        """The pipeline without its operators."""
        settings: dict[str, Any] = {"seed": self.seed, "shuffle": self.shuffle, "unit": self.unit}
        settings |= {"epochs": self.epochs, "on_exhausted": self.on_exhausted}
        source: StaticMixtureWorkSource | ScheduledMixtureWorkSource
        if self.points is None:
            source = StaticMixtureWorkSource(self.datasets(), self.weights, **settings)
        else:
            how: dict[str, Any] = {"by": self.by, "between": self.between, "change_rows": self.change_rows}
            source = ScheduledMixtureWorkSource(self.datasets(), MixtureSchedule(self.points, **how), **settings)
        return Pipeline(source).options(
            lanes=self.lanes,
            microbatches_per_step=self.microbatches,
            flush_every=self.flush_every,
            dp_size=ranks,
            dp_rank=rank,
            **{"workers": 2, **self.extra, **options},
        )

    def chained(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline with the operators of the chain."""
        packed = False
        for name, n in self.chain:
            ADD[name](pipeline, n, packed, self.seed)
            packed = packed or name == "wrap"
        return pipeline.batch(self.rows)

    def wanted(self, steps: int | None) -> list[list[list[Any]]]:
        """What the oracle gives: steps of microbatches of rows, each ((origin, start, stop), ...) with its tokens."""
        catalogs = {dataset.name: dataset.catalog() for dataset in self.datasets()}
        datasets = []
        for name, documents in self.documents.items():
            units, at = [], 0
            for unit in catalogs[name].units:
                n = int(unit["length"])
                sizes = [1 if self.unit == "samples" else max(1, 4 * len(d)) for d in documents[at : at + n]]
                units.append(oracle.Unit(n, int(unit["block"]), sizes))
                at += n
            datasets.append(oracle.Dataset(name, units, self.weights[name]))
        settings: dict[str, Any] = {"seed": self.seed, "lanes": self.lanes, "shuffle": self.shuffle, "epochs": self.epochs}
        settings |= {"on_exhausted": self.on_exhausted, "flush_every": self.flush_every}
        told = oracle.Oracle(datasets, **settings)
        if self.points is not None:
            told = Scheduled(datasets, self.points, self.by, self.between, self.change_rows, **settings)
        names = sorted(self.documents, key=str.encode)
        firsts = {name: [int(unit["first"]) for unit in catalogs[name].units] for name in names}

        drawn = count()

        def document(row: oracle.Row) -> list[oracle.Row]:
            if next(drawn) > _MOST_DRAWN:  # endless data of which the chain lets nothing through is no recipe
                reject()
            origin = row.origin
            assert isinstance(origin, oracle.Origin)
            name = names[origin.dataset]
            return [oracle.Row(origin, self.documents[name][firsts[name][origin.unit] + origin.row])]

        chain: list[oracle.Stage] = [document]
        chain += [ORACLE[name](n, self) for name, n in self.chain]
        found = told.steps(chain, self.rows, self.microbatches, steps)
        return [[[_told(row, firsts, names) for row in batch if row is not None] for batch in step] for step in found]


def _told(row: oracle.Row, firsts: dict[str, list[int]], names: Sequence[str]) -> Any:
    def place(origin: oracle.Origin) -> tuple[Any, ...]:
        name = names[origin.dataset]
        return (name, firsts[name][origin.unit] + origin.row, origin.epoch, origin.part)

    def pieces(source: Any) -> list[tuple[Any, ...]]:
        if isinstance(source, oracle.Origin):
            return [(*place(source), 0, -1)]
        found: list[tuple[Any, ...]] = []
        for piece in source:
            inner = pieces(piece.origin)
            alone = piece.stop >= 0 and len(inner) == 1  # else which of its tokens are whose is not known
            found += [(*inner[0][:4], piece.start, piece.stop)] if alone else inner
        return found

    return pieces(row.origin), row.payload


def seen(batch: Batch) -> list[Any]:
    """A batch as the oracle tells it."""
    rows = batch.to_pylist("input_ids")
    lengths = batch.to_pylist("segment_lengths") if "segment_lengths" in batch.columns else None
    out = []
    for i, (tokens, origins) in enumerate(zip(rows, batch.documents(), strict=True)):
        real = tokens if lengths is None else tokens[: sum(lengths[i])]
        out.append(([(o[0], *o[2:]) for o in origins], tuple(real)))
    return out


# -- the operators that are drawn: what the pipeline does, and what the oracle does


def _fan(record: dict[str, Any]) -> list[dict[str, Any]]:
    tokens = record["input_ids"]
    return [{"input_ids": tokens[j:]} for j in range(len(tokens) % 4)]


def _odd(record: dict[str, Any]) -> bool:
    return len(record["segment_lengths"] if "segment_lengths" in record else record["input_ids"]) % 3 != 0


def _add_fan(pipeline: Pipeline, n: int, packed: bool, seed: int) -> None:
    if not packed:
        pipeline.flat_map(_fan, schema=TOKENS, parallelism=n)


def _add_groups(pipeline: Pipeline, n: int, packed: bool, seed: int) -> None:
    if not packed:
        pipeline.accumulate(list, lambda state, record: _group(state, record, n), _rest, schema=TOKENS)


def _group(state: list[Any], record: dict[str, Any], n: int) -> list[dict[str, Any]]:
    state += [record["input_ids"]]
    return _rest(state) if len(state) == n else []


def _rest(state: list[Any]) -> list[dict[str, Any]]:
    out = [{"input_ids": [token for tokens in state for token in tokens]}] if state else []
    state.clear()
    return out


ADD: dict[str, Callable[[Pipeline, int, bool, int], object]] = {
    "wrap": lambda p, n, packed, seed: p.pack_flat(n),
    "window": lambda p, n, packed, seed: p.shuffle(n, seed=seed),
    "runs": lambda p, n, packed, seed: p.shuffle(3 * n, seed=seed, block_size=n),
    "odd": lambda p, n, packed, seed: p.filter(_odd),
    "fan": _add_fan,
    "groups": _add_groups,
    "mix": lambda p, n, packed, seed: p.ensure_mixture(window_tokens=3 * n, buffer_tokens=4 * n),
}


def _oracle_fan(row: oracle.Row) -> list[oracle.Row]:
    tokens = row.payload
    assert isinstance(tokens, tuple)
    return oracle.children(row, [tokens[j:] for j in range(len(tokens) % 4)])


def _oracle_odd(row: oracle.Row) -> list[oracle.Row]:
    packed = isinstance(row.origin, tuple) and not isinstance(row.origin, oracle.Origin)
    tokens = row.payload
    assert isinstance(tokens, tuple)
    return [row] if (len(row.origin) if packed and row.origin[0].stop >= 0 else len(tokens)) % 3 else []


class _Groups(oracle.Groups):
    """Groups of token documents: the tokens one behind the other."""

    def flush(self) -> list[oracle.Row]:
        held = list(self.held)
        return [oracle.Row(row.origin, sum((r.payload for r in held), ())) for row in super().flush()]


def _oracle_mix(n: int, recipe: Recipe) -> oracle.Stage:
    names = sorted(recipe.weights, key=str.encode)
    weights = oracle.whole_weights([oracle.Dataset(name, (), recipe.weights[name]) for name in names])
    return oracle.mixture(3 * n, 4 * n, weights)


ORACLE: dict[str, Callable[[int, Recipe], oracle.Stage]] = {
    "wrap": lambda n, recipe: oracle.wrap(n),
    "window": lambda n, recipe: oracle.window(n, recipe.seed),
    "runs": lambda n, recipe: oracle.window(3 * n, recipe.seed, n),
    "odd": lambda n, recipe: _oracle_odd,
    "fan": lambda n, recipe: _oracle_fan,
    "groups": lambda n, recipe: oracle.Serial(lambda lane: _Groups(n)),
    "mix": _oracle_mix,
}

CHAINS: Sequence[tuple[Step, ...]] = (
    (("wrap", 8),),
    (("wrap", 8), ("window", 5)),
    (("window", 3), ("wrap", 5)),
    (("fan", 2), ("wrap", 7), ("window", 4)),
    (("wrap", 6), ("odd", 0), ("window", 3)),
    (("runs", 2), ("wrap", 6)),
    (("wrap", 5), ("runs", 1), ("runs", 2)),
    (("window", 4), ("odd", 0), ("fan", 1), ("wrap", 9)),
    (("groups", 3), ("wrap", 8)),
    (("groups", 4), ("window", 3)),
    (("mix", 9),),
    (("fan", 2), ("mix", 5), ("wrap", 8)),
    (("mix", 12), ("odd", 0), ("mix", 3), ("window", 3)),
    (("odd", 0),),
    (("fan", 1), ("odd", 0)),
    (),
)


@st.composite
def recipes(draw: st.DrawFn, endless: bool | None = None) -> Recipe:
    """Up to three datasets of up to twelve documents, any chain of operators."""
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    documents = {}
    for k, name in enumerate(names):
        lengths = draw(st.lists(st.integers(1, 12), min_size=4, max_size=12))
        documents[name] = tuple(tuple(1000 * k + 20 * i + j for j in range(n)) for i, n in enumerate(lengths))
    forever = draw(st.booleans()) if endless is None else endless
    chain, unit = draw(st.sampled_from(CHAINS)), draw(st.sampled_from(("bytes", "samples")))
    points = None
    if all(name != "mix" for name, _ in chain) and draw(st.booleans()):
        places = [0, *sorted(draw(st.lists(st.integers(1, 200), min_size=1, max_size=3, unique=True)))]
        each = st.fixed_dictionaries({name: st.sampled_from((0, 1, 5)) for name in names}).filter(lambda w: any(w.values()))
        points = [(place, draw(each)) for place in places]
        points[-1] = (places[-1], {name: points[-1][1][name] or int(not any(w[name] for _, w in points)) for name in names})
    return Recipe(
        documents,
        {name: draw(st.integers(1, 5)) for name in names},
        chain,
        points=points,
        by=draw(st.sampled_from(("samples", unit))),
        between=draw(st.sampled_from(("constant", "linear"))),
        change_rows=draw(st.sampled_from((1, 4, 16))),
        seed=draw(st.integers(0, 3)),
        shuffle=draw(st.sampled_from((False, "units", "blocks", "rows"))),
        sizes=draw(st.sampled_from(({}, {"unit_bytes": 160, "block_bytes": 40}))),
        unit=unit,
        epochs=None if forever else draw(st.integers(1, 3)),
        on_exhausted=draw(st.sampled_from(("repeat", "stop", "drop_out"))),
        lanes=draw(st.integers(1, 4)),
        per_lane=draw(st.integers(1, 3)),
        rows=draw(st.integers(1, 3)),
        flush_every=draw(st.sampled_from((4, 7, 8192))),
    )


# -- running a job on several ranks of one process


class Agreement:
    """A collective of ranks that run in threads of one process."""

    def __init__(self, ranks: int, choose: Callable[[Sequence[int]], int] = min) -> None:
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._end = threading.Barrier(ranks, self._barrier.abort, timeout=60)
        self._values = [0] * ranks
        self._choose = choose

    def leave(self) -> None:
        """Wait until all ranks have what they want; then nobody waits for another step any more."""
        self._end.wait()

    def abort(self) -> None:
        """A rank has failed: nobody must wait for it."""
        self._barrier.abort()
        self._end.abort()

    def of(self, rank: int) -> Callable[[int], int]:
        def agree(value: int) -> int:
            self._values[rank] = value
            self._barrier.wait()
            chosen = self._choose(self._values)
            self._barrier.wait()
            return chosen

        return agree


def job(
    make: Callable[[int, int, dict[str, Any]], Pipeline],
    ranks: int,
    batches: int | None,
    states: Sequence[bytes] | None = None,
    choose: Callable[[Sequence[int]], int] = min,
    face: str = "for",
) -> tuple[list[Batch], list[bytes]]:
    """Run all ranks of a job side by side, `batches` microbatches each (None: to the end); all batches in order, and all states.

    face: "for", or the event loop of an `async for`.
    """
    taken: list[list[Batch]] = [[] for _ in range(ranks)]
    saved: list[bytes] = [b""] * ranks
    errors: list[BaseException] = []
    agreement = Agreement(ranks, choose)

    def run(rank: int) -> None:
        try:
            with make(ranks, rank, {"agree": agreement.of(rank)}) as pipeline:
                if states is not None:
                    pipeline.restore(states)
                if batches is None or batches > 0:
                    _take(pipeline, taken[rank], batches, face)
                saved[rank] = pipeline.checkpoint()
                agreement.leave()
        except BaseException as error:
            errors.append(error)
            agreement.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    every = [batch for each in taken for batch in each]
    return sorted(every, key=lambda b: (b.step, b.number)), saved


def _take(pipeline: Pipeline, taken: list[Batch], most: int | None, face: str) -> None:
    """The next batches, up to so many, by one of the faces."""

    async def take() -> None:
        async for batch in pipeline:
            taken.append(batch)
            if len(taken) == most:
                break

    if face == "for":
        taken += islice(pipeline, most)
    else:
        anyio.run(take, backend=face)
