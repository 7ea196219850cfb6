"""The settings of a run: one frozen value that checks itself, and the table of what decides the data.

Recipe settings decide the data and are fingerprinted; performance settings may change at any time. No default of a recipe
setting comes from dp_size, cores or memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from inspect import iscoroutinefunction
from os import PathLike
from typing import Any, Literal

from zephon_async.checks import check_version, checks_call, flag, one_of, refuse_unknown, whole
from zephon_async.errors import RecipeError

RECIPE = ("lanes", "microbatches_per_step", "flush_every", "on_end", "on_bad_record", "version")
"""Of the options below, those that decide the data. Sources, datasets and operators add their own `settings()`."""

ALIASES = {"canonical_replicas": "lanes", "dp_degree": "dp_size", "dp_group_id": "dp_rank", "max_workers": "workers"}
ALIASES |= {"mtp_mode": "isolate", "prefetch_batches": "prefetch", "auto_validation": "validate"}
"""The reference library's names."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "on_end": ("drop", "pad"),
    "on_bad_record": ("raise", "quarantine"),
    "validate": ("warn", "strict", "off"),
}
_LEAST = {"dp_rank": 0}
_LEAST |= dict.fromkeys(("lanes", "dp_size", "prefetch", "chunk_rows", "flush_every", "read_ahead"), 1)
_LEAST |= dict.fromkeys(("workers", "microbatches_per_step"), 1)
"""Settings that are whole numbers, and the least that each may be."""


