"""Coilwork's scheduler and memory planner: loop IR to kernels to a program.

Open `pipeline.py` first: the passes in order, with reasons. Each folder is one pass or a few that belong
together, and `memory/` plans allocations.
"""

from coilwork_scheduler.cost_model import CostModel, KernelWork, RooflineCost
from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.optimization_remarks import explain
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.pipeline import schedule

__version__ = "0.1.0"

__all__ = [
    "CostModel",
    "KernelWork",
    "RooflineCost",
    "ScheduleError",
    "ScheduleOptions",
    "explain",
    "schedule",
]
