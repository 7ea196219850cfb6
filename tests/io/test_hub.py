"""Datasets of a Hub on loopback: what short names of splits stand for, by the card, by names of files, or converted."""

import hashlib
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.system.fake_hub import CONVERSION, FakeHub, fake_hub
from tests.system.http_server import Request, Trouble
from tests.taken import taken
from tests.whole import whole
from zephon_async import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon_async.errors import CheckpointError, DatasetError, RecipeError, ShardError, ZephonError
from zephon_async.io import Access, copied

TOKENIZER = Path(__file__).parent.parent / "laws/tokenizer.json"
UNREAD = "of its files there not all, or none, are of a format that is read (format= reads .json as 'jsonl', .txt as 'text')"
WIKI, NEWS = "datasets/Salesforce/wikitext", "datasets/fancyzhx/ag_news"


def parquet(texts: Sequence[str], **columns: Sequence[Any]) -> bytes:
    body = io.BytesIO()
    pq.write_table(pa.table({"text": list(texts), **columns}), body, row_group_size=40)
    return body.getvalue()


def lines(*texts: str) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def split(name: str, path: str) -> dict[str, str]:
    return {"split": name, "path": path}


def wiki(config: str, name: str, rows: int = 90) -> bytes:
    return parquet([f" = {config} {name} {row} = \n" * (row % 4) for row in range(rows)])


def fill(hub: FakeHub) -> dict[str, str]:
    """Both datasets in miniature, as they lie on the Hub; their commits."""
    configs = ["wikitext-103-raw-v1", "wikitext-2-raw-v1"]
    splits = {"test": 1, "train": 2, "validation": 1}
    card = {
        "configs": [
            {"config_name": config, "data_files": [split(name, f"{config}/{name}-*") for name in splits]} for config in configs
        ]
    }
    files = {
        f"{config}/{name}-{number:05}-of-{shards:05}.parquet": wiki(config, f"{name} {number}")
        for config in configs
        for name, shards in splits.items()
        for number in range(shards)
    }
    about = {"README.md": b"---\nconfigs: ...\n---\n", ".gitattributes": b"*.parquet filter=lfs"}
    news = {
        f"data/{name}-00000-of-00001.parquet": parquet([f"{name} news {row}" for row in range(rows)], label=[1] * rows)
        for name, rows in {"train": 120, "test": 30}.items()
    }
    card_of_news = {
        "configs": [
            {"config_name": "default", "data_files": [split(name, f"data/{name}-*") for name in ("train", "test")]},
        ]
    }
    return {"wiki": hub.push(WIKI, files | about, card), "news": hub.push(NEWS, news | about, card_of_news)}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with fake_hub() as server:
        for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "ZEPHON_HF_ALLOW_PARTIAL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_ENDPOINT", server.server.url)
        yield server


def names_of(url: str, **settings: Any) -> list[str]:
    return [shard.name for shard in Dataset.from_path("d", url, **settings).shards]


def said(url: str, kind: type[ZephonError] = DatasetError, **settings: Any) -> str:
    """What is said of a URL, without the name of the dataset and the URL."""
    with pytest.raises(kind) as caught:
        Dataset.from_path("d", url, **settings)
    return str(caught.value).removeprefix("dataset 'd': ").removeprefix(f"{url!r}: ")


# the two datasets


def test_both_datasets_are_read_as_written(hub: FakeHub) -> None:
    commits = fill(hub)
    train = Dataset.from_path("wiki", "hf://Salesforce/wikitext/wikitext-2-raw-v1/train")
    news = Dataset.from_path("news", "hf://fancyzhx/ag_news/default/train")
    assert [shard.name for shard in train.shards] == [f"wikitext-2-raw-v1/train-0000{n}-of-00002.parquet" for n in (0, 1)]
    assert (train.settings()["commit"], news.settings()["commit"]) == (commits["wiki"], commits["news"])
    assert (train.total(), news.total()) == (180, 120)
    assert whole(train).column("text") == [f" = wikitext-2-raw-v1 train {n} {r} = \n" * (r % 4) for n in (0, 1) for r in range(90)]
    assert whole(news).column("label") == [1] * 120
    assert not [asked for asked in hub.asked if asked.startswith("HEAD")]


