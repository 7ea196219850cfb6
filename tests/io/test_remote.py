"""What URLs stand for, over storage in memory: the same as the same names on a local disk, wherever those can lie there."""

import json
import os
import pickle
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_storage import Call, FakeScheme, Storage
from tests.taken import batches, column, in_order
from tests.whole import whole
from zephon_async import Pipeline, StaticMixtureWorkSource
from zephon_async.errors import DatasetError, RecipeError, ShardError
from zephon_async.io import Dataset
from zephon_async.io import access as access_module
from zephon_async.io import remote as module
from zephon_async.io import transfer as transfer_module
from zephon_async.io.access import Access
from zephon_async.io.remote import RemoteStore, list_url
from zephon_async.io.stores import Fault, Kind, LocalStore

CASES = Path(__file__).parent.parent / "cases"
NO_OBJECT = "there is no such object, and no object below it"
NO_MATCH = "the pattern matches nothing"


@pytest.fixture
def scheme(monkeypatch: pytest.MonkeyPatch) -> FakeScheme:
    scheme = FakeScheme()
    use(scheme, monkeypatch)
    return scheme


@pytest.fixture
def storage(scheme: FakeScheme) -> Storage:
    return scheme.buckets.setdefault("b", Storage())


def use(scheme: FakeScheme, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "scheme_of", lambda url: scheme)
    patch.setattr(access_module, "scheme_of", lambda url: scheme)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "_FIRST_PAUSE_S", 0.0)


def line(text: str) -> bytes:
    return json.dumps({"text": text}).encode() + b"\n"


def fill(storage: Storage, *keys: str) -> None:
    storage.objects.update((key, line(key)) for key in keys)


def listed(url: str) -> RemoteStore:
    with Access() as access:
        return list_url(url, {}, access)


def named(url: str) -> dict[str, str]:
    """The keys that a URL stands for, by name."""
    return {name: found.key for name, found in listed(url).objects.items()}


def texts(url: str, **settings: Any) -> list[str]:
    return whole(Dataset.from_path("d", url, **settings)).column("text")


def said(make: Callable[[], object]) -> str:
    with pytest.raises((DatasetError, RecipeError)) as caught:
        make()
    return str(caught.value)


# Objects and folders


def test_an_object(storage: Storage) -> None:
    fill(storage, "x/a.jsonl", "x/a.jsonl.gz", "x/a.jsonl/b.jsonl")
    store = listed("fake://b/x/a.jsonl")
    assert (store.names, store.ignored, store.explicit) == (("a.jsonl",), (), True)
    assert store.shard("a.jsonl") == ("a.jsonl", *storage.object("x/a.jsonl")[1:])
    assert storage.calls == [Call("look", "x/a.jsonl")]
    assert texts("fake://b/x/a.jsonl") == ["x/a.jsonl"]


def test_an_object_of_another_suffix_needs_a_format(storage: Storage) -> None:
    fill(storage, "x/lines", "x/a.jsonl")
    assert texts("fake://b/x/lines", format="jsonl") == ["x/lines"]
    assert "fake://b/x/lines" in said(lambda: Dataset.from_path("d", "fake://b/x/lines"))


def test_a_pattern_names_its_objects_whatever_their_suffix_where_the_format_is_said(storage: Storage) -> None:
    fill(storage, "x/a.dat", "x/y/b.dat", "x/c.md", "x/z.dat/d.jsonl")
    assert texts("fake://b/x/*/*.dat", format="jsonl") == ["x/y/b.dat"]
    assert texts("fake://b/x/*.dat", format="jsonl") == ["x/z.dat/d.jsonl"]  # a folder too is what it names
    del storage.objects["x/z.dat/d.jsonl"]
    assert texts("fake://b/x/**/*.dat", format="jsonl") == ["x/a.dat", "x/y/b.dat"]
    for folder in ("x", "x/*", "x/**"):
        message = said(lambda folder=folder: Dataset.from_path("d", f"fake://b/{folder}", format="jsonl"))  # type: ignore[misc]
        assert message.endswith("; what a pattern names is read whatever its suffix, such as '**/*.dat'")


@pytest.mark.parametrize("url", ["fake://b/x", "fake://b/x/"])
def test_a_folder_is_all_below_it_and_nothing_beside_it(url: str, storage: Storage) -> None:
    fill(storage, "x/a.jsonl", "x/y/b.jsonl", "xa.jsonl", "x.jsonl", "x-/c.jsonl", "z/x/d.jsonl", "X/e.jsonl")
    assert named(url) == {"a.jsonl": "x/a.jsonl", "y/b.jsonl": "x/y/b.jsonl"}
    assert texts(url) == ["x/a.jsonl", "x/y/b.jsonl"]


