"""Files of this package in the temporary folder, named after their owner, and what a crash or a power cut has left of them.

    zephon-<boot>-<process>-<start>-<chance>

boot: the first letters of the system's boot id; start: when the process started, in ticks since then; both "0" where the system
does not tell. What is of another boot, or of a process that is not there any more, belongs to nobody.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_OURS = "zephon-"


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
    return f"{_OURS}{_boot()}-{os.getpid()}-{_start(os.getpid()) or 0}-"


def leftovers(folder: Path | None = None) -> Iterator[Leftover]:
    """What belongs to nobody in a folder; None: in the temporary folder."""
    for path in sorted((folder or Path(tempfile.gettempdir())).glob(f"{_OURS}*-*-*-*")):
        boot, process, start = path.name.removeprefix(_OURS).split("-")[:3]
        if process.isdecimal() and start.isdecimal() and not _alive(boot, int(process), int(start)):
            yield Leftover(path, _nbytes(path))


def _alive(boot: str, process: int, start: int) -> bool:
    if boot != _boot():
        return False
    now = _start(process)
    if now is not None:
        return start in (0, now)
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:8]
    except OSError:
        return "0"


def _start(process: int) -> int | None:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _nbytes(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(each.lstat().st_size for each in path.rglob("*") if not each.is_dir())