@pytest.mark.parametrize("options", [{"runner": "inline"}, {"runner": "threads", "workers": 2, "chunk_rows": 7}])
def test_the_whole_pipeline_runs_over_both(hub: FakeHub, tmp_path: Path, options: Mapping[str, Any]) -> None:
    fill(hub)

    def pipeline(urls: Mapping[str, str], tokenizer: str = str(TOKENIZER), **more: Any) -> Pipeline:
        source = StaticMixtureWorkSource(
            datasets=[Dataset.from_path(name, url) for name, url in urls.items()],
            mixture={"wiki": 0.5, "news": 0.5},
            token_estimation=TokenEstimation(),
            seed=42,
        )
        return (
            Pipeline(source)
            .options(lanes=4, **options, **more)
            .tokenize(tokenizer_id=tokenizer, field="text", parallelism=2)
            .pack_flat(max_length=32, algorithm="wrap")
            .shuffle(buffer_size=16, seed=42)
            .batch(microbatch_size=4)
        )

    for name, repository, folder in (("wiki", WIKI, "wikitext-2-raw-v1/train"), ("news", NEWS, "data/train")):
        for path, body in hub.files(repository).items():
            if path.startswith(folder):
                (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name / path).write_bytes(body)
    near = taken(pipeline({name: str(tmp_path / name) for name in ("wiki", "news")}), 40)
    hub.push("models/o/tokens", {"tokenizer.json": TOKENIZER.read_bytes()})
    urls = {"wiki": "hf://Salesforce/wikitext/wikitext-2-raw-v1/train", "news": "hf://fancyzhx/ag_news/default/train"}
    cached = {"io_options": {"cache": {"enabled": True, "root": str(tmp_path / "cache")}}}
    for more in ({}, cached, cached):
        far = taken(pipeline(urls, "hf://o/tokens/tokenizer.json", **more), 40)
        assert [batch.to_pylist("input_ids") for batch in far] == [batch.to_pylist("input_ids") for batch in near]


def test_a_new_commit_is_another_recipe_and_does_not_change_this_one(hub: FakeHub) -> None:
    fill(hub)
    url = "hf://fancyzhx/ag_news/default/train"
    before = Dataset.from_path("news", url)
    old = hub.files(NEWS)
    after = hub.push(NEWS, old | {"other.txt": b"x"}, {"configs": [{"data_files": "data/train-*"}]})
    now, pinned = Dataset.from_path("news", url), Dataset.from_path("news", f"hf://fancyzhx/ag_news@{before.store.commit}/train")
    hub.push(NEWS, {"data/train-00000-of-00001.parquet": parquet(["other"])})
    assert (now.store.commit, pinned.store.commit) == (after, before.store.commit)
    assert {**now.settings(), "commit": before.store.commit} == before.settings() == pinned.settings()
    assert whole(before).column("text") == whole(pinned).column("text") == [f"train news {row}" for row in range(120)]


# what a URL stands for