@pytest.mark.parametrize("url", ["fake://b", "fake://b/"])
def test_a_bucket(url: str, storage: Storage) -> None:
    fill(storage, "a.jsonl", "x/b.jsonl")
    assert texts(url) == ["a.jsonl", "x/b.jsonl"]


def test_an_object_and_a_folder_of_one_name(storage: Storage) -> None:
    fill(storage, "x", "x/a.jsonl")
    assert named("fake://b/x") == {"x": "x"}
    assert named("fake://b/x/") == {"a.jsonl": "x/a.jsonl"}


def test_an_empty_object_that_stands_for_a_folder(storage: Storage) -> None:
    storage.objects |= {"x/": b"", "x/y/": b""}
    for url in ("fake://b/x", "fake://b/x/", "fake://b/x/y"):
        assert said(lambda url=url: Dataset.from_path("d", url)) == f"dataset 'd': {url!r}: {NO_OBJECT}"  # type: ignore[misc]
    fill(storage, "x/a.jsonl")
    assert named("fake://b/x") == {"a.jsonl": "x/a.jsonl"}


@pytest.mark.parametrize(
    ("url", "nothing"),
    [
        *((f"fake://{place}", NO_OBJECT) for place in ("b/no", "b/no/", "b/x/a", "c")),
        *((f"fake://b/{pattern}", NO_MATCH) for pattern in ("*.parquet", "no/*", "x/a?")),
    ],
)
def test_where_nothing_is(url: str, nothing: str, storage: Storage) -> None:
    fill(storage, "x/a.jsonl")
    assert said(lambda: Dataset.from_path("d", url)) == f"dataset 'd': {url!r}: {nothing}"


def test_hidden_names_are_ignored_and_listed(storage: Storage) -> None:  # A12
    right = json.loads((CASES / "A12/expected.json").read_text())
    local = Dataset.from_path("d", CASES / "A12/data")
    for path in sorted((CASES / "A12/data").rglob("*")):
        if path.is_file():
            storage.objects[f"x/{path.relative_to(CASES / 'A12/data')}"] = path.read_bytes()
    dataset = Dataset.from_path("d", "fake://b/x")
    assert dataset.ignored == local.ignored == dataset.catalog().ignored
    assert whole(dataset).column("text") == right["texts"]


def test_only_hidden_names(storage: Storage) -> None:
    fill(storage, "x/.a.jsonl", "x/_y/b.jsonl")
    assert listed("fake://b/x").ignored == (".a.jsonl", "_y/")
    assert said(lambda: Dataset.from_path("d", "fake://b/x")).startswith("dataset 'd': 'fake://b/x' holds no shard")
    assert texts("fake://b/x/.a.jsonl") == ["x/.a.jsonl"]
    assert texts("fake://b/x/_y") == ["x/_y/b.jsonl"]


def test_an_object_below_a_hidden_folder_that_was_named(storage: Storage) -> None:
    fill(storage, "_x/y/a.jsonl", "_x/.y/b.jsonl")
    store = listed("fake://b/_x")
    assert (store.names, store.ignored) == (("y/a.jsonl",), (".y/",))


ODD = [
    "/a",
    "./a",
    "../a",
    "y//a",
    "y/./a",
    "y\\a",
    "\\",
    "a b",
    "a+b",
    "a#b",
    "a?b",
    "a%2Fb",
    "a%b",
    "ä",
    "日本",
    "a\u0301",
    "\U0001f600",
]
ODD += [
    "a*",
    "[a]",
    "a[1-",
    "{a}",
    "@",
    ":",
    "a:b",
    "a\nb",
    "a\tb",
    " ",
    "a ",
    "'",
    '"',
    "a;b",
    "=",
    "$HOME",
    "~",
    "a&b",
    "//a",
    "**",
]


@pytest.mark.parametrize("key", [f"{odd}.jsonl" for odd in ODD])
def test_a_key_is_what_it_is(key: str, storage: Storage) -> None:  # A13
    """As an object that is named, and in its folder; with others beside it that it could be taken for."""
    others = ["a.jsonl", "y/a.jsonl", "1.jsonl", "a/b.jsonl", "ab.jsonl", "a1.jsonl", "aXb.jsonl"]
    fill(storage, *(f"x/{other}" for other in others), f"x/{key}")
    assert texts(f"fake://b/x/{key}") == [f"x/{key}"]
    found = whole(Dataset.from_path("d", "fake://b/x"))
    assert [name for name, _ in found.places] == sorted({key, *others}, key=str.encode)
    assert found.column("text") == [f"x/{name}" for name, _ in found.places]


