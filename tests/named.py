"""Functions and operators that a recipe can name: this module is always imported as `tests.named`."""

from collections import Counter
from typing import Any

from zephon_async import Operator
from zephon_async.records import Records


def twice(record: dict[str, Any]) -> dict[str, Any]:
    return {"text": record["text"] * 2}


class Passing(Operator):
    name = "passing"

    def __init__(self, setting: int = 0) -> None:
        self.setting = setting

    def settings(self) -> dict[str, Any]:
        return {"setting": self.setting}

    def apply(self, records: Records, tally: Counter[str]) -> Records:
        return records
