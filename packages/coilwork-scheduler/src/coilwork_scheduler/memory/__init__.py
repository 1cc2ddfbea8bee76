"""The memory planner: a schedule becomes a program of allocations, launches and frees.

Open `plan.py` first. `liveness.py` says which names are one piece of memory and predicts the peak;
`pools.py` places buffers in shared blocks (`blocks.py`).
"""

from coilwork_scheduler.memory.liveness import Storage, StorageTable, analyse_liveness
from coilwork_scheduler.memory.plan import PlanOptions, plan

__all__ = ["PlanOptions", "Storage", "StorageTable", "analyse_liveness", "plan"]
