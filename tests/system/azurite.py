"""Azurite, the storage of Azure in small, where it is installed (`npm install -g azurite`, or its folder in `AZURITE`)."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

PROGRAM = shutil.which("azurite-blob", path=os.environ.get("AZURITE")) or shutil.which("azurite-blob")
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def azurite() -> Iterator[str]:
    """Start it with nothing in it, and give what connects to it."""
    assert PROGRAM is not None
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--blobPort", "0"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([PROGRAM, *options], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = next(line.split()[-1] for line in process.stdout if "successfully listening" in line or "listens on" in line)
            url = url.removeprefix("http://").rstrip("/")
            yield f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint=http://{url}/{ACCOUNT};"
        finally:
            process.terminate()
            process.communicate()
