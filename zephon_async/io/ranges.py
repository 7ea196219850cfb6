"""Where bytes of a storage are: at which place, in which object, from where to where. Values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zephon_async.io.stores import Object, shown

_WHERE = ("endpoint_url", "endpoint", "host", "port", "account_host", "account_name", "AccountName", "BlobEndpoint")


@dataclass(frozen=True, slots=True, repr=False)
class Place:
    """What is connected to, and how: the root of its URLs, and storage options. Two of the same have one connection."""

    root: str
    options: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    known_by: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known_by", repr(_in_order(self.options)))

    def __repr__(self) -> str:
        return f"Place(root={shown(self.root)!r})"

    @property
    def name(self) -> str:
        """Where it is, whoever asks: the root, and of what is not the usual one the endpoint, account or host."""
        inner = self.options.get("client_kwargs")
        said = {**(inner if isinstance(inner, Mapping) else {}), **_pairs(self.options.get("connection_string")), **self.options}
        where = [str(said[name]) for name in _WHERE if said.get(name)]
        return f"{self.root} at {' '.join(where)}" if where else self.root


def _pairs(connection_string: object) -> dict[str, str]:
    """What a connection string of Azure says."""
    pairs = (pair.partition("=") for pair in str(connection_string or "").split(";"))
    return {name: value for name, _, value in pairs if value}


class Range(NamedTuple):
    """Bytes of an object; `name` is what messages call it."""

    name: str
    place: Place
    found: Object
    offset: int
    length: int


def _in_order(options: Any) -> Any:
    """The same options as lists in the order of their names."""
    if isinstance(options, Mapping):
        return [(name, _in_order(options[name])) for name in sorted(options, key=repr)]
    return options
