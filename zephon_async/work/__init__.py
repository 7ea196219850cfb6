"""What to train on: sources, and the plan they make. Computed; no state, no payload."""

from zephon_async.work.base import Plan, Unit, WorkSource
from zephon_async.work.estimation import TokenEstimation, measured
from zephon_async.work.mixture import ScheduledMixtureWorkSource, StaticMixtureWorkSource, target_of
from zephon_async.work.plan import DatasetPlan, LaneStream, sample_blocks
from zephon_async.work.schedule import MixtureSchedule
from zephon_async.work.simulate import ShuffleQuality, simulate
from zephon_async.work.weights import MixtureSpec, Weights

__all__ = [
    "DatasetPlan",
    "LaneStream",
    "MixtureSchedule",
    "MixtureSpec",
    "Plan",
    "ScheduledMixtureWorkSource",
    "ShuffleQuality",
    "StaticMixtureWorkSource",
    "TokenEstimation",
    "Unit",
    "Weights",
    "WorkSource",
    "measured",
    "sample_blocks",
    "simulate",
    "target_of",
]
