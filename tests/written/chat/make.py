"""Writes the chat templates beside it, as trl has them (Apache-2.0, `trl/chat_templates`), and `expected.json`: what
`apply_chat_template` of transformers makes of some conversations with them.

Made with transformers 5.24.0, trl 1.16.0, tokenizers 0.23 and jinja2 3.1.6 on Python 3.11, from the root of the project:
`python -m tests.written.chat.make`.
"""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from tests.chats import chat_tokenizer, conversation

HERE = Path(__file__).parent
NAMES = ("qwen3", "qwen3_training", "llama3_training", "phi3", "gemma3_training", "glm4moe_training", "llava_next_training")


def expected(tokenizer: Any, template: str, row: dict[str, Any]) -> dict[str, Any] | None:
    try:
        out = tokenizer.apply_chat_template(
            row["messages"],
            tools=row["tools"],
            chat_template=template,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask="{% generation" in template or "{%- generation" in template,
        )
    except Exception:
        return None
    return {"ids": list(out["input_ids"]), "mask": list(out["assistant_masks"]) if "assistant_masks" in out else None}


def main() -> None:
    spec = importlib.util.find_spec("trl")
    folder = Path(spec.origin).with_name("chat_templates")
    made = {}
    for name in NAMES:
        shutil.copy(folder / f"{name}.jinja", HERE)
        template = (HERE / f"{name}.jinja").read_text(encoding="utf-8")
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=chat_tokenizer(template), bos_token="<s>", eos_token="<|endoftext|>")
        rows = [conversation(seed, in_parts=name.startswith("llava")) for seed in range(6)]
        made[name] = [{**row, "expected": expected(tokenizer, template, row)} for row in rows]
    (HERE / "expected.json").write_text(json.dumps(made), encoding="utf-8")


main()
