"""The formats, and how one is found: by name, or by the suffix of a shard.

A format of another package takes part through an entry point of the group `zephon_async.formats` that names a `Format`.
The library of a format is loaded when the format is first used.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from os.path import splitext
from typing import cast

from zephon_async.errors import DatasetError, RecipeError
from zephon_async.io.formats.base import Decoded, Decoder, Format, Measure, UnitSpan, reading, span_of
from zephon_async.io.formats.edges import Edges, outer
from zephon_async.io.formats.inflate import COMPRESSED, with_compressed

__all__ = [
    "Decoded",
    "Decoder",
    "Edges",
    "Format",
    "Measure",
    "UnitSpan",
    "beside_name",
    "ending_of",
    "find_format",
    "outer",
    "pick_shards",
    "reading",
    "shards_among",
    "span_of",
]

_WHERE = "zephon_async.io.formats."
_TABLE = {  # name: (module, in which the format is FORMAT; suffixes; a file that lies beside every shard, see `Format.beside`)
    "jsonl": (f"{_WHERE}jsonl", with_compressed(".jsonl", ".ndjson"), ""),
    "text": (f"{_WHERE}text", with_compressed(".txt"), ""),
    "csv": (f"{_WHERE}delimited", with_compressed(".csv", ".tsv"), ""),
    "parquet": (f"{_WHERE}parquet", (".parquet", ".pq"), ""),
    "arrow": (f"{_WHERE}arrow", (".arrow", ".ipc", ".feather"), ""),
    "mds": (f"{_WHERE}mds", (".mds", ".mds.br", ".mds.bz2", ".mds.gz", ".mds.snappy", ".mds.zstd"), ""),
    "webdataset": (f"{_WHERE}webdataset", (*with_compressed(".tar"), ".tgz"), ""),
    "megatron": (f"{_WHERE}megatron", (".bin",), "{stem}.idx"),  # before those of which one file is beside many
    "litdata": (f"{_WHERE}litdata", (".bin",), "index.json"),
    "lance": (f"{_WHERE}lance", (".lance",), ""),
    "vortex": (f"{_WHERE}vortex", (".vortex",), ""),
    "array_record": (f"{_WHERE}array_record", (".array_record", ".arrayrecord"), ""),
    "memory": (f"{_WHERE}memory", (), ""),
}
_log = logging.getLogger("zephon_async")
_LAST = frozenset({"text"})  # where there is another format, these are its README and licence


_COMPRESSED = (".gz", ".zst", ".zstd", ".bz2", ".xz", ".lz4", ".br", ".zip", ".tgz")
_NOT_UNPACKED = "; a file that is compressed as a whole is only read where it is lines or a tar: unpack it"


@lru_cache(maxsize=1)
def _foreign() -> dict[str, Format]:
    """The formats of other packages; one that cannot be had is said once, and costs no other data."""
    found: dict[str, Format] = {}
    for point in entry_points(group="zephon_async.formats"):
        try:
            form = point.load()
        except Exception as error:
            _log.warning("the format %r of %s cannot be loaded: %r", point.name, point.value, error)
            continue
        if point.name in _TABLE or Format not in type(form).__mro__:
            why = "there is one of that name" if point.name in _TABLE else "it is no instance of a subclass of Format"
            _log.warning("the format %r of %s is left out: %s", point.name, point.value, why)
            continue
        found[point.name] = form
    return found


def _endings() -> dict[str, dict[str, str]]:
    """By suffix, the names of its formats, each with what must lie beside its shards."""
    known: dict[str, dict[str, str]] = {}
    for name, (_, suffixes, beside) in _TABLE.items():
        for suffix in suffixes:
            known.setdefault(suffix, {})[name] = beside
    for name, form in _foreign().items():
        for suffix in form.suffixes:
            known.setdefault(suffix, {})[name] = form.beside
    return known


def _form_of(name: str, names: Collection[str], known: Mapping[str, Mapping[str, str]]) -> str | None:
    """The format of a file, by the longest suffix that is known (.jsonl.gz is not .gz), and by what is beside it."""
    endings = [suffix for suffix in known if name.lower().endswith(suffix)]
    if not endings:
        return None
    suffix = max(endings, key=len)
    return next((form for form, beside in known[suffix].items() if not beside or beside_name(name, suffix, beside) in names), None)


def beside_name(name: str, suffix: str, beside: str) -> str:
    """The name of the file beside a shard: see `Format.beside`."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{beside.replace('{stem}', base[: len(base) - len(suffix)])}"


def ending_of(path: str) -> str | None:
    """The format that a path's own ending tells, be it a file or a folder."""
    return _form_of(path.rstrip("/"), (), _endings())


def find_format(name: str) -> Format:
    """The format of a name. Raises `RecipeError` with the nearest right name where there is none."""
    if name in _foreign():
        return _foreign()[name]
    if name in _TABLE:
        return cast(Format, import_module(_TABLE[name][0]).FORMAT)
    raise _unknown(name)


def _unknown(name: str) -> RecipeError:
    names = sorted({*_TABLE, *_foreign()} - {"memory"})
    known = _endings()
    near = get_close_matches(name.lower(), [*names, *known], 1)
    hint = f"did you mean {next(iter(known.get(near[0], near)))!r}? " if near else ""
    return RecipeError(f"there is no format {name!r}; {hint}known: {', '.join(names)}")


