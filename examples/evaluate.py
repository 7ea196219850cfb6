"""Evaluate in an event loop: several tasks share one loader, and every sample comes exactly once.

    python examples/evaluate.py [samples]

`on_end="pad"` fills the last microbatches with rows that `batch.mask` leaves out, where "drop" would leave samples out.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

from zephon_async import Batch, Dataset, Pipeline, StaticMixtureWorkSource

TASKS = 3


async def model(question: str) -> str:
    """Stands for a request to a server; wrong now and then."""
    await asyncio.sleep(0)
    a, b = map(int, question.split(" + "))
    return str(a + b + (a % 10 == 3))


async def ask(batches: AsyncIterator[Batch], right: dict[int, bool]) -> None:
    """Take whichever microbatch is next, and note the outcome of each sample."""
    async for batch in batches:
        real = int(batch.mask.sum())
        numbers, questions, wanted = (batch.to_pylist(name)[:real] for name in ("number", "question", "answer"))
        answers = await asyncio.gather(*map(model, questions))
        for number, answer, want in zip(numbers, answers, wanted, strict=True):
            assert number not in right, "a sample came twice"
            right[number] = answer == want


async def main(samples: int) -> None:
    rows = [{"number": n, "question": f"{n} + {n % 7}", "answer": str(n + n % 7)} for n in range(samples)]
    source = StaticMixtureWorkSource([Dataset.from_dict("sums", rows)], {"sums": 1}, shuffle=False, epochs=1)
    right: dict[int, bool] = {}
    async with Pipeline(source).options(lanes=4, on_end="pad").batch(16) as pipeline:
        batches = aiter(pipeline)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(TASKS):
                tasks.create_task(ask(batches, right))
    print(f"{len(right)} of {samples} samples, {sum(right.values()) / samples:.1%} right")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1003))
