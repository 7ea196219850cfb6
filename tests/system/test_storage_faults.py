"""A run over a store that does wrong: each fault changes nothing, or ends in the right error (C01 to C04 and their kinds).

The store is a server on loopback that answers as real ones do when they are ill. A fault that passes hits every third request, once
each; one that stays hits all requests of one shard. Pauses between attempts are left out.
"""

import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.system.fake_s3 import FakeS3, Request, Twist
from tests.system.seaweed import Bucket
from zephon_async import Dataset, Pipeline, ShardError, StaticMixtureWorkSource, global_digest
from zephon_async.io import transfer

ROWS, GROUP = 600, 100
Fault = Callable[[Request], Twist | None]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_FIRST_PAUSE_S", 0.001)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Parquet with row groups of some 100 KB that do not compress, and JSON lines."""
    folder, chance = tmp_path_factory.mktemp("files"), random.Random(1)
    made: dict[str, bytes] = {}
    for n in range(2):
        texts = ["".join(chance.choices("abcdefgh ", k=1000)) for _ in range(ROWS)]
        table = pa.table({"text": texts, "other": list(reversed(texts))})
        pq.write_table(table, folder / "p.parquet", row_group_size=GROUP, compression="none", use_dictionary=False)
        made[f"pq/{n}.parquet"] = (folder / "p.parquet").read_bytes()
        made[f"js/{n}.jsonl"] = "".join(json.dumps({"text": text, "n": i}) + "\n" for i, text in enumerate(texts)).encode()
    return made


def digests(datasets: list[Dataset], **options: Any) -> list[str]:
    """Of a run over all of the data."""
    source = StaticMixtureWorkSource(datasets, {dataset.name: 1 for dataset in datasets}, seed=5)
    with Pipeline(source).options(lanes=4, workers=2, **options).map_batches(texts).shuffle(16).batch(8) as pipeline:
        steps: dict[int, list[Any]] = {}
        for batch in pipeline:
            steps.setdefault(batch.step, []).append(batch)
        return [global_digest(batches) for batches in steps.values()]


def texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["text"])


@pytest.fixture(scope="module")
def wanted(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("local")
    for key, body in files.items():
        (folder / key).parent.mkdir(exist_ok=True)
        (folder / key).write_bytes(body)
    return digests([Dataset.from_path(name, folder / name) for name in ("pq", "js")])


@pytest.fixture
def store(files: dict[str, bytes]) -> Iterator[FakeS3]:
    with FakeS3() as server:
        for key, body in files.items():
            server.put(key, body)
        yield server


def of(store: FakeS3) -> list[Dataset]:
    return [Dataset.from_path(name, f"{store.root}{name}", storage_options=store.options) for name in ("pq", "js")]


def once(twist: Twist, share: int = 3) -> Fault:
    """Every third request does wrong, but not the one that follows upon it for the same bytes."""
    seen: set[tuple[str, str, str]] = set()

    def fault(request: Request) -> Twist | None:
        asked = (request.method, request.target, request.headers.get("range", ""))
        if request.number % share or asked in seen:
            return None
        seen.add(asked)
        return twist

    return fault


PASSING = {
    "500": Twist(500, "InternalError"),
    "500 without a body": Twist(500, body=b""),
    "500 in HTML": Twist(500, body=b"<html>sorry</html>"),
    "502": Twist(502, body=b"Bad Gateway"),
    "503 SlowDown": Twist(503, "SlowDown"),
    "503 ServiceUnavailable": Twist(503, "ServiceUnavailable"),
    "503 with Retry-After": Twist(503, "SlowDown", headers={"Retry-After": "0"}),
    "504": Twist(504, body=b""),
    "429": Twist(429, "TooManyRequests"),
    "429 with a date": Twist(429, "TooManyRequests", headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    "408": Twist(408, "RequestTimeout"),
    "400 RequestTimeout": Twist(400, "RequestTimeout"),
    "closed before the answer": Twist(gone=True),
    "reset before the answer": Twist(gone=True, reset=True),
    "closed before the body": Twist(stop_after=0),
    "closed in the body": Twist(stop_after=1_234),
    "reset in the body": Twist(stop_after=617, reset=True),
    "closed behind one byte": Twist(stop_after=1),
    "the whole object": Twist(whole=True),
    "the whole object, cut": Twist(whole=True, stop_after=2_000),
    "another range": Twist(claims="bytes 0-9/10"),
    "no length": Twist(chunked=True),
    "no length, cut": Twist(chunked=True, stop_after=99),
}


QUICK = ("503 with Retry-After", "closed in the body", "the whole object", "404", "SlowDown")


def each(faults: Mapping[str, object]) -> pytest.MarkDecorator:
    """All faults, but for a few only where slow tests are run."""
    return pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in faults])


