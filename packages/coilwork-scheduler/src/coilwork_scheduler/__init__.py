"""Coilwork's scheduler and memory planner: loop IR to kernels to a program."""

from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.pipeline import schedule

__version__ = "0.1.0"

__all__ = ["ScheduleError", "ScheduleOptions", "schedule"]
