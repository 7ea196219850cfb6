"""Whether the data of a restored run is that of its checkpoint, as far as times and entity tags tell.

Names and sizes of shards are part of the recipe, and other ones are refused. Times and tags are not, since they change where data
is copied: a difference is only said. Kept in the checkpoint is one short hash a dataset. In-memory data has no tags.
"""

import hashlib
import logging
from collections.abc import Sequence

import msgspec

from zephon_async.io import Dataset

_log = logging.getLogger("zephon_async")


def guards(datasets: Sequence[Dataset]) -> tuple[bytes, ...]:
    """What changes when a shard of a dataset does, for each dataset: six bytes of a SHA-256."""
    return tuple(hashlib.sha256(msgspec.msgpack.encode(d.guard(), order="deterministic")).digest()[:6] for d in datasets)


def warn_of_changes(saved: Sequence[Sequence[bytes]], datasets: Sequence[Dataset]) -> None:
    """Log the datasets that are as in none of the states that were saved; ranks may each have had a copy of their own."""
    now = guards(datasets)
    if changed := [repr(d.name) for i, d in enumerate(datasets) if all(each[i] != now[i] for each in saved)]:
        _log.warning(
            "dataset %s: the times or entity tags of its shards are not those of the checkpoint, their names and sizes are. If the "
            "data was only copied or moved, all is well; if a shard has other content, what follows is not what the run would "
            "have given: put the old data back, or start anew",
            ", ".join(changed),
        )
