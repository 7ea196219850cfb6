"""Write the files beside this one, and what streaming's LocalDataset reads of them: streaming 0.13.0, pillow 13, numpy 2.4.

It imports torchvision and transformers only for datasets and tokenizers that are not used here: where they are not installed,
empty modules of these names do. Images are told by the SHA-256 of their bytes, those of `pil` of their mode, size and pixels.
"""

import json
import shutil
from decimal import Decimal
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import LocalDataset, MDSWriter
from streaming.base.util import merge_index

HERE = Path(__file__).parent
NUMBERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


def image(n, mode):
    pixels = np.random.default_rng(n).integers(0, 256, (5 + n, 3, 4), np.uint8)
    if mode == "I;16":
        return Image.fromarray(pixels.view("<u2")[:, :, 0].copy())
    return Image.fromarray(pixels, "RGBA").convert(mode)


def told(value):
    """A value as JSON."""
    if isinstance(value, Image.Image):
        if value.format:
            value.fp.seek(0)
            return sha256(value.fp.read()).hexdigest()
        return sha256(f"{value.mode} {value.size} ".encode() + value.tobytes()).hexdigest()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list):
        return [told(each) for each in value]
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items()}
    return value.decode("latin-1") if isinstance(value, bytes) else str(value) if isinstance(value, Decimal) else value


def write(name, columns, rows, **settings):
    shutil.rmtree(HERE / name, ignore_errors=True)
    with MDSWriter(out=str(HERE / name), columns=columns, **settings) as writer:
        for row in rows:
            writer.write(row)


def jpeg_bytes(n):
    out = BytesIO()
    image(n, "RGB").save(out, format="JPEG")
    return out.getvalue()


SCALARS = [
    {
        "text": f"é {n}" * n,
        "raw": bytes([n, 255]),
        "number": -(10**18) * n,
        "digits": 10**n * (-1) ** n,
        "fraction": 10.0 ** (n * 20) / 3,
        "decimal": Decimal(f"1.{n}0E+{n}"),
        **{kind: np.dtype(kind).type(n * 3 / 2) for kind in NUMBERS},
        "nested": {"a": [n, None], "b": "é"},
        "list": list(range(n)),
    }
    for n in range(5)
]
ENCODINGS = {
    "text": "str",
    "raw": "bytes",
    "number": "int",
    "digits": "str_int",
    "fraction": "str_float",
    "decimal": "str_decimal",
    **{kind: kind for kind in NUMBERS},
    "nested": "json",
    "list": "json",
}
ARRAYS = [
    {
        "any": np.arange(1 + n * 90, dtype=np.int32),
        "kind": np.arange(1 + n, dtype=np.uint32),
        "deep": np.arange((1 + n) * 6, dtype=np.int16).reshape(1 + n, 2, 3),
        "shape": np.arange(6, dtype=np.float32).reshape(2, 3) + n,
        "half": np.full(3, n / 2, np.float16),
    }
    for n in range(4)
]
IMAGES = [
    {
        **{f"pil {mode}": image(n, mode) for mode in ("1", "L", "LA", "RGB", "RGBA", "I;16")},
        "png": image(n, "RGB"),
        "jpeg": image(n, "RGB"),
        "pngs": [image(m, "L") for m in range(n)],
        "pils": [image(m, "RGB") for m in range(n)],
        "jpegs": [image(m, "RGB") for m in range(n)],
        "array": [jpeg_bytes(m) for m in range(n + 1)],
        "old array": [jpeg_bytes(n)],
    }
    for n in range(2)
]

if __name__ == "__main__":
    write("scalars", ENCODINGS, SCALARS, hashes=["sha1", "xxh64"])
    write(
        "arrays",
        {
            "any": "ndarray",
            "kind": "ndarray:uint32",
            "deep": "ndarray:int16",
            "shape": "ndarray:float32:2,3",
            "half": "ndarray:float16:3",
        },
        ARRAYS,
    )
    write(
        "images",
        {
            **{name: "pil" for name in IMAGES[0] if name.startswith("pil ")},
            "png": "png",
            "jpeg": "jpeg",
            "pngs": "list[png]",
            "pils": "list[pil]",
            "jpegs": "list[jpeg]",
            "array": "jpegarray",
            "old array": "jpeg_array",
        },
        IMAGES,
    )
    for way in ("br:5", "bz2", "gz:1", "snappy", "zstd:7"):
        write(
            f"compressed/{way.partition(':')[0]}",
            {"id": "int", "text": "str"},
            [{"id": n, "text": "ab" * n} for n in range(40)],
            compression=way,
            hashes=["md5", "sha256"],
            size_limit=1500,
        )
    shutil.rmtree(HERE / "merged", ignore_errors=True)
    for part in "ab":
        write(f"merged/{part}", {"text": "str"}, [{"text": f"{part}{n}"} for n in range(3)])
    merge_index(str(HERE / "merged"), keep_local=True)
    write("pickled", {"text": "str", "any": "pkl"}, [{"text": "a", "any": {1}}])
    expected = {name: [told(row) for row in LocalDataset(str(HERE / name))] for name in ("scalars", "arrays", "images", "merged")}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
