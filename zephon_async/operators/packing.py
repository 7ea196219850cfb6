"""What all ways of packing have in common: settings, and documents read as arrays of tokens.

A document is a record with a column of tokens (`field`) and perhaps others with one number a token (`aligned`, such as a loss
mask), which are cut along with it. Documents without a token are left out and counted.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_async.checks import column_names, hint, one_of, whole, whole_or_none
from zephon_async.errors import RecipeError
from zephon_async.kinds import NO_TOKEN, is_integers, is_numbers, list_lengths
from zephon_async.operators.base import Operator, Tally
from zephon_async.operators.pack_rules import RULES, Rule
from zephon_async.records import Origins, Records

ON_LONG = ("split", "truncate", "drop", "error")
HOMOGENEITY = ("none", "dataset", "group")
LOSS_MASK = "loss_mask"
MADE = ("input_ids", "segment_lengths", "next_token")
INT32 = np.iinfo(np.int32)
Values: TypeAlias = tuple[npt.NDArray[Any], ...]
"""The tokens (int32) of documents end to end, and as many numbers of each aligned column."""


class Pack(Operator):
    """What `pack_flat` and `pack_sequences` are told. `field`, `aligned`: see `documents`."""

    survives = True

    def __init__(
        self,
        max_length: int,
        *,
        algorithm: str,
        field: str,
        on_long: str,
        aligned: Sequence[str] | None,
        num_bins: int,
        max_sequences_per_row: int | None,
        homogeneity: str,
        groups: Mapping[str, str] | None,
    ) -> None:
        """max_length: tokens in a row. algorithm: one of `pack_rules.RULES`. field: a column of lists of integers.

        on_long: what becomes of documents of more than max_length tokens: "split" (they go on in a later row), "truncate"
        (the tokens behind max_length are dropped and counted), "drop" (the same with all of them), "error".
        aligned: columns of one number a token, which are cut in step; None: `loss_mask`, where there is one.
        num_bins: rows of first_fit and best_fit that are open at once. max_sequences_per_row: documents, or parts of them, in a
        row at most. homogeneity: "dataset": a row is of one dataset; "group": of one of the `groups`, which are told by the name of
        a dataset (one that is in none is a group by itself).
        """
        one_of(f"{self.name}: algorithm", algorithm, RULES)
        one_of(f"{self.name}: on_long", on_long, ON_LONG)
        one_of(f"{self.name}: homogeneity", homogeneity, HOMOGENEITY)
        self.max_length = int32(f"{self.name}: max_length", whole(f"{self.name}: max_length", max_length, 1))
        self.algorithm, self.on_long, self.homogeneity = algorithm, on_long, homogeneity
        self.field = self.token_field = field
        self.aligned = None if aligned is None else tuple(column_names(f"{self.name}: aligned", aligned))
        if taken := {field, *MADE}.intersection(self.aligned or ()):
            raise RecipeError(f"{self.name}: aligned names {min(taken)!r}, which {self.name} itself makes; leave it out")
        self.num_bins = whole(f"{self.name}: num_bins", num_bins, 1)
        self.max_sequences_per_row = whole_or_none(f"{self.name}: max_sequences_per_row", max_sequences_per_row)
        if (groups is not None) != (homogeneity == "group"):
            raise RecipeError(
                f"{self.name}: groups={{dataset: group, ...}} and homogeneity='group' are given together or not at all"
            )
        self.groups = dict(groups or {})
        self._group_of: npt.NDArray[np.int64] | None = None  # by the number of a dataset
        self.token_bytes = np.dtype(np.int32).itemsize  # with the aligned columns, from `output` on
        self.needs_flush = True

    def settings(self) -> Mapping[str, Any]:
        names = ("max_length", "algorithm", "field", "on_long", "num_bins", "max_sequences_per_row", "homogeneity", "groups")
        return {name: getattr(self, name) for name in names} | {"aligned": None if self.aligned is None else list(self.aligned)}

    def told(self, datasets: Sequence[str]) -> None:
        if unknown := sorted(set(self.groups).difference(datasets)):
            raise RecipeError(f"{self.name}: groups names {unknown[0]!r}, which is no dataset{hint(unknown[0], datasets)}")
        if self.homogeneity != "none":
            names = [("group", self.groups[name]) if name in self.groups else ("dataset", name) for name in datasets]
            self._group_of = np.unique(np.array([repr(name) for name in names]), return_inverse=True)[1].reshape(-1)

    def open_rows(self) -> int:
        """Rows that are open at once, over all groups."""
        groups = 1 if self._group_of is None else int(self._group_of.max(initial=0)) + 1
        return groups * (1 if self.algorithm == "wrap" else self.num_bins)

    def requires(self) -> Mapping[str, str]:
        return {self.field: "integers"} | dict.fromkeys(self.aligned or (), "any")

    def takes_rows(self, rows: int, row_tokens: float | None) -> int | None:
        return None

    def rule(self) -> Rule:
        """A new rule, for one group of documents."""
        return RULES[self.algorithm](self.max_length, self.max_sequences_per_row or self.max_length, self.num_bins)

    def group_of(self, origins: Origins) -> npt.NDArray[np.int64]:
        """The group of each row, by its first origin."""
        if self._group_of is None:
            return np.zeros(len(origins), np.int64)
        groups: npt.NDArray[np.int64] = self._group_of[origins.segments["dataset"][origins.bounds()[:-1]]]
        return groups

    def check_columns(self, schema: pa.Schema) -> list[pa.Field]:
        """The column of tokens and the aligned ones of a schema. Raises `RecipeError`."""
        if {"segment_lengths", "next_token"} <= set(schema.names):
            raise RecipeError(
                f"{self.name}(field={self.field!r}): the rows are packed already, and their padding would become tokens; pack once"
            )
        masked = LOSS_MASK in schema.names and is_numbers(schema.field(LOSS_MASK).type)
        aligned = ((LOSS_MASK,) if masked else ()) if self.aligned is None else self.aligned
        for setting, name in (("field", self.field), *(("aligned", name) for name in aligned)):
            if name not in schema.names:
                raise RecipeError(
                    f"{self.name}({setting}={name!r}): there is no such column, there are {schema.names}{hint(name, schema.names)}"
                )
            kind = schema.field(name).type
            if setting == "field" and not is_integers(kind):
                raise RecipeError(
                    f"{self.name}(field={name!r}): the column is {kind}, not a list of integers; put tokenize() before it"
                )
            if not is_numbers(kind):
                raise RecipeError(f"{self.name}(aligned={name!r}): the column is {kind}, not a list of numbers, one for each token")
        return [schema.field(self.field), *(schema.field(name) for name in aligned)]

    def columns_of_rows(self, schema: pa.Schema) -> tuple[list[pa.Field], list[pa.Field]]:
        """For `output`: the aligned columns of a schema, and the others that rows have. Raises `RecipeError`."""
        aligned = self.check_columns(schema)[1:]
        kinds = [pa.int32(), *(field.type.value_type for field in aligned)]
        self.token_bytes = sum(np.dtype(kind.to_pandas_dtype()).itemsize for kind in kinds)
        return aligned, [schema.field(name) for name in self.others(schema)]

    def others(self, schema: pa.Schema) -> Sequence[str]:
        """The columns that documents keep as they are."""
        return ()

    def padding(self, aligned: Sequence[pa.Field]) -> Values:
        """What rows are filled with behind their documents: `max_length` of each; nothing where they are not filled."""
        return ()

    def check_there(self, setting: str, names: Sequence[str], schema: pa.Schema) -> None:
        """Raise `RecipeError` for a column that a schema has not."""
        if missing := [name for name in names if name not in schema.names]:
            there = f"there are {schema.names}{hint(missing[0], schema.names)}"
            raise RecipeError(f"{self.name}({setting}=...): there is no column {missing[0]!r}, {there}")

    def follows(self, values: Values, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The tokens at some places, NO_TOKEN where the loss mask leaves one out."""
        tokens = values[0].take(at, mode="clip").astype(np.int64)
        aligned = (LOSS_MASK,) if self.aligned is None else self.aligned
        if LOSS_MASK in aligned and len(values) > 1:
            tokens[values[1 + aligned.index(LOSS_MASK)].take(at, mode="clip") == 0] = NO_TOKEN
        return tokens

    def read(self, records: Records, skip: int, tally: Tally) -> tuple["Pieces", tuple[int, str] | None]:
        """The documents up to the first that is bad, with the number of that one and what is wrong with it."""
        fields = self.check_columns(records.columns.schema)
        columns = [records.columns.column(field.name) for field in fields]
        bad = self._first_bad({field.name: column for field, column in zip(fields, columns, strict=True)})
        n = len(records) if bad is None else bad[0]
        lengths = list_lengths(columns[0].slice(0, n))
        values = tuple(_numbers(column.slice(0, n)) for column in columns)
        values = (values[0].astype(np.int32, copy=False), *values[1:])
        stops = self._stops(lengths, tally)
        starts = np.zeros(n, np.int64)
        starts[:1] = np.minimum(stops[:1], skip)
        if not np.array_equal(stops, lengths):
            pairs = np.column_stack((stops, lengths - stops))
            kept = np.repeat(np.tile((True, False), n), pairs.ravel())
            values = tuple(each[kept] for each in values)
        values = tuple(each[starts[:1].sum() :] for each in values)
        pieces = Pieces(values, stops - starts, records.origins.slice(0, n), np.arange(n), starts, fields[1:])
        tally["documents_empty"] += int(np.count_nonzero(lengths == 0))
        return pieces.without_empty(), bad

    def _stops(self, lengths: npt.NDArray[np.int64], tally: Tally) -> npt.NDArray[np.int64]:
        """How many tokens of each document are kept."""
        if self.on_long == "split" or not (long := lengths > self.max_length).any():
            return lengths
        stops = np.where(long, self.max_length if self.on_long == "truncate" else 0, lengths)
        tally["documents_truncated" if self.on_long == "truncate" else "documents_dropped"] += int(np.count_nonzero(long))
        tally["tokens_dropped"] += int((lengths - stops).sum())
        return stops

    def _first_bad(self, columns: Mapping[str, pa.Array]) -> tuple[int, str] | None:
        """The number of the first document that cannot be packed, and why."""
        found: list[tuple[int, str]] = []
        rows = len(columns[self.field])
        for name, column in columns.items():
            if column.null_count:
                found.append((int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))), f"{name} is null"))
        rows = min(found)[0] if found else rows
        tokens = columns[self.field].slice(0, rows)
        values, lengths = tokens.flatten(), list_lengths(tokens)
        for name, column in columns.items():
            flat, owned = column.slice(0, rows).flatten(), list_lengths(column.slice(0, rows))
            if (odd := owned != lengths).any():
                at = int(np.argmax(odd))
                found.append((at, f"{name} has {owned[at]:,} values for {lengths[at]:,} tokens"))
            wrong = _no_int32(flat) if name == self.field else _nulls(flat)
            if wrong is not None and wrong.any():
                place = int(np.argmax(wrong))
                at = int(np.searchsorted(np.cumsum(owned), place, side="right"))
                what = f"a token that is no 32-bit integer: {values[place]}" if name == self.field else "a null in it"
                found.append((at, f"{name} has {what}"))
        if self.on_long == "error" and (long := lengths > self.max_length).any():
            at = int(np.argmax(long))
            why = f"{self.field} has {lengths[at]:,} tokens, more than max_length={self.max_length:,}"
            found.append((at, f"{why}; {self.name}(on_long='split'|'truncate'|'drop') takes such documents"))
        return min(found, default=None)


