"""Laws 1, 2 and 5 where shards lie elsewhere: whatever storage does, the data is that of the same local files, or an error."""

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import few
from tests.fake_storage import Call, Cut, FakeScheme, Storage
from tests.recipes import job
from zephon_async import Batch, Dataset, Pipeline, ShardError, StaticMixtureWorkSource
from zephon_async.io import Spill
from zephon_async.io.stores import Fault, Kind

COLUMNS = pa.schema([("text", pa.large_string()), ("wide", pa.large_string()), ("n", pa.int64())])


@dataclass(frozen=True)
class Kinds:
    """Datasets by name, of one format each, with so many shards of so many rows. counted: whether lines are."""

    shards: dict[str, tuple[int, ...]]
    counted: bool = True

    def write(self, folder: Path) -> None:
        for name, rows in self.shards.items():
            (folder / name).mkdir()
            for number, n in enumerate(rows):
                table = pa.table(
                    {
                        "text": [f"{name} {number} {i} " + "é" * (i * 7 % 23) for i in range(n)],
                        "wide": ["w" * (i * 5 % 61) for i in range(n)],
                        "n": list(range(n)),
                    },
                    COLUMNS,
                )
                path = folder / name / f"part-{number}.{name}"
                if name == "parquet":
                    pq.write_table(table, path, row_group_size=9)
                elif name == "arrow":
                    with pa.ipc.new_file(path, table.schema) as file:
                        file.write_table(table, max_chunksize=8)
                else:
                    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()))


@st.composite
def kinds(draw: st.DrawFn) -> Kinds:
    names = draw(st.lists(st.sampled_from(("parquet", "jsonl", "arrow")), min_size=1, max_size=3, unique=True))
    return Kinds({name: tuple(draw(st.lists(st.integers(12, 60), min_size=1, max_size=4))) for name in names}, draw(st.booleans()))


@contextmanager
def stored(found: Kinds) -> Iterator[tuple[Path, Storage]]:
    """The files in a folder, and the same as objects of fake://bucket/."""
    storage = Storage()
    scheme = FakeScheme({"bucket": storage})
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("zephon_async.io.access.scheme_of", lambda url: scheme),
        patch("zephon_async.io.remote.scheme_of", lambda url: scheme),
        patch("zephon_async.io.transfer._FIRST_PAUSE_S", 0.0),
        patch("zephon_async.io.formats.line_format.COUNTED_BYTES", 1 << 20 if found.counted else 0),
    ):
        found.write(Path(folder))
        storage.objects |= {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}
        yield Path(folder), storage


Make = Callable[[str], Callable[[int, int, dict[str, Any]], Pipeline]]


@st.composite
def recipes(draw: st.DrawFn) -> Make:
    """Makes pipelines over what lies below a root."""
    lanes, weight, seed = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(0, 9))
    epochs, window = draw(st.integers(1, 2)), draw(st.integers(1, 9))
    columns = draw(st.sampled_from((["text"], ["n", "text"])))
    chosen = draw(kinds())
    by_rows = chosen.counted and "parquet" not in chosen.shards
    shuffle: Any = draw(st.sampled_from(("units", "blocks", "rows") if by_rows else ("units", "blocks")))

    def at(root: str, **options: Any) -> Callable[[int, int, dict[str, Any]], Pipeline]:
        def make(ranks: int, rank: int, more: dict[str, Any]) -> Pipeline:
            datasets = [
                Dataset.from_path(name, f"{root}/{name}", unit_bytes=900, block_bytes=300) for name in sorted(chosen.shards)
            ]
            weights = {name: weight + n for n, name in enumerate(chosen.shards)}
            source = StaticMixtureWorkSource(datasets, weights, seed=seed, epochs=epochs, unit="bytes", shuffle=shuffle)
            pipeline = Pipeline(source).options(lanes=lanes, dp_size=ranks, dp_rank=rank, **{"workers": 2, **options, **more})
            return pipeline.map_batches(lambda batch: batch.select(columns), rows=4).shuffle(window, seed=1).batch(2)

        return make

    at.kinds, at.lanes = chosen, lanes  # type: ignore[attr-defined]
    return at


def seen(batches: list[Batch]) -> list[Any]:
    return [[batch.to_pylist("text"), batch.documents()] for batch in batches]


OPTIONS = st.fixed_dictionaries(
    {
        "runner": st.sampled_from(("threads", "inline")),
        "chunk_rows": st.sampled_from((1, 5, 256)),
        "memory_budget": st.sampled_from(("700KiB", "64MiB")),
    }
)


def faults(seed: int, share: float) -> Callable[[Call], Fault | Cut | None]:
    """A share of the calls fail, each in one of the ways that pass."""
    chance = random.Random(seed)

    def fault(call: Call) -> Fault | Cut | None:
        if chance.random() >= share:
            return None
        passing = Fault(chance.choice((Kind.TRANSIENT, Kind.SLOW_DOWN)), "not now", status=503)
        return Cut(chance.randrange(call.length), passing) if call.what == "read" and chance.random() < 0.5 else passing

    return fault


@few
@given(recipes(), OPTIONS, st.sampled_from((0.0, 0.05, 0.3)), st.integers(0, 2**32), st.sampled_from((None, 0, 2000)), st.data())
def test_what_comes_is_what_comes_of_local_files(
    make: Make, options: dict[str, Any], share: float, seed: int, spill: int | None, data: st.DataObject
) -> None:
    lanes = make.lanes  # type: ignore[attr-defined]
    ranks = data.draw(st.sampled_from([size for size in range(1, lanes + 1) if lanes % size == 0]))
    with stored(make.kinds) as (folder, storage):  # type: ignore[attr-defined]
        wanted, _ = job(make(str(folder)), 1, None)
        storage.fault = faults(seed, share)
        with patch("zephon_async.engine.engine.Spill", lambda: Spill(spill)):
            got, _ = job(make("fake://bucket", **options), ranks, None)
        assert seen(got) == seen(wanted)
        assert not storage.open_connections