def test_a_split_alone_is_one_of_the_default_config(hub: FakeHub) -> None:
    hub.push("datasets/o/n", {"a.jsonl": lines("a"), "b.jsonl": lines("b")}, {"configs": [{"data_files": "a.jsonl"}]})
    assert names_of("hf://o/n/train") == names_of("hf://o/n/default/train") == names_of("HF://o/n@main/train/") == ["a.jsonl"]
    configs = [{"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "y", "data_files": "b.jsonl", "default": True}]
    hub.push("datasets/o/n", hub.files("datasets/o/n"), {"configs": configs})
    assert (names_of("hf://o/n/train"), names_of("hf://o/n/x/train")) == (["b.jsonl"], ["a.jsonl"])


@pytest.mark.parametrize("revision", ["dev", "refs/pr/1", "feature/x"])
def test_revisions_of_many_spellings(hub: FakeHub, revision: str) -> None:
    hub.push("datasets/o/n", {"train.jsonl": lines("main")})
    commit = hub.push("datasets/o/n", {"train.jsonl": lines("branch")}, branch=revision)
    written = revision if revision.startswith("refs/") else revision.replace("/", "%2F")
    for at in (written, commit, f"{written}~original"):
        dataset = Dataset.from_path("d", f"hf://o/n@{at}/train")
        assert (dataset.store.commit, whole(dataset).column("text")) == (commit, ["branch"])
    long = Dataset.from_path("d", f"hf://datasets/o/n@{written}/train.jsonl")
    assert (long.store.commit, whole(long).column("text")) == (commit, ["branch"])


def test_files_folders_and_globs_as_in_fsspec(hub: FakeHub) -> None:
    files = {"data/a.jsonl": lines("a"), "data/x/b.jsonl": lines("b"), "data/[c].jsonl": lines("c"), "d.jsonl": lines("d")}
    commit = hub.push("datasets/o/n", files)
    assert names_of("hf://datasets/o/n/data/a.jsonl") == ["a.jsonl"]
    assert names_of("hf://datasets/o/n/data") == names_of("hf://datasets/o/n/data/") == ["[c].jsonl", "a.jsonl", "x/b.jsonl"]
    assert names_of("hf://datasets/o/n/data/[[]*.jsonl") == ["[c].jsonl"]
    assert names_of("hf://datasets/o/n/data/[c].jsonl") == ["[c].jsonl"]
    assert names_of("hf://datasets/o/n/**/b.jsonl") == ["data/x/b.jsonl"]
    assert names_of("hf://datasets/o/n") == ["d.jsonl", "data/[c].jsonl", "data/a.jsonl", "data/x/b.jsonl"]
    assert Dataset.from_path("d", "hf://datasets/o/n/data/*").settings()["commit"] == commit
    assert said("hf://datasets/o/n/none") == f"'hf://datasets/o/n@{commit}/none': there is no such object, and no object below it"


def test_files_of_cards_without_patterns_and_of_no_card_are_told_by_their_names(hub: FakeHub) -> None:
    files = {f"{config}/{name}.jsonl": lines(config, name) for config in ("en", "de") for name in ("train", "test")}
    hub.push("datasets/o/n", files, {"configs": [{"config_name": "german", "data_dir": "de"}]})
    assert names_of("hf://o/n/german/test") == ["de/test.jsonl"]
    hub.push("datasets/o/n", files)
    assert names_of("hf://o/n/de/test") == ["de/test.jsonl"]
    assert names_of("hf://o/n/test") == ["de/test.jsonl", "en/test.jsonl"]
    assert said("hf://o/n/fr/test") == "there is no config 'fr'; its configs are 'default', 'de', 'en'"


def test_lines_may_be_named_json_where_that_is_said(hub: FakeHub) -> None:
    hub.push("datasets/o/n", {"train.json": lines("a"), "README.md": b"x"})
    assert names_of("hf://o/n/train", format="jsonl") == ["train.json"]


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("", "'{url}': it has the configs 'big', 'small': say which, {grammar}"),
        ("/train", "'{url}': it has the configs 'big', 'small': say which, {grammar}"),
        ("/small", "'{url}': 'small' is a config: say which split of it, {grammar}"),
        ("/smal/train", "'{url}': there is no config 'smal'; its configs are 'big', 'small'; did you mean 'small'?"),
        ("/small/trian", "'{url}': 'small' has no split 'trian'; its splits are 'test', 'train'; did you mean 'train'?"),
        ("@~parket/small/train", "'{url}': there is no '~parket'; did you mean 'parquet'?"),
        ("/a/b/c", "'{url}' names more than a config and a split: a file is 'hf://datasets/o/n/folder/file'"),
        ("@~parquet/small/train", "'{url}': there is no Parquet conversion of it"),
        (
            "@v1~parquet/small/train",
            "'{url}': the Hub converts its newest commit, and not 'v1': leave out the revision, or ~parquet",
        ),
    ],
)
def test_what_there_is_instead_is_said(hub: FakeHub, rest: str, says: str) -> None:
    files = {f"{name}.jsonl": lines(name) for name in ("train", "test")}
    data_files = [split("test", "test.jsonl"), split("train", "train.jsonl")]
    hub.push("datasets/o/n", files, {"configs": [{"config_name": name, "data_files": data_files} for name in ("big", "small")]})
    url = f"hf://o/n{rest}"
    grammar = "'hf://org/name/split' or 'hf://org/name/config/split', with '@revision' or '@~parquet' behind the name"
    with pytest.raises((DatasetError, RecipeError)) as caught:
        Dataset.from_path("d", url)
    assert str(caught.value) == "dataset 'd': " + says.format(url=url, grammar=grammar)


def test_no_split_is_said_with_those_there_are(hub: FakeHub) -> None:
    fill(hub)
    assert said("hf://fancyzhx/ag_news").startswith("names no split; those of 'default' are 'train', 'test': ")


@pytest.mark.parametrize("url", ["hf://", "hf://o", "hf://o/n~parquet/train", "hf://datasets/o", "hf://o o/n"])
def test_a_url_that_names_nothing_is_refused(hub: FakeHub, url: str) -> None:
    assert said(url, RecipeError).startswith(f"{url!r} names no repository: give a URL such as 'hf://datasets/org/name/folder/")