class Pieces(NamedTuple):
    """Parts of documents, in order. values: of all of them end to end; the rest has one entry a piece.

    origins: of the document. rows: the input row. starts: the first token of the piece in that row. aligned: the fields of the
    values behind the tokens.
    """

    values: Values
    lengths: npt.NDArray[np.int64]
    origins: Origins
    rows: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    aligned: Sequence[pa.Field]

    @property
    def nbytes(self) -> int:
        values = sum(each.nbytes for each in self.values)
        return values + self.lengths.nbytes + self.origins.nbytes + self.rows.nbytes + self.starts.nbytes

    def without_empty(self) -> "Pieces":
        real = np.flatnonzero(self.lengths)
        return self if len(real) == len(self.lengths) else self.take(real, 0)

    def take(self, pieces: npt.NDArray[np.integer], at: int) -> "Pieces":
        """Some pieces, with the tokens from `at` on; but for these nothing is shared."""
        values, origins = tuple(each[at:] for each in self.values), self.origins.take(pieces)
        return Pieces(values, self.lengths[pieces], origins, self.rows[pieces], self.starts[pieces], self.aligned)

    def behind(self, piece: int, tokens: int, at: int) -> "Pieces":
        """From `tokens` of a piece on, which is token `at` of all; nothing is shared."""
        rest = self.take(np.arange(piece, len(self.rows)), at)
        rest.lengths[:1] -= tokens
        rest.starts[:1] += tokens
        return rest._replace(values=tuple(each.copy() for each in rest.values))

    def cut_origins(self) -> Origins:
        """An origin for every piece: its first token in the document and the one behind its last.

        A document that was made of several records (by `accumulate`, say) has an origin for each, and every piece of it has all of
        these as they came: which of its tokens are whose is not known.
        """
        segments, bounds = self.origins.segments.copy(), self.origins.bounds()
        alone: Any = slice(None)  # the pieces, and below the segments, of documents of one record
        at: Any = slice(None)
        if self.origins.offsets is not None:
            alone = np.diff(bounds) == 1
            at = bounds[:-1][alone]
        segments["start"][at] += self.starts[alone]
        segments["stop"][at] = segments["start"][at] + self.lengths[alone]
        return Origins(segments, bounds)

    @staticmethod
    def concat(several: Sequence["Pieces"]) -> "Pieces":
        if len(several) == 1:
            return several[0]
        values, lengths, origins, rows, starts, aligned = zip(*several, strict=True)
        joined = tuple(np.concatenate(of) for of in zip(*values, strict=True))
        lengths, rows, starts = np.concatenate(lengths), np.concatenate(rows), np.concatenate(starts)
        return Pieces(joined, lengths, Origins.concat(origins), rows, starts, aligned[0])


def int32(name: str, number: int) -> int:
    """A number of 32 bits. Raises `RecipeError`."""
    if not INT32.min <= number <= INT32.max:
        raise RecipeError(f"{name} is {number}: it must be a whole number of 32 bits")
    return number


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """All values of lists end to end, without a copy where that can be."""
    numbers: npt.NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
    return numbers


def _nulls(values: pa.Array) -> npt.NDArray[np.bool_] | None:
    nulls: npt.NDArray[np.bool_] | None = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    return nulls


def _no_int32(values: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which values are null or do not fit 32 bits; None where none can be."""
    nulls = _nulls(values)
    if values.type.bit_width < 32 or values.type == pa.int32():
        return nulls
    tokens = values.fill_null(0).to_numpy()
    wrong: npt.NDArray[np.bool_] = (tokens < INT32.min) | (tokens > INT32.max)
    return wrong if nulls is None else wrong | nulls
