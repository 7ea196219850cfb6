"""Exceptions come out of a worker process as what they are."""

import threading
from typing import Any

import pytest

from zephon_async.errors import BadRecord, WorkerError
from zephon_async.runners.exceptions import pack_exception, unpack_exception


class Wants(Exception):
    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.one, self.two, self.lock = one, two, threading.Lock()


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def there_and_back(error: BaseException) -> BaseException:
    return unpack_exception(pack_exception(error), "worker process 1")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a", 1),
        KeyError("k"),
        OSError(2, "no such file", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"),
        StopIteration(3),
        SystemExit(4),
        BadRecord("bad"),
        Wants(1, two=2),
        ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_type_text_and_attributes(error: BaseException) -> None:
    back = there_and_back(raised(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args or isinstance(error, OSError | ExceptionGroup)
    if isinstance(error, Wants):
        assert isinstance(back, Wants)
        assert (back.one, back.two) == (1, 2)
    note = back.__notes__[-1]
    assert note.startswith("the traceback in worker process 1:\n")
    assert "Traceback (most recent call last):" in note
    assert "in raised" in note


def test_causes_contexts_and_notes() -> None:
    error = raised(ValueError("outer"), raised(KeyError("inner"), OSError("innermost")))
    error.add_note("a note")
    back = there_and_back(error)
    assert back.__notes__[0] == "a note"
    assert repr(back.__cause__) == "KeyError('inner')"
    assert back.__cause__ is not None
    assert repr(back.__cause__.__cause__) == "OSError('innermost')"
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("then")  # noqa: B904 (a context is what is wanted)
    except ValueError as caught:
        back = there_and_back(caught)
    assert repr(back.__context__) == "KeyError('first')"
    assert back.__cause__ is None


def test_what_cannot_go_is_named() -> None:
    class Local(Exception):
        lock = threading.Lock()

    back = there_and_back(raised(Local("text")))
    assert isinstance(back, WorkerError)
    assert str(back).endswith("Local: text")
    assert isinstance(there_and_back(raised(Mute())), Mute)


def test_a_chain_that_has_no_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    back: Any = there_and_back(one)
    for _ in range(8):
        back = back.__cause__
    assert back.__cause__ is None
