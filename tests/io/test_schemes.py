"""How the scheme of a URL is found."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from tests.fake_storage import FakeScheme
from zephon_async.errors import RecipeError
from zephon_async.io import stores
from zephon_async.io.stores import find_scheme, scheme_name, scheme_of

FAKE = FakeScheme()


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("s3://bucket/key", "s3"),
        ("GS://bucket", "gs"),
        ("https://host/a?u=s3://b", "https"),
        ("hf://datasets/a/b@refs/convert/parquet/c", "hf"),
        ("memory://", "memory"),
        ("my-store+v2://x", "my-store+v2"),
        ("/data/wiki", ""),
        ("data/s3://x", ""),
        ("c://windows", ""),
        ("://x", ""),
        ("gs://bucket/a::b://c", "gs"),
        ("", ""),
    ],
)
def test_the_scheme_of_a_url(url: str, scheme: str) -> None:
    assert scheme_name(url) == scheme


@pytest.mark.parametrize("url", ["simplecache::gs://bucket/key", "zip://*.csv::s3://bucket/a.zip", "blockcache::zip::http://h"])
def test_chained_urls_are_refused(url: str) -> None:
    with pytest.raises(RecipeError, match=r"more than one URL|there is no storage 'zip://'"):
        scheme_of(url)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gss", "did you mean 'gs://'"),
        ("htps", "did you mean 'https://'"),
        ("s4", "did you mean 's3"),
        ("memry", "did you mean 'memory://'"),
        ("qqqqqq", "there is no storage 'qqqqqq://'; known: .*az, .*gs, .*hf, .*s3"),
        ("file", "given as a path"),
        ("simplecache", "there is no storage"),
    ],
)
def test_an_unknown_scheme_is_refused_with_the_nearest_one(name: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        find_scheme(name)


@pytest.mark.parametrize("name", ["gs", "gcs", "memory", "sftp", "webhdfs", "oss"])
def test_what_fsspec_knows_is_known(name: str) -> None:
    assert find_scheme(name) is find_scheme("memory")


def test_each_scheme_of_the_table_names_itself() -> None:
    names = {"http": "HttpScheme", "https": "HttpScheme", "az": "AzureScheme", "abfs": "AzureScheme", "abfss": "AzureScheme"} | {
        "hf": "HubScheme"
    }
    assert {name: type(find_scheme(name)).__name__ for name in names} == names


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    found = {"zephon_async.stores": [EntryPoint("Fake", f"{__name__}:FAKE", "zephon_async.stores")]}
    monkeypatch.setattr(stores, "entry_points", lambda group: found[group])
    stores._foreign.cache_clear()
    yield
    stores._foreign.cache_clear()


def test_a_scheme_of_another_package_takes_part(points: Any) -> None:
    assert find_scheme("fake") is FAKE
    with pytest.raises(RecipeError, match="did you mean 'fake://'"):
        find_scheme("fakee")
