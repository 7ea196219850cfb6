"""Pictures to measure on: JPEG files of drawn shapes and noise, with a question and an answer about each, as Parquet."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw


def picture(chance: np.random.Generator) -> bytes:
    """A JPEG of about 640 x 480 pixels and 60 to 100 KB, smooth at large and noisy in small."""
    height, width = (int(chance.integers(side - 80, side + 80)) for side in (480, 640))
    smooth = Image.fromarray(chance.integers(0, 256, (6, 8, 3), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(smooth)
    for _ in range(12):
        x, y = (int(chance.integers(0, side)) for side in (width, height))
        draw.ellipse((x, y, x + 90, y + 60), fill=tuple(chance.integers(0, 256, 3).tolist()))
    noise = chance.integers(-12, 13, (height, width, 1), np.int16)
    file = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(smooth, np.int16) + noise, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def write_pictures(folder: Path, count: int, shards: int = 4) -> list[bytes]:
    """`count` conversations with a picture each; their pictures."""
    chance = np.random.default_rng(1)
    drawn = [picture(chance) for _ in range(count)]
    messages = [
        {"role": "user", "content": "<image> What is to be seen in this picture ?"},
        {"role": "assistant", "content": "Twelve ellipses of several colours, on a ground that changes its colour slowly."},
    ]
    for n in range(shards):
        mine = drawn[n::shards]
        table = pa.table({"messages": [messages] * len(mine), "images": [[each] for each in mine]})
        pq.write_table(table, folder / f"part-{n}.parquet", row_group_size=64, compression="none")
    return drawn
