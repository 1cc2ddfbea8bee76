"""The memory planner: a schedule becomes a program of allocations, launches and frees."""

from coilwork_scheduler.memory.plan import PlanOptions, plan
from coilwork_scheduler.memory.storage import Storage, StorageTable, analyse

__all__ = ["PlanOptions", "Storage", "StorageTable", "analyse", "plan"]
