"""Writes the token files beside it, and `expected.json`: the documents as `IndexedDataset` gives their sequences.

Made with megatron-core 0.16.1, torch 2.13.0 and numpy 2 on Python 3.11: `python make.py` in this folder.
"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

HERE = Path(__file__).parent
SEQUENCES = [[5, 1, 4], [100], [], [7, 7], [1, 2, 3, 4, 5, 6], [9], [0]]
DOCUMENTS = [1, 3, 0, 2, 1]  # sequences of each


def write(name: str, dtype: type, multimodal: bool = False) -> list[object]:
    prefix = str(HERE / name)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=multimodal)
    sequences = iter(enumerate(SEQUENCES))
    for count in DOCUMENTS:
        for _ in range(count):
            number, sequence = next(sequences)
            builder.add_item(torch.tensor(sequence, dtype=torch.int64), mode=number % 3)
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    read = IndexedDataset(prefix, multimodal=multimodal)
    edges = read.document_indices.tolist()
    return [[plain(read[n]) for n in range(a, b)] for a, b in pairwise(edges)]


def plain(sequence: object) -> object:
    """The numbers of a sequence, and its mode if it has one."""
    if isinstance(sequence, tuple):
        return [sequence[0].tolist(), int(sequence[1])]
    return sequence.tolist()


def merged() -> list[object]:
    """Two files made one, as `add_index` does."""
    prefix = str(HERE / "merged")
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for _ in range(2):
        builder.add_index(str(HERE / "uint16"))
    builder.finalize(f"{prefix}.idx")
    read = IndexedDataset(prefix)
    edges = read.document_indices.tolist()
    return [[plain(read[n]) for n in range(a, b)] for a, b in pairwise(edges)]


def main() -> None:
    expected = {each.name: write(each.name, getattr(np, each.name)) for each in DType}
    expected["merged"] = merged()
    expected["modes"] = write("modes", np.int32, multimodal=True)
    (HERE / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()