def pick_shards(path: str, names: Iterable[str], form: str | None, explicit: bool) -> tuple[str, list[str]]:
    """The format of what lies under a path, and those names that are its shards.

    form: the name of the format, where it was said. explicit: the files were named themselves, so that none needs a known suffix.
    Raises `DatasetError` where nothing is a shard, or where two formats are there and none was said.
    """
    if form is not None and not find_format(form).suffixes:
        raise _unknown(form)
    known, names = _endings(), set(names)
    said = _said(names, form)
    if explicit and form is not None and not said:
        if closed := sorted(name for name in names if _is_closed(name, form)):
            raise DatasetError(f"{path!r}: {closed[0]!r} cannot be read as {form}, going by its name{_NOT_UNPACKED}")
        return form, list(names)
    found: dict[str, list[str]] = {}
    unknown = []
    for name in names:
        if (its := form if name in said else _form_of(name, names, known)) is None:
            unknown.append(name)
        else:
            found.setdefault(its, []).append(name)
    if form is None and len(found) > 1:
        for last in _LAST.intersection(found):
            unknown += found.pop(last)
    if form is None and len(found) > 1:
        examples = "; ".join(f"{kind}: {min(several)!r}" for kind, several in sorted(found.items()))
        raise DatasetError(f"{path!r} holds more than one format ({examples}): say which with format=")
    picked = form if form is not None else next(iter(found), "")
    if picked not in found:
        raise DatasetError(f"{path!r} holds no shard{_looked_for(form)}{_seen(unknown, found)}{_hints(unknown, form, explicit)}")
    return picked, found[picked]


def shards_among(names: Iterable[str], form: str | None) -> set[str]:
    """Those files that, by their names, are shards of a format that is known, or of the one that was said."""
    known, names = _endings(), set(names)
    if form is not None:
        return _said(names, form)
    return {name for name in names if _form_of(name, names, known) not in (None, *_LAST)}


def _said(names: Collection[str], form: str | None) -> set[str]:
    """Those files that, by their suffixes, may be shards of a format that was said."""
    if form is None:
        return set()
    suffixes, loose = find_format(form).suffixes, find_format(form).loose_suffixes
    found = {name for name in names if name.lower().endswith(suffixes)}
    return found or {name for name in names if name.lower().endswith(loose)}


def _looked_for(form: str | None) -> str:
    """Which suffixes names should have, in words."""
    if form is None:
        return f"; known suffixes: {' '.join(_plain(_endings()))}, behind those of lines and .tar also {' '.join(COMPRESSED)}"
    suffixes = (*find_format(form).suffixes, *find_format(form).loose_suffixes)
    plain = _plain(suffixes)
    behind = dict.fromkeys(suffix[len(stem) :] for suffix in suffixes for stem in plain if suffix.startswith(f"{stem}."))
    may = f", behind which {' '.join(behind)} may stand" if behind else ""
    return f" of the format {form!r}: no name ends in {' '.join(plain)}{may}"


def _plain(suffixes: Collection[str]) -> list[str]:
    """Those that are not others with an ending more."""
    return sorted(suffix for suffix in suffixes if not any(suffix.startswith(f"{other}.") for other in suffixes))


def _is_closed(name: str, form: str) -> bool:
    """Whether a file, by its name, is compressed in a way in which the format is not read."""
    compressed = next((ending for ending in _COMPRESSED if name.lower().endswith(ending)), None)
    return compressed is not None and not any(suffix.endswith(compressed) for suffix in find_format(form).suffixes)


def _hints(unknown: list[str], form: str | None, explicit: bool) -> str:
    """What to do about files that are there and not read."""
    hints = ""
    json = [name for name in unknown if name.lower().endswith(with_compressed(".json"))]
    if any(name.rpartition("/")[2] == "index.json" for name in json):
        hints += "; index.json is there, but no shard that it should name: it is broken, or they are gone"
    elif json:
        hints += "; if a .json file is one JSON object a line, format='jsonl' reads it"
    if any(name.lower().endswith(_COMPRESSED) for name in {*unknown}.difference(json)):
        hints += _NOT_UNPACKED
    known = _endings()
    for suffix in sorted(suffix for suffix in known if any(name.lower().endswith(suffix) for name in unknown)):
        wanted = " or ".join(f"{beside.replace('{stem}', '<name>')!r} ({form})" for form, beside in known[suffix].items())
        hints += f"; a {suffix} file is a shard where {wanted} lies beside it: name the folder, or the file with format="
    if unknown and not hints:
        if explicit:
            hints = "; say with format= what they are"
        elif form is not None:
            stem, ending = splitext(min(unknown).rpartition("/")[2])
            hints = f"; what a pattern names is read whatever its suffix, such as '**/{'*' if ending else stem}{ending}'"
    return hints


def _seen(unknown: list[str], found: dict[str, list[str]]) -> str:
    others = sorted(
        [*unknown, *(name for several in found.values() for name in several)], key=lambda name: name.encode("utf-8", "replace")
    )
    if not others:
        return ""
    shown = ", ".join(repr(name) for name in others[:5])
    return f"; ignored: {shown}" + (f" and {len(others) - 5:,} more" if len(others) > 5 else "")
