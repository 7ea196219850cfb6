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
_ROUNDS = 8


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


def permuted(places: npt.NDArray[np.int64], n: int, *words: int) -> npt.NDArray[np.int64]:
    """What stands at `places` (each below n) of a permutation of range(n) that is too long to be made: int64, their shape.

    A Feistel network on the least even number of bits that n needs; what it puts at n or above is put again, at most four times
    on average. Black, Rogaway, "Ciphers with arbitrary finite domains" (2002); eight rounds, since halves may be of few bits.
    """
    half = np.uint64(max(1, (int(n - 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    found = places.astype(np.uint64)
    left = np.arange(len(found))  # those without a place below n
    while len(left):
        a, b = found[left] >> half, found[left] & low
        for number in range(_ROUNDS):
            a, b = b, a ^ (mix_each(*words, number, last=b) & low)
        found[left] = (a << half) | b
        left = left[found[left] >= np.uint64(n)]
    return found.astype(np.int64)


def seed_of(name: str) -> int:
    """A 64-bit number for a name, so that datasets of one seed still have orders of their own."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
