"""`zephon-async demo`: real text through the whole pipeline, and the proof that the data does not depend on the hardware.

Makes JSONL and Parquet shards from text that every Python carries, trains a small tokenizer on it, runs the mixture with a live
display, then takes the same global batches on other numbers of ranks, with other parallelism, and over a stop and a resume onto
another size, and compares their SHA-256; and those of another seed, so that one sees that they can differ. `--data` and
`--tokenizer` run it on one's own.
"""

import argparse
import ast
import json
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from zephon_async import Batch, Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation, ZephonError, global_digest
from zephon_async.leftovers import owned

_LENGTH, _LANES, _STEPS, _SEED = 512, 12, 4, 42
_LIVE, _LIVE_S = 3000, 10  # microbatches of the run that is watched, and the seconds after which it ends anyway
_SHARD_BYTES, _MOST_BYTES = 1 << 20, 12 << 20


class Way(NamedTuple):
    """One way to run the job: on how many ranks and workers, and on how many ranks it goes on after a stop half-way.

    Another seed is another recipe: its data must differ.
    """

    words: str
    ranks: int
    workers: int = 2
    parallelism: int | None = None
    chunk_rows: int = 256
    resume_on: int | None = None
    seed: int = _SEED


WAYS = (
    Way("1 rank", 1),
    Way("2 ranks", 2),
    Way("4 ranks", 4),
    Way("3 ranks", 3),
    Way("4 workers, chunks of 7 rows", 1, workers=4, parallelism=1, chunk_rows=7),
    Way("stopped on 4 ranks, resumed on 3", 4, resume_on=3),
    Way("stopped on 1 rank, resumed on 2", 1, resume_on=2),
    Way("another seed: another recipe", 1, seed=_SEED + 1),
)


def add_to(commands: Any) -> None:
    """Add this command to the parser's."""
    parser = commands.add_parser("demo", help="run the loader on real text and prove that it is elastically deterministic")
    parser.add_argument("--data", type=Path, help="a folder with one folder, or one file, for each dataset (JSONL, Parquet, Arrow)")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json (needed with --data)")
    parser.add_argument("--field", default="text", help="the text column (default: text)")
    parser.add_argument("--steps", type=int, default=_STEPS, help=f"global batches to compare (default: {_STEPS})")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """The demo; 0 where all digests are equal."""
    from rich.console import Console

    console = Console()
    if arguments.steps < 1:
        raise ZephonError(f"--steps is {arguments.steps}: there must be at least one global batch to compare")
    if arguments.data is not None and not arguments.data.is_dir():
        raise ZephonError(f"--data {arguments.data} is no folder")
    if (arguments.data is None) != (arguments.tokenizer is None):
        raise ZephonError("--data and --tokenizer go together")
    with tempfile.TemporaryDirectory(prefix=owned()) as folder:
        data, tokenizer = arguments.data, arguments.tokenizer
        if data is None:
            data, tokenizer = Path(folder, "data"), Path(folder, "tokenizer.json")
            with console.status("writing shards of Python's own sources and texts, and training a tokenizer on them"):
                write_shards(data)
                train_tokenizer(data, tokenizer)
        recipe = _Recipe(data, tokenizer, arguments.field)
        gil = getattr(sys, "_is_gil_enabled", lambda: True)()
        console.print(
            f"Python {sys.version.split()[0]}, {'with the GIL' if gil else 'free-threaded'}; datasets: {', '.join(recipe.mixture)}"
        )
        _live(console, recipe)
        return _prove(console, recipe, arguments.steps)


class _Recipe:
    """The same data for every way to run it."""

    def __init__(self, data: Path, tokenizer: Path, field: str) -> None:
        self.tokenizer, self.field = tokenizer, field
        paths = sorted(path for path in data.iterdir() if not path.name.startswith((".", "_")))
        if not paths:
            raise ZephonError(f"--data {data} is empty: put a folder or a file into it for each dataset")
        self.datasets = [Dataset.from_path(path.name.partition(".")[0], path) for path in paths]
        # the first takes 60 % of the tokens, the others share the rest
        first, *others = [dataset.name for dataset in self.datasets]
        self.mixture = {first: 0.6, **{name: 0.4 / len(others) for name in others}}

    def pipeline(self, way: Way, ranks: int, rank: int) -> Pipeline:
        source = StaticMixtureWorkSource(
            self.datasets, self.mixture, token_estimation=TokenEstimation(), seed=way.seed, epochs=None
        )
        return (
            Pipeline(source)
            .options(lanes=_LANES, dp_size=ranks, dp_rank=rank, workers=way.workers, chunk_rows=way.chunk_rows)
            .tokenize(tokenizer_id=str(self.tokenizer), field=self.field, parallelism=way.parallelism)
            .pack_flat(max_length=_LENGTH, algorithm="wrap")
            .shuffle(buffer_size=16)
            .batch(microbatch_size=4)
        )


