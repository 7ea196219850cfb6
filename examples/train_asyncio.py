"""Train from a coroutine: while a batch is waited for, the loop is free for other tasks; here one that watches the loader.

    python examples/train_asyncio.py [steps]

The model is a table, the scores of each token behind each, so that it runs everywhere. With torch, `to_training()` gives tensors.
"""

import asyncio
import sys
from typing import Any

import numpy as np
from made import texts, tokenizer

from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation

LANES = 4
WORDS = tokenizer()
scores = np.zeros((WORDS.get_vocab_size(), WORDS.get_vocab_size()))


def train_step(input_ids: Any, labels: Any, loss_mask: Any, **_: Any) -> float:
    """One step of gradient descent; gives the loss. A label is the token that follows, and counts where the mask is 1."""
    here, following = input_ids[loss_mask > 0], labels[loss_mask > 0]
    chances = np.exp(scores[here])
    chances /= chances.sum(axis=1, keepdims=True)
    wanted = np.eye(len(scores))[following]
    np.add.at(scores, here, 0.01 * (wanted - chances))
    return float(-np.log(chances[wanted > 0]).mean())


async def watch(pipeline: Pipeline) -> None:
    while True:
        await asyncio.sleep(0.5)
        seen = pipeline.statistics()
        shares = ", ".join(f"{share:.1%} {name}" for name, share in seen.actual.items())
        print(f"  {seen.microbatches} microbatches in {seen.seconds:.1f} s, {shares}, bound by {seen.bottleneck}")


async def main(steps: int) -> None:
    datasets = [Dataset.from_dict(name, {"text": texts(2000, seed)}) for seed, name in enumerate(("news", "wiki"))]
    source = StaticMixtureWorkSource(datasets, {"news": 0.3, "wiki": 0.7}, token_estimation=TokenEstimation(), seed=1, epochs=None)
    pipeline = Pipeline(source).options(lanes=LANES).tokenize(WORDS, field="text").pack_flat(max_length=128).shuffle(32).batch(8)
    async with pipeline:
        watching = asyncio.create_task(watch(pipeline))
        async for batch in pipeline:
            if batch.step == steps:
                break
            loss = await asyncio.to_thread(train_step, **batch.to_training(framework="numpy"))
            if batch.step % 20 == 0 and batch.last_of_step:  # such a state can be resumed on any number of ranks
                state = pipeline.checkpoint()  # save it beside the weights
                print(f"step {batch.step}: loss {loss:.3f}, {len(state):,} bytes of state")
        watching.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
