"""Tokenizers by URL."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from zephon_async import Dataset, DatasetError, Pipeline, RecipeError, ShardError, StaticMixtureWorkSource
from zephon_async.io.stores import Fault, Kind, Object
from zephon_async.io.stores.fsspec import FsspecConnection

TOKENIZER = Path(__file__).parent.parent / "laws" / "tokenizer.json"


@pytest.fixture
def folder() -> Iterator[str]:
    files = MemoryFileSystem(skip_instance_cache=True)
    files.pipe_file("/tok/tokenizer.json", TOKENIZER.read_bytes())
    files.pipe_file("/tok/tokenizer_config.json", json.dumps({"eos_token": "a"}).encode())
    files.pipe_file("/tok/model.safetensors", b"\0" * 1000)
    yield "memory://tok"
    files.store.clear()


def ids(tokenizer: str) -> list[list[int]]:
    source = StaticMixtureWorkSource([Dataset.from_dict("d", [{"text": "the river"}])], {"d": 1})
    with Pipeline(source).tokenize(tokenizer_id=tokenizer, field="text").batch(1) as pipeline:
        return [row for batch in pipeline for row in batch.to_pylist("input_ids")]


def test_a_url_is_as_good_as_a_path(folder: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "a"}))
    wanted = ids(str(tmp_path))
    for url in (folder, f"{folder}/", f"{folder}/tokenizer.json", f"file://{tmp_path}", f"file://{tmp_path}/tokenizer.json"):
        assert ids(url) == wanted


def test_what_is_said_where_there_is_none(folder: str) -> None:
    files = "tokenizer.json, tokenizer_config.json, chat_template.jinja"
    with pytest.raises(DatasetError, match=f"^'memory://nothing': there is no such object, and none of {files} below it$"):
        ids("memory://nothing")
    MemoryFileSystem(skip_instance_cache=True).pipe_file("/bad/tokenizer.json", b"{}")
    with pytest.raises(RecipeError, match=r"^tokenize: memory://bad/tokenizer.json is no tokenizer.json"):
        ids("memory://bad")


def test_what_goes_with_a_url_and_what_does_not(folder: str) -> None:
    source = StaticMixtureWorkSource([Dataset.from_dict("d", [{"text": "the river"}])], {"d": 1})
    with pytest.raises(RecipeError, match=r"^tokenize: give either tokenizer= or tokenizer_id=$"):
        Pipeline(source).tokenize(folder, tokenizer_id=str(TOKENIZER), field="text")
    with pytest.raises(RecipeError, match=r"^tokenize: storage_options \(anon\) are for URLs, and none is given$"):
        Pipeline(source).tokenize(str(TOKENIZER), storage_options={"anon": True}, field="text")


@pytest.mark.parametrize("only", [None, "tokenizer_config.json"])
def test_what_may_not_be_read_is_not_taken_for_missing(
    only: str | None, folder: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = FsspecConnection.look

    async def forbidden(self: FsspecConnection, key: str) -> Object:
        if only is None or key.endswith(only):
            raise Fault(Kind.FORBIDDEN, "no")
        return await look(self, key)

    monkeypatch.setattr(FsspecConnection, "look", forbidden)
    if only is None:
        with pytest.raises(ShardError, match="may not be read with these credentials: no"):
            ids(folder)
    else:
        ids(folder)
        assert (
            "tokenizer_config.json may not be read with these credentials: no; it is taken for one that is not there" in caplog.text
        )
