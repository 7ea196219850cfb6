"""Conversations about images: packed token rows, and the pixels of the images that are in them.

    python examples/vision_language.py [steps]

Needs the extras `chat` and `images`. The images are drawn here, PNG in a column of bytes, as they lie in Parquet or in a tar. In
the text an image is one token. `expand_images` reads the header of its file and makes of it as many as the model has visual
tokens; rows are packed, and refer to the files until these are decoded at the end, in the size that was reckoned with.
"""

import io
import random
import sys
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from zephon_async import Batch, Dataset, PatchGrid, Pipeline, StaticMixtureWorkSource

GRID = PatchGrid(patch=8, merge=2, min_pixels=32 * 32, max_pixels=96 * 96)
COLOURS, SHAPES = ("red", "green", "blue", "black"), ("ellipse", "rectangle")
START, END, IMAGE = "<|start|>", "<|end|>", "<|image|>"
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|image|>"
    "{% elif message.role == 'assistant' %}{% generation %}{{ part.text }}<|end|>{% endgeneration %}"
    "{% else %}{{ part.text }}<|end|>{% endif %}{% endfor %}\n{% endfor %}"
)


def conversation(chance: random.Random) -> dict[str, Any]:
    """A question about one image or two, and the answer."""
    drawn = [(chance.choice(COLOURS), chance.choice(SHAPES)) for _ in range(chance.randint(1, 2))]
    asked = [*({"type": "image"} for _ in drawn), {"type": "text", "text": "what is to be seen ?"}]
    answer = [{"type": "text", "text": " and ".join(f"a {colour} {shape}" for colour, shape in drawn)}]
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "images": [picture(chance, *each) for each in drawn]}


def picture(chance: random.Random, colour: str, shape: str) -> bytes:
    """The PNG of a shape, of some size."""
    image = Image.new("RGB", (chance.randint(20, 120), chance.randint(20, 120)), "white")
    getattr(ImageDraw.Draw(image), shape)((4, 4, image.width - 4, image.height - 4), fill=colour)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def trained() -> Tokenizer:
    """A small tokenizer that knows the words of the conversations."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = ["user", "assistant", "what is to be seen ?", *(f"a {colour} {shape} and" for colour in COLOURS for shape in SHAPES)]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[END, START, IMAGE], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(words, trainer)
    return made


def patches(image: Any) -> Any:
    """What a vision encoder takes: [patches, patch * patch * 3], row by row."""
    rows, columns = image.shape[0] // GRID.patch, image.shape[1] // GRID.patch
    return image.reshape(rows, GRID.patch, columns, GRID.patch, 3).swapaxes(1, 2).reshape(rows * columns, -1)


def train_step(batch: Batch, image_id: int | None) -> str:
    made, images = batch.to_training(framework="numpy"), batch.ragged("images")
    encoded = np.concatenate([patches(image / np.float32(255)) for image in images])
    visual = np.count_nonzero(made["input_ids"] == image_id)
    assert len(encoded) == visual * GRID.merge**2  # each visual token takes the place of a square of patches
    learned = int(made["loss_mask"].sum())
    return f"{made['input_ids'].shape} tokens, {len(images)} images of {visual} visual tokens, loss on {learned} tokens"


def main(steps: int) -> None:
    chance, tokenizer = random.Random(1), trained()
    source = StaticMixtureWorkSource(
        [Dataset.from_arrow("shapes", pa.Table.from_pylist([conversation(chance) for _ in range(300)]))],
        {"shapes": 1},
        seed=1,
        epochs=None,
        unit="samples",
    )
    pipeline = (
        Pipeline(source)
        .tokenize_chat(tokenizer, chat_template=TEMPLATE, keep_columns=["images"])
        .expand_images("images", placeholder=IMAGE, tokenizer=tokenizer, grid=GRID)
        .refer(["images"])
        .pack_flat(256, algorithm="best_fit", on_long="drop", carry=["images"])
        .shuffle(16)
        .decode_image("images", size=GRID)
        .batch(4)
    )
    with pipeline:
        for batch in pipeline:
            if batch.step == steps:
                break
            print(f"step {batch.step}: {train_step(batch, tokenizer.token_to_id(IMAGE))}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
