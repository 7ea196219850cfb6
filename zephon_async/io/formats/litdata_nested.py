"""Nested values as LitData writes them (serializer "json"): tagged bytes, or in older chunks JSON itself. They become JSON text."""

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from zephon_async import nesting
from zephon_async.nesting import MOST_LEVELS, TOO_DEEP, levels

_JSON, _TEXTS, _INTS, _DOUBLES, _BOOLS, _DICT, _RECORDS, _TEXT, _INT, _DOUBLE, _BOOL, _NONE = range(12)
_RECORD = {0x10: _NONE, 0x11: _TEXT, 0x12: _INT, 0x13: _DOUBLE, 0x14: _BOOL}  # of the values in a list of like records
_NOT_TAGS = 0x20  # what begins with a greater byte is JSON


def json_text(value: bytes) -> str:
    """The JSON text of a value. Raises `ValueError` for what is none, or has none."""
    try:
        if value[:1] > bytes([_NOT_TAGS]):
            _decoded(value)
            return value.decode()
        reader = _Reader(value)
        nested = reader.value(0)
    except (struct.error, IndexError, KeyError, msgspec.MsgspecError) as error:
        raise ValueError(f"is no nested value: {error}") from error
    if reader.at != len(value):
        raise ValueError(f"is no nested value: {len(value) - reader.at:,} bytes are left behind it")
    return nesting.json_text(nested)


def _decoded(text: bytes) -> Any:
    if levels(text) > MOST_LEVELS:
        raise ValueError(TOO_DEEP)
    return msgspec.json.decode(text)


class _Reader:
    """Reads tagged values one behind the other."""

    def __init__(self, value: bytes) -> None:
        self.bytes, self.at = value, 0
        self._of: dict[int, Callable[[], Any]] = {
            _TEXT: self._text,
            _INT: lambda: self._number("<q"),
            _DOUBLE: lambda: self._number("<d"),
            _BOOL: lambda: bool(self._take(1)[0]),
            _NONE: lambda: None,
            _JSON: lambda: _decoded(self._take(self._number("<I"))),
            _TEXTS: lambda: [self._text() for _ in range(self._count(4))],
            _INTS: lambda: np.frombuffer(self._take(8 * self._number("<I")), "<i8").tolist(),
            _DOUBLES: lambda: np.frombuffer(self._take(8 * self._number("<I")), "<f8").tolist(),
            _BOOLS: lambda: [byte != 0 for byte in self._take(self._number("<I"))],
        }

    def value(self, level: int) -> Any:
        """The next value."""
        if level > MOST_LEVELS:
            raise ValueError(TOO_DEEP)
        tag = self._take(1)[0]
        if tag == _DICT:
            return {self._text(): self.value(level + 1) for _ in range(self._count(5))}
        if tag == _RECORDS:
            return self._records()
        if tag not in self._of:
            raise ValueError(f"is no nested value: there is no tag {tag}")
        return self._of[tag]()

    def _records(self) -> list[dict[str, Any]]:
        rows = self._number("<I")
        keys = [self._text() for _ in range(self._count(4))]
        if rows * max(len(keys), 1) > len(self.bytes):
            raise IndexError(f"there are no {rows:,} records in {len(self.bytes):,} bytes")
        return [{key: self._of[_RECORD[self._take(1)[0]]]() for key in keys} for _ in range(rows)]

    def _take(self, length: int) -> bytes:
        piece = self.bytes[self.at : self.at + length]
        if len(piece) < length:
            raise IndexError(f"it ends inside a value of {length:,} bytes")
        self.at += length
        return piece

    def _number(self, kind: str) -> Any:
        return struct.unpack(kind, self._take(struct.calcsize(kind)))[0]

    def _count(self, least: int) -> int:
        """How many values follow, each of at least so many bytes."""
        count = int(self._number("<I"))
        if count * least > len(self.bytes) - self.at:
            raise IndexError(f"there are no {count:,} values in {len(self.bytes) - self.at:,} bytes")
        return count

    def _text(self) -> str:
        return self._take(self._number("<I")).decode()