def test_a_card_that_cannot_be_meant_is_said_to_be_one(hub: FakeHub) -> None:
    hub.push("datasets/o/n", {"a.jsonl": b""}, {"configs": [{"data_files": 5}]})
    assert said("hf://o/n/train") == "its card has data_files of the config 'default' that cannot be meant: 5"
    hub.push("datasets/o/n", {"a.jsonl": b""}, {"configs": [{"data_files": "b*"}]})
    assert said("hf://o/n/train") == "its card says that the split 'train' of 'default' is 'b*', and there is no such file"


def test_only_the_folders_of_the_patterns_are_listed(hub: FakeHub) -> None:
    fill(hub)
    names_of("hf://Salesforce/wikitext/wikitext-2-raw-v1/test")
    listed = [asked.partition("/tree/")[2].partition("/")[2] for asked in hub.asked if "/tree/" in asked]
    assert listed == ["wikitext-2-raw-v1?recursive=true", "wikitext-2-raw-v1?recursive=true&cursor=3"]


@pytest.mark.parametrize("cursors", [["1"], ["1", "2"], ["1", "2", "3"]])
def test_a_listing_that_leads_round_and_round_is_refused(hub: FakeHub, cursors: list[str]) -> None:
    hub.push("datasets/o/n", {"a.jsonl": b""})
    right, pages = hub.server.trouble, count()

    def answer(request: Request) -> Trouble | None:
        if "/tree/" not in request.path:
            return right(request)
        there = f"{hub.server.url}t?cursor={cursors[next(pages) % len(cursors)]}"
        return Trouble(status=200, headers={"Content-Type": "application/json", "Link": f'<{there}>; rel="next"'}, body=b"[]")

    hub.server.trouble = answer
    assert said("hf://o/n/train", ShardError).endswith("the listing says that there is more, and not where it goes on")
    assert next(pages) == len(cursors) + 1


# the conversion


def converted(hub: FakeHub, *folders: str) -> str:
    files = {f"{folder}/0000.parquet": parquet([folder]) for folder in folders}
    return hub.push("datasets/o/n", files, branch=CONVERSION)


def test_what_cannot_be_read_is_read_as_converted(hub: FakeHub) -> None:
    hub.push("datasets/o/n", {"n.py": b"", "data.zip": b"x"})
    commit = converted(hub, "default/train", "default/test", "b/train")
    for url in ("hf://o/n/train", "hf://o/n/default/train", "hf://o/n@~parquet/train", f"hf://o/n@{commit}~parquet/train"):
        dataset = Dataset.from_path("d", url)
        assert (dataset.store.commit, whole(dataset).column("text")) == (commit, ["default/train"])
    assert names_of("hf://o/n/b/train") == ["b/train/0000.parquet"]
    assert said("hf://o/n@~original/train") == f"{UNREAD}; without ~original its Parquet conversion would be"
    assert said("hf://o/n/c/train") == "there is no config 'c'; its configs are 'b', 'default'"
    assert said("hf://o/n/valid") == "'default' has no split 'valid'; its splits are 'test', 'train'"


def test_what_can_be_read_is_not_taken_from_the_conversion_but_where_it_is_asked_for(hub: FakeHub) -> None:
    hub.push("datasets/o/n", {"train.jsonl": lines("own")})
    converted(hub, "default/train")
    assert names_of("hf://o/n/train") == names_of("hf://o/n@~original/train") == ["train.jsonl"]
    assert names_of("hf://o/n@~parquet/train") == ["default/train/0000.parquet"]


@pytest.mark.parametrize(
    ("files", "card"),
    [
        ({"train.json": b"{}", "labels.csv": b"a\n1\n"}, None),
        ({"train/1.txt": b"a", "labels.csv": b"a\n1\n"}, None),
        ({"a.jsonl": lines("a"), "b.json": lines("b")}, {"configs": [{"data_files": ["a.jsonl", "b.json"]}]}),
    ],
)
def test_files_that_are_not_all_of_a_split_are_not_taken_for_it(
    hub: FakeHub, files: Mapping[str, bytes], card: Mapping[str, Any] | None
) -> None:
    hub.push("datasets/o/n", files, card)
    assert said("hf://o/n/train") == f"{UNREAD}; there is no Parquet conversion of it"
    converted(hub, "default/train")
    assert names_of("hf://o/n/train") == ["default/train/0000.parquet"]


