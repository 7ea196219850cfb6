"""The traffic: from a compiled pipeline to microbatches, on an event loop in a thread of its own."""

from zephon_async.engine.agreement import GlooAgreement
from zephon_async.engine.budget import Budget
from zephon_async.engine.compile import Chain, Link, compile_chain
from zephon_async.engine.deadly import Deadly
from zephon_async.engine.engine import CLOSE_S, HURRY_S, Engine
from zephon_async.engine.gather import Policy
from zephon_async.engine.guard import guards, warn_of_changes
from zephon_async.engine.placement import CHOSEN, PLACES
from zephon_async.engine.prepare import Prepared, prepare
from zephon_async.engine.recipe import Known, Spec, differences
from zephon_async.engine.run import Failed, Finished, Ready, Run, Taken, held_here, lets_go
from zephon_async.engine.stats import Consumed, StageStatistics, Statistics

__all__ = [
    "CHOSEN",
    "CLOSE_S",
    "HURRY_S",
    "PLACES",
    "Budget",
    "Chain",
    "Consumed",
    "Deadly",
    "Engine",
    "Failed",
    "Finished",
    "GlooAgreement",
    "Known",
    "Link",
    "Policy",
    "Prepared",
    "Ready",
    "Run",
    "Spec",
    "StageStatistics",
    "Statistics",
    "Taken",
    "compile_chain",
    "differences",
    "guards",
    "held_here",
    "lets_go",
    "prepare",
    "warn_of_changes",
]
