"""Which files of a dataset repository are which split of which config: what its card says, or what the names of the files say.

Takes the `configs` of a card as the Hub gives them (JSON), and names of files. Patterns mean what they mean to fsspec: `*`, `?` and
`[...]` match inside one name, `**` any number of folders. Where the card names no files, splits are found by names as `datasets`
finds them: `data/{split}-00000-of-00001.*`; else folders, else files, with a word for train, validation or test; else all is train.

Threads: functions of their arguments alone.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from zephon_async.errors import DatasetError

Splits = Mapping[str, Sequence[str]]
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARDED = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_CONVERTED = re.compile(r"([^/]+)/(partial-)?([^/]+)/\d+\.parquet")
_ABOUT = {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "dummy_data.zip"}
_SIGNS = re.compile(r"[*?\[]")


class Config(NamedTuple):
    """A config of a card. patterns: of files, by split; None: names say it. folder: all are below it; "" or with "/" at the end."""

    name: str
    patterns: Splits | None
    folder: str
    is_default: bool


def configs_of(card: object) -> dict[str, Config]:
    """The configs of a card, by name. Raises `DatasetError` for what cannot be meant."""
    said = card.get("configs") if isinstance(card, Mapping) else None
    found: dict[str, Config] = {}
    for each in said if isinstance(said, list) else ():
        name = str(each.get("config_name", "default")) if isinstance(each, Mapping) else ""
        if not name or name in found:
            raise DatasetError(f"its card has a config that is {'named twice' if name else 'no table'}: {each!r:.80}")
        if not _is_inside(each.get("data_dir") or ""):
            raise DatasetError(f"its card has a data_dir of the config {name!r} that cannot be meant: {each['data_dir']!r:.80}")
        folder = "/".join(part for part in str(each.get("data_dir") or "").split("/") if part not in ("", "."))
        found[name] = Config(name, _patterns(name, each.get("data_files")), folder and f"{folder}/", bool(each.get("default")))
    return found


def _patterns(config: str, said: Any) -> Splits | None:
    """`data_files` in any of its spellings: a pattern, several, a list of {"split": ..., "path": ...}, or patterns by split."""
    if said is None:
        return None
    if isinstance(said, Mapping):
        said = [{"split": split, "path": path} for split, path in said.items()]
    entries = said if isinstance(said, list) else [said]
    if all(isinstance(entry, str) for entry in entries):
        entries = [{"split": "train", "path": entries}]
    found: dict[str, Sequence[str]] = {}
    for entry in entries:
        split, path = (entry.get("split"), entry.get("path")) if isinstance(entry, Mapping) else (None, None)
        paths = [path] if isinstance(path, str) else path
        if not split or not isinstance(paths, list) or not paths or not all(map(_is_inside, paths)) or str(split) in found:
            raise DatasetError(f"its card has data_files of the config {config!r} that cannot be meant: {entry!r:.80}")
        found[str(split)] = paths
    return found


def _is_inside(pattern: object) -> bool:
    """Whether a pattern is one, and leads to nothing outside of the repository."""
    return isinstance(pattern, str) and ".." not in pattern.split("/")


def leads(config: Config, split: str) -> list[str]:
    """The folders, "" or with "/" at the end, of which a listing has all files that a split can have."""
    if config.patterns is None:
        return [config.folder]
    found = {_lead(_whole(config, pattern)) for pattern in config.patterns[split]}
    return sorted(folder for folder in found if not any(other != folder and folder.startswith(other) for other in found))


def matching(config: Config, split: str, names: Iterable[str]) -> list[str]:
    """The files of a split by the patterns of the card. Raises `DatasetError` for a pattern of nothing."""
    names, found = list(names), set[str]()
    for pattern in (config.patterns or {})[split]:
        whole = _whole(config, pattern)
        matched = {name for name in names if _fits(whole.split("/"), name.split("/")) and not _is_aside(name, whole)}
        if not matched:
            raise DatasetError(f"its card says that the split {split!r} of {config.name!r} is {whole!r}, and there is no such file")
        found |= matched
    return sorted(found)


def listed_among(names: Iterable[str], config: Config, split: str) -> set[str]:
    """Those files that the card names by their whole names."""
    return {_whole(config, pattern) for pattern in (config.patterns or {})[split]}.intersection(names)


def inferred(names: Iterable[str], folder: str = "") -> Splits:
    """Splits by the names of the files below a folder."""
    inside = {name.removeprefix(folder): name for name in names if name.startswith(folder)}
    inside = {name: whole for name, whole in inside.items() if not _is_aside(name, "")}
    sharded = _by_split(inside, lambda name: [match[1]] if (match := _SHARDED.fullmatch(name)) else [])
    in_folders = sharded or _by_split(inside, lambda name: _said("/".join(name.split("/")[:-1])))
    in_files = in_folders or _by_split(inside, lambda name: _said(name.rpartition("/")[2], is_file=True))
    return in_files or ({"train": sorted(inside.values())} if inside else {})


def converted(names: Iterable[str]) -> dict[str, dict[tuple[str, bool], list[str]]]:
    """What the Hub has converted: by config, the files by split and by whether they are only the first part of it."""
    found: dict[str, dict[tuple[str, bool], list[str]]] = {}
    for name in sorted(names):
        if match := _CONVERTED.fullmatch(name):
            found.setdefault(match[1], {}).setdefault((match[3], bool(match[2])), []).append(name)
    return found


def _by_split(inside: Mapping[str, str], splits_of: Callable[[str], Sequence[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in sorted(inside):
        for split in splits_of(name):
            found.setdefault(split, []).append(inside[name])
    return found


def _said(text: str, is_file: bool = False) -> list[str]:
    """The splits that a name speaks of: a word for them stands alone in it. In that of a file something follows the word."""
    return [split for split, words in _WORDS.items() if any(_word(word, is_file).search(text) for word in words)]


@lru_cache(maxsize=64)
def _word(word: str, is_file: bool) -> re.Pattern[str]:
    return re.compile(rf"(?:^|[/\-._ 0-9]){word}(?:[\-._ 0-9]{'' if is_file else '|/|$'})")


def _whole(config: Config, pattern: str) -> str:
    """A pattern from the root of the repository on."""
    return config.folder + "/".join(part for part in pattern.split("/") if part not in ("", "."))


def _lead(pattern: str) -> str:
    """The folder that all lies in that a pattern matches."""
    sign = _SIGNS.search(pattern)
    return pattern[: pattern.rfind("/", 0, sign.start() if sign else len(pattern)) + 1]


def _is_aside(name: str, pattern: str) -> bool:
    """Whether a file is about the data, is hidden, or lies in a hidden folder, and the pattern does not speak of that."""
    asked, parts = pattern.split("/"), name.split("/")
    hidden = [part for part in parts if part.startswith(".")] + [part for part in parts[:-1] if part.startswith("__")]
    if hidden and not any(one.startswith((".", "__")) for one in asked):
        return True
    return parts[-1] in _ABOUT and parts[-1] != asked[-1]


def _fits(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a pattern matches a whole name; both split at the slashes."""
    reached = {0}  # how many of the names may lie before what is left of the pattern
    for n, head in enumerate(pattern):
        if head != "**":
            reached = {at + 1 for at in reached if at < len(names) and fnmatchcase(names[at], head)}
        elif n + 1 < len(pattern):
            reached = {further for at in reached for further in range(at, len(names))}
        else:
            reached = {len(names) for at in reached if at < len(names)}
    return len(names) in reached
