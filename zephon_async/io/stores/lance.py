"""Lance datasets as stores. A shard is a fragment, named by its number: "fragment-0000000003".

A dataset is pinned to the version that it has when it is listed, or to that of `storage_options={"version": 5}` (a number or a
tag), so later writes change nothing: files are never written to again. A fragment's tag is made of the names of its files. One that
cleaning up has taken away is an error.

It is read by the library's own storage and threads: neither the fetcher nor the cache takes part, and the library itself tries
again what fails. `storage_options` are those of fsspec, translated, or the library's own names (aws_..., azure_..., google_...).
Its pools are of at most two threads each, if LANCE_IO_THREADS and LANCE_CPU_THREADS say nothing else, and nobody has loaded it.

Threads: a store opens its dataset when it is first asked; where two do so at once, one is kept. The library's datasets are for any
number of threads.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zephon_async.checks import nearest, shown
from zephon_async.errors import DatasetError, RecipeError, StorageError
from zephon_async.io.catalog import Shard
from zephon_async.io.foreign import FREE_THREADED, library, said
from zephon_async.io.stores.connection import shown as without_secrets

_WANTED = f"pip install {'pylance-free-threading' if FREE_THREADED else chr(39) + 'zephon-async[lance]' + chr(39)}"
_CAPS = {"LANCE_IO_THREADS": "2", "LANCE_CPU_THREADS": "2"}
_CACHE_BYTES = 16 << 20  # of metadata that the library keeps of a dataset, and as much of indices
_S3 = {
    "key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token", "anon": "aws_skip_signature",
    "endpoint_url": "aws_endpoint", "region_name": "aws_region", "region": "aws_region", "requester_pays": "aws_request_payer",
}  # fmt: skip
_AZURE = {
    "account_name": "azure_storage_account_name", "account_key": "azure_storage_account_key", "anon": "azure_skip_signature",
    "sas_token": "azure_storage_sas_token", "tenant_id": "azure_storage_tenant_id", "client_id": "azure_storage_client_id",
    "client_secret": "azure_storage_client_secret",
}  # fmt: skip
_NAMES = {
    "s3": _S3,
    "gs": {"token": "google_service_account", "anon": "google_skip_signature"},
    **dict.fromkeys(("az", "abfs", "abfss"), _AZURE),
}
_OWN = (
    "aws_",
    "azure_",
    "google_",
    "allow_",
    "proxy_",
    "connect_timeout",
    "timeout",
    "user_agent",
    "download_retry_count",
    "client_",
)


@dataclass(frozen=True, slots=True, eq=False)
class LanceSource:
    """One fragment."""

    where: str
    name: str
    size: int
    tag: str
    store: "LanceStore" = field(repr=False)
    remote = False

    @property
    def key(self) -> str:
        return f"{self.store.uri} {self.name}"

    def fragment(self) -> Any:
        """It, as the library has it. Raises `ShardError` where it is not the one that was listed."""
        found = self.store.dataset().get_fragment(int(self.name.rpartition("-")[2]))
        if found is None or _tag(found) != self.tag:
            raise StorageError(f"{self.where}: has changed since the catalog was made; start again, or put the dataset back")
        return found

    def beside(self, name: str) -> "LanceSource":
        raise TypeError(f"{self.where}: nothing lies beside a fragment, and no {name!r}")

    def read(self, offset: int, length: int) -> bytes:
        raise TypeError(f"{self.where}: a fragment has no bytes to read at {offset}:{offset + length}")


class LanceStore:
    """The fragments of one version of a dataset."""

    remote, commit = False, ""
    explicit = True
    ignored: tuple[str, ...] = ()

    def __init__(self, uri: str, version: int | str | None, options: Mapping[str, str]) -> None:
        """Raises `DatasetError` where there is no such dataset or version."""
        self.uri, self._options = uri, dict(options)
        self._opened = _open(uri, version, self._options)
        self.version = int(self._opened.version)
        self._shards = {shard.name: shard for shard in map(_shard, self._opened.get_fragments())}

    def __repr__(self) -> str:
        return f"<LanceStore {without_secrets(self.uri)!r} version {self.version}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._shards)

    def shard(self, name: str) -> Shard:
        return self._shards[name]

    def open(self, dataset: str, shard: Shard, access: object = None) -> LanceSource:
        return LanceSource(f"dataset {dataset!r}, shard {shard.name!r}", *shard, self)

    def dataset(self) -> Any:
        """It, as the library has it."""
        loaded()
        if (opened := self._opened) is None:
            opened = self._opened = _open(self.uri, self.version, self._options)
        return opened

    def close(self) -> None:
        """Forget the library's dataset: some releases keep a folder on the disk for each that is open."""
        self._opened = None


