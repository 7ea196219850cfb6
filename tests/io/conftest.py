"""What tests of storages get that ask for it."""

import os
from pathlib import Path

import pytest

from zephon_async.io.foreign import FREE_THREADED

collect_ignore = ["test_vortex.py", "test_array_record.py"] if FREE_THREADED else []  # their libraries have no wheel there


@pytest.fixture
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of S3 is set up on this machine, but for the file "credentials" in the test's folder."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
