"""Where a lane stands in each dataset, and what is read and fetched for it before it is needed.

Row blocks are read ahead of where the lane stands, as far as its share of their cache has room; of remote shards the bytes behind
them are fetched further ahead still. The plan is known, so what is read ahead is exactly what comes.

Threads: everything belongs to the engine's loop.
"""

from collections.abc import Sequence
from typing import NamedTuple

from zephon_async.io import READS_AHEAD, Blocks
from zephon_async.lanes import Draw
from zephon_async.records import Part
from zephon_async.runners import Need


class Standing(NamedTuple):
    """The row block that a lane's dataset stands in, of which epoch, and its bytes."""

    unit: int
    block: int
    epoch: int
    nbytes: int


class Ahead:
    """What one lane reads next. most: row blocks of a dataset that are read ahead; streams: lanes times datasets; returns: whether
    the lane comes back to row blocks of a dataset, in the same epoch, when it has left them."""

    def __init__(self, lane: int, blocks: Blocks, most: int, streams: int, returns: Sequence[bool]) -> None:
        self.standing: dict[int, Standing] = {}
        self._lane, self._blocks, self._most, self._returns = lane, blocks, most, returns
        self._room_bytes = blocks.budget_bytes // (2 * streams)  # of row blocks read before they are needed
        self._largest: dict[int, int] = {}  # of the row blocks of each dataset lately, in bytes
        self._unread: dict[int, int] = {}  # parts of each dataset until more of it is to be read
        self._unfetched: dict[int, int] = {}  # and until more is to be fetched

    def need(self, draw: Draw, d: int, part: Part, later: Need) -> None:
        """A part of a dataset is needed now, and what follows `later`."""
        self._blocks.prefetch(d, [(part.unit, part.block)])
        if d not in self.standing:  # its first: what follows is fetched at the same time
            self._fetch(draw, d, later)

    def stand(self, draw: Draw, d: int, now: Standing, later: Need) -> None:
        """A dataset stands in another row block, or in the same of another epoch."""
        before = self.standing.get(d)
        if before is not None and before[:2] != now[:2] and not self._returns[d]:  # data of one row block begins again in it
            self._blocks.leave(d, before.unit, before.block)
            if (fetcher := self._blocks.fetches(d)) is not None:
                last = (before.unit, before.epoch) != (now.unit, now.epoch)
                fetcher.leave(d, before.epoch, before.unit, before.block, self._lane, last)
        self.standing[d] = now
        self._read(draw, d, now.nbytes, later)
        self._fetch(draw, d, later)

    def _read(self, draw: Draw, d: int, block_bytes: int, later: Need) -> None:
        """Let the next parts of a dataset be read; a quarter of them at a time, so only every so often."""
        self._unread[d] = self._unread.get(d, 0) - 1
        if self._unread[d] <= 0:
            self._largest[d] = max(block_bytes, self._largest.get(d, 0) * 7 // 8, 1)
            ahead = min(self._most, self._room_bytes // self._largest[d])
            self._blocks.prefetch(d, _places(draw, d, ahead), later)
            self._unread[d] = ahead // READS_AHEAD

    def _fetch(self, draw: Draw, d: int, later: Need) -> None:
        """Let what comes of a remote dataset be fetched; an extent at a time, so only every so often."""
        if (fetcher := self._blocks.fetches(d)) is None:
            return
        self._unfetched[d] = self._unfetched.get(d, 0) - 1
        if self._unfetched[d] <= 0:
            self._unfetched[d] = fetcher.ahead(d, _places(draw, d, fetcher.parts_ahead(d)), (*later, 1))


def _places(draw: Draw, d: int, ahead: int) -> list[tuple[int, int]]:
    """The units and row blocks of the parts that come."""
    return list(dict.fromkeys((part.unit, part.block) for part in draw.coming(d, ahead)))  # single rows may be of one row block
