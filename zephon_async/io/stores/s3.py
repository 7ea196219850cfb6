"""S3, and whatever speaks as it does: URLs of s3:// and s3a://.

Takes `storage_options` as users of s3fs know them:

    key, secret, token      credentials; without them the usual chain: environment, ~/.aws, web identity, the machine's role ...
    anon                    True: requests are not signed
    profile                 of ~/.aws
    endpoint_url            of a server that is not Amazon's
    region_name             where the bucket is; a wrong one costs a redirect
    use_ssl, verify         TLS, and how certificates are checked: True, False, or the path of a bundle
    requester_pays          True: you pay
    connect_timeout, read_timeout   in seconds, 10 and 60; the second one is for silence, not for a whole read
    client_kwargs           region_name, endpoint_url, verify, use_ssl, aws_access_key_id ..., as for a client of boto
    config_kwargs           of botocore's Config: signature_version, s3={"addressing_style": "path"}, proxies ... (but its retries
                            stay off, since all storages are retried in one place)

Everything is checked before aiobotocore is loaded, which is when the first connection is opened.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zephon_async.checks import flag, nearest, shown
from zephon_async.errors import RecipeError
from zephon_async.io.stores.connection import Connection, Scheme

_URL = re.compile(r"(s3a?://(arn:[^/]*?:accesspoint[/:][^/]+|[^/]+)(?:/|$))(.*)", re.DOTALL)
_OF_CLIENTS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token"}
_HIDDEN = ("key", "secret", "token")


@dataclass(frozen=True, slots=True)
class Settings:
    """`storage_options` that can be meant. client, config: for botocore, only what was given."""

    key: str | None = None
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    anon: bool = False
    profile: str | None = None
    requester_pays: bool = False
    client: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.key is None) != (self.secret is None):
            raise RecipeError("storage_options of S3 need both of key and secret, or neither")
        if self.token is not None and self.key is None:
            raise RecipeError("storage_options of S3 have a token, which needs key and secret")
        if self.anon and self.key is not None:
            raise RecipeError("storage_options of S3 have anon=True and a key: leave out one of them")


class S3Scheme:
    """Opens connections to buckets."""

    def split(self, url: str) -> tuple[str, str]:
        match = _URL.fullmatch(url)
        if match is None:
            raise RecipeError(f"{url!r} names no bucket: write s3://bucket/key")
        return match[1], match[3]

    async def open(self, root: str, options: Mapping[str, Any], most: int) -> Connection:
        settings = settings_of(options)
        match = _URL.fullmatch(root)
        if match is None or match[3]:
            raise RecipeError(f"{root!r} names no bucket: write s3://bucket/")
        try:
            from zephon_async.io.stores.s3_connection import open_bucket
        except ImportError as error:
            raise RecipeError("s3:// URLs need aiobotocore: pip install 'zephon-async[s3]'") from error
        return await open_bucket(match[2], settings, most)


SCHEME: Scheme = S3Scheme()


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Check `storage_options`. Raises `RecipeError` for what cannot be meant. None is as good as nothing."""
    inner = _checked("client_kwargs of S3", options.get("client_kwargs") or {}, {**_CLIENT, **dict.fromkeys(_OF_CLIENTS, _text)})
    given = _checked("storage_options of S3", options, _OPTIONS)
    for name, value in inner.items():
        own = _OF_CLIENTS.get(name, name)
        if given.setdefault(own, value) != value:
            raise RecipeError(f"storage_options of S3 say {own!r} twice, in client_kwargs otherwise: leave out one of them")
    client = {name: given.pop(name) for name in _CLIENT if name in given}
    config = {name: given.pop(name) for name in _TIMEOUTS if name in given}
    config.update(given.pop("config_kwargs", {}))
    for name in _TIMEOUTS.keys() & config.keys():
        config[name] = _seconds(f"{name} in config_kwargs of S3", config[name])
    given.pop("client_kwargs", None)
    return Settings(**given, client=client, config=config)


def _checked(who: str, options: Any, checks: Mapping[str, Callable[[str, Any], Any]]) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in _mapping(who, options).items():
        if name not in checks:
            raise RecipeError(f"{who} know no {name!r}; {nearest(name, checks)}")
        if value is not None:
            checked[name] = checks[name](f"{name} in {who}", value)
    return checked


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RecipeError(f"{name} is {shown(value)}: it must be a dictionary")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        what = "of another type" if name.split(" ")[0] in (*_HIDDEN, *_OF_CLIENTS) else shown(value)
        raise RecipeError(f"{name} is {what}: it must be a text")
    return value


def _verify(name: str, value: Any) -> bool | str:
    if isinstance(value, bool):
        return value
    path = _text(name, os.fspath(value) if isinstance(value, os.PathLike) else value)
    if not os.path.exists(path):
        raise RecipeError(f"{name} is {path!r}: there is no such file")
    return path


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise RecipeError(f"{name} is {shown(value)}: it must be a number of seconds above 0")
    return value


_CLIENT = {"region_name": _text, "endpoint_url": _text, "verify": _verify, "use_ssl": flag}
_TIMEOUTS = {"connect_timeout": _seconds, "read_timeout": _seconds}
_OPTIONS = {
    **dict.fromkeys((*_HIDDEN, "profile"), _text),
    **dict.fromkeys(("anon", "requester_pays"), flag),
    **dict.fromkeys(("client_kwargs", "config_kwargs"), _mapping),
    **_CLIENT,
    **_TIMEOUTS,
}
