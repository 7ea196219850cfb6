"""Files of this package in the temporary folder, named after their owner, and what a crash or a power cut has left of them.

    zephon-<machine>-<boot>-<processes>-<process>-<start>-<chance>

machine: a hash of its name and id; boot: of the boot id; processes: of the name space that process numbers are of, as containers
share a boot and not these; start: when the process started, in ticks since the boot; chance: as `tempfile` makes it. What is of
this machine and of another boot, or of a process of this name space that is not there any more, belongs to nobody. All else is left
alone.
"""

import hashlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_OURS = "zephon-"
OWNED = re.compile(rf"{_OURS}([0-9a-f]{{8}})-([0-9a-f]{{8}})-([0-9a-f]{{8}})-([0-9]+)-([0-9]+)-[a-z0-9_]{{8}}")
"""A whole name that begins with what `owned` gives."""


class Leftover(NamedTuple):
    """A file or folder that belongs to nobody; nbytes: of all that it holds."""

    path: Path
    nbytes: int

    def remove(self) -> None:
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


def owned() -> str:
    """What the name of a temporary file or folder of this process begins with."""
    return f"{_OURS}{_machine()}-{_boot()}-{_processes()}-{os.getpid()}-{_start(os.getpid())}-"


def leftovers(folder: Path | None = None) -> Iterator[Leftover]:
    """What belongs to nobody in a folder; None: in the temporary folder."""
    for path in sorted((folder or Path(tempfile.gettempdir())).iterdir()):
        if (name := OWNED.fullmatch(path.name)) is not None and _is_nobodys(*name.groups()):
            yield Leftover(path, _nbytes(path))


def _is_nobodys(machine: str, boot: str, processes: str, process: str, start: str) -> bool:
    if machine != _machine():
        return False
    if boot != _boot():
        return True
    return processes == _processes() and _start(int(process)) != int(start)


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _machine() -> str:
    return _hashed(socket.gethostname() + _read("/etc/machine-id"))


def _boot() -> str:
    return _hashed(_read("/proc/sys/kernel/random/boot_id"))


def _processes() -> str:
    try:
        return _hashed(os.readlink("/proc/self/ns/pid"))
    except OSError:
        return _hashed("")


def _start(process: int) -> int:
    """When a process started; 0 where there is none of that number. Where the system does not tell when, 1."""
    if Path("/proc/self/stat").exists():
        stat = _read(f"/proc/{process}/stat").rpartition(")")[2].split()
        return int(stat[19]) if len(stat) > 19 else 0
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return 0
    except PermissionError:
        pass
    return 1


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _nbytes(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(each.lstat().st_size for each in path.rglob("*") if not each.is_dir())
