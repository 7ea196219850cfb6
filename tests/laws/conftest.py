"""What several laws are held against."""

import pytest

from tests.numbered import digests, packed


@pytest.fixture(scope="session")
def wanted() -> list[str]:
    with packed() as pipeline:
        found = digests(pipeline)
    assert len(found) > 20
    return found
