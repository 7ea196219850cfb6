"""Writes the LitData folders beside it, and `expected.json`, as the library itself reads them in order.

`old` was made by litdata 0.2.17 from the rows of `typed`; it took booleans for numbers.

Made with litdata 0.2.76, zstd 1.5.7, pyarrow, pillow 13 and torch 2.14 on Python 3.11: `python make.py` in this folder.
"""

import base64
import io
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from litdata import StreamingDataset, optimize
from litdata.streaming.item_loader import TokensLoader
from litdata.types import File, Jpeg, JpegArray, Text
from litdata.utilities.encryption import FernetEncryption
from PIL import Image

HERE = Path(__file__).parent
TEXT = "row {} é\n"


def text(n: int) -> dict[str, Any]:
    return {"text": TEXT.format(n) * (n % 3), "n": n - 2, "score": n / 4, "flag": n % 2 == 0}


def kinds(n: int) -> dict[str, Any]:
    return {
        "raw": bytes(range(n)),
        "meta": {"lang": "en", "more": [n, "x"]},
        "image": Image.fromarray(np.full((2, 3, 3), n, np.uint8)),
        "grey": Image.fromarray(np.full((2, 2), n, np.uint8)),
        "array": np.arange(n * 2, dtype=np.float32).reshape(n, 2),
        "flat": np.arange(n, dtype=np.uint16),
        "matrix": torch.arange(n * 6, dtype=torch.int16).reshape(n, 2, 3),
        "tokens": torch.arange(n, dtype=torch.int64),
        "scalar": torch.tensor(n / 2),
        "mask": torch.tensor([[n % 2 == 0, True]]),
    }


def typed(n: int) -> dict[str, Any]:
    """With a tensor, so that no Arrow file is made of it."""
    return {**text(n), "tokens": torch.arange(n)}


def pair(n: int) -> tuple[str, int]:
    return f"text {n}", n


def single(n: int) -> str:
    return "x" * n


def nested(n: int) -> dict[str, Any]:
    return {"id": n, "turns": [{"role": "user", "text": f"t{k}"} for k in range(n % 3)], "tags": ["a", "b"][: n % 3]}


def stored(n: int) -> dict[str, Any]:
    """Files, of which the bytes are kept."""
    one = io.BytesIO()
    Image.fromarray(np.full((2, 3, 3), n, np.uint8)).save(one, "JPEG")
    jpeg = Jpeg(bytes=one.getvalue())
    return {
        "photo": jpeg,
        "photos": JpegArray(images=[jpeg] * (1 + n % 2)),
        "paper": File(bytes=b"%d" % n),
        "note": Text(text=f"é{n}"),
    }


def kept(row: dict[str, Any]) -> dict[str, Any]:
    """The bytes in such a row."""
    photos = [each.bytes for each in row["photos"].images]
    return plain({"photo": row["photo"].bytes, "photos": photos, "paper": row["paper"].bytes, "note": row["note"].text})


def pickled(n: int) -> dict[str, Any]:
    return {"n": n, "odd": {1, n}}


def tokens(n: int) -> Iterator[torch.Tensor]:
    yield torch.arange(100 * n, 100 * n + 3 + n % 4, dtype=torch.int32)


def plain(value: Any) -> Any:
    """As JSON: bytes as base64, images as their mode, size and pixels."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, Image.Image):
        return [value.mode, list(value.size), base64.b64encode(value.tobytes()).decode()]
    return value.tolist() if hasattr(value, "tolist") else value


def make(name: str, one: Any, rows: int = 7, chunk_size: int = 4, read: bool = True, loader: Any = None, **more: Any) -> Any:
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    optimize(one, list(range(rows)), str(folder), chunk_size=chunk_size, num_workers=1, verbose=False, item_loader=loader, **more)
    for path in folder.iterdir():
        if path.name != "index.json" and path.suffix != ".bin":
            path.unlink() if path.is_file() else shutil.rmtree(path)
    if not read:
        return None
    copy = Path("/tmp/litdata-read") / name  # it writes into what it reads
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    return [plain(row) for row in StreamingDataset(str(copy), shuffle=False, item_loader=loader)]


def main() -> None:
    zstd = partial(make, one=typed, compression="zstd")
    expected = {
        "text": make("text", text),
        "typed": make("typed", typed),
        "kinds": make("kinds", kinds),
        "pair": make("pair", pair),
        "single": make("single", single),
        "nested": make("nested", nested),
        "zstd_chunk": zstd("zstd_chunk", compression_level="chunk"),
        "zstd_batch": zstd("zstd_batch", compression_level="batch", compression_batch_size=3),
        "zstd_sample": zstd("zstd_sample", compression_level="sample"),
        "tokens": make("tokens", tokens, 9, 20, loader=TokensLoader(block_size=4)),
    }
    make("stored", stored, rows=2, read=False)
    expected["stored"] = [kept(stored(n)) for n in range(2)]
    make("pickled", pickled, read=False)
    make("encrypted", typed, read=False, encryption=FernetEncryption(password="secret", level="chunk"))
    (HERE / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()
