"""Hashes of bytes by the names of their algorithms, as indexes state them."""

import hashlib
from collections.abc import Iterable
from importlib import import_module
from typing import Any


def hashed(algorithm: str, pieces: Iterable[bytes | memoryview]) -> str | None:
    """The hash of bytes that come in pieces, in hexadecimal digits; None where the algorithm needs a package that is not there."""
    digest = _digest(algorithm)
    if digest is None:
        return None
    for piece in pieces:
        digest.update(piece)
    return str(digest.hexdigest())


def _digest(algorithm: str) -> Any:
    if algorithm in hashlib.algorithms_guaranteed and not algorithm.startswith("shake"):
        return hashlib.new(algorithm, usedforsecurity=False)
    try:
        xxhash = import_module("xxhash")
    except ImportError:
        return None
    return getattr(xxhash, algorithm)() if algorithm in xxhash.algorithms_available else None
