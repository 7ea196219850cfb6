"""Repositories of the Hugging Face Hub, by hf://, over the connection to web servers.

Takes the URLs of fsspec: `hf://datasets/org/name[@revision]/path`, `hf://spaces/...`, and `hf://org/name[@revision]/path` of a
model. (The short form that names a config and a split of a dataset is resolved to these before: `zephon_async.io.hub`.) Buckets
are left to fsspec. Options are `token`, `endpoint`, and `client_kwargs` of the session of aiohttp. Neither huggingface_hub nor a
parser of YAML is needed.

Names, sizes and tags come from the tree of a revision, a page at a time. The tag of a file is the hash of its content, of git or
of LFS. Bytes are asked of the endpoint, which sends most requests on to another host: the token does not go along. Under a commit
of 40 hex digits nothing can change, so where a file was sent on to is asked again, without the Hub, as long as that answers; under
another revision what comes is compared with the tag.

The token is the option, else HF_TOKEN, else the file that `hf auth login` writes (HF_TOKEN_PATH, HF_HOME); the endpoint is the
option, else HF_ENDPOINT. `token=False` sends none.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from zephon_async.checks import nearest
from zephon_async.errors import RecipeError
from zephon_async.io.stores.connection import Connection, Fault, Kind, Object
from zephon_async.io.stores.faults import fault_of
from zephon_async.io.stores.http import CONNECT_S, SILENCE_S, HttpConnection

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from yarl import URL

REVISION = r"refs/(?:convert|pr)/[^/~]+|[^/~]+"
NAME = r"[\w.-]+/[\w.-]+"
_ROOT = re.compile(
    rf"(?i:hf)://(?:(?P<kind>datasets|spaces|models|buckets)/)?+(?P<name>{NAME})(?:@(?P<revision>{REVISION}))?(?:/|$)"
)
_COMMIT = re.compile("[0-9a-f]{40}")
_NEXT = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next\b')
_OPTIONS = ("client_kwargs", "endpoint", "token")
_HUB = "https://huggingface.co"
_MOST_MOVED = 1_000  # keys
_HOW = "storage_options={'token': ...}, HF_TOKEN or `hf auth login`"


def is_commit(revision: str) -> bool:
    """Whether a revision can never be of other content."""
    return _COMMIT.fullmatch(revision) is not None


class Repository(NamedTuple):
    """One revision of a repository. kind: "datasets", "models" or "spaces"; name: "org/name"."""

    kind: str
    name: str
    revision: str

    @property
    def page(self) -> str:
        """Its page for people, below the endpoint."""
        return self.name if self.kind == "models" else f"{self.kind}/{self.name}"

    def files(self, key: str) -> str:
        """Where the bytes of a file are, below the endpoint."""
        return f"{self.page}/resolve/{quote(self.revision, safe='')}/{quote(key)}"

    def api(self, what: str, key: str = "") -> str:
        """Where the Hub answers questions about it, below the endpoint."""
        return f"api/{self.kind}/{self.name}/{what}/{quote(self.revision, safe='')}{'/' if key else ''}{quote(key)}"


class HubScheme:
    """Opens connections to repositories."""

    def split(self, url: str) -> tuple[str, str]:
        match = _ROOT.match(url)
        if not match:
            raise RecipeError(f"{url!r} names no repository: give a URL such as 'hf://datasets/org/name/folder/file.parquet'")
        return match[0], url[match.end() :]

    async def open(self, root: str, options: Mapping[str, Any], most: int) -> Connection:
        match = _ROOT.fullmatch(root)
        if match is None:
            raise RecipeError(f"{root!r} names no repository")
        if match["kind"] == "buckets":
            from zephon_async.io.stores.fsspec import SCHEME as OTHERS

            return await OTHERS.open(root, options, most)
        for name in options:
            if name not in _OPTIONS:
                raise RecipeError(f"hf:// has no storage option {name!r}; {nearest(name, _OPTIONS)}")
        try:
            import aiohttp
        except ImportError as error:
            raise RecipeError(
                f"hf:// needs a library that is not there: install it with `pip install 'zephon-async[http]'` ({error})"
            ) from error
        repository = Repository(match["kind"] or "models", match["name"], unquote(match["revision"] or "main"))
        token, endpoint = _token(options.get("token")), _endpoint(options.get("endpoint"))
        try:
            session = aiohttp.ClientSession(
                **{
                    "timeout": aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S),
                    "connector": aiohttp.TCPConnector(limit=most),
                    "auto_decompress": False,
                    "requote_redirect_url": False,  # the signature of a signed URL is over what is written
                    **(options.get("client_kwargs") or {}),
                }
            )
        except (TypeError, ValueError) as error:
            raise RecipeError(f"hf:// cannot be opened with client_kwargs: {error}") from error
        return HubConnection(endpoint, repository, session, token)


SCHEME = HubScheme()


class HubConnection(HttpConnection):
    """One repository."""

    forbidden = ""  # see `_advice`

    def __init__(self, endpoint: str, repository: Repository, session: "ClientSession", token: str) -> None:
        options = {"headers": {"Authorization": f"Bearer {token}"}} if token else {}
        super().__init__(f"{endpoint}/", session, options, as_is=True)
        self._repository, self._page, self._has_token = repository, f"{endpoint}/{repository.page}", bool(token)
        self._moved: dict[str, URL] = {}  # where keys were sent on to

    def __repr__(self) -> str:
        return f"<HubConnection {self._page!r}>"

    async def info(self) -> Mapping[str, Any]:
        """What the Hub says of the revision: its commit as "sha", the data of the card as "cardData"."""
        found, _ = await self._json("GET", self._repository.api("revision"))
        if not isinstance(found, Mapping) or not is_commit(str(found.get("sha"))):
            raise Fault(Kind.REFUSED, "the answer names no commit")
        return found

    def pages(self, prefix: str) -> "_Pages":
        return _Pages(self, prefix)

    async def page(self, folder: str, query: str) -> tuple[list[Object], str | None]:
        """Files below a folder, and the query of the page behind it."""
        try:
            found, following = await self._json("GET", f"{self._repository.api('tree', folder)}?{query}")
        except Fault as fault:
            if fault.kind is not Kind.MISSING or not folder:
                raise
            return [], None
        return _objects(found), following

    async def look(self, key: str) -> Object:
        found, _ = await self._json("POST", self._repository.api("paths-info"), {"paths": [key], "expand": False})
        for each in _objects(found):
            if each.key == key:
                return each
        raise Fault(Kind.MISSING, "the repository has no such file")

    async def read(
        self, key: str, offset: int, length: int, tag: str, sink: Callable[[bytes], object], size: int | None = None
    ) -> None:
        known = "" if is_commit(self._repository.revision) else tag
        await super().read(self._repository.files(key), offset, length, known, sink, size)

    async def _ask(self, method: str, key: str, body: object = None, **headers: str) -> "ClientResponse":
        if (there := self._moved.get(key)) is not None:
            try:
                answer = await self._session.request(method, there, headers={"Accept-Encoding": "identity", **headers})
            except Exception as error:
                self._moved.pop(key, None)
                raise fault_of(error) from error
            if answer.status in (200, 206):
                return answer
            answer.close()
            self._moved.pop(key, None)  # its signature has ended, say
        answer = await super()._ask(method, key, body, **headers)
        if answer.status == 206 and answer.history and is_commit(self._repository.revision):
            if len(self._moved) >= _MOST_MOVED:
                del self._moved[next(iter(self._moved))]
            self._moved[key] = answer.url
        return answer

    async def _json(self, method: str, key: str, body: object = None) -> tuple[Any, str | None]:
        """What an answer says, and the query of the next page, if there is one."""
        async with await self._ask(method, key, body) as answer:
            if answer.status != 200:
                raise await self._refusal(answer)
            following = _NEXT.search(answer.headers.get("Link", ""))
            try:
                return json.loads(await answer.read()), urlsplit(following[1]).query if following else None
            except ValueError as error:
                raise Fault(Kind.REFUSED, f"the answer is no JSON: {error}", status=200) from error
            except Exception as error:
                raise fault_of(error) from error

    def _compare(self, answer: "ClientResponse", tag: str) -> None:
        way = (*answer.history, answer)
        linked = [each.headers["X-Linked-Etag"] for each in way if "X-Linked-Etag" in each.headers]
        seen = linked[0] if linked else "" if answer.history else answer.headers.get("ETag", "")
        if tag and seen and seen.removeprefix("W/").strip('"') != tag:
            raise Fault(Kind.CHANGED, f"its tag was {tag} and is {seen}")

    async def _refusal(self, answer: "ClientResponse") -> Fault:
        fault = await super()._refusal(answer)
        code, said = answer.headers.get("X-Error-Code", ""), answer.headers.get("X-Error-Message", fault.args[0])
        fault.args = (f"{said}{self._advice(answer.status, code)}",)
        return fault

    def _advice(self, status: int, code: str) -> str:
        """What to do about a refusal, for the end of a message."""
        if code == "GatedRepo":
            account = "with the account of this token" if self._has_token else f"and give a token of that account ({_HOW})"
            return f"; it is gated: accept its terms at {self._page}, {account}"
        if status in (401, 403) or code == "RepoNotFound":
            reason = "is private to this token" if self._has_token else f"wants a token: {_HOW}"
            return f"; there is no {self._page}, or it {reason}"
        return ""


class _Pages:
    """Pages of a listing. One that failed may be asked for again."""

    def __init__(self, connection: HubConnection, prefix: str) -> None:
        self._connection, self._prefix = connection, prefix
        self._next: str | None = "recursive=true"
        self._seen = {self._next}  # pages: one that comes again leads round and round

    def __aiter__(self) -> "_Pages":
        return self

    async def __anext__(self) -> Sequence[Object]:
        if self._next is None:
            raise StopAsyncIteration
        found, following = await self._connection.page(self._prefix.rpartition("/")[0], self._next)
        if following in self._seen:
            raise Fault(Kind.REFUSED, "the listing says that there is more, and not where it goes on")
        self._next = following
        if following is not None:
            self._seen.add(following)
        return [each for each in found if each.key.startswith(self._prefix)]


def _objects(found: Any) -> list[Object]:
    """The files of a listing of the Hub."""
    try:
        files = [each for each in found if each["type"] == "file"]
        return [Object(each["path"], int(each["size"]), str((each.get("lfs") or each)["oid"])) for each in files]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise Fault(Kind.REFUSED, f"the answer is no listing ({type(error).__name__}: {error})") from error


def _endpoint(given: object) -> str:
    endpoint = str(given or os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise RecipeError(f"the endpoint of hf:// is {endpoint!r}: it must be a URL such as {_HUB!r}")
    return endpoint


def _token(given: object) -> str:
    """The token to be sent, "" for none."""
    if given is False:
        return ""
    if given not in (None, True):
        if not isinstance(given, str) or not given.strip():
            raise RecipeError(f"hf://: token is a text, None (that of this machine) or False (none), not {type(given).__name__}")
        return given.strip()
    if (found := os.environ.get("HF_TOKEN", "").strip()) or os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN") == "1":
        return found
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    path = Path(os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")).expanduser()
    try:
        return path.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise RecipeError(f"hf://: the token in {path} cannot be read ({error}); token=False sends none") from error