@checks_call
@dataclass(frozen=True, slots=True)
class Options:
    """Settings of `Pipeline.options(...)`. Each is checked by itself; what they must be together, when the pipeline starts.

    lanes: logical streams, each with an order of its own; must be given when dp_size > 1.
    dp_size, dp_rank: data-parallel size and rank.
    microbatches_per_step: of a global batch, a multiple of the lanes (None: one a lane).
    runner: where work runs, "threads", "processes", "inline", or "auto": threads where there is no GIL or an operator lets go of
        it, else processes. per_stage_runner: the same by the names of operators. `explain()` says what came of it.
    workers: how many calls at once (None: one a core, at least 2), on threads and on processes.
    isolate: run all of the engine in a child process, which hands the batches over in shared memory; for trainers whose Python is
        not to be disturbed. What the child may use is up to `runner`.
    worker_timeout_s: seconds that a call in a worker process may take; the worker is killed then, and the call made again, twice.
    prefetch: microbatches that each lane makes ahead of the consumer, beyond what its operators must hold.
    chunk_rows: rows dispatched as one, at most; fewer where they are large or take long.
    flush_every: rows of a segment, at whose end accumulators without marks are flushed.
    memory_budget: bytes, or text such as "2GiB".
    on_end: with finite epochs, "drop" stops at the last full step, "pad" fills with masked rows.
    agree: a collective of all ranks, int -> int: the minimum for "drop", the maximum for "pad" (None: torch.distributed).
    on_bad_record: "raise", or "quarantine" to skip, count and log. One that its reader finds bad takes no place in the mixture.
    max_bad: how many of a dataset a lane may skip before the run ends, in the place of the one that is too many; or, as a float,
        the share of a dataset's rows, judged at the end of each segment.
    bad_records_dir: a folder of this machine, or one that ranks share, in which each rank appends a line of JSON for each record
        that was skipped, when the rows behind it are delivered: where it comes from, why, and its first bytes.
    read_ahead: row blocks that each lane reads ahead of each dataset, as far as the budget's share for that has room.
    validate: what becomes of what is found wrong with users' functions and operators, by their source and by trying them on some of
        the first rows (see `check_operator`): "warn" in the log, "strict" refuses to start, "off" does not look. What runs in
        worker processes is not tried, as it may kill its process: `Pipeline.validate` tries it.
    version: any text or whole number of the user's that is part of the recipe.
    io_options: how remote shards are read: see `io.StorageOptions`; {"cache": {"enabled": True, "root": ..., "limit": "200GB"}}
        keeps what was fetched on a local disk.
    """

    lanes: int | None = None
    dp_size: int = 1
    dp_rank: int = 0
    microbatches_per_step: int | None = None
    runner: str = "auto"
    per_stage_runner: Mapping[str, str] = field(default_factory=dict)
    workers: int | None = None
    worker_timeout_s: float | None = None
    isolate: bool = False
    prefetch: int = 4
    chunk_rows: int = 1024
    flush_every: int = 8192
    memory_budget: int | str = 1 << 30
    on_end: Literal["drop", "pad"] = "drop"
    agree: Callable[[int], int] | None = field(default=None, repr=False)
    on_bad_record: Literal["raise", "quarantine"] = "raise"
    max_bad: int | float = 1000
    bad_records_dir: str | PathLike[str] | None = None
    read_ahead: int = 16
    validate: Literal["warn", "strict", "off"] = "warn"
    version: str | int | None = None
    io_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name in _LEAST and (value is not None or setting.default is not None):
                object.__setattr__(self, setting.name, whole(setting.name, value, _LEAST[setting.name]))
        for name, choices in _CHOICES.items():
            one_of(name, getattr(self, name), choices)
        if not isinstance(self.max_bad, float):
            object.__setattr__(self, "max_bad", whole("max_bad", self.max_bad, 0))
        elif not 0 <= self.max_bad <= 1:
            raise RecipeError(f"max_bad is {self.max_bad}: it must be a whole number of records, or a share from 0.0 to 1.0")
        if self.bad_records_dir is not None and not isinstance(self.bad_records_dir, str | PathLike):
            raise RecipeError(f"bad_records_dir is {self.bad_records_dir!r:.80}: it must be the path of a folder")
        if self.agree is not None and (not callable(self.agree) or iscoroutinefunction(self.agree)):
            raise RecipeError(f"agree is {self.agree!r}: it must be a plain function of one number that all ranks call together")
        check_version("version", self.version)
        flag("isolate", self.isolate)
        if not isinstance(self.per_stage_runner, Mapping):
            raise RecipeError(f"per_stage_runner is {self.per_stage_runner!r}: it must be a dict such as {{'map': 'processes'}}")
        if self.worker_timeout_s is not None:
            seconds = self.worker_timeout_s
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
                raise RecipeError(f"worker_timeout_s is {seconds!r}: it must be a number of seconds above 0, or None")
        if not isinstance(self.io_options, Mapping):
            raise RecipeError(f"io_options is {self.io_options!r}: it must be a dict of settings, such as {{'cache': {{...}}}}")
        parse_bytes(self.memory_budget)

    @property
    def budget_bytes(self) -> int:
        return parse_bytes(self.memory_budget)

    def changed(self, settings: Mapping[str, Any]) -> "Options":
        """These options with others in their place. Unknown names are refused with the nearest right one."""
        known = [f.name for f in fields(self)]
        refuse_unknown("options", settings, [*known, *ALIASES])
        chosen: dict[str, Any] = {}
        for name, value in settings.items():
            right = ALIASES.get(name, name)
            if right in chosen:
                raise RecipeError(f"options() was given {right!r} twice: {name!r} is another name of it")
            chosen[right] = value
        return replace(self, **chosen)


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def parse_bytes(size: int | str, name: str = "memory_budget") -> int:
    """Bytes of a whole number or of text such as "512MiB" or "2 GB". name: of the setting, for the message."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    if isinstance(size, str):
        number = size.strip().rstrip("BbKkMmGgTtIi ")
        unit = size.strip()[len(number) :].strip().lower()
        try:
            if unit in _UNITS and (found := int(float(number) * _UNITS[unit])) > 0:
                return found
        except (ValueError, OverflowError):
            pass
    raise RecipeError(f"{name} is {size!r}: give bytes as a positive whole number, or text such as '2GiB'")
