"""The code of the README runs as it is written there, but for the size of the shuffle, which is seconds of work."""

import re
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parent.parent
ENOUGH = 3


class Enough(Exception):
    pass


def test_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, then = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert "buffer_size=1024" in first
    first = first.replace("buffer_size=1024", "buffer_size=8")
    texts = [f"a text with the number {n}, and a few words more " * 20 for n in range(200)]
    for name in ("wiki", "news"):
        (tmp_path / "data" / name).mkdir(parents=True)
        pq.write_table(pa.table({"text": texts}), tmp_path / "data" / name / "part.parquet")
    shutil.copy(ROOT / "tests" / "laws" / "tokenizer.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    microbatches, steps = count(), count(1)

    def forward_backward(**tensors: Any) -> None:
        assert tensors["input_ids"].shape == tensors["labels"].shape == (8, 2048)
        next(microbatches)

    def optimizer_step() -> None:
        if next(steps) == ENOUGH:
            raise Enough

    named: dict[str, Any] = {"forward_backward": forward_backward, "optimizer_step": optimizer_step}
    with pytest.raises(Enough):
        exec(first, named)
    with named["pipeline"] as pipeline:
        state = named["all_states"] = pipeline.checkpoint()
        exec(then, named)
        assert pipeline.checkpoint() == state
        assert next(iter(pipeline)).step == ENOUGH
    assert next(microbatches) == ENOUGH * 32 // 8
