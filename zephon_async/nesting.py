"""JSON values: how deep they may be nested, and their text.

The limits of decoders differ by the version of Python; what is a record must not.
"""

from typing import Any

import numpy as np

MOST_LEVELS = 200  # of a record, which is itself the first
TOO_DEEP = f"nested more than {MOST_LEVELS} levels deep"
"""What messages say of a record that is."""
_OTHERS = bytes(byte for byte in range(256) if byte not in b'"[{]}')
_STEPS = np.array([(byte in b"[{") - (byte in b"]}") for byte in range(256)], np.int8)


def levels(text: bytes) -> int:
    """How deep a JSON value is nested: brackets outside of strings."""
    marks = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    outside = b"".join(marks.split(b'"')[::2])
    return int(_STEPS[np.frombuffer(outside, np.uint8)].cumsum(dtype=np.int64).max(initial=0))


def is_too_deep(text: str) -> bool:
    """Whether the JSON text of one column makes its record too deep."""
    return text.count("[") + text.count("{") >= MOST_LEVELS and levels(text.encode("utf-8", "surrogatepass")) >= MOST_LEVELS


def json_text(value: Any) -> str:
    """The JSON text of a value. Raises where the value would not come back from it: NaN, tuples, keys that are no strings."""
    import msgspec

    try:
        text = msgspec.json.encode(value).decode()
    except RecursionError:  # how deep this goes depends on the Python
        text = None
    if text is None or is_too_deep(text):
        raise ValueError(f"a record is {TOO_DEEP}")
    if msgspec.json.decode(text) != value:
        raise ValueError("it does not come back from JSON as it was")
    return text