@pytest.mark.parametrize("card", [None, {"configs": [{"data_files": "data/*"}]}])
def test_files_beside_the_data_of_a_split_cost_nothing(hub: FakeHub, card: Mapping[str, Any] | None) -> None:
    hub.push("datasets/o/n", {"data/a.jsonl": lines("a"), "data/about.json": b"{}", "data/LICENCE.txt": b"x"}, card)
    assert names_of("hf://o/n/train") == ["data/a.jsonl"]


def test_a_partial_conversion_is_taken_only_where_it_is_asked_for(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push("datasets/o/n", {"n.zip": b""})
    converted(hub, "default/partial-train", "default/test")
    assert said("hf://o/n/train") == (
        f"{UNREAD}; its Parquet conversion has only the first part of default/train; '@~parquet' takes that"
    )
    assert names_of("hf://o/n/test") == ["default/test/0000.parquet"]
    assert names_of("hf://o/n@~parquet/train") == ["default/partial-train/0000.parquet"]
    monkeypatch.setenv("ZEPHON_HF_ALLOW_PARTIAL", "1")
    assert names_of("hf://o/n/train") == ["default/partial-train/0000.parquet"]


def test_an_older_commit_has_no_conversion(hub: FakeHub) -> None:
    old = hub.push("datasets/o/n", {"n.zip": b""})
    assert said("hf://o/n/train") == f"{UNREAD}; there is no Parquet conversion of it"
    converted(hub, "default/train")
    assert names_of(f"hf://o/n@{old}/train") == ["default/train/0000.parquet"]
    hub.push("datasets/o/n", {"n.zip": b"2"})
    assert said(f"hf://o/n@{old}/train").endswith("has a Parquet conversion of its newest commit alone: '@~parquet' takes it")
    assert said(f"hf://o/n@{old}~parquet/train") == f"there is no Parquet conversion at {old}"


# bytes


def test_where_a_file_was_sent_on_to_is_asked_again_until_it_refuses(hub: FakeHub) -> None:
    texts = [f"{row} {hashlib.sha256(str(row).encode()).hexdigest()}" for row in range(200)]
    commit = hub.push("datasets/o/n", {"train.parquet": parquet(texts)})
    dataset = Dataset.from_path("d", "hf://o/n/train")
    resolved = f"GET /datasets/o/n/resolve/{commit}/train.parquet"
    with Access() as access:
        source = dataset.open(0, access)
        for offset in (0, 5_000, 10_000):
            assert source.read(offset, 10) == hub.files("datasets/o/n")["train.parquet"][offset : offset + 10]
        assert hub.asked.count(resolved) == 1
        hub.others.troubles.append(Trouble(status=403))
        assert source.read(7_000, 10) == hub.files("datasets/o/n")["train.parquet"][7_000:7_010]
        assert hub.asked.count(resolved) == 2
    assert len(hub.others.requests) == 5
    assert "Signature=a%2Bb~c%20" in {urlsplit(request.path).query for request in hub.others.requests}


def test_faults_of_the_hub_are_borne(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon_async.io.transfer._FIRST_PAUSE_S", 0.0)
    fill(hub)
    hub.server.troubles += [Trouble(status=500), Trouble(status=503)]
    dataset = Dataset.from_path("news", "hf://fancyzhx/ag_news/train")
    hub.server.troubles += [Trouble(status=429), Trouble(status=502)]
    hub.others.troubles += [Trouble(reset_after=5), Trouble(status=503)]
    assert whole(dataset).column("text") == [f"train news {row}" for row in range(120)]


def test_a_file_of_a_model_is_copied(hub: FakeHub) -> None:
    hub.push("models/o/m", {"tokenizer.json": b"{}" * 1_000, "x.bin": b""})
    for url in ("hf://o/m/tokenizer.json", "hf://models/o/m@main/tokenizer.json"):
        with copied(url, {}, ["tokenizer_config.json"]) as path:
            assert Path(path).read_bytes() == b"{}" * 1_000


# who may read


def private(hub: FakeHub, is_gated: bool = False) -> None:
    fill(hub)
    hub.repositories[NEWS].tokens, hub.repositories[NEWS].is_gated = frozenset({"hf_right"}), is_gated


def test_a_token_is_found_where_it_may_lie_and_goes_to_no_other_host(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private(hub)
    url = "hf://fancyzhx/ag_news/train"

    def given(**options: Any) -> None:
        dataset = Dataset.from_path("news", url, storage_options=options)
        assert whole(dataset).column("text") == [f"train news {row}" for row in range(120)]

    given(token="hf_right")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/token").write_text("hf_right\n")
    given()
    given(token=True)
    (tmp_path / "other").write_text("hf_right")
    (tmp_path / "home/token").write_text("hf_wrong")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "other"))
    given()
    (tmp_path / "other").write_text("hf_wrong")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    given(endpoint=hub.server.url.rstrip("/"))
    assert hub.others.requests
    assert all("authorization" not in request.headers for request in hub.others.requests)
    assert {request.headers["authorization"] for request in hub.server.requests} == {"Bearer hf_right"}


def test_what_may_not_be_read_is_said_with_what_to_do(hub: FakeHub) -> None:
    private(hub)
    page = f"{hub.server.url}datasets/fancyzhx/ag_news"
    how = "storage_options={'token': ...}, HF_TOKEN or `hf auth login`"
    begin = "hf://datasets/fancyzhx/ag_news@main/ may not be read with these credentials: HTTP 401: Repository not found"
    url = "hf://fancyzhx/ag_news/train"
    assert said(url, ShardError) == f"{begin}; there is no {page}, or it wants a token: {how}"
    wrong = {"token": "hf_wrong"}
    assert said(url, ShardError, storage_options=wrong) == f"{begin}; there is no {page}, or it is private to this token"


@pytest.mark.parametrize("token", [False, "hf_wrong"])
def test_a_gated_dataset_is_said_to_be_one(hub: FakeHub, token: str | bool) -> None:
    private(hub, is_gated=True)
    where = f"it is gated: accept its terms at {hub.server.url}datasets/fancyzhx/ag_news"
    how = "storage_options={'token': ...}, HF_TOKEN or `hf auth login`"
    what = "with the account of this token" if token else f"and give a token of that account ({how})"
    says = said("hf://fancyzhx/ag_news/train", ShardError, storage_options={"token": token})
    status = 403 if token else 401
    assert f"may not be read with these credentials: HTTP {status}: Access to dataset fancyzhx/ag_news is restricted; " in says
    assert says.endswith(f"; {where}, {what}")


def test_a_revision_that_is_not_there_is_named(hub: FakeHub) -> None:
    fill(hub)
    says = "hf://datasets/fancyzhx/ag_news@v9/ is not there: HTTP 404: Invalid rev id: v9"
    assert said("hf://fancyzhx/ag_news@v9/train", ShardError) == says


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tokn": "x"}, "hf:// has no storage option 'tokn'; did you mean 'token'?"),
        ({"token": 5}, "hf://: token is a text, None (that of this machine) or False (none), not int"),
        ({"endpoint": "hub"}, "the endpoint of hf:// is 'hub': it must be a URL such as 'https://huggingface.co'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(hub: FakeHub, options: Mapping[str, Any], says: str) -> None:
    assert said("hf://o/n/train", RecipeError, storage_options=options) == says


def test_a_library_that_is_not_there_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from zephon_async.io.stores import find_scheme

    find_scheme("hf")  # before it is gone
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert said("hf://o/n/train", RecipeError).startswith(
        "hf:// needs a library that is not there: install it with `pip install 'zephon-async[http]'` ("
    )


def test_a_run_is_not_resumed_over_another_commit(hub: FakeHub) -> None:
    fill(hub)

    def pipeline(url: str) -> Pipeline:
        return Pipeline(StaticMixtureWorkSource([Dataset.from_path("news", url)], {"news": 1})).batch(8)

    url = "hf://fancyzhx/ag_news/train"
    with pipeline(url) as begun:
        next(iter(begun))
        state, commit = begun.checkpoint(), Dataset.from_path("news", url).store.commit
    now = hub.push(NEWS, hub.files(NEWS), {"configs": [{"data_files": [split("train", "data/train-*")]}]})
    with pytest.raises(CheckpointError) as caught, pipeline(url) as resumed:
        next(iter(resumed.restore(state)))
    assert str(caught.value) == (
        "the checkpoint was made with another recipe, so it cannot go on here:\n"
        f"  dataset news commit: {commit!r} in the checkpoint, {now!r} here"
    )
    with pipeline(f"hf://fancyzhx/ag_news@{commit}/train") as resumed:
        resumed.restore(state)
        assert next(iter(resumed)).to_pylist("text")