@each(PASSING)
def test_what_passes_changes_nothing(name: str, store: FakeS3, wanted: list[str]) -> None:
    store.faults = once(PASSING[name])
    assert digests(of(store)) == wanted
    assert store.wait_for_connections(0)


LASTING = {
    "404": (Twist(404, "NoSuchKey"), r"is not there: HTTP 404: NoSuchKey"),
    "403": (Twist(403, "AccessDenied"), r"may not be read with these credentials: HTTP 403: AccessDenied"),
    "wrong signature": (Twist(403, "SignatureDoesNotMatch"), r"may not be read with these credentials: HTTP 403: Signature"),
    "412": (Twist(412, "PreconditionFailed"), r"has changed since it was listed"),
    "416": (Twist(416, "InvalidRange"), r"has changed since it was listed"),
    "405": (Twist(405, "MethodNotAllowed"), r"cannot be read: HTTP 405: MethodNotAllowed"),
    "500": (Twist(500, "InternalError"), r"cannot be read: HTTP 500: InternalError.*; asked 12 times in "),
    "SlowDown": (Twist(503, "SlowDown"), r"cannot be read: HTTP 503: SlowDown.*; asked 12 times in "),
    "reset": (Twist(gone=True, reset=True), r"cannot be read: .*; asked 12 times in "),
    "cut": (Twist(stop_after=0), r"cannot be read: .*0 of .* bytes.*; asked 12 times in "),
}


@each(LASTING)
def test_what_stays_is_an_error_that_says_what_and_where(name: str, store: FakeS3) -> None:
    twist, said = LASTING[name]
    datasets = of(store)
    store.faults = lambda request: twist if request.key == "pq/1.parquet" else None
    with pytest.raises(ShardError) as caught:
        digests(datasets)
    assert re.match(rf"dataset 'pq', shard '1.parquet': s3://bucket-1/pq/1.parquet {said}", str(caught.value)), str(caught.value)
    assert store.wait_for_connections(0)


def test_a_run_in_which_five_in_a_hundred_requests_fail(store: FakeS3, wanted: list[str]) -> None:
    chance = random.Random(7)
    twists = list(PASSING.values())
    store.faults = lambda request: chance.choice(twists) if chance.random() < 0.05 else None
    for _ in range(3):
        assert digests(of(store)) == wanted


@pytest.mark.parametrize("options", [{"isolate": True}, {"runner": "inline"}, {"runner": "processes"}], ids=str)
def test_wherever_the_engine_and_its_functions_run(options: dict[str, Any], store: FakeS3, wanted: list[str]) -> None:
    store.faults = once(PASSING["closed in the body"], share=5)
    assert digests(of(store), **options) == wanted
    assert store.wait_for_connections(0)


