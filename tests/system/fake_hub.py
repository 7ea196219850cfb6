"""A small Hugging Face Hub on loopback: repositories with branches of commits, their API, and another server for large files.

    with fake_hub() as hub:
        commit = hub.push("datasets/org/name", {"data/train.jsonl": b"..."}, card={"configs": [...]})
        Dataset.from_path("d", "hf://org/name/train", storage_options=hub.options)

It answers what the real one does as far as readers ask: revisions (with the data of the card), trees in pages, paths, files. A file
of more than `large_bytes` is sent on to the second server, which refuses whoever brings a token. A private repository answers 401
to who has none of its tokens, a gated one too, with another code.

Threads: those of its two servers, which read what the test sets between requests.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.system.http_server import HttpServer, Request, Trouble, http_server

CONVERSION = "refs/convert/parquet"


@dataclass
class Commit:
    files: Mapping[str, bytes]
    card: Mapping[str, Any]


@dataclass
class Repository:
    """tokens: with which it may be read; none: with any and without."""

    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    tokens: frozenset[str] = frozenset()
    is_gated: bool = False


class FakeHub:
    """page: entries of a page of a tree."""

    def __init__(self, server: HttpServer, others: HttpServer, page: int, large_bytes: int) -> None:
        self.server, self.others, self._page, self._large_bytes = server, others, page, large_bytes
        self.repositories: dict[str, Repository] = {}
        server.trouble, server.tag = self._answer, lambda body: f'"{git_oid(body)}"'
        others.trouble = lambda request: Trouble(status=400, body=b"a token!") if "authorization" in request.headers else None

    @property
    def options(self) -> dict[str, Any]:
        return {"endpoint": self.server.url, "token": False}

    @property
    def asked(self) -> list[str]:
        """The requests of the API, and of files, as they came."""
        return [f"{request.method} {unquote(request.path)}" for request in self.server.requests]

    def push(
        self,
        name: str,
        files: Mapping[str, bytes],
        card: Mapping[str, Any] | None = None,
        branch: str = "main",
    ) -> str:
        """Make a commit of exactly these files the newest of a branch."""
        repository = self.repositories.setdefault(name, Repository())
        commit = hashlib.sha1(f"{name} {branch} {len(repository.commits)}".encode()).hexdigest()
        repository.branches[branch] = commit
        repository.commits[commit] = Commit(dict(files), card or {})
        return commit

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        repository = self.repositories.get(name, Repository())
        return dict(repository.commits[repository.branches[branch]].files) if branch in repository.branches else {}

    def _answer(self, request: Request) -> Trouble:
        parts = urlsplit(request.path)
        path = parts.path.strip("/").split("/")
        if path[0] == "api":
            kind, org, name, what, revision, *inside = path[1:]
        else:
            kind, org, name, what, revision, *inside = path if path[0] in ("datasets", "spaces") else ("models", *path)
        repository = self.repositories.get(f"{kind}/{org}/{name}")
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if repository is None or (repository.tokens and token not in repository.tokens and not repository.is_gated):
            return _error(401, "RepoNotFound", "Repository not found")
        wanted = unquote(revision)
        commit = wanted if wanted in repository.commits else repository.branches.get(wanted, "")
        if not commit:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {wanted}")
        found, key = repository.commits[commit], unquote("/".join(inside))
        if what == "revision":
            return _said({"id": f"{org}/{name}", "sha": commit, "cardData": found.card})
        if repository.tokens and token not in repository.tokens:
            return _error(403 if token else 401, "GatedRepo", f"Access to dataset {org}/{name} is restricted")
        if what == "tree":
            return self._tree(found.files, key, request.path, parts.query)
        if what == "paths-info":
            paths = json.loads(request.body)["paths"]
            return _said([self._entry(each, found.files[each]) for each in paths if each in found.files])
        return self._file(found.files, key, request.path)

    def _tree(self, files: Mapping[str, bytes], folder: str, path: str, query: str) -> Trouble:
        below = {name for name in files if name.startswith(f"{folder}/" if folder else "")}
        if not below:
            return _error(404, "EntryNotFound", f"{folder} does not exist")
        folders = {name[:at] for name in below for at, sign in enumerate(name) if sign == "/" and at > len(folder)}
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": each} for each in sorted(folders)]
        entries += [self._entry(name, files[name]) for name in sorted(below)]
        at = int(parse_qs(query).get("cursor", ["0"])[0])
        link = {}
        if len(entries) > at + self._page:
            there = f"{self.server.url}{path.partition('?')[0].lstrip('/')}?recursive=true&cursor={at + self._page}"
            link = {"Link": f'<{there}>; rel="next"'}
        return _said(entries[at : at + self._page], link)

    def _entry(self, name: str, body: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "oid": git_oid(body), "size": len(body), "path": name}
        if len(body) > self._large_bytes:
            entry["lfs"] = {"oid": sha256(body), "size": len(body), "pointerSize": 134}
        return entry

    def _file(self, files: Mapping[str, bytes], key: str, path: str) -> Trouble:
        if (body := files.get(key)) is None:
            return _error(404, "EntryNotFound", "Entry not found")
        if len(body) <= self._large_bytes:
            self.server.files[path] = body
            return Trouble()
        self.others.files[where := f"/lfs/{sha256(body)}?Signature=a%2Bb~c%20"] = body
        there = f"{self.others.url}{where.lstrip('/')}"
        return Trouble(status=302, headers={"Location": there, "X-Linked-Etag": f'"{sha256(body)}"'})


def git_oid(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _said(answer: Any, headers: Mapping[str, str] | None = None) -> Trouble:
    return Trouble(status=200, headers={"Content-Type": "application/json", **(headers or {})}, body=json.dumps(answer).encode())


def _error(status: int, code: str, text: str) -> Trouble:
    return Trouble(status=status, headers={"X-Error-Code": code, "X-Error-Message": text}, body=text.encode())


@contextmanager
def fake_hub(page: int = 3, large_bytes: int = 600) -> Iterator[FakeHub]:
    with http_server() as server, http_server() as others:
        yield FakeHub(server, others, page, large_bytes)