@pytest.mark.parametrize("folder", ODD)
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_is_what_it_is(folder: str, slash: str, storage: Storage) -> None:  # A13
    """Also where others beside it would match, were it a pattern."""
    fill(storage, *(f"x/{other}/no.jsonl" for other in ("a", "1", "y", "a1", "ab", "aXb")))
    fill(storage, f"x/{folder}/a.jsonl", f"x/{folder}/y/b.jsonl")
    assert texts(f"fake://b/x/{folder}{slash}") == [f"x/{folder}/a.jsonl", f"x/{folder}/y/b.jsonl"]


def test_odd_names(storage: Storage) -> None:  # A13
    names = json.loads((CASES / "A13/expected.json").read_text())["names"]
    fill(storage, *(f"x/{name}" for name in names))
    found = whole(Dataset.from_path("d", "fake://b/x"))
    assert found.column("text") == [f"x/{name}" for name in sorted(names, key=str.encode)]
    for name in names:
        assert texts(f"fake://b/x/{name}") == [f"x/{name}"]


# Patterns


def test_patterns(storage: Storage) -> None:
    fill(storage, "x/a1.jsonl", "x/a2.jsonl", "x/b1.jsonl", "x/y/a1.jsonl", "x/y/z/a1.jsonl", "w/a1.jsonl", "a1.jsonl")
    right = {
        "x/a*": ["x/a1.jsonl", "x/a2.jsonl"],
        "x/?1.jsonl": ["x/a1.jsonl", "x/b1.jsonl"],
        "x/[!a]1.jsonl": ["x/b1.jsonl"],
        "x/**/a1.jsonl": ["x/a1.jsonl", "x/y/a1.jsonl", "x/y/z/a1.jsonl"],
        "**/a1.jsonl": ["a1.jsonl", "w/a1.jsonl", "x/a1.jsonl", "x/y/a1.jsonl", "x/y/z/a1.jsonl"],
        "[wx]/a1.jsonl": ["w/a1.jsonl", "x/a1.jsonl"],
        "x/y*": ["x/y/a1.jsonl", "x/y/z/a1.jsonl"],
        "x/*/z/a1.jsonl": ["x/y/z/a1.jsonl"],
        "*.jsonl": ["a1.jsonl"],
    }
    assert {pattern: texts(f"fake://b/{pattern}") for pattern in right} == right


def test_a_pattern_lists_no_more_than_it_must(storage: Storage) -> None:
    fill(storage, "x/part-1/a.jsonl", "x/part-2/a.jsonl", "y/a.jsonl")
    assert named("fake://b/x/part-*/a.jsonl") == {"part-1/a.jsonl": "x/part-1/a.jsonl", "part-2/a.jsonl": "x/part-2/a.jsonl"}
    assert storage.calls[-1] == Call("pages", "x/part-")


WORD = st.sampled_from(["a", "b", "ab", ".a", "_b", "a.b", "[a]", "*", "a?", "-"])
NAME = st.lists(WORD, min_size=1, max_size=4).map("/".join)
SIGN = st.sampled_from(["a", "b", "*", "**", "?", "a*", "*b", "[a]", "[!a]*", "[*]", ".*", "_b", "ab", "*.*", "[a]?"])
PATTERN = st.lists(SIGN, min_size=1, max_size=4).map("/".join)


