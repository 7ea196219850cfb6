"""Case A15 through a pipeline: MDS whose index and shards do not agree is an error, and else every sample comes once."""

from pathlib import Path
from typing import Any

import pytest

from tests.taken import CASES, WAYS, column, expected, in_order, of, said
from zephon_async import DatasetError, Pipeline

A15 = CASES / "A15"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["zip-only", "same-base-names"])
def test_each_sample_comes_once(name: str, way: dict[str, Any]) -> None:
    with Pipeline(in_order(of(A15 / name))).options(**way).batch(1) as pipeline:
        found = list(pipeline)
    assert column(found, "text") == expected("A15")[name]
    places = [batch.documents()[0][0] for batch in found]
    assert len({(place.shard, place.row) for place in places}) == len(found)


def test_an_index_that_promises_more_than_there_is() -> None:
    assert said(Pipeline(in_order(of(A15 / "count-mismatch"))).batch(1), DatasetError) == (
        "dataset 'd', shard 'shard.00000.mds': its index.json says 4 samples, but it has 3; "
        "the shard or the index is of another version"
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no-index", "no index.json is beside 'shard.00000.mds' or above it, and the samples of MDS are not read without"),
        ("no-index/shard.00000.mds", "no index.json is beside 'shard.00000.mds' or above it, and the samples of MDS are not read"),
        ("empty-index", "index.json is there, but no shard that it should name: it is broken, or they are gone"),
    ],
)
def test_an_index_that_is_not_there_or_is_empty(path: str, message: str) -> None:
    with pytest.raises(DatasetError) as caught:
        of(A15 / path)
    assert str(caught.value).startswith("dataset 'd': ")
    assert message in str(caught.value)


def test_an_empty_index_beside_a_shard(tmp_path: Path) -> None:
    (tmp_path / "shard.00000.mds").write_bytes((A15 / "no-index/shard.00000.mds").read_bytes())
    (tmp_path / "index.json").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"^dataset 'd': index.json: the index is broken: it is empty; write the index anew"):
        of(tmp_path)
