"""The rules of order, which never wait: who works what, which row comes next, and where a lane stands."""

from zephon_async.lanes.cursor import BadCounts, Cursor, Edge, Mark, Trail
from zephon_async.lanes.draw import Coordinates, Draw, Mixture, OnExhausted, Rule, Run, Shares
from zephon_async.lanes.head import Stream
from zephon_async.lanes.skips import Skips
from zephon_async.lanes.state import PartialStep, RankState, Start, resume, spans
from zephon_async.lanes.topology import Topology

__all__ = [
    "BadCounts",
    "Coordinates",
    "Cursor",
    "Draw",
    "Edge",
    "Mark",
    "Mixture",
    "OnExhausted",
    "PartialStep",
    "RankState",
    "Rule",
    "Run",
    "Shares",
    "Skips",
    "Start",
    "Stream",
    "Topology",
    "Trail",
    "resume",
    "spans",
]