@given(st.sets(NAME, min_size=1, max_size=8), PATTERN, st.sampled_from(["", "/"]))
def test_a_url_stands_for_what_the_path_does(names: set[str], pattern: str, slash: str) -> None:
    names = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}  # a file is no folder
    storage = Storage()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        use(FakeScheme({"b": storage}), patch)
        for name in names:
            path = Path(folder, "root", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(line(name))
        fill(storage, *(f"root/{name}" for name in names))
        local, remote = (
            found(lambda: LocalStore(os.path.join(folder, "root", pattern + slash))),
            found(lambda: listed(f"fake://b/root/{pattern}{slash}")),
        )
    if not (slash and pattern in names):  # a file with a slash behind it is none, on a disk
        assert remote == local


def found(store: Callable[[], LocalStore | RemoteStore]) -> tuple[list[str], list[str]]:
    """The names and what is ignored; nothing where there is nothing."""
    try:
        listed = store()
    except DatasetError:
        return [], []
    return sorted(listed.names), sorted(listed.ignored)


# Listings


def test_many_pages(storage: Storage) -> None:
    storage.page = 1_000
    names = [f"{n:05}.jsonl" for n in range(2_501)]
    fill(storage, *(f"x/{name}" for name in reversed(names)))
    dataset = Dataset.from_path("d", "fake://b/x")
    assert [shard.name for shard in dataset.shards] == names
    assert storage.calls == [Call("look", "x"), *[Call("pages", "x/")] * 3]


def test_shards_are_in_the_order_of_the_bytes_of_their_names(storage: Storage) -> None:  # B08
    storage.page = 5
    names = [f"shard-{n}.jsonl" for n in (12, 3, 1, 11, 2, 10)] + [
        "\uffff.jsonl",
        "\U0001f600.jsonl",
        "Z.jsonl",
        "é.jsonl",
        "a/b.jsonl",
        "a.jsonl",
    ]
    fill(storage, *(f"x/{name}" for name in names))
    right = sorted(names, key=str.encode)
    assert [shard.name for shard in Dataset.from_path("d", "fake://b/x").shards] == right
    assert right[-2:] == ["\uffff.jsonl", "\U0001f600.jsonl"]


def test_faults_that_pass_do_not_matter(storage: Storage) -> None:  # C04
    storage.page = 2
    fill(storage, *(f"x/{n}.jsonl" for n in range(5)))
    passing = Fault(Kind.TRANSIENT, "broken", status=500)
    storage.faults = deque([passing, passing, None, None, passing, None, None, Fault(Kind.SLOW_DOWN, "busy"), None])
    assert texts("fake://b/x") == [f"x/{n}.jsonl" for n in range(5)]


def test_a_look_that_is_forbidden_where_listing_is_not(storage: Storage) -> None:
    fill(storage, "x/a.jsonl")
    storage.fault = lambda call: Fault(Kind.FORBIDDEN, "no") if call.what == "look" else None
    assert texts("fake://b/x") == ["x/a.jsonl"]


def test_all_is_forbidden(storage: Storage) -> None:  # C04
    storage.fault = lambda call: Fault(Kind.FORBIDDEN, "Access Denied", status=403, request="R7")
    for url, key in (("fake://b/x", "x/"), ("fake://b/x/", "x/"), ("fake://b/x/a*", "x/a"), ("fake://b/", "")):
        with pytest.raises(ShardError) as caught:
            Dataset.from_path("d", url)
        assert str(caught.value) == (
            f"dataset 'd': {url}: fake://b/{key} may not be read with these credentials: HTTP 403: Access Denied (request R7)"
        )


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.CHANGED])
def test_a_look_that_fails_is_no_missing_object(kind: Kind, storage: Storage) -> None:  # C04
    fill(storage, "x/a.jsonl")
    storage.faults.append(Fault(kind, "301: the bucket is in eu-west-1"))
    message = said(lambda: Dataset.from_path("d", "fake://b/x"))
    assert message.startswith("dataset 'd': fake://b/x: fake://b/x ")
    assert message.endswith(": 301: the bucket is in eu-west-1")


# Settings


def test_storage_options_reach_the_connection(scheme: FakeScheme, storage: Storage) -> None:
    fill(storage, "x/a.jsonl")
    dataset = Dataset.from_path("d", "fake://b/x/", storage_options={"anon": True, "client_kwargs": {"a": 1}})
    assert whole(dataset).column("text") == ["x/a.jsonl"]
    assert {repr(options) for _, options, _ in scheme.opened} == {"{'anon': True, 'client_kwargs': {'a': 1}}"}
    assert "anon" not in repr(dataset)


@pytest.mark.parametrize("options", [[], "anon", 1, {1: 2}, [("anon", True)], {None: 1}])
def test_storage_options_that_are_none(options: Any, storage: Storage) -> None:
    message = said(lambda: Dataset.from_path("d", "fake://b/x", storage_options=options))
    assert message == f"dataset 'd': storage_options is a dict of settings by name, not {type(options).__name__}"
    assert storage.calls == []


def test_storage_options_are_for_urls(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line("a"))
    for path in (str(tmp_path), f"file://{tmp_path}", f"local://{tmp_path}"):
        message = said(lambda path=path: Dataset.from_path("d", path, storage_options={"anon": True}))  # type: ignore[misc]
        assert message == f"dataset 'd': storage_options (anon) are for URLs, and {path!r} is a path of this machine"
        assert texts(path, storage_options={}) == ["a"]


