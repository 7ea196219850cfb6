"""What the engine and a worker process say to one another: short messages on a socket, in turns.

    engine -> worker   Call     run a function on the records that lie in the engine's arena
                       Answer   to a question
    worker -> engine   Ready    it has begun
                       Done     what came of a call; records, failure and log lines lie in the slot
                       Ask      a question of the function's, in the middle of a call

Bytes that may be many go through the arenas, so a message always fits the buffer of the socket.
"""

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from zephon_async.errors import InternalError
from zephon_async.runners.arena import Layout

_LENGTH = struct.Struct("<I")


class Call(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """function: its number; it lies in `extra` of the layout, pickled, where the worker has not had it yet. slot: of the worker's
    arenas, the one for the answer. copies: the records are to be copied out of the arena before it sees them."""

    function: int
    layout: Layout
    slot: int
    copies: bool


class Answer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    text: str


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """busy_s: seconds that it took. counts: of its parcel. `extra` of the layout: its failure, log lines and skipped, pickled."""

    busy_s: float
    counts: dict[str, int]
    layout: Layout


class Ask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    question: tuple[int, ...]


ToWorker: TypeAlias = Call | Answer
ToEngine: TypeAlias = Ready | Done | Ask
to_worker = msgspec.msgpack.Decoder(ToWorker).decode
to_engine = msgspec.msgpack.Decoder(ToEngine).decode


class Letters:
    """Takes bytes as they come off a socket and gives whole messages, decoded."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode, self._bytes = decode, bytearray()

    def feed(self, data: bytes) -> list[Any]:
        self._bytes += data
        messages = []
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                break
            messages.append(self._decode(bytes(self._bytes[_LENGTH.size : end])))
            del self._bytes[:end]
        return messages


def encoded(message: ToWorker | ToEngine) -> bytes:
    return framed(msgspec.msgpack.encode(message))


def framed(body: bytes) -> bytes:
    """A message behind its length, as `Letters` takes it."""
    return _LENGTH.pack(len(body)) + body


_asks: Callable[[tuple[int, ...]], str] | None = None


def ask(*question: int) -> str:
    """Ask the engine, in the middle of a function that a worker runs."""
    if _asks is None:
        raise InternalError("only a worker process asks the engine")
    return _asks(question)


def ask_by(asks: Callable[[tuple[int, ...]], str]) -> None:
    """Say how this process, a worker, asks."""
    global _asks
    _asks = asks
