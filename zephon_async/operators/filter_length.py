"""`filter_length`: keep rows by the length of a text, a list or bytes. Rows in which it is null are left out."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zephon_async.checks import one_of, whole_or_none
from zephon_async.errors import RecipeError
from zephon_async.kinds import is_bytes, is_list, is_text
from zephon_async.operators.keeping import ByColumn

UNITS = ("characters", "bytes", "values")


class FilterLength(ByColumn):
    """Keep rows whose `field` is neither shorter than `min` nor longer than `max` (None: no bound; at least one is given).

    unit: "characters" of a text, "bytes" of a text or bytes, "values" of a list, such as its tokens; None: what the column has.
    parallelism: workers at once.
    """

    name = "filter_length"

    def __init__(
        self,
        field: str,
        *,
        min: int | None = None,
        max: int | None = None,
        unit: str | None = None,
        parallelism: int | None = None,
    ) -> None:
        super().__init__(field, parallelism)
        self.min, self.max = (whole_or_none(f"{self.name}: {name}", value, 0) for name, value in (("min", min), ("max", max)))
        if min is None and max is None:
            raise RecipeError(f"{self.name}: give min= or max=, or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise RecipeError(f"{self.name}: min={min} is more than max={max}, so nothing would stay")
        if unit is not None:
            one_of(f"{self.name}: unit", unit, UNITS)
        self.unit = unit

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "min": self.min, "max": self.max, "unit": self.unit}

    def requires(self) -> Mapping[str, str]:
        return {self.field: {"characters": "string"}.get(self.unit or "", "any")}

    def _mask(self, column: pa.Array) -> pa.Array:
        lengths = self._lengths(column)
        mask = pc.is_valid(lengths)
        if self.min is not None:
            mask = pc.and_(mask, pc.greater_equal(lengths, self.min))
        return mask if self.max is None else pc.and_(mask, pc.less_equal(lengths, self.max))

    def _lengths(self, column: pa.Array) -> pa.Array:
        kind = column.type
        if pa.types.is_dictionary(kind):
            return self._lengths(column.dictionary_decode())
        if is_text(kind) and self.unit != "values":
            plain = column.cast(pa.large_string())
            return pc.binary_length(plain) if self.unit == "bytes" else pc.utf8_length(plain)
        if is_bytes(kind) and self.unit in (None, "bytes"):
            return pc.binary_length(column.cast(pa.large_binary()))
        if is_list(kind) and self.unit in (None, "values"):
            return pc.list_value_length(column)
        if pa.types.is_null(kind):
            return pa.nulls(len(column), pa.int64())
        raise TypeError(f"{self.name}: column {self.field!r} is {kind}, which has no length in {self.unit or 'any unit'}")
