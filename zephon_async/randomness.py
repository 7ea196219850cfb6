"""The only source of randomness: splitmix64 over whole numbers.

Takes the words that name a decision (seed, dataset, epoch, unit, ...) and gives 64-bit hashes or a permutation. The order of
the data must outlive the versions of every library, so no library's random generator decides anything here, and nothing
depends on Python's `hash`. Constants and rounds: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
"""

import hashlib

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(*words: int) -> int:
    """Hash whole numbers to 64 bits, one splitmix64 round each."""
    h = _GOLDEN
    for word in words:
        h = ((h ^ (word & _MASK)) * _FIRST) & _MASK
        h = ((h ^ (h >> 31)) * _SECOND) & _MASK
        h ^= h >> 29
    return h


def mix_each(*words: int, last: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """`mix(*words, x)` for every x of `last`: uint64, the shape of `last`."""
    h = (np.uint64(mix(*words)) ^ last.astype(np.uint64)) * np.uint64(_FIRST)
    h = (h ^ (h >> np.uint64(31))) * np.uint64(_SECOND)
    return h ^ (h >> np.uint64(29))


def permutation(n: int, *words: int) -> npt.NDArray[np.int64]:
    """A permutation of range(n), int64[n], that depends on `words` alone: a stable sort by `mix(*words, i)`."""
    return np.argsort(mix_each(*words, last=np.arange(n)), kind="stable")


def seed_of(name: str) -> int:
    """A 64-bit number for a name, so that datasets of one seed still have orders of their own."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
