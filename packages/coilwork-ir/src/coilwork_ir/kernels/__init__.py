"""Kernel IR: what one launch does, in no target's syntax.

Open `nodes.py` first. `text.py`, `verify.py` and `interpret.py` are its text, its rules and its meaning;
`cores/` has convolutions and attention, and the other files hold facts about kernels.
"""

from coilwork_ir.kernels.nodes import (
    Candidate,
    Combined,
    Decision,
    Kernel,
    KernelCall,
    Member,
    Proposal,
    Range,
    Schedule,
    Step,
    Store,
    TensorArg,
)

__all__ = [
    "Candidate",
    "Combined",
    "Decision",
    "Kernel",
    "KernelCall",
    "Member",
    "Proposal",
    "Range",
    "Schedule",
    "Step",
    "Store",
    "TensorArg",
]
