"""What is said of a user's failure: where it happened. It is told by its own message, where that can be, and by notes.

An exception may be of any class, and one of a user's may refuse a note or other arguments, or have no text. Then its place is left
out: what has failed is told all the same, and the rows before it are not lost.
"""

from contextlib import suppress

from zephon_async.errors import BadRecord
from zephon_async.runners import deliverable


def noted(error: BaseException, said: str) -> None:
    """Add a note of ours; a class that has another `add_note` is not asked."""
    with suppress(Exception):
        BaseException.add_note(error, f"zephon_async: {said}")


def blamed(error: BaseException, operator: str, place: str) -> BaseException:
    """The failure of an operator, with its place, such that it can be delivered. A `BadRecord` begins with the place."""
    if isinstance(error, BadRecord):
        with suppress(Exception):
            error.args = (f"{place}: {error}",)
    noted(error, f"in {operator}, {place}")
    return deliverable(error)