def loaded() -> Any:
    """The library. Raises `RecipeError` where it is not there."""
    return library("lance", "Lance", _WANTED, _CAPS)


def lance_store(path: str, options: Mapping[str, Any]) -> LanceStore:
    """The store of a path or URL. Raises `DatasetError` and `RecipeError`."""
    settings = {name: value for name, value in options.items() if value is not None}
    version = settings.pop("version", None)
    if version is not None and (isinstance(version, bool) or not isinstance(version, int | str)):
        raise RecipeError(
            f"version in storage_options is {shown(version)}: it must be the number of a version of the dataset, or a tag"
        )
    scheme, separator, rest = path.partition("://")
    if separator and scheme not in ("file", "local") and not os.path.lexists(path):
        scheme = "s3" if scheme == "s3a" else scheme
        return LanceStore(f"{scheme}://{rest}", version, _translated(scheme, settings))
    if settings:
        raise RecipeError(f"storage_options ({', '.join(settings)}) are for URLs, and {path!r} is a path of this machine")
    folder = os.path.abspath(rest if scheme in ("file", "local") and separator else path)
    if not os.path.isdir(folder):
        there = "is a file" if os.path.exists(folder) else "does not exist"
        raise DatasetError(f"{path!r} {there}: a Lance dataset is a folder")
    return LanceStore(folder, version, {})


def _open(uri: str, version: int | str | None, options: Mapping[str, str]) -> Any:
    lance = loaded()
    try:
        return lance.dataset(
            uri,
            version=version,
            storage_options=dict(options) or None,
            index_cache_size_bytes=_CACHE_BYTES,
            metadata_cache_size_bytes=_CACHE_BYTES,
        )
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # it raises whatever its own layers do; a panic is no Exception
        of = "" if version is None else f", version {version}"
        raise DatasetError(f"{without_secrets(uri)!r}{of} cannot be read as a Lance dataset: {said(error)}") from error


def _shard(fragment: Any) -> Shard:
    size = sum(file.file_size_bytes or 0 for file in fragment.data_files())
    return Shard(f"fragment-{fragment.fragment_id:010d}", size, _tag(fragment))


def _tag(fragment: Any) -> str:
    files = [str(file.path) for file in fragment.data_files()]
    return hashlib.sha256("\n".join([*files, str(fragment.deletion_file())]).encode()).hexdigest()[:16]


def _translated(scheme: str, options: Mapping[str, Any]) -> dict[str, str]:
    """`storage_options` as users of fsspec know them, in the library's names."""
    known = _NAMES.get(scheme, {})
    given = dict(options)
    inner = given.pop("client_kwargs", {}) if scheme == "s3" else {}
    if not isinstance(inner, Mapping):
        raise RecipeError(f"client_kwargs is {shown(inner)}: it must be a dictionary")
    made: dict[str, str] = {}
    for name, value in [*inner.items(), *given.items()]:
        if name not in known and not name.startswith(_OWN):
            raise RecipeError(f"storage_options of Lance know no {name!r} for {scheme}://; {nearest(name, [*known, 'version'])}")
        if not isinstance(value, str | int | float):
            raise RecipeError(
                f"{name} in storage_options of Lance must be a text, a number, True or False, not {type(value).__name__}"
            )
        made[str(known.get(name, name))] = str(value).lower() if isinstance(value, bool) else str(value)
    if endpoint := made.get("aws_endpoint"):
        made.setdefault("aws_region", "us-east-1")  # else it asks Amazon
        if endpoint.startswith("http://"):
            made.setdefault("allow_http", "true")
    return made