@pytest.mark.slow
@given(recipes(), st.integers(0, 2**32), st.data())
def test_nor_do_stops_change_it(make: Make, seed: int, data: st.DataObject) -> None:
    lanes = make.lanes  # type: ignore[attr-defined]
    sizes = [size for size in range(1, lanes + 1) if lanes % size == 0]
    with stored(make.kinds) as (folder, storage):  # type: ignore[attr-defined]
        wanted, _ = job(make(str(folder)), 1, None)
        storage.fault = faults(seed, 0.05)
        got: list[Batch] = []
        states = None
        while len(got) < len(wanted):
            steps = data.draw(st.integers(1, len(wanted) // lanes))
            ranks, root = data.draw(st.sampled_from(sizes)), data.draw(st.sampled_from(("fake://bucket", str(folder))))
            batches, states = job(make(root), ranks, min(steps * lanes, len(wanted) - len(got)) // ranks, states)
            got += batches
        assert seen(got) == seen(wanted)


WRONG = [
    (Fault(Kind.MISSING, "NoSuchKey", status=404, request="r1"), r"is not there: HTTP 404: NoSuchKey \(request r1\)"),
    (Fault(Kind.FORBIDDEN, "AccessDenied", status=403), "may not be read with these credentials: HTTP 403: AccessDenied"),
    (Fault(Kind.CHANGED, "PreconditionFailed", status=412), "has changed since it was listed"),
    (Fault(Kind.REFUSED, "a ring"), "cannot be read: a ring"),
    (Fault(Kind.TRANSIENT, "reset"), "cannot be read: reset; asked 12 times"),
]


@pytest.mark.parametrize(("fault", "text"), WRONG, ids=[fault.kind.value for fault, _ in WRONG])
@pytest.mark.parametrize("when", ["catalog", "run"])
def test_what_does_not_pass_is_an_error_that_names_the_object(fault: Fault, text: str, when: str) -> None:
    with stored(Kinds({})) as (folder, storage):
        for n in range(2):
            path = folder / f"{n}.parquet"
            table = pa.table({"text": [f"{n} {i} " * 100 for i in range(400)]})
            pq.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
            storage.objects[f"p/{path.name}"] = path.read_bytes()
        footer = len(storage.objects["p/1.parquet"]) - (1 << 16)

        def fails(call: Call) -> Fault | None:
            is_footer = call.offset >= footer
            return fault if call.what == "read" and call.key == "p/1.parquet" and is_footer == (when == "catalog") else None

        storage.fault = fails
        source = StaticMixtureWorkSource([Dataset.from_path("p", "fake://bucket/p")], {"p": 1})
        with (
            Pipeline(source).options(lanes=2).batch(2) as pipeline,
            pytest.raises(ShardError, match=rf"^dataset 'p', shard '1.parquet': fake://bucket/p/1.parquet {text}"),
        ):
            list(pipeline)
        assert not storage.open_connections


def test_an_object_that_changed_behind_the_listing_is_an_error() -> None:
    with stored(Kinds({"jsonl": (60,)})) as (_, storage):
        dataset = Dataset.from_path("j", "fake://bucket/jsonl")
        storage.objects["jsonl/part-0.jsonl"] += b'{"text": "more"}\n'
        with pytest.raises(ShardError, match="has changed since it was listed; start again, or put the object back: its tag was"):
            dataset.catalog()


def test_of_footers_no_more_is_remembered_than_they_are() -> None:
    """So each is read once, also where there is no room for all that is read in the hope that it holds one."""
    shards, epochs = 24, 2
    with stored(Kinds({})) as (folder, storage):
        path = folder / "one.parquet"
        table = pa.table({"text": [f"{i} " * 200 for i in range(400)]})
        pq.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
        body = path.read_bytes()
        footer = int.from_bytes(body[-8:-4], "little") + 8
        storage.objects |= {f"p/{n:02}.parquet": body for n in range(shards)}
        source = StaticMixtureWorkSource([Dataset.from_path("p", "fake://bucket/p")], {"p": 1}, epochs=epochs)
        with Pipeline(source).options(lanes=2, memory_budget="16MiB").batch(10) as pipeline:
            assert sum(1 for _ in pipeline) == shards * 400 * epochs // 10
        reads = [call for call in storage.calls if call.what == "read"]
        assert len(body) > 3 * (1 << 16)
        assert len([call for call in reads if call.offset + call.length == len(body)]) == shards
        assert all(call.length <= 1 << 16 for call in reads if call.offset + call.length == len(body))
        assert (1 << 16) * shards > (16 << 20) // 16 > footer * shards
        assert len(reads) <= shards + 4 * shards * epochs + 4  # and a few for a look at the first rows


def test_a_footer_that_cannot_be_so_long_is_an_error_and_not_a_download() -> None:
    with stored(Kinds({})) as (_, storage):
        storage.objects["p/0.parquet"] = b"PAR1" + bytes(1 << 20) + (1 << 30).to_bytes(4, "little") + b"PAR1"
        dataset = Dataset.from_path("p", "fake://bucket/p")
        with pytest.raises(ShardError, match=r"^dataset 'p', shard '0.parquet': cannot be read as parquet: "):
            dataset.catalog()
        assert sum(call.length for call in storage.calls) <= 1 << 17
