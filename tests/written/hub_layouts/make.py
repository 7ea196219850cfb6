"""Write expected.json: which splits `datasets` 5.2.0 finds in folders of such names, and which files patterns of a card match.

/opt/venvs/w_hf/bin/python tests/written/hub_layouts/make.py
"""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from datasets.data_files import DataFilesDict, get_data_patterns

WORDS = ["train", "training", "test", "testing", "eval", "dev", "val", "valid", "validation", "evaluation"]
WORDS += ["foo", "my", "data", "en", "model", "trainer"]
SEPARATORS = ["-", "_", ".", " ", "0", ""]
PATTERNS = ["data/**", "**", "*", "**/*", "train*", "*/train*", "**/*train*.jsonl", "*.jsonl", "data/*-*.parquet", "**/[a-m]*"]
PATTERNS += ["./data/*", "???*.jsonl", "**/data/**", "*/**", "[!t]*", "README.md", ".hidden/*", "__x/**"]
rng = random.Random(5)


def word() -> str:
    return rng.choice(SEPARATORS).join(rng.choice(WORDS) for _ in range(rng.choice([1, 1, 2]))) + rng.choice(["", "", "1"])


def drawn() -> set[str]:
    names = {
        "/".join([word() for _ in range(rng.choice([0, 0, 1, 1, 2]))] + [word() + rng.choice([".parquet", ".jsonl"])])
        for _ in range(rng.randrange(1, 6))
    }
    others = {f"data/{rng.choice(['train', 'test', 'extra', 'en.v1'])}-00000-of-00002-abc.parquet": 0.3, "README.md": 0.3}
    others |= {".hidden/train.jsonl": 0.1, "__x/train.jsonl": 0.1}
    return names | {name for name, share in others.items() if rng.random() < share}


def found(names: set[str], patterns: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("x")

        def resolved(of_splits: dict[Any, list[str]]) -> dict[str, list[str]]:
            files = DataFilesDict.from_patterns(of_splits, base_path=str(root))
            return {str(split): sorted({str(Path(file).relative_to(root)) for file in several}) for split, several in files.items()}

        matched = {}
        for pattern in patterns:
            try:
                matched[pattern] = resolved({"train": [pattern]})["train"]
            except FileNotFoundError:
                matched[pattern] = []
        return {"names": sorted(names), "splits": resolved(get_data_patterns(str(root))), "matched": matched}


if __name__ == "__main__":
    cases = [found(drawn(), rng.sample(PATTERNS, 2)) for _ in range(60)]
    lines = ",\n".join(json.dumps(case) for case in cases)
    Path(__file__).with_name("expected.json").write_text(f"[\n{lines}\n]\n")
