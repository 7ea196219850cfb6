"""Datasets of the Hugging Face Hub, by `hf://org/name[@[revision][~original|~parquet]]/[config/]split` or by the URLs of fsspec.

The revision is resolved once, to a commit, which is part of the recipe: what was pushed since then is another dataset. All files
are named from the root of the repository on.

The files of a split are those that the card of the dataset names, else those whose names say so (`hub_layouts.py`); where none of
them is of a format that is read, or one is not that the card names by its whole name, those of the Hub's own Parquet conversion,
which lies on a branch of its own, of which the commit is taken. `~original` never takes that, `~parquet` nothing else. A conversion
of the first part of a split alone is taken only where it is asked for by `~parquet`, or ZEPHON_HF_ALLOW_PARTIAL=1 allows it. There
is only a conversion of the newest commit; an older one of its branch is named by its own commit: `@commit~parquet`.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, cast
from urllib.parse import quote, unquote

from zephon_async.checks import hint, nearest
from zephon_async.errors import DatasetError, RecipeError, ShardError
from zephon_async.io.access import Access, is_missing
from zephon_async.io.hub_layouts import Config, configs_of, converted, inferred, leads, listed_among, matching
from zephon_async.io.ranges import Place
from zephon_async.io.remote import RemoteStore, list_url
from zephon_async.io.stores import Object, scheme_name, scheme_of
from zephon_async.io.stores.hub import NAME, REVISION, HubConnection, is_commit

Usable: TypeAlias = Callable[[Iterable[str]], Set[str]]
_SHORT = re.compile(
    rf"(?i:hf)://(?!(?:datasets|spaces|models|buckets)/)(?P<name>{NAME})"
    rf"(?P<at>@(?P<revision>{REVISION})?(?:~(?P<which>[^/]*))?)?(?P<rest>(?:/.*)?)"
)
_LONG = re.compile(rf"(?i:hf)://(?P<kind>datasets|spaces|models)/(?P<name>{NAME})(?:@(?P<revision>{REVISION}))?(?P<rest>(?:/.*)?)")
_OF_DATASETS = (".json", ".json.gz", ".json.zst", ".txt", ".zip")  # files of a split for `datasets`, if for nobody here
_CONVERSION = "refs/convert/parquet"
_GRAMMAR = "'hf://org/name/split' or 'hf://org/name/config/split', with '@revision' or '@~parquet' behind the name"


def is_of_hub(url: str) -> bool:
    """Whether a URL is resolved here."""
    return scheme_name(url) == "hf"


def list_hub(url: str, options: Mapping[str, Any], access: Access, usable: Usable) -> RemoteStore:
    """The files that a URL stands for. usable: those of names that are shards of a format that is read.

    Raises `DatasetError` where there is nothing, with what there is, and `RecipeError` for a URL that cannot be meant.
    """
    if match := _LONG.fullmatch(url):
        repository = _Repository(access, url, f"{match['kind']}/{match['name']}", options)
        commit = str(repository.info(unquote(match["revision"] or "main"))["sha"])
        return replace(list_url(repository.root(commit) + match["rest"].removeprefix("/"), options, access), commit=commit)
    if not (match := _SHORT.fullmatch(url)):
        scheme_of(url).split(url)  # which says what is wrong
        return list_url(url, options, access)
    parts = [part for part in match["rest"].split("/") if part]
    if match["which"] not in (None, "original", "parquet"):
        raise RecipeError(f"{url!r}: there is no {'~' + match['which']!r}; {nearest(match['which'], ('original', 'parquet'))}")
    if len(parts) > 2:
        raise RecipeError(f"{url!r} names more than a config and a split: a file is 'hf://datasets/{match['name']}/folder/file'")
    repository = _Repository(access, url, f"datasets/{match['name']}", options)
    asked = _Asked(parts[0] if len(parts) == 2 else None, parts[-1] if parts else None)
    return _Resolution(repository, asked, unquote(match["revision"] or ""), match["which"], usable).store()


class _Asked(NamedTuple):
    config: str | None
    split: str | None


@dataclass(frozen=True, slots=True)
class _Repository:
    """What is asked of a repository. url: what messages call it. name: "datasets/org/name"."""

    access: Access
    url: str
    name: str
    options: Mapping[str, Any]

    def root(self, revision: str) -> str:
        return f"hf://{self.name}@{quote(revision, safe='')}/"

    def info(self, revision: str) -> Mapping[str, Any]:
        place = Place(self.root(revision), self.options)
        return self.access.ask(repr(self.url), place, lambda connection: cast(HubConnection, connection).info())

    def files(self, commit: str, folder: str = "") -> dict[str, Object]:
        listed = self.access.listing(repr(self.url), Place(self.root(commit), self.options), folder)
        return {found.key: found for found in listed}

    def store(self, commit: str, files: Mapping[str, Object], names: Sequence[str]) -> RemoteStore:
        return RemoteStore(Place(self.root(commit), self.options), {name: files[name] for name in names}, commit=commit)


@dataclass(frozen=True, slots=True)
class _Resolution:
    """From what a URL asks for to files. which: "original", "parquet" or None."""

    repository: _Repository
    asked: _Asked
    revision: str
    which: str | None
    usable: Usable

    def store(self) -> RemoteStore:
        if self.which == "parquet":
            if self.revision in ("", "main", _CONVERSION) or is_commit(self.revision):
                return self._converted(self.revision if is_commit(self.revision) else _CONVERSION, "")
            raise self._error(f"the Hub converts its newest commit, and not {self.revision!r}: leave out the revision, or ~parquet")
        info = self.repository.info(self.revision or "main")
        commit = str(info["sha"])
        with self._of_the_card():
            configs = configs_of(info.get("cardData"))
        found = self._by_card(commit, configs) if configs else self._by_names(commit)
        if found is not None:
            return found
        reason = (
            "of its files there not all, or none, are of a format that is read (format= reads .json as 'jsonl', .txt as 'text')"
        )
        if self.which == "original":
            raise self._error(f"{reason}; without ~original its Parquet conversion would be")
        if self.revision and commit != self.repository.info("main")["sha"]:
            raise self._error(f"{reason}, and the Hub has a Parquet conversion of its newest commit alone: '@~parquet' takes it")
        return self._converted(_CONVERSION, f"{reason}; ")

    def _by_card(self, commit: str, configs: Mapping[str, Config]) -> RemoteStore | None:
        defaults = [name for name, config in configs.items() if config.is_default]
        config = configs[self._config(configs, defaults)]
        files: dict[str, Object] = {}
        if config.patterns is None:
            files = self.repository.files(commit, config.folder)
            return self._by_splits(commit, files, config.folder)
        split = self._split(config.name, config.patterns)
        for lead in leads(config, split):
            files |= self.repository.files(commit, lead)
        with self._of_the_card():
            names = matching(config, split, files)
        read = self.usable(names)
        return self.repository.store(commit, files, names) if read and not listed_among(names, config, split) - read else None

    def _by_names(self, commit: str) -> RemoteStore | None:
        files = self.repository.files(commit)
        config = self.asked.config or "default"
        folders = {name.partition("/")[0] for name in self.usable(files) if "/" in name}
        if config == "default":
            return self._by_splits(commit, files, "default/" if config in folders else "")
        if config not in folders and self.usable(files):
            self._config(["default", *sorted(folders)], [])
        return self._by_splits(commit, files, f"{config}/")

    def _by_splits(self, commit: str, files: Mapping[str, Object], folder: str) -> RemoteStore | None:
        read = self.usable(files)
        splits = inferred((name for name in files if name in read or name.lower().endswith(_OF_DATASETS)), folder)
        if not any(name.startswith(folder) for name in read) or not splits:
            return None
        names = [name for name in splits[self._split(self.asked.config or "default", splits)] if name in read]
        return self.repository.store(commit, files, names) if names else None

    def _converted(self, revision: str, reason: str) -> RemoteStore:
        try:
            commit = str(self.repository.info(revision)["sha"])
        except ShardError as error:
            if not is_missing(error):
                raise
            raise self._error(f"{reason}there is no Parquet conversion of it") from error
        files = self.repository.files(commit)
        configs = converted(files)
        if not configs:
            raise self._error(f"{reason}there is no Parquet conversion at {commit}")
        config = self._config(configs, [])
        split = self._split(config, sorted({split for split, _ in configs[config]}))
        names = configs[config].get((split, False))
        if names is None:
            if self.which != "parquet" and os.environ.get("ZEPHON_HF_ALLOW_PARTIAL") != "1":
                raise self._error(
                    f"{reason}its Parquet conversion has only the first part of {config}/{split}; '@~parquet' takes that"
                )
            names = configs[config][split, True]
        return self.repository.store(commit, files, names)

    def _config(self, known: Collection[str], defaults: Sequence[str]) -> str:
        """The config that is meant."""
        asked = self.asked.config
        if asked is None:
            chosen = list(defaults) or [name for name in known if name == "default" or len(known) == 1]
            if self.asked.split in known and self.asked.split not in chosen:
                raise self._error(f"{self.asked.split!r} is a config: say which split of it, {_GRAMMAR}")
            if len(chosen) == 1:
                return chosen[0]
            raise self._error(f"it has the configs {_listed(known)}: say which, {_GRAMMAR}")
        if asked not in known:
            raise self._error(f"there is no config {asked!r}; its configs are {_listed(known)}{hint(asked, known)}")
        return asked

    def _split(self, config: str, known: Collection[str]) -> str:
        """The split that is meant."""
        asked = self.asked.split
        if asked is None:
            raise self._error(f"names no split; those of {config!r} are {_listed(known)}: {_GRAMMAR}")
        if asked not in known:
            raise self._error(f"{config!r} has no split {asked!r}; its splits are {_listed(known)}{hint(asked, known)}")
        return asked

    @contextmanager
    def _of_the_card(self) -> Iterator[None]:
        try:
            yield
        except DatasetError as error:
            raise self._error(str(error)) from error.__cause__

    def _error(self, text: str) -> DatasetError:
        return DatasetError(f"{self.repository.url!r}: {text}")


def _listed(names: Collection[str]) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20:,} more" if len(shown) > 20 else "")
