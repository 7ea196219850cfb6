"""A child process of ours, from both of its ends: started as `python -m MODULE`, with a socket and arenas that are shared with it.

It is started, not forked, so a script needs no main guard and no lock is inherited. It leads a session of its own: Ctrl-C does not
reach it, and what it has started itself ends with it. It ends when its socket closes, whoever closed it and however.

Threads: a `Child` is for one at a time, but for `kill`. `_loads` is set by the main thread of a child, and read by those that
a module starts where it is imported.
"""

import contextlib
import json
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zephon_async.errors import WorkerError
from zephon_async.runners.arena import Arena, above_stdio

_SETUP = "ZEPHON_CHILD"  # the variable that says with what a child begins, see `_environment`
_LOG = "zephon_async"
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
# What libraries read when they are loaded: as many workers run as there are cores.
ALONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "ARROW_IO_THREADS"), "1")
ALONE |= {"TOKENIZERS_PARALLELISM": "false"}
_loads = threading.Event()  # in a child: what it was sent is being loaded


class Ended(NamedTuple):
    """How a child ended: by its exit code, or by a signal, whose number is then below 0."""

    code: int

    @property
    def own_signal(self) -> signal.Signals | None:
        """The signal that it died of, where that is of its own doing."""
        return signal.Signals(-self.code) if -self.code in _OWN_SIGNALS else None

    def __str__(self) -> str:
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"was killed by signal {-self.code}"


class Child:
    """The parent's end. stderr: a descriptor in place of this process's. settings: variables that are not set already."""

    def __init__(
        self, module: str, arenas: Sequence[Arena], *, stderr: int | None = None, settings: dict[str, str] | None = None
    ) -> None:
        """Takes the arenas over. Raises `WorkerError` where the system gives no process or no descriptor, and in `load`."""
        self.arenas = arenas
        if _loads.is_set():
            _close_all(arenas)
            raise WorkerError(
                "a module starts a pipeline where it is imported, and a child process imports it for a function that is defined "
                "there; it would start processes without end: put what it runs behind `if __name__ == '__main__':` or into a "
                "function"
            )
        try:
            self.socket, theirs = (socket.socket(fileno=above_stdio(end.detach())) for end in socket.socketpair())
        except OSError as error:
            _close_all(arenas)
            raise cannot_start(error) from error
        descriptors = (theirs.fileno(), *(arena.descriptor for arena in arenas))
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # such as -X utf8
        flags = [flag for flag in flags if flag not in ("-I", "-E")]  # with these it would not read where this package is
        command = [sys.executable, *flags, "-P", "-u", "-m", module, *map(str, descriptors)]
        self.watch: int | None = None
        try:
            self._popen = subprocess.Popen(
                command,
                env=_environment(settings or {}),
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            self._close()
            raise cannot_start(error) from error
        finally:
            theirs.close()
        self.pid = self._popen.pid
        with contextlib.suppress(OSError):
            self.watch = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None

    def kill(self) -> None:
        """Kill it and what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self, timeout_s: float) -> "Ended":
        """Wait until it has ended, and kill what is left then; gives how it ended."""
        if self.watch is not None:
            poll = select.poll()
            poll.register(self.watch, select.POLLIN)
            poll.poll(timeout_s * 1000)
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout_s)
        self.kill()
        code = self._popen.wait()
        self._close()
        return Ended(code)

    def forked(self) -> None:
        """In a forked process: it is none of its children, and the parent's end of the socket must be the only one."""
        self._popen.returncode = 0
        self._close()

    def _close(self) -> None:
        self.socket.close()
        _close_all(self.arenas)
        if self.watch is not None:
            os.close(self.watch)
            self.watch = None


def new_arenas(n: int) -> list[Arena]:
    """Raises `WorkerError` where the system gives no descriptors."""
    arenas: list[Arena] = []
    try:
        for _ in range(n):
            arenas.append(Arena.new())  # noqa: PERF401 (those that were made are closed)
    except OSError as error:
        _close_all(arenas)
        raise cannot_start(error) from error
    return arenas


def _close_all(arenas: Sequence[Arena]) -> None:
    for arena in arenas:
        arena.close()


def cannot_start(error: OSError) -> WorkerError:
    """What is said where the system refuses a process or what it needs."""
    return WorkerError(
        f"a worker process cannot be started ({error}): use fewer, options(workers=...), or raise the limit of open "
        "files or of processes"
    )


class Says(logging.Handler):
    """In the child: what this package has to say goes to the parent, which logs it."""

    def __init__(self, say: Callable[[tuple[int, str]], None]) -> None:
        super().__init__()
        self._say = say
        log = logging.getLogger(_LOG)
        log.addHandler(self)
        log.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._say((record.levelno, record.getMessage()))


def begun(patience_s: float = 0.0) -> tuple[socket.socket, list[Arena]]:
    """In the child: its ends of the socket and the arenas. It has `patience_s` to end by itself once the socket has closed."""
    setup: dict[str, Any] = json.loads(os.environ.pop(_SETUP))
    sys.path[:] = setup["path"]
    os.environ.pop("PYTHONPATH", None)
    if setup["pythonpath"] is not None:
        os.environ["PYTHONPATH"] = setup["pythonpath"]
    logging.getLogger(_LOG).setLevel(setup["level"])
    descriptors = list(map(int, sys.argv[1:]))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with, args=(descriptors[0], patience_s), name="zephon-watch", daemon=True).start()
    return socket.socket(fileno=descriptors[0]), [Arena(each) for each in descriptors[1:]]


def load(pickled: Any, buffers: Sequence[memoryview] = ()) -> Any:
    """In the child: what it was sent. Modules that are imported for it cannot start children: each of these would do the same."""
    _loads.set()
    try:
        return pickle.loads(pickled, buffers=buffers)
    finally:
        _loads.clear()


def _end_with(of_socket: int, patience_s: float) -> None:
    """End this process when the other end of a socket is closed, also in the middle of foreign code."""
    poll = select.poll()
    poll.register(of_socket, getattr(select, "POLLRDHUP", 0))  # hanging up is told of in any case
    poll.poll()
    threading.Event().wait(patience_s)
    os._exit(0)


def _environment(settings: dict[str, str]) -> dict[str, str]:
    """What a child begins with: this environment, with a path on which it finds this package."""
    entries = [entry for entry in sys.path if isinstance(entry, str)]  # as the import system does
    setup = {"path": entries, "pythonpath": os.environ.get("PYTHONPATH"), "level": logging.getLogger(_LOG).getEffectiveLevel()}
    path = os.pathsep.join(entry or os.getcwd() for entry in entries)
    return settings | os.environ | {"PYTHONPATH": path, _SETUP: json.dumps(setup)}
