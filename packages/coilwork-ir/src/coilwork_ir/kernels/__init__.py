"""Kernel IR: what one launch does."""

from coilwork_ir.kernels.nodes import (
    Combined,
    Decision,
    Hints,
    Kernel,
    KernelCall,
    Likely,
    Member,
    Range,
    Schedule,
    Step,
    Store,
    TensorArg,
)

__all__ = [
    "Combined",
    "Decision",
    "Hints",
    "Kernel",
    "KernelCall",
    "Likely",
    "Member",
    "Range",
    "Schedule",
    "Step",
    "Store",
    "TensorArg",
]