def test_file_urls_are_paths_and_nothing_is_decoded(tmp_path: Path) -> None:
    for name in ("a b", "a%20b", "a#b", "a?b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.jsonl").write_bytes(line(name))
        assert texts(f"file://{folder}") == [name]
        assert texts(f"file://{folder}/a.jsonl") == [name]
    assert texts(f"file://{tmp_path}/a[ ]b/*.jsonl") == ["a b"]


def test_a_path_that_exists_is_no_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: Storage) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs("fake:/b")
    Path("fake:/b/a.jsonl").write_bytes(line("local"))
    assert texts("fake://b") == ["local"]
    assert storage.calls == []


def test_a_url_that_names_nothing(scheme: FakeScheme) -> None:
    for url in ("fake://", "fake:///x"):
        assert said(lambda url=url: Dataset.from_path("d", url)) == f"dataset 'd': {url!r} names no bucket"  # type: ignore[misc]


def test_two_formats(storage: Storage) -> None:
    fill(storage, "x/a.jsonl", "x/b.parquet")
    with pytest.raises(DatasetError, match="jsonl") as caught:
        Dataset.from_path("d", "fake://b/x")
    assert "parquet" in str(caught.value)
    dataset = Dataset.from_path("d", "fake://b/x", format="jsonl")
    assert ([shard.name for shard in dataset.shards], dataset.ignored) == (["a.jsonl"], ("b.parquet",))


def test_a_read_beyond_the_end(storage: Storage) -> None:
    fill(storage, "x/a.jsonl")
    source = Dataset.from_path("d", "fake://b/x").open(0)
    size = source.size
    assert source.read(size, 0) == b""
    assert source.read(size - 1, 1) == b"\n"
    with pytest.raises(
        ShardError, match=rf"^dataset 'd', shard 'a.jsonl': there are no bytes {size} to {size + 1}, its size is {size}$"
    ):
        source.read(size, 1)


def test_an_object_that_changed_since_it_was_listed(storage: Storage) -> None:
    fill(storage, "x/a.jsonl")
    source = Dataset.from_path("d", "fake://b/x").open(0)
    storage.objects["x/a.jsonl"] = line("other"[:9])
    with pytest.raises(ShardError, match=r"shard 'a\.jsonl': fake://b/x/a\.jsonl has changed since it was listed"):
        source.read(0, 1)
    del storage.objects["x/a.jsonl"]
    with pytest.raises(ShardError, match=r"shard 'a\.jsonl': fake://b/x/a\.jsonl is not there"):
        source.read(0, 1)


def test_it_travels_to_other_processes(storage: Storage) -> None:
    fill(storage, "x/a.jsonl", "x/.b", "x/y/c.jsonl")
    dataset = Dataset.from_path("d", "fake://b/x", storage_options={"key": "k"})
    moved = pickle.loads(pickle.dumps(dataset))
    assert (moved.shards, moved.ignored) == (dataset.shards, dataset.ignored)
    assert moved.open(0).place == dataset.open(0).place  # type: ignore[attr-defined]
    assert whole(moved).column("text") == ["x/a.jsonl", "x/y/c.jsonl"]


# Pipelines


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_pipeline_gives_what_it_gives_of_local_files(shuffle: bool, tmp_path: Path, storage: Storage) -> None:
    for shard in range(5):
        lines = b"".join(line(f"text {shard} {n}" * (1 + n % 7)) for n in range(200))
        (tmp_path / f"{shard}.jsonl").write_bytes(lines)
        storage.objects[f"x/{shard}.jsonl"] = lines
    storage.piece = 1_000
    digests, passing = [], Fault(Kind.TRANSIENT, "reset")
    for path in (str(tmp_path), "fake://b/x"):
        dataset = Dataset.from_path("d", path, unit_bytes=4_096, block_bytes=1_024)
        source = StaticMixtureWorkSource([dataset], {"d": 1}, seed=3, shuffle=shuffle, epochs=1)
        storage.faults.extend([passing, None] * 3)
        taken = batches(Pipeline(source).options(lanes=2, workers=2, chunk_rows=32).shuffle(buffer_size=64, seed=1).batch(10))
        assert sorted(column(taken, "text")) == sorted(column(batches(Pipeline(in_order(dataset)).batch(10)), "text"))
        digests.append([batch.digest() for batch in taken])
    assert digests[0] == digests[1]
    assert len(digests[0]) == 100
    assert storage.open_connections == 0
