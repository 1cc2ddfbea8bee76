"""Kernel IR: what one launch does, in no target's syntax.

Open `nodes.py` first. `text.py` and `parser.py` are its text, `verify.py` its rules, `interpreter.py` its
meaning; the other files hold facts about kernels and rewrites of them.
"""

from coilwork_ir.kernels.nodes import (
    Candidate,
    ComboKernel,
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
    "ComboKernel",
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
