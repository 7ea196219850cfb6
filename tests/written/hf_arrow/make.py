"""Write folders as `datasets` 5.2.0 leaves them, and the rows as it reads them again.

    /opt/venvs/w_hf/bin/python tests/written/hf_arrow/make.py

saved: `save_to_disk` in two shards, with what `sort` and `map` left beside them. splits: a `DatasetDict`. cache: two splits in the
cache of the library, with what `map` left.
"""

import datetime
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import datasets
from datasets import Array2D, Audio, ClassLabel, Dataset, DatasetDict, Features, Image, Json, List, Sequence, Value
from PIL import Image as Picture

HERE = Path(__file__).parent
FEATURES = Features(
    {
        "text": Value("string"),
        "label": ClassLabel(names=["no", "yes"]),
        "ids": Sequence(Value("int32")),
        "columns": Sequence({"a": Value("int8")}),
        "rows": List({"a": Value("int8")}),
        "grid": Array2D((2, 3), "float32"),
        "nested": {"grid": Array2D((1, 2), "int16"), "score": Value("float64")},
        "image": Image(),
        "audio": {"bytes": Value("binary"), "path": Value("string")},
        "said": {"de": Value("string"), "en": Value("string")},
        "when": Value("timestamp[s]"),
        "day": Value("date32"),
        "raw": Value("binary"),
        "large": Value("large_string"),
        "any": Json(),
    }
)


def picture(shade: int) -> bytes:
    body = io.BytesIO()
    Picture.new("L", (2, 2), shade).save(body, "PNG")
    return body.getvalue()


def row(n: int) -> dict[str, Any]:
    return {
        "text": None if n == 2 else f"text {n}",
        "label": n % 2,
        "ids": list(range(n)),
        "columns": {"a": list(range(n))},
        "rows": [{"a": n}],
        "grid": [[n, 1, 2], [3, 4, 5]],
        "nested": {"grid": [[n, n]], "score": n / 2},
        "image": {"bytes": picture(n), "path": f"{n}.png"} if n else None,
        "audio": {"bytes": b"RIFF", "path": f"{n}.wav"},
        "said": {"de": "ja", "en": "yes"},
        "when": datetime.datetime(2020, 1, 1 + n),
        "day": datetime.date(2020, 1, 1 + n),
        "raw": bytes([n]),
        "large": "x" * n,
        "any": {"n": n},
    }


def plain(value: Any) -> Any:
    """As JSON, with bytes in hex and dates as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


def rows_of(table: Any) -> list[dict[str, Any]]:
    """The rows as they are stored."""
    return json.loads(json.dumps(table.with_format("arrow")[:].to_pylist(), default=plain))  # type: ignore[no-any-return]


if __name__ == "__main__":
    datasets.disable_progress_bars()
    for name in ("saved", "splits", "cache"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    made = Dataset.from_list([row(n) for n in range(5)], features=FEATURES)
    made = made.cast_column("audio", Audio(sampling_rate=16_000))  # which cannot be encoded without torch
    made.save_to_disk(HERE / "saved", num_shards=2)
    again = datasets.load_from_disk(str(HERE / "saved"))
    expected = {"saved": rows_of(again)}
    again.sort("label").select_columns("label").map(lambda row: {"more": row["label"] + 1})
    small = Dataset.from_dict({"text": ["a", "b"]})
    DatasetDict({"train": small, "test": small.select([1])}).save_to_disk(HERE / "splits")
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for split in ("train", "test"):
            files[split] = f"{folder}/{split}.jsonl"
            Path(files[split]).write_text("".join(json.dumps({"text": f"{split} {n}"}) + "\n" for n in range(3)))
        both = datasets.load_dataset("json", data_files=files, cache_dir=f"{folder}/cache")
        expected |= {split: rows_of(both[split]) for split in files}
        both["train"].map(lambda row: {"more": len(row["text"])})
        shutil.copytree(Path(both["train"].cache_files[0]["filename"]).parent, HERE / "cache")
    lines = ",\n".join(f'"{name}": {json.dumps(rows)}' for name, rows in expected.items())
    (HERE / "expected.json").write_text(f"{{\n{lines}\n}}\n")
