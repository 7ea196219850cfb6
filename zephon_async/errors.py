"""Every exception of the package.

    ZephonError
    ├── RecipeError            the pipeline cannot be built as written (also a ValueError)
    ├── DatasetError           a dataset cannot be listed, or its shards disagree
    │   ├── ShardError         one shard cannot be read, since it is broken
    │   │   ├── StorageError   its bytes cannot be had
    │   │   │   └── MissingError   it is not there
    │   │   └── ColumnError    it has not the columns that are needed
    │   └── BadRecord          one record is not what was asked for
    ├── EstimationError        tokens per byte could not be measured
    ├── WorkerError            a runner lost a worker, or one cannot be started
    │   └── WorkerDied         worker processes died of a call, one after the other
    ├── CheckpointError        a state that cannot be restored here
    ├── ClosedError            the pipeline was closed, or its iterator was superseded
    └── InternalError          a law of the design is broken: a bug of ours, please report it

An exception of a user's own function keeps its type and gains notes (lane, operator, origin).
"""

import signal as signals


class ZephonError(Exception):
    """The root of the tree: catch this to catch everything the package raises by itself."""


class RecipeError(ZephonError, ValueError):
    """The pipeline cannot be built as written; the message says what to change."""


class DatasetError(ZephonError):
    """A dataset cannot be listed or planned."""


class ShardError(DatasetError):
    """One shard cannot be read. The message names the dataset, the shard, what was wanted and what was found."""


class StorageError(ShardError):
    """The bytes of a shard cannot be had: it is gone or forbidden, has changed, or its storage does not answer."""


class MissingError(StorageError):
    """A shard, or a file that must lie beside it, is not there."""


class ColumnError(ShardError):
    """A shard has not the columns that are needed."""


class BadRecord(DatasetError):
    """One record is not what was asked for. The message names the dataset, the shard, the row or line and the reason.

    Functions given to `map` and its siblings may raise it too; `on_bad_record="quarantine"` then skips the record.
    """


class EstimationError(ZephonError):
    """The tokens per byte of a dataset could not be measured."""


class WorkerError(ZephonError):
    """A runner lost a worker or could not start one."""


class WorkerDied(WorkerError):
    """Worker processes died of a call. `signal`: by which the last two died, where it is one that a process has of its own doing
    (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL); else None."""

    def __init__(self, text: str, signal: signals.Signals | None = None) -> None:
        super().__init__(text)
        self.signal = signal


class CheckpointError(ZephonError):
    """A state that cannot be restored into this pipeline. The message lists what differs or is missing."""


class ClosedError(ZephonError):
    """The pipeline was closed, or a newer iteration has taken the place of this one."""


class InternalError(ZephonError):
    """A law of the design does not hold: a bug of this package."""
