"""Measured figures of devices: how fast memory, launches and libraries are, and when a way of computing pays.

Open `model.py` first: it says what figures there are. `tuning/` holds one file of them per device, which
`data_file.py` reads.
"""

from coilwork_ir.machine.data_file import (
    TUNING,
    FindModel,
    MachineFileError,
    find_like_model,
    list_borrowed,
    read_entries,
    read_model,
)
from coilwork_ir.machine.model import MachineModel, change_figures

__all__ = [
    "TUNING",
    "FindModel",
    "MachineFileError",
    "MachineModel",
    "change_figures",
    "find_like_model",
    "list_borrowed",
    "read_entries",
    "read_model",
]
