"""The schema of a dataset, and the one of a mixture.

`dataset_schema` types the columns that a pipeline needs. A column is typed by what is found in the first row blocks of up to 16
shards that a hash of the seed and the dataset's name chooses; `schema=` of a dataset pins types, and so does an operator that
requires a kind; where nothing that was looked at can be of that kind, the dataset is refused. In files with types of their own,
strings are one type, binaries are one type and numbers are as wide as the widest. In JSON lines the first value that is not null
decides (whole numbers and fractions: double; lists that differ, objects and all else that is nested: JSON text, see `kinds`). In
CSV all values of the first row block decide, and a column is text where shards differ.
Values that do not fit are bad records when they are read.

A column in which only nulls were seen has the type `null` until `unify`, where another dataset may type it; else it becomes
text, so that a text found later is kept and anything else is a bad record, not a guess. Pin it if it is something else.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from zephon_async.checks import hint
from zephon_async.errors import ColumnError, DatasetError, RecipeError, ShardError, StorageError
from zephon_async.io.access import Access
from zephon_async.io.conform import LEAVE_OUT, promote
from zephon_async.io.dataset import Dataset
from zephon_async.io.formats import Decoded, Format, find_format, reading
from zephon_async.io.pool import Pool
from zephon_async.kinds import is_bytes, is_integers, is_json, is_list, is_text, json_field, type_name
from zephon_async.randomness import mix, permutation, seed_of

LOOKED_SHARDS = 16
_WANTED = {"string": "text", "integers": "a list of integers", "text": "text or bytes"}


def dataset_schema(
    dataset: Dataset,
    needed: frozenset[str] | None,
    required: Mapping[str, str],
    seed: int = 0,
    by: Mapping[str, str] = {},
    access: Access | None = None,
    lenient: bool = False,
) -> pa.Schema:
    """The columns of a dataset that are needed (None: all that are seen), sorted by name. Blocks while it reads.

    seed: chooses the shards that are looked at.
    required: columns that must be there, each of a kind: "string", "integers" (lists of them), "text" (or bytes), or "any".
    by: which operator requires each, for messages. access: how remote shards are read. lenient: broken shards are passed over.
    Raises `DatasetError` for a required column that is nowhere or cannot be of its kind, `RecipeError` for one that is pinned to
    another kind.
    """
    form = find_format(dataset.format)
    pins = {field.name: field for field in dataset.schema or ()}
    for name, kind in required.items():
        pins |= _required_pin(dataset.name, name, kind, pins.get(name), by.get(name, "an operator"), form.typed)
    wanted = None if needed is None else needed | set(required)
    look = _Look(dataset, form, mix(seed, seed_of(dataset.name)), required, access, lenient)
    look.at_columns(wanted, set(pins))
    if wanted is None and not pins:
        look.refuse_unreadable()
    look.refuse_missing(by)
    look.refuse_misfits(by)
    names = sorted({*look.seen, *pins} if wanted is None else wanted, key=str.encode)
    return pa.schema([pins.get(name) or look.seen.get(name) or pa.field(name, pa.null()) for name in names])


def unify(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """One schema for datasets by name: all their columns, sorted. Raises `RecipeError` where two types do not go together."""
    found: dict[str, tuple[pa.Field, str]] = {}
    for dataset, schema in schemas.items():
        for field in schema:
            known, first = found.get(field.name, (pa.field(field.name, pa.null()), dataset))
            found[field.name] = (_one_field(known, first, field, dataset), dataset if pa.types.is_null(known.type) else first)
    fields = [found[name][0] for name in sorted(found, key=str.encode)]
    return pa.schema([pa.field(f.name, pa.large_string()) if pa.types.is_null(f.type) else f for f in fields])


def _one_field(a: pa.Field, first: str, b: pa.Field, second: str) -> pa.Field:
    if is_json(a) or is_json(b):
        other = b if is_json(a) else a
        if is_json(other) or pa.types.is_null(other.type):
            return json_field(a.name)
    elif (kind := promote(a.type, b.type)) is not None:
        return pa.field(a.name, kind)
    raise RecipeError(
        f"column {a.name!r} is {type_name(a)} in dataset {first!r} and {type_name(b)} in dataset {second!r}: "
        f"pin it to one type with schema= where they can agree, or {LEAVE_OUT}"
    )


def _required_pin(dataset: str, name: str, kind: str, pin: pa.Field | None, by: str, typed: bool) -> dict[str, pa.Field]:
    """The pin of a required column: none where the look shall type it."""
    if pin is not None and kind != "any":
        right = is_integers(pin.type) if kind == "integers" else _can_be(pin, kind)
        if is_json(pin) or not right:
            raise RecipeError(f"dataset {dataset!r}: column {name!r} is pinned to {type_name(pin)}, but {by} needs {_WANTED[kind]}")
    if kind == "string" or (kind == "text" and pin is None and not typed):
        return {name: pa.field(name, pa.large_string())}
    if kind == "integers":
        return {name: pa.field(name, pa.list_(pa.int32()))}
    return {} if pin is None else {name: pin}


def _can_be(field: pa.Field, kind: str) -> bool:
    """Whether values of a field that was looked at can be of a kind."""
    if kind == "any":
        return True
    if is_json(field):
        return False
    if kind == "integers":
        value = field.type.value_type if is_list(field.type) else None
        return value is not None and any(of(value) for of in (pa.types.is_integer, pa.types.is_floating, pa.types.is_null))
    return is_text(field.type) or (kind == "text" and is_bytes(field.type))


def _hint(field: pa.Field, kind: str) -> str:
    """What to change where a column cannot be of a kind."""
    if kind == "integers" and is_text(field.type) and not is_json(field):
        return "put tokenize before it, which makes token ids of text"
    if kind == "string" and is_bytes(field.type):
        return "put decode_text before it, which makes text of bytes"
    return f"name a column of {'token ids' if kind == 'integers' else _WANTED[kind]}, or make one with map before it"


class _Look:
    """A look at the first row blocks of some shards. seen: the fields found, by name."""

    def __init__(
        self, dataset: Dataset, form: Format, seed: int, required: Mapping[str, str], access: Access | None, lenient: bool
    ) -> None:
        self._dataset, self._form, self._required, self._access, self._lenient = dataset, form, required, access, lenient
        self._units = units = dataset.catalog(lenient=True).units
        firsts = [n for n in range(len(units)) if n == 0 or units["shard"][n] != units["shard"][n - 1]]
        self._looked = [units[firsts[at]] for at in permutation(len(firsts), seed)[:LOOKED_SHARDS].tolist()]
        self.seen: dict[str, pa.Field] = {}
        self._right: set[str] = set()  # required columns that are somewhere of their kind
        self._wrong: dict[str, list[tuple[Any, pa.Field]]] = {}  # the units where they are not, as what

    def at_columns(self, wanted: frozenset[str] | None, pinned: set[str]) -> None:
        """Look for columns (None: all). It ends early where all were found, as what they must be, and none is still to be typed."""
        for unit in self._looked:
            for field in self._fields(unit, wanted):
                known = self.seen.get(field.name)
                self.seen[field.name] = field if known is None else _both(known, field, self._form.spelled)
                kind = self._required.get(field.name, "any")
                if _can_be(field, kind):
                    self._right.add(field.name)
                elif not pa.types.is_null(field.type):
                    self._wrong.setdefault(field.name, []).append((unit, field))
            if wanted is not None and wanted <= pinned & set(self.seen) and set(self._wrong) <= self._right:
                break
        if not self._form.typed:
            empty = [name for name, field in self.seen.items() if field.type == pa.list_(pa.null())]
            self.seen |= {name: json_field(name) for name in empty}

    def refuse_unreadable(self) -> None:
        """Refuse a dataset without types of which no record that was looked at could be read: its columns are not known."""
        if self.seen or self._form.typed:
            return
        for unit in self._looked:
            for block in self._blocks(unit, pa.schema([])):
                if len(block.rows) and len(block.bad) == len(block.rows):
                    shard = self._dataset.shards[int(unit["shard"])].name
                    raise DatasetError(
                        f"dataset {self._dataset.name!r}, shard {shard!r}: the columns are not known, as no record that was "
                        f"looked at can be read ({block.bad[0]}); pin the columns with schema=, or mend the shard"
                    )

    def refuse_missing(self, by: Mapping[str, str]) -> None:
        """Refuse a dataset in which a required column was not seen, unless no row was seen at all."""
        missing = sorted(set(self._required).difference(self.seen))
        present = {field.name for unit in self._looked for field in self._fields(unit, None)} if missing else None
        if present:
            name = missing[0]
            raise DatasetError(
                f"dataset {self._dataset.name!r}: there is no column {name!r} in shard {self._named(self._units, 'or in')}, and "
                f"{by.get(name, 'an operator')} needs it; "
                f"columns seen: {', '.join(map(repr, sorted(present)))}{hint(name, present)}"
            )

    def refuse_misfits(self, by: Mapping[str, str]) -> None:
        """Refuse a dataset of which a required column cannot be of its kind wherever it was seen."""
        for name, places in self._wrong.items():
            places.sort(key=lambda place: int(place[0]["shard"]))
            kind, field = self._required[name], places[0][1]
            if name in self._right or any(self._has_some(unit, name, kind) for unit, _ in places):
                continue
            where = self._named([unit for unit, _ in places], "and")
            found = f"{type_name(field)}{' of nested values' if is_json(field) else ''}"
            raise DatasetError(
                f"dataset {self._dataset.name!r}, shard {where}: column {name!r} is {found}, "
                f"and {by.get(name, 'an operator')} needs {_WANTED[kind]}; {_hint(field, kind)}"
            )

    def _fields(self, unit: Any, columns: frozenset[str] | None) -> pa.Schema:
        source = self._dataset.open(int(unit["shard"]), self._access)
        try:
            with reading(source, self._dataset.format):
                return self._form.look(source, unit, self._dataset.block_bytes, columns)
        except ShardError as error:
            if not self._lenient or isinstance(error, StorageError | ColumnError):
                raise
            return pa.schema([])

    def _has_some(self, unit: Any, name: str, kind: str) -> bool:
        """Whether a value of a kind is in a block of a format without types, of which the look is at the first values."""
        if self._form.typed:
            return False
        pin = pa.field(name, pa.list_(pa.int32()) if kind == "integers" else pa.large_string())
        return any(block.columns.column(0).null_count < len(block.rows) for block in self._blocks(unit, pa.schema([pin])))

    def _blocks(self, unit: Any, schema: pa.Schema) -> list[Decoded]:
        """The first row block of a unit, and what came with it."""
        source = self._dataset.open(int(unit["shard"]), self._access)
        with reading(source, self._dataset.format):
            return list(self._form.decoder(schema, (), Pool(0)).read(source, unit, range(1)))

    def _named(self, units: Any, joined: str) -> str:
        """The first of the shards of units, and how many others were looked at."""
        shards = [self._dataset.shards[n].name for n in sorted({int(unit["shard"]) for unit in units})]
        others = min(len(shards), LOOKED_SHARDS) - 1
        return f"{shards[0]!r}" + (f" {joined} {others} other{'s' if others > 1 else ''}" if others else "")


def _both(a: pa.Field, b: pa.Field, spelled: bool) -> pa.Field:
    """The field for the values of two shards. Where nothing holds both, the first stays, and what does not fit is a bad record.

    spelled: they are texts all of them.
    """
    if is_json(a) or is_json(b):
        return a if is_json(a) or not (pa.types.is_null(a.type) or is_list(a.type)) else b
    return pa.field(a.name, promote(a.type, b.type) or (pa.large_string() if spelled else a.type))