def test_credentials_that_end_and_are_renewed(
    store: FakeS3, wanted: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C03: after ten requests the key is no good any more; the new one lies in the credentials file."""
    credentials = tmp_path / "credentials"

    def write(key: str) -> None:
        credentials.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")

    write("old")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    ended = threading.Event()

    def fault(request: Request) -> Twist | None:
        if request.number == 10:
            write("new")
            ended.set()
        return Twist(400, "ExpiredToken") if ended.is_set() and request.signed_by == "old" else None

    store.faults = fault
    options = {"endpoint_url": store.url}
    found = digests([Dataset.from_path(name, f"{store.root}{name}", storage_options=options) for name in ("pq", "js")])
    assert found == wanted
    assert ended.is_set()


@pytest.fixture
def program(store: FakeS3, tmp_path: Path) -> list[str]:
    """A run with a cache in a process of its own, which prints its digests."""
    code = f"""
        from tests.system.test_storage_faults import Dataset, digests
        datasets = [Dataset.from_path(name, "{store.root}" + name, storage_options={store.options!r}) for name in ("pq", "js")]
        print(*digests(datasets, io_options={cached(tmp_path)!r}))
    """
    return [sys.executable, "-c", dedent(code)]


def cached(folder: Path) -> dict[str, Any]:
    return {"cache": {"enabled": True, "root": str(folder / "cache"), "limit": 1 << 26}}


@pytest.mark.slow
def test_killed_in_the_middle_of_downloads_it_leaves_nothing_that_is_trusted(
    store: FakeS3, wanted: list[str], program: list[str], tmp_path: Path
) -> None:
    """C07. Each time some requests later, with a body that has begun to come."""
    for bodies in (6, 3, 1):  # that come, before one that stops
        reached, left = threading.Event(), iter(range(bodies))

        def stop(request: Request, left: Iterator[int] = left, reached: threading.Event = reached) -> Twist | None:
            if request.method != "GET" or not request.key or next(left, None) is not None:
                return None
            reached.set()
            return Twist(stop_after=1_234, silent=True)

        store.faults = stop
        with subprocess.Popen(program, stdout=subprocess.PIPE) as running:
            assert reached.wait(60)
            running.kill()
            assert running.communicate()[0] == b""
    store.faults = lambda request: None
    assert digests(of(store), io_options=cached(tmp_path)) == wanted
    before = len(store.requests)
    assert digests(of(store), io_options=cached(tmp_path)) == wanted
    assert [request.key for request in store.requests[before:] if request.method == "GET" and request.key] == []


@pytest.mark.slow
def test_two_processes_fill_one_cache(store: FakeS3, wanted: list[str], program: list[str]) -> None:  # C07
    both = [subprocess.Popen(program, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [each.communicate(timeout=60)[0].split() for each in both] == [wanted] * 2


def test_listing_faults_are_no_missing_files(files: dict[str, bytes], wanted: list[str]) -> None:
    """C04: faults on HEAD and listing are tried again; what is missing or forbidden is so at once."""
    with FakeS3(page_keys=1) as store:
        for key, body in files.items():
            store.put(key, body)
        store.faults = once(Twist(500, "InternalError"), share=2)
        assert digests(of(store)) == wanted
        store.faults = lambda request: Twist(404, "NoSuchBucket")
        with pytest.raises(
            ShardError, match=r"dataset 'pq': s3://bucket-1/pq: s3://bucket-1/pq/ is not there: HTTP 404: NoSuchBucket"
        ):
            of(store)
        store.faults = lambda request: Twist(403, "AccessDenied")
        with pytest.raises(ShardError, match="may not be read with these credentials: HTTP 403: AccessDenied"):
            of(store)


@pytest.mark.slow
def test_a_real_server_gives_what_local_files_give(files: dict[str, bytes], wanted: list[str], seaweed_bucket: Bucket) -> None:
    seaweed_bucket.put_all(files)
    options = seaweed_bucket.options
    datasets = [Dataset.from_path(name, f"{seaweed_bucket.root}{name}/*", storage_options=options) for name in ("pq", "js")]
    assert digests(datasets) == wanted


@pytest.mark.slow
def test_two_thousand_shards_and_three_epochs_with_few_descriptors(store: FakeS3) -> None:
    """Handles, connections, tasks and memory stay level."""
    for n in range(2_000):
        store.put(f"many/{n:04}.jsonl", b"".join(b'{"text": "%d of %d"}\n' % (i, n) for i in range(3)))
    program = dedent(
        f"""
        import asyncio, os, resource, threading
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource
        dataset = Dataset.from_path("many", "{store.root}many", storage_options={store.options!r})
        source = StaticMixtureWorkSource([dataset], {{"many": 1}}, epochs=3, seed=1)
        seen, levels = 0, []
        with Pipeline(source).options(lanes=4, workers=2).batch(10) as run:
            for batch in run:
                seen += 10
                if batch.step % 100 == 50:
                    levels.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
        print(seen, max(fds for fds, _ in levels) - min(fds for fds, _ in levels), len({{threads for _, threads in levels}}))
        """
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert ran.stderr == ""
    seen, spread, threads = map(int, ran.stdout.split())
    assert seen == 18_000
    assert spread < 64
    assert threads <= 2
    assert store.wait_for_connections(0)
