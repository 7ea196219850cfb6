"""File systems as other packages write them for fsspec, over a tree in memory: with blocking calls, and with coroutines.

`Tree` is what all instances of a class share; its `fault` is asked at each call. Classes are made for one test: `made_class`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem


@dataclass
class Tree:
    """files: by path. info: more of what is known of each. fault: of a call (method, path). made: options of each instance."""

    files: dict[str, bytes] = field(default_factory=dict)
    info: dict[str, dict[str, Any]] = field(default_factory=dict)
    fault: Callable[[str, str], BaseException | None] = lambda method, path: None
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    made: list[dict[str, Any]] = field(default_factory=list)
    threads: dict[int, set[int]] = field(default_factory=dict)
    """The threads that called each instance, by its place in `made`."""

    def enter(self, number: int, method: str, path: str, **options: Any) -> None:
        self.calls.append((method, path, options))
        self.threads.setdefault(number, set()).add(threading.get_ident())
        if (error := self.fault(method, path)) is not None:
            raise error

    def entry(self, path: str) -> dict[str, Any]:
        return {"name": path, "size": len(self.files[path]), "type": "file", **self.info.get(path, {})}

    def entries(self, folder: str) -> list[dict[str, Any]]:
        inside = {path[len(folder) + 1 :].split("/")[0] for path in self.files if path.startswith(f"{folder}/")}
        if not inside:
            if folder in self.files:
                return [self.entry(folder)]
            raise FileNotFoundError(folder)
        paths = [f"{folder}/{name}" for name in sorted(inside)]
        return [self.entry(path) if path in self.files else {"name": path, "size": 0, "type": "directory"} for path in paths]

    def one(self, path: str) -> dict[str, Any]:
        if path in self.files:
            return self.entry(path)
        if any(name.startswith(f"{path}/") for name in self.files):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def bytes_of(self, path: str, start: int | None, end: int | None) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][start:end]


def blocking(tree: Tree) -> type[AbstractFileSystem]:
    """A class of blocking calls."""

    class Blocking(AbstractFileSystem):  # type: ignore[misc]
        protocol = "made"

        def __init__(self, token: str = "", **options: Any) -> None:
            self.number = len(tree.made)
            tree.made.append({"token": token, **options})
            tree.enter(self.number, "make", token)
            super().__init__(**options)

        def ls(self, path: str, detail: bool = True, **options: Any) -> list[dict[str, Any]]:
            tree.enter(self.number, "ls", path)
            return tree.entries(path)

        def info(self, path: str, **options: Any) -> dict[str, Any]:
            tree.enter(self.number, "info", path)
            return tree.one(path)

        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
            tree.enter(self.number, "cat_file", path, **options)
            return tree.bytes_of(path, start, end)

    return Blocking


def coroutines(tree: Tree) -> type[AsyncFileSystem]:
    """A class of coroutines."""

    class Coroutines(AsyncFileSystem):  # type: ignore[misc]
        protocol = "made"

        def __init__(self, token: str = "", **options: Any) -> None:
            self.number = len(tree.made)
            tree.made.append({"token": token, **options})
            tree.enter(self.number, "make", token)
            super().__init__(**options)

        async def _ls(self, path: str, detail: bool = True, **options: Any) -> list[dict[str, Any]]:
            tree.enter(self.number, "ls", path)
            return tree.entries(path)

        async def _info(self, path: str, **options: Any) -> dict[str, Any]:
            tree.enter(self.number, "info", path)
            return tree.one(path)

        async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
            tree.enter(self.number, "cat_file", path, **options)
            return tree.bytes_of(path, start, end)

    return Coroutines
