"""Which Arrow files of a folder are data, where the library `datasets` wrote it.

`Dataset.save_to_disk` leaves state.json, which lists the data; other Arrow files beside it are what the library remembers of
later work (`cache-*.arrow`). A `DatasetDict` has a folder for each split, beside dataset_dict.json; the library's own cache has
the files of all splits in one folder, beside dataset_info.json. Several splits are never read as one. In other folders all is data.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from zephon_async.errors import DatasetError, MissingError

STATE = "state.json"
_REMEMBERED = re.compile(r"cache-[0-9a-f]{16}(_\d{5}_of_\d{5})?\.arrow")
_SHARD = re.compile(r"(-\d{5}-of-\d{5})?\.arrow")


def pick(names: Iterable[str], read: Callable[[str], bytes]) -> list[str]:
    """Those of Arrow files that are shards. names: also those of state.json files. Raises `DatasetError`."""
    folders: dict[str, list[str]] = {}
    states = set()
    for name in sorted(names):
        folder, slash, base = name.rpartition("/")
        if base == STATE:
            states.add(folder + slash)
        else:
            folders.setdefault(folder + slash, []).append(name)
    if len(states) > 1:
        _refuse_splits(states, read)
    picked = []
    for folder, files in sorted(folders.items()):
        saved = _saved(folder, files, read) if folder in states else None
        picked += _cached(folder, files, read) if saved is None else saved
    picked += [name for folder in states.difference(folders) for name in _saved(folder, [], read) or []]
    return picked


def _refuse_splits(states: set[str], read: Callable[[str], bytes]) -> None:
    for above in sorted({state[: state.rfind("/", 0, -1) + 1] for state in states}):
        splits = _json(f"{above}dataset_dict.json", read, must=False).get("splits")
        if isinstance(splits, list) and len(splits) > 1:
            told = f"{above}dataset_dict.json says that the splits {_listed(splits)} lie here"
            raise DatasetError(f"{told}: give the folder of one, '.../{splits[0]}'")


def _saved(folder: str, files: Sequence[str], read: Callable[[str], bytes]) -> list[str] | None:
    """The data that a state.json lists; None where it is none of `datasets`."""
    state = _json(folder + STATE, read)
    if "_data_files" not in state:
        return None
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DatasetError(
            f"{folder}{STATE} names a file of indices, by which rows are chosen: that is not read; save the dataset again "
            "behind `flatten_indices()`"
        )
    try:
        listed = [f"{folder}{entry['filename']}" for entry in state["_data_files"]]
    except (TypeError, KeyError) as error:
        raise DatasetError(f"{folder}{STATE} cannot be meant: its data files are {state['_data_files']!r:.80}") from error
    there = set(files)
    for name, times in Counter(listed).items():
        if name not in there:
            raise DatasetError(f"{folder}{STATE} lists {name!r}, which is not there")
        if times > 1:
            raise DatasetError(f"{folder}{STATE} lists {name!r} twice, so its rows would come twice; list it once")
    return listed


def _cached(folder: str, files: Sequence[str], read: Callable[[str], bytes]) -> list[str]:
    """The data of a folder without a state.json."""
    if len(files) < 2:
        return list(files)
    splits = _json(f"{folder}dataset_info.json", read, must=False).get("splits")
    if not isinstance(splits, Mapping):
        return list(files)
    data = [name for name in files if not _REMEMBERED.fullmatch(name[len(folder) :])]
    of_splits: dict[str, str] = {}
    for name in data:
        stem = _SHARD.sub("", name)
        of_splits |= {split: stem for split in splits if stem.endswith(f"-{split}")}
    if len(of_splits) > 1:
        first = min(of_splits)
        told = f"{folder}dataset_info.json says that the splits {_listed(sorted(of_splits))} lie here"
        raise DatasetError(f"{told}: give the files of one, '.../{of_splits[first]}*'")
    return data


def _json(name: str, read: Callable[[str], bytes], must: bool = True) -> Mapping[str, Any]:
    """A table of JSON; nothing where it may be missing, and is, or is something else."""
    try:
        found = json.loads(read(name))
    except MissingError:
        if must:
            raise
        return {}
    except (ValueError, RecursionError) as error:
        if must:
            raise DatasetError(f"{name} is no JSON: {error}") from error
        return {}
    return found if isinstance(found, Mapping) else {}


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(repr(str(name)) for name in names)
