"""Where tokenizers come from, and which of their tokens mean the begin and the end of a document.

Takes a `tokenizers.Tokenizer`, the path of a tokenizer.json or of a directory with one, or the name of a repository on the
Hugging Face hub (looked up in its local cache first). Gives the tokenizer as JSON, without truncation and padding, and what the
`tokenizer_config.json` beside it says. Whatever was given is only read. All that fails is a RecipeError at once.
"""

import contextlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zephon_async.errors import RecipeError

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_TIMEOUT_S = 5.0
_HIDDEN = "\ufdd2"  # before what stands for a name; no character of any language

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""What is read of a directory."""

USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "eos": (
        "<|endoftext|>",
        "</s>",
        "<|end_of_text|>",
        "<eos>",
        "<|eos|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<EOS>",
        "[EOS]",
        "[SEP]",
    ),
    "bos": (
        "<s>",
        "<|begin_of_text|>",
        "<bos>",
        "<|startoftext|>",
        "<|bos|>",
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
        "<BOS>",
        "[BOS]",
        "[CLS]",
    ),
}
"""Tried in this order where neither the recipe nor tokenizer_config.json names the token."""


class TokenizerFile(NamedTuple):
    """A tokenizer as JSON text and as a copy, and its configuration: special tokens (`eos_token`, `bos_token`), `chat_template`."""

    text: str
    copy: Any
    config: Mapping[str, Any]


def load_tokenizer(given: Any) -> TokenizerFile:
    """Find and read a tokenizer; see the module."""
    import tokenizers

    if isinstance(given, str | os.PathLike):
        path = _find(os.fspath(given))
        source, config = _read(path, tokenizers.Tokenizer.from_file), _config_beside(path)
    else:
        inner = getattr(given, "backend_tokenizer", given)  # a fast tokenizer of transformers wraps one
        if not isinstance(inner, tokenizers.Tokenizer):
            raise RecipeError(
                f"tokenize: wanted a tokenizers.Tokenizer, the path of a tokenizer.json or a name on the Hugging Face hub, "
                f"found {type(given).__name__}"
            )
        source, config = (
            inner,
            {} if inner is given else _config_of(given),
        )
    try:
        clone = tokenizers.Tokenizer.from_str(source.to_str())
    except Exception as error:  # the library raises bare Exception
        raise RecipeError(
            f"tokenize: this tokenizer cannot be written as JSON, so it can be neither copied nor fingerprinted ({error})"
        ) from error
    if getattr(clone.model, "dropout", None):
        raise RecipeError(
            f"tokenize: this tokenizer drops merges at random (BPE dropout {clone.model.dropout}), so no run could be repeated; "
            "set tokenizer.model.dropout = None"
        )
    clone.no_truncation()
    clone.no_padding()
    return TokenizerFile(clone.to_str(), clone, config)


def names_as_text(text: str) -> str:
    """A tokenizer, as JSON, with the same ids, to which the names of special tokens are no words.

    With `encode_special_tokens` a name in a text is not cut out any more. But Unigram, word-level and wordpiece models have such
    names among their own words, and make the special token of them all the same, which is then hidden from them here. A text
    with a name becomes what any such text becomes that the model does not know. (BPE has no merges that lead there.)
    """
    told = json.loads(text)
    model = told["model"]
    if model.get("type") not in ("Unigram", "WordLevel", "WordPiece"):
        return text
    hidden = {token["content"]: f"{_HIDDEN}{token['id']}" for token in told["added_tokens"] if token["special"]}
    hidden.pop(model.get("unk_token"), None)  # a word that is not known is one in any case
    for token in told["added_tokens"]:
        token["content"] = hidden.get(token["content"], token["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {hidden.get(word, word): number for word, number in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
    return json.dumps(told)


def token_id(role: str, given: str | int | None, config: Mapping[str, Any], tokenizer: Any) -> int:
    """The id of the token that marks the begin ("bos") or the end ("eos") of a document.

    `given` is a text or an id; without it the configuration is asked, then the usual names.
    """
    setting = f"{role}_token"
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 0 or tokenizer.id_to_token(given) is None:
            raise RecipeError(
                f"tokenize: {setting}={given} is no id of this tokenizer, which has {tokenizer.get_vocab_size():,} tokens"
            )
        return given
    if given is not None and not isinstance(given, str):
        raise RecipeError(f"tokenize: {setting}= must be the text or the id of a token, not {given!r}")
    said = config.get(setting) if given is None else given
    said = said.get("content") if isinstance(said, Mapping) else said
    for name in USUAL_NAMES[role] if said is None else (said,):
        found = tokenizer.token_to_id(name)
        if found is not None:
            return int(found)
    if said is None:
        raise RecipeError(
            f"tokenize: this tokenizer has none of the usual {role.upper()} tokens ({', '.join(USUAL_NAMES[role])}) and no "
            f"tokenizer_config.json names one; pass {setting}= (a text or an id), or special_tokens='none'"
        )
    where = "tokenizer_config.json" if given is None else f"{setting}="
    raise RecipeError(
        f"tokenize: the {role.upper()} token {said!r} of {where} is not in the vocabulary; pass {setting}= (a text or an id)"
    )


def _read(path: Path, read: Any) -> Any:
    try:
        return read(str(path))
    except Exception as error:  # the library raises bare Exception
        raise RecipeError(f"tokenize: {path} is no tokenizer.json ({error})") from error


def _config_of(tokenizer: Any) -> Mapping[str, Any]:
    """What a tokenizer of transformers says."""
    names = [f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
    return {name: getattr(tokenizer, name, None) for name in (*names, "chat_template")}


def _config_beside(path: Path) -> Mapping[str, Any]:
    """What tokenizer_config.json and chat_template.jinja say, where the file is a tokenizer.json that has them beside it."""
    beside, template = path.with_name("tokenizer_config.json"), path.with_name("chat_template.jinja")
    if path.name != "tokenizer.json":
        return {}
    try:
        config = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
        own = {"chat_template": template.read_text(encoding="utf-8")} if template.is_file() else {}
    except (OSError, ValueError) as error:
        raise RecipeError(f"tokenize: {beside} cannot be read, or {template.name} beside it ({error})") from error
    return {**config, **own} if isinstance(config, Mapping) else own


def _find(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        inside = path / "tokenizer.json"
        if inside.is_file():
            return inside
        present = ", ".join(sorted(entry.name for entry in path.iterdir())[:10]) or "nothing"
        raise RecipeError(
            f"tokenize: there is no tokenizer.json in {path} (there is {present}); "
            "`AutoTokenizer.from_pretrained(...).save_pretrained(...)` of transformers writes one"
        )
    if path.exists():
        return path
    if path.suffix == ".json" or not _HUB_NAME.fullmatch(name) or name.startswith("."):
        raise RecipeError(f"tokenize: there is no file or directory {name!r} (seen from {Path.cwd()})")
    return _from_hub(name)


def _from_hub(name: str) -> Path:
    """tokenizer.json of a repository, from the local cache or else from the hub, with its configuration beside it."""
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    tried = f"no such file or directory (seen from {Path.cwd()}); not in the Hugging Face cache {constants.HF_HUB_CACHE}"
    try:
        cached = huggingface_hub.try_to_load_from_cache(name, "tokenizer.json", cache_dir=constants.HF_HUB_CACHE)
        if isinstance(cached, str):
            return Path(cached)
        if constants.HF_HUB_OFFLINE:
            raise OSError("HF_HUB_OFFLINE is set")
        _reach(constants.ENDPOINT)
        found = huggingface_hub.hf_hub_download(name, "tokenizer.json", etag_timeout=_HUB_TIMEOUT_S)
        for beside in TOKENIZER_FILES[1:]:
            with contextlib.suppress(EntryNotFoundError):  # not every repository has one
                huggingface_hub.hf_hub_download(name, beside, etag_timeout=_HUB_TIMEOUT_S)
        return Path(found)
    except (OSError, HFValidationError) as error:
        raise RecipeError(
            f"tokenize: tokenizer {name!r} is not to be had: {tried}; and the hub gave none ({error}). Give the path of a "
            f"tokenizer.json, or fill the cache: hf download {name} tokenizer.json tokenizer_config.json"
        ) from error


def _reach(endpoint: str) -> None:
    """Ask the hub for a sign of life, once: its own client would try for half a minute."""
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_HUB_TIMEOUT_S).close()
    except urllib.error.HTTPError as answer:
        answer.close()  # any answer will do
