"""The memory planner: a schedule becomes a program of allocations, launches and frees.

Open `plan.py` first. `storage.py` says which names are one piece of memory, `pools.py` places buffers in
shared blocks (allocated before the first and freed with the last), `peak.py` predicts the peak.
"""

from coilwork_scheduler.memory.liveness import Storage, StorageTable, analyse_liveness
from coilwork_scheduler.memory.plan import PlanOptions, plan

__all__ = ["PlanOptions", "Storage", "StorageTable", "analyse_liveness", "plan"]
