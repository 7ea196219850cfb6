"""The code of the README runs as it is written there, but for the size of the shuffle, which is seconds of work."""

import re
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.system.fake_hub import fake_hub
from tests.system.fake_s3 import FakeS3
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource

ROOT = Path(__file__).resolve().parent.parent
ENOUGH = 3


class Enough(Exception):
    pass


def code() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


def test_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, then = code()
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


def test_its_code_for_object_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = code()[1]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), tmp_path / "part.parquet")
    with FakeS3() as store, fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.server.url)
        hub.push("datasets/Salesforce/wikitext", {"wikitext-2-raw-v1/train.parquet": (tmp_path / "part.parquet").read_bytes()})
        store.put("web/deep/part.parquet", (tmp_path / "part.parquet").read_bytes())
        replaced = (("s3://corpora/", store.root), ("https://minio.example", store.url), ('"/scratch"', repr(str(tmp_path))))
        for written, here in (*replaced, ("200GB", "2MB")):
            assert written in stores
            stores = stores.replace(written, here)
        first, of_hub, second = stores.strip().splitlines()
        named: dict[str, Any] = {"Dataset": Dataset, "Pipeline": Pipeline}
        assert eval(of_hub, named).total() == 3
        for _ in range(2):
            named["source"] = StaticMixtureWorkSource([eval(first, named)], {"web": 1})
            with eval(second, named).batch(1) as pipeline:
                assert sorted(row for batch in pipeline for row in batch.to_pylist("text")) == ["a", "b", "c"]
                said = dict(pipeline.statistics().storage)
        assert said["bytes"] == 0
        assert said["cache_hits"]