def _live(console: Any, recipe: _Recipe) -> None:
    """Run for a few seconds with a display, then show the shares as bars."""
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    began, tokens = perf_counter(), 0
    columns = [BarColumn(16), TextColumn("{task.fields[words]}")]
    with recipe.pipeline(WAYS[0], 1, 0) as pipeline, Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=_LIVE, words="")
        for n, batch in enumerate(pipeline, 1):
            tokens += len(batch) * _LENGTH
            seconds = perf_counter() - began
            if n % 10 == 0:
                seen = pipeline.statistics()
                shares = " ".join(f"{name} {share:.1%}" for name, share in seen.actual.items())
                words = f"{tokens / seconds:,.0f} tokens/s  {shares}  bound by: {seen.bottleneck}"
                progress.update(task, completed=n, words=words)
            if n == _LIVE or seconds > _LIVE_S:
                break
        seen = pipeline.statistics()
    console.print(f"{tokens:,} tokens mixed, tokenized, packed and shuffled in {seconds:.1f} s; of those drawn:")
    bars = Table.grid(padding=(0, 2))
    for name, share in seen.actual.items():
        bars.add_row(f"  {name}", ProgressBar(1.0, share, 40), f"{share:.2%} (wanted: {seen.target[name]:.2%})")
    console.print(bars)


def _prove(console: Any, recipe: _Recipe, steps: int) -> int:
    from rich.table import Table

    console.print(
        f"\nThe first {steps} global batches (of {_LANES} microbatches) once more, in {len(WAYS)} ways:\n"
        "digits of their SHA-256, and whether they are those of the first row."
    )
    table = Table()
    for name in ("how it ran", *(f"step {step}" for step in range(steps)), ""):
        table.add_column(name, no_wrap=True)
    wanted: list[str] = []
    equal, largest = True, 0
    for way in WAYS:
        with console.status(way.words):
            digests, size = _digests(recipe, way, steps)
        wanted, largest = wanted or digests, max(largest, size)
        same = digests == wanted
        equal = equal and (same or way.seed != _SEED)
        table.add_row(way.words, *(digest[:6] for digest in digests), "equal" if same else "other")
    console.print(table)
    console.print(
        "One recipe, one sequence of global batches: ranks, workers, chunks, a stop and a\nresume on other ranks changed no byte."
        f" The largest checkpoint of a rank has {largest:,} bytes."
        if equal
        else "One recipe gave DIFFERENT DATA. Please report it, with this table."
    )
    return 0 if equal else 1


def _digests(recipe: _Recipe, way: Way, steps: int) -> tuple[list[str], int]:
    """The digests of the first global batches, all ranks of the job run one after the other; bytes of the largest checkpoint."""
    stop = steps if way.resume_on is None else steps // 2
    batches, states = _job(recipe, way, way.ranks, 0, stop, None)
    if way.resume_on is not None:
        more, states = _job(recipe, way, way.resume_on, stop, steps, states)
        batches += more
    return [global_digest(batch for batch in batches if batch.step == step) for step in range(steps)], max(map(len, states))


def _job(
    recipe: _Recipe, way: Way, ranks: int, first: int, stop: int, states: list[bytes] | None
) -> tuple[list[Batch], list[bytes]]:
    batches: list[Batch] = []
    saved = []
    for rank in range(ranks):
        with recipe.pipeline(way, ranks, rank) as pipeline:
            if states is not None:
                pipeline.restore(states)
            taken = iter(pipeline)
            batches += [next(taken) for _ in range((stop - first) * _LANES // ranks)]
            saved.append(pipeline.checkpoint())
    return sorted(batches, key=lambda batch: (batch.step, batch.number)), saved


def write_shards(folder: Path) -> None:
    """Two datasets from the standard library: `code`, its sources as JSONL, and `prose`, its docstrings and texts as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    library = Path(sysconfig.get_paths()["stdlib"])
    (folder / "code").mkdir(parents=True)
    (folder / "prose").mkdir()
    code: list[dict[str, str]] = []
    prose: list[dict[str, str]] = []
    size = 0
    for path in sorted(library.rglob("*.py")):
        if size > _MOST_BYTES or "site-packages" in path.parts:
            continue
        try:
            text = path.read_text("utf-8")
            tree = ast.parse(text)
        except (UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
            continue
        size += len(text)
        code += [{"text": piece, "path": str(path.relative_to(library))} for piece in _pieces(text)]
        nodes = [
            node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        prose += [{"text": piece} for node in nodes for piece in _pieces(ast.get_docstring(node) or "")]
    texts = [path for path in sorted(library.rglob("*.txt"))[:50] if "site-packages" not in path.parts]
    prose += [{"text": piece} for path in texts for piece in _pieces(path.read_text("utf-8", "replace"))]
    for n, shard in enumerate(_cut(code)):
        (folder / "code" / f"part-{n:03}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shard), "utf-8")
    for n, shard in enumerate(_cut(prose)):
        pq.write_table(pa.Table.from_pylist(shard), folder / "prose" / f"part-{n:03}.parquet", row_group_size=1000)


def _pieces(text: str) -> Iterator[str]:
    """Documents of about a kilobyte, cut at blank lines if possible: a lane is off its shares by up to half a document."""
    piece: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        size += len(line)
        if size > 1500 or (size > 500 and not line.strip()):
            yield "".join(piece)
            piece, size = [], 0
    if size:
        yield "".join(piece)


def _cut(rows: list[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    shard: list[dict[str, str]] = []
    size = 0
    for row in rows:
        shard.append(row)
        size += len(row["text"])
        if size > _SHARD_BYTES:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def train_tokenizer(data: Path, path: Path) -> None:
    """A byte-level BPE of 4,096 tokens with an <|endoftext|>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4096, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False)
    lines = (line for shard in sorted((data / "code").glob("*.jsonl"))[:3] for line in shard.read_text("utf-8").splitlines())
    tokenizer.train_from_iterator((json.loads(line)["text"] for line in lines), trainer)
    tokenizer.save(str(path))
