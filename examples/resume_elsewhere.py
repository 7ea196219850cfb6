"""A plain `for`, stopped on 2 ranks and resumed on 3: the global batches are those of a run that was never stopped.

    python examples/resume_elsewhere.py [steps]

The ranks are run one after the other here; in a job each is a process of its own, and reads the states that all have saved.
"""

import sys
from itertools import islice
from typing import Any

from made import texts, tokenizer

from zephon_async import Batch, Dataset, Pipeline, StaticMixtureWorkSource, global_digest

LANES = 12  # part of the recipe; 1, 2, 3, 4, 6 and 12 ranks can share them, and any other number that divides a step
DATASETS = [Dataset.from_dict(name, {"text": texts(2000, seed)}) for seed, name in enumerate(("news", "wiki"))]
WORDS = tokenizer()


def loader(dp_size: int, dp_rank: int) -> Pipeline:
    source = StaticMixtureWorkSource(DATASETS, {"news": 1, "wiki": 2}, seed=1, epochs=None)
    pipeline = Pipeline(source).options(lanes=LANES, dp_size=dp_size, dp_rank=dp_rank)
    return pipeline.tokenize(WORDS, field="text").pack_flat(max_length=64).shuffle(16).batch(4)


def train_step(**tensors: Any) -> None:
    """Yours."""


def job(dp_size: int, steps: int, states: list[bytes]) -> tuple[list[Batch], list[bytes]]:
    """So many steps of all ranks, from `states` on; gives what they saw and the states that they save."""
    seen: list[Batch] = []
    saved: list[bytes] = []
    for dp_rank in range(dp_size):
        with loader(dp_size, dp_rank) as pipeline:
            if states:
                pipeline.restore(states)
            for batch in islice(pipeline, steps * LANES // dp_size):
                train_step(**batch.to_training(framework="numpy"))
                seen.append(batch)
            saved.append(pipeline.checkpoint())
    return seen, saved


def main(steps: int) -> None:
    whole, _ = job(1, steps, [])
    before, states = job(2, steps // 2, [])
    after, _ = job(3, steps - steps // 2, states)
    for step in range(steps):
        once, again = (global_digest(batch for batch in seen if batch.step == step) for seen in (whole, before + after))
        print(f"step {step}: {once[:16]} {'equal' if once == again else 'DIFFERENT'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
