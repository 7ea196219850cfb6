"""Taking everything that a pipeline gives, for the tests of the cases. They use the public names alone."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from zephon_async import Batch, Dataset, Pipeline, StaticMixtureWorkSource, ZephonError

CASES = Path(__file__).parent / "cases"

WAYS: tuple[dict[str, Any], ...] = (
    {"runner": "inline"},
    {"runner": "threads", "workers": 3, "chunk_rows": 1},
    {"runner": "threads", "workers": 2, "chunk_rows": 3, "prefetch": 1, "memory_budget": "1MiB"},
)
"""Performance settings: no result may depend on them."""

Line = bytes | str | Mapping[str, Any]


def expected(case: str) -> Any:
    """The right values of a case."""
    return json.loads((CASES / case / "expected.json").read_text())


def in_order(*datasets: Dataset, **settings: Any) -> StaticMixtureWorkSource:
    """A source that gives its datasets in equal parts of samples, in the order of their catalogs."""
    weights = {dataset.name: 1 for dataset in datasets}
    return StaticMixtureWorkSource(datasets, settings.pop("mixture", weights), **{"shuffle": False, **settings})


def written(path: Path, *lines: Line) -> Path:
    """A file of lines: bytes as they are, text and values with a line end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(_line, lines)))
    return path


def _line(line: Line) -> bytes:
    if isinstance(line, bytes):
        return line
    return (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)).encode() + b"\n"


def of(path: Path, **settings: Any) -> Dataset:
    return Dataset.from_path("d", path, **settings)


def taken(pipeline: Pipeline, most: int | None = None) -> list[Batch]:
    """The next `most` batches, or all."""
    found: list[Batch] = []
    if most == 0:
        return found
    for batch in pipeline:
        found.append(batch)
        if len(found) == most:
            break
    return found


def batches(pipeline: Pipeline, most: int | None = None) -> list[Batch]:
    """All batches, or the first `most`; then the pipeline is closed."""
    with pipeline:
        return taken(pipeline, most)


def column(found: Iterable[Batch], name: str) -> list[Any]:
    """The values of a column, of all rows that are not filler."""
    return [value for batch in found for value in batch.to_pylist(name)[: int(batch.mask.sum())]]


def values(made: Dataset, name: str = "text", **options: Any) -> list[Any]:
    """A column of a dataset in one lane, one row a batch."""
    return column(batches(Pipeline(in_order(made)).options(**options).batch(1)), name)


def records(made: Dataset, **options: Any) -> list[dict[str, Any]]:
    """The rows of a dataset as dicts, nested values as their JSON text."""
    found = batches(Pipeline(in_order(made)).options(**options).batch(1))
    return [{name: batch.to_pylist(name)[0] for name in batch.columns} for batch in found]


def counted(pipeline: Pipeline) -> tuple[list[Batch], dict[str, int]]:
    """All batches, and what was left out or made up."""
    with pipeline:
        return taken(pipeline), {name: n for name, n in pipeline.statistics().counts.items() if n}


def said(pipeline: Pipeline, error: type[ZephonError] = ZephonError) -> str:
    """The message of the error in which a pipeline ends."""
    with pipeline, pytest.raises(error) as caught:
        taken(pipeline)
    return str(caught.value)


def letters(template: Any = None) -> Tokenizer:
    """A tokenizer of one id a letter: "a" is 97; EOS is 0, BOS 1, anything else 2."""
    vocabulary = {"<|endoftext|>": 0, "<s>": 1, "[UNK]": 2, **{chr(n): n for n in range(32, 127)}}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    if template is not None:
        made.post_processor = template
    return made


def token_rows(made: Dataset, **options: Any) -> list[list[int]]:
    """The ids of the column `text`, each with an EOS behind it."""
    pipeline = Pipeline(in_order(made)).options(**options).tokenize(letters(), field="text").batch(1)
    return column(batches(pipeline), "input_ids")


def ids_of(text: str) -> list[int]:
    """What `token_rows` gives for a text."""
    return [*(ord(letter) if 32 <= ord(letter) < 127 else 2 for letter in text), 0]
