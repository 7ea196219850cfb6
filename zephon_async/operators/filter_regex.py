"""`filter_regex`: keep rows by a regular expression. A null matches nothing.

The expression is one of RE2 (https://github.com/google/re2/wiki/Syntax), which looks for it anywhere in the text, takes time in
proportion to the text, and knows neither look-around nor back-references; `filter` takes Python's.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zephon_async.checks import flag, writable
from zephon_async.errors import RecipeError
from zephon_async.operators.keeping import ByColumn


class FilterRegex(ByColumn):
    """Keep rows in whose text `pattern` is found (keep=True), or is not (keep=False). parallelism: workers at once."""

    name = "filter_regex"

    def __init__(self, field: str, pattern: str, *, keep: bool = True, parallelism: int | None = None) -> None:
        super().__init__(field, parallelism)
        self.keep = flag(f"{self.name}: keep", keep)
        if not isinstance(pattern, str):
            raise RecipeError(f"{self.name}: pattern is {pattern!r:.80}: it must be a text")
        writable(f"{self.name}: pattern", pattern)
        self.pattern = pattern
        try:
            self._mask(pa.array([""]))
        except pa.ArrowInvalid as error:
            raise RecipeError(f"{self.name}: pattern {pattern!r:.80} is no regular expression of RE2 ({error})") from None

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "pattern": self.pattern, "keep": self.keep}

    def requires(self) -> Mapping[str, str]:
        return {self.field: "string"}

    def _mask(self, column: pa.Array) -> pa.Array:
        found = pc.match_substring_regex(column.cast(pa.large_string()), pattern=self.pattern).fill_null(False)
        return found if self.keep else pc.invert(found)
