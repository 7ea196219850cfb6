"""Where tokenizers and their special tokens come from, and what is said where they do not."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from tests.made_rows import byte_tokenizer
from zephon_async.errors import RecipeError
from zephon_async.operators.tokenize import Tokenize
from zephon_async.operators.tokenizer_files import load_tokenizer, token_id


def saved(folder: Path, config: Any = None, name: str = "tokenizer.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(folder / name))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder / name


def words(*specials: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    return tokenizer


def test_an_object_a_file_and_a_directory_are_the_same(tmp_path: Path) -> None:
    file = saved(tmp_path / "model")
    wanted = load_tokenizer(byte_tokenizer())
    for found in (wanted, *map(load_tokenizer, (file, str(file), tmp_path / "model"))):
        assert (found.text, found.copy.to_str(), found.config) == (wanted.text, wanted.text, {})


def test_a_tokenizer_of_transformers_is_taken_with_its_tokens() -> None:
    class Fast:
        backend_tokenizer = byte_tokenizer()
        eos_token = "<s>"
        bos_token = None

    assert Tokenize(Fast(), field="text").eos == (257,)


@pytest.mark.parametrize("said", ["<s>", {"content": "<s>", "special": True}])
def test_the_configuration_beside_it_names_the_tokens(tmp_path: Path, said: Any) -> None:
    saved(tmp_path, {"eos_token": said, "bos_token": None})
    operator = Tokenize(tokenizer_id=tmp_path, field="text", special_tokens="bos_eos")
    assert (operator.bos, operator.eos) == ((257,), (257,))
    assert Tokenize(tokenizer_id=tmp_path, field="text", eos_token=0).eos == (0,)
    other = saved(tmp_path, name="other.json")  # it is not the configuration of this one
    assert Tokenize(tokenizer_id=other, field="text").eos == (0,)


def test_a_configuration_that_is_wrong_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, {"eos_token": "</s>"})
    with pytest.raises(
        RecipeError, match=r"the EOS token '</s>' of tokenizer_config.json is not in the vocabulary; pass eos_token="
    ):
        Tokenize(tokenizer_id=tmp_path, field="text")
    saved(tmp_path, "{")
    with pytest.raises(RecipeError, match=r"tokenizer_config.json cannot be read"):
        Tokenize(tokenizer_id=tmp_path, field="text")
    saved(tmp_path, "[]")
    assert load_tokenizer(tmp_path).config == {}


def test_the_usual_names_in_their_order() -> None:
    tokenizer = words("</s>", "<|endoftext|>", "[CLS]")
    assert token_id("eos", None, {}, tokenizer) == tokenizer.token_to_id("<|endoftext|>")
    assert token_id("bos", None, {"bos_token": None}, tokenizer) == tokenizer.token_to_id("[CLS]")
    with pytest.raises(RecipeError, match=r"has none of the usual BOS tokens \(<s>, .*special_tokens='none'"):
        token_id("bos", None, {}, words())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (10**6, "is no id of this tokenizer"),
        (-1, "is no id"),
        (True, "must be the text or the id"),
        (1.5, "must be the text"),
        ("", "not in the"),
    ],
)
def test_tokens_that_are_none(given: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        token_id("eos", given, {}, byte_tokenizer())


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text("x")
    with pytest.raises(RecipeError, match=r"there is no tokenizer.json in .* \(there is tokenizer.model\); `AutoTokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(RecipeError, match=r"is no tokenizer.json \("):
        load_tokenizer(tmp_path / "tokenizer.model")
    for missing in (tmp_path / "none.json", "none.json", "./none", "a/b/c"):
        with pytest.raises(RecipeError, match=r"there is no file or directory '(.*none\.json|\./none|a/b/c)'"):
            load_tokenizer(missing)
    with pytest.raises(RecipeError, match=r"wanted a tokenizers.Tokenizer, the path of a tokenizer.json .*, found int"):
        load_tokenizer(5)


def test_tokenizers_that_cannot_be_repeated_are_refused() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[], dropout=0.1))
    with pytest.raises(RecipeError, match=r"BPE dropout 0.1.*set tokenizer.model.dropout = None"):
        load_tokenizer(tokenizer)
    tokenizer = words()
    tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(object())
    with pytest.raises(RecipeError, match="cannot be written as JSON"):
        load_tokenizer(tokenizer)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a hub that refuses connections at once."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path


def test_a_name_on_the_hub_is_looked_up_in_the_local_cache(hub: Path) -> None:
    repository = hub / "models--some--model"
    saved(repository / "snapshots" / "abc", {"eos_token": "<s>"})
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert Tokenize(tokenizer_id="some/model", field="text").eos == (257,)


@pytest.mark.parametrize("name", ["some/model", "gpt2", "double--dash"])
def test_a_hub_out_of_reach_is_said_quickly_with_all_that_was_tried(hub: Path, name: str) -> None:
    with pytest.raises(
        RecipeError, match=f"tokenizer '{name}' is not to be had: no such file or directory .*; not in the Hugging Face cache"
    ):
        load_tokenizer(name)


def test_no_hub_is_asked_where_it_is_switched_off(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RecipeError, match="HF_HUB_OFFLINE is set"):
        load_tokenizer("some/model")
