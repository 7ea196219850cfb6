"""`io_options`: the reference library's names in either place, each once, and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zephon_async.errors import RecipeError
from zephon_async.io import Access
from zephon_async.io.storage_options import CacheOptions, StorageOptions
from zephon_async.io.transfer import Patience

HOME_CACHE = Path("~/.cache/zephon").expanduser()


def test_nothing_given() -> None:
    assert StorageOptions.of({}) == StorageOptions(
        cache=CacheOptions(
            enabled=False,
            root=HOME_CACHE,
            limit_bytes=None,
            keep_zip=False,
            validate_hash=None,
            min_slack_bytes=512 << 10,
            max_slack_bytes=64 << 20,
        ),
        download_retry=12,
        download_timeout_s=180,
        download_hedges=True,
        metadata_cache_entries=256,
        arrow_cpu_threads=None,
        arrow_io_threads=None,
    )
    assert StorageOptions.of({"cache": {}, "arrow": {}}) == StorageOptions()


def test_what_is_said_of_patience_is_what_storage_is_read_with() -> None:
    with Access(StorageOptions.of({"download_retry": 3, "download_timeout": 2.5, "download_hedges": False})) as access:
        assert access._patience == Patience(attempts=3, timeout_s=2.5, hedges=False)
    with Access() as access:
        assert access._patience == Patience()


def test_what_the_issue_says() -> None:
    options = StorageOptions.of({"cache": {"enabled": True, "root": "/scratch", "limit": "200GB"}})
    assert options == StorageOptions(CacheOptions(enabled=True, root=Path("/scratch"), limit_bytes=200 * 10**9))


OF_CACHE = {
    "enabled": True,
    "root": "/scratch",
    "limit_bytes": "750gb",
    "keep_zip": True,
    "validate_hash": "sha1",
    "min_slack_bytes": 0,
    "max_slack_bytes": "1 MiB",
}
OTHERS: dict[str, Any] = {"download_retry": 3, "download_timeout": 2.5, "download_hedges": False, "metadata_cache_entries": 0}
OTHERS |= {"arrow": {"cpu_threads": 2, "io_threads": 4}}


@pytest.mark.parametrize(
    "given",
    [
        {"cache": OF_CACHE, **OTHERS},
        {"cache": {**OF_CACHE, **OTHERS}},
        {**OF_CACHE, **OTHERS},
        {"cache": {"enabled": True}, **{name: value for name, value in OF_CACHE.items() if name != "enabled"}, **OTHERS},
        {
            "cache": OF_CACHE,
            **{name: value for name, value in OTHERS.items() if name != "arrow"},
            "arrow.cpu_threads": 2,
            "arrow": {"io_threads": 4},
        },
    ],
)
def test_every_name_in_either_place(given: dict[str, Any]) -> None:
    of_cache = CacheOptions(
        enabled=True,
        root=Path("/scratch"),
        limit_bytes=750 * 10**9,
        keep_zip=True,
        validate_hash="sha1",
        min_slack_bytes=0,
        max_slack_bytes=1 << 20,
    )
    assert StorageOptions.of(given) == StorageOptions(
        of_cache,
        download_retry=3,
        download_timeout_s=2.5,
        download_hedges=False,
        metadata_cache_entries=0,
        arrow_cpu_threads=2,
        arrow_io_threads=4,
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cach": {}}, "io_options() knows no 'cach'; did you mean 'cache'?"),
        ({"cache": {"limt": 3}}, "cache() knows no 'limt'; did you mean 'limit'?"),
        ({"cache": {"cache": {}}}, "cache() knows no 'cache'"),
        ({"arrow": {"cpu_thread": 3}}, "arrow() knows no 'cpu_thread'; did you mean 'cpu_threads'?"),
        ({"arrow": {"limit": 3}}, "arrow() knows no 'limit'"),
        ({3: 4}, "io_options() knows no 3"),
        ({"cache": True}, "cache is True: it must be a dict of settings"),
        ({"arrow": 4}, "arrow is 4: it must be a dict of settings"),
        ({"cache": {"limit": 3, "limit_bytes": 3}}, "io_options was given 'limit_bytes' twice: 'limit_bytes' is the second time"),
        ({"cache": {"limit": 3}, "limit": 3}, "io_options was given 'limit_bytes' twice: 'limit' is the second time"),
        ({"arrow": {"io_threads": 1}, "arrow.io_threads": 2}, "io_options was given 'arrow_io_threads' twice"),
        ({"cache": {"enabled": "yes"}}, "enabled is 'yes': it must be True or False"),
        ({"keep_zip": 1}, "keep_zip is 1: it must be True or False"),
        ({"limit": "lots"}, "limit_bytes is 'lots': give bytes as a positive whole number, or text such as '2GiB'"),
        ({"limit": "0"}, "limit_bytes is '0': give bytes"),
        ({"limit": 0}, "limit_bytes is 0: it must be a whole number of at least 1, or text such as '2GiB'"),
        ({"limit": -5}, "limit_bytes is -5: it must be"),
        ({"limit": 2.5}, "limit_bytes is 2.5: it must be"),
        ({"limit": True}, "limit_bytes is True: it must be"),
        ({"min_slack_bytes": -1}, "min_slack_bytes is -1: it must be a whole number of at least 0"),
        ({"min_slack_bytes": "1GB"}, "min_slack_bytes is 1,000,000,000 and max_slack_bytes 67,108,864"),
        ({"validate_hash": "sha"}, "validate_hash is 'sha', which is no hash; did you mean 'sha1'?"),
        ({"validate_hash": 1}, "validate_hash is 1: it must be True or False"),
        ({"root": ""}, "root is '': it must be the path of a folder"),
        ({"root": None}, "root is None: it must be the path of a folder"),
        ({"root": b"/scratch"}, "root is b'/scratch': it must be the path of a folder"),
        ({"root": "s3://bucket/cache"}, "root is 's3://bucket/cache': the cache needs a folder on a local disk"),
        ({"root": "~nobody-of-that-name/x"}, "root is '~nobody-of-that-name/x': there is no such home folder"),
        ({"download_hedges": "no"}, "download_hedges is 'no': it must be True or False"),
        ({"download_retry": 0}, "download_retry is 0: it must be a whole number of at least 1"),
        ({"download_retry": "3"}, "download_retry is '3': it must be a whole number"),
        ({"download_timeout": 0}, "download_timeout is 0: it must be a number of seconds above 0"),
        ({"download_timeout": float("nan")}, "download_timeout is nan: it must be a number of seconds above 0"),
        ({"download_timeout": float("inf")}, "download_timeout is inf: it must be a number of seconds above 0"),
        ({"download_timeout": "9s"}, "download_timeout is '9s': it must be a number of seconds above 0"),
        ({"download_timeout": True}, "download_timeout is True: it must be a number of seconds above 0"),
        ({"metadata_cache_entries": -1}, "metadata_cache_entries is -1: it must be a whole number of at least 0"),
        ({"arrow": {"cpu_threads": 0}}, "arrow.cpu_threads is 0: it must be a whole number of at least 1, or None"),
        ({"arrow.io_threads": 1.5}, "arrow.io_threads is 1.5: it must be a whole number of at least 1, or None"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        StorageOptions.of(given)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("validate_hash", "validates"), [(None, True), (True, True), (False, False), ("xxh64", True), ("sha256", True)]
)
def test_whether_entries_are_checked(validate_hash: bool | str | None, validates: bool) -> None:
    assert CacheOptions(validate_hash=validate_hash).validates is validates


def test_values_of_other_kinds_become_plain(tmp_path: Path) -> None:
    options = StorageOptions.of(
        {"root": tmp_path, "limit": np.int64(5), "download_retry": np.int32(2), "arrow": {"io_threads": None}}
    )
    assert options == StorageOptions(CacheOptions(root=tmp_path, limit_bytes=5), download_retry=2)
    assert type(options.cache.limit_bytes) is int
    assert CacheOptions(root=Path("~/x")).root == Path.home() / "x"


def test_pools_of_pyarrow_have_the_size_that_is_asked_for() -> None:
    before = pa.cpu_count(), pa.io_thread_count()
    try:
        StorageOptions.of({"arrow": {"cpu_threads": 3, "io_threads": 5}}).size_pools()
        assert (pa.cpu_count(), pa.io_thread_count()) == (3, 5)
        StorageOptions().size_pools()
        assert (pa.cpu_count(), pa.io_thread_count()) == (3, 5)
    finally:
        pa.set_cpu_count(before[0])
        pa.set_io_thread_count(before[1])
